"""The KVStore: its kinds, keys and operations, and what workers agree on."""

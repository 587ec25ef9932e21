"""KVStore: its kinds and keys, and what workers sum and exchange by it."""

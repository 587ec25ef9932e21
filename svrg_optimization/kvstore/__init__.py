"""KVStore: its kinds, keys and operations, and the agreement of the workers."""

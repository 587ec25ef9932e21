"""What MXNet lacks on today's Python and NumPy; workarounds for its KVStore, executors and JSON."""

"""What MXNet lacks on today's Python and NumPy, and workarounds for its KVStore."""

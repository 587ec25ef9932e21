"""What MXNet lacks on today's Python and NumPy, and what its KVStore forces on its users."""

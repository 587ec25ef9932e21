"""Data iterators, and the rows and padding of a batch."""

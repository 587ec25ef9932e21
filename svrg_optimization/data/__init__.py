"""Iterators, and the rows and the padding of a batch."""

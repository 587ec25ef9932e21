"""Checkpoints: their files, their format, and resuming from them."""

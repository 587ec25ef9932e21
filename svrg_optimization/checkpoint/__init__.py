"""Checkpoints: their files, what these hold, and how a module goes on from them."""

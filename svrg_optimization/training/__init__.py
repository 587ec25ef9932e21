"""Training of a Module: the loop, its snapshots, and what the optimizer does."""

"""The learning rate that snapshots set: its rule, the rollback, secant pairs, scales."""

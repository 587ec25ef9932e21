"""MXNet's Module as a front end: its executors, and gradients at the snapshot."""

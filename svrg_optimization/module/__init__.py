"""MXNet's Module as a front end: the loop, its snapshots, and access to executors."""

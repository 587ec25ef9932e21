"""Access to the internals of MXNet's modules and optimizers."""

"""What the algorithm reads and changes inside of a Module."""

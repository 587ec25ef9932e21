"""Algorithm: snapshot, full gradient, and the correction of a gradient."""

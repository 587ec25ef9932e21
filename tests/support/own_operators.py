"""An operator of a user's own."""


class Cap:
    """An upper bound, by the protocol alone."""

    def __init__(self, bound):
        self.bound = bound

    def prox(self, weight, step_size):
        """Clip the weight."""
        weight.clip(-1e30, self.bound, out=weight)

    def value(self, weight):
        """Return 0 or infinity."""
        return 0. if weight.max().asscalar() <= self.bound else float('inf')

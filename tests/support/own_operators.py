"""An operator of a user's own, in a module that servers import too."""


class Cap:
    """An upper bound, by the protocol alone."""

    is_elementwise = True

    def __init__(self, bound):
        self.bound = bound

    def prox(self, weight, step_size):
        """Clip the weight."""
        weight.clip(-1e30, self.bound, out=weight)

    def value(self, weight):
        """Return 0 or infinity."""
        return 0. if weight.max().asscalar() <= self.bound else float('inf')


class WholeCap(Cap):
    """The same operator, which does not say that it is elementwise: it must get whole weights."""

    is_elementwise = False

    def __init__(self, bound, shape):
        super().__init__(bound)
        self.shape = shape

    def prox(self, weight, step_size):
        """Clip the weight if it has its shape."""
        assert weight.shape == self.shape, weight.shape
        super().prox(weight, step_size)


class Unsendable(Cap):
    """An operator that cannot be sent to servers."""

    def __reduce__(self):
        raise RuntimeError('not this one')

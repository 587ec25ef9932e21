"""The snapshot in force, as modules that share their weights share it."""


class Snapshot:
    """What is known at the weights of the last snapshot.

    The weights themselves are those of the auxiliary module.

    Attributes
    ----------
    full_gradient : FullGradient or None
        The full gradient there; zeros before the first snapshot, None where
        there is not even an optimizer yet.
    """

    def __init__(self):
        self.full_gradient = None

    @property
    def in_force(self):
        """Whether a pass for the full gradient was finished."""
        return self.full_gradient is not None and self.full_gradient.rows > 0

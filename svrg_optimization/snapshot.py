"""The snapshot in force, as modules that share their weights share it."""


class Snapshot:
    """What is known at the weights of the last snapshot.

    The weights themselves are those of the auxiliary module.

    Attributes
    ----------
    full_gradient : FullGradient or None
        The full gradient there; zeros before the first snapshot, None where
        there is not even an optimizer yet.
    epoch : int or None
        The epoch of ``fit`` at whose beginning it was taken.
    taken_at : int
        Updates that had been made when it was taken.
    num_update : int
        Updates that have been made, by all modules that share it.
    backwards_to_correct : int
        Backward passes whose gradients have not been corrected yet.
    """

    def __init__(self):
        self.full_gradient = None
        self.epoch = None
        self.taken_at = 0
        self.num_update = 0
        self.backwards_to_correct = 0

    @property
    def in_force(self):
        """Whether a pass for the full gradient was finished."""
        return self.full_gradient is not None and self.full_gradient.finished

    def replace(self, full_gradient, epoch=None):
        """Put the full gradient of a new snapshot in the place of the old one's."""
        self.full_gradient = full_gradient
        self.epoch = None if epoch is None else int(epoch)
        self.taken_at = self.num_update

"""The snapshot in force, as modules that share their weights share it."""

import contextlib
from typing import Any, NamedTuple, Optional


class _Taken(NamedTuple):
    full_gradient: Any
    epoch: Optional[int]
    taken_at: int


class Snapshot:
    """What is known at the weights of the last snapshot.

    The weights themselves are those of the auxiliary module.

    Attributes
    ----------
    is_stale : bool
        Whether an update with α = 0 was made since it was taken.
    num_update : int
        Updates that have been made, by all modules that share it.
    """

    def __init__(self):
        self._taken = _Taken(None, None, 0)
        self._is_moving = False
        self.is_stale = False
        self.num_update = 0

    @property
    def full_gradient(self):
        """The full gradient; zeros before the first snapshot, None before an optimizer."""
        return self._taken.full_gradient

    @property
    def epoch(self):
        """The epoch of ``fit`` at whose beginning it was taken, None outside of `fit`."""
        return self._taken.epoch

    @property
    def taken_at(self):
        """Updates that had been made when it was taken."""
        return self._taken.taken_at

    @property
    def is_active(self):
        """Whether a pass for the full gradient was finished, and its weights are there."""
        return not self._is_moving and (
            self.full_gradient is not None and self.full_gradient.finished)

    def replace(self, full_gradient, epoch=None, taken_at=None):
        """Put the full gradient of a new snapshot in the place of the old one's."""
        self._taken = _Taken(full_gradient, None if epoch is None else int(epoch),
                             self.num_update if taken_at is None else taken_at)
        self._is_moving = self.is_stale = False

    def exchange_full_gradient(self, full_gradient):
        """Put another full gradient of the same snapshot in the place of the old one."""
        self._taken = self._taken._replace(full_gradient=full_gradient)

    @contextlib.contextmanager
    def being_replaced(self, move_back):
        """Take the snapshot out of force while its weights move to those of the next one.

        An error may come between any two operations (Ctrl-C). So nothing of
        the old snapshot counts until the block has replaced it, or all has
        been moved back.

        Parameters
        ----------
        move_back : callable
            Gives the auxiliary module the weights that it had.
        """
        before, was_in_force = self._taken, self.is_active
        try:
            self._is_moving = True
            yield
        except BaseException:
            if self._taken is before and was_in_force:
                move_back()
                self._is_moving = False
            raise

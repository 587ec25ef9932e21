"""State of the active snapshot, shared by modules that share their weights."""

import contextlib
from typing import Any, NamedTuple, Optional


class _Taken(NamedTuple):
    full_gradient: Any
    epoch: Optional[int]
    taken_at: int


class Snapshot:
    """Full gradient of the last snapshot, and when it was taken.

    The weights of the snapshot are the parameters of the snapshot module.

    Attributes
    ----------
    is_stale : bool
        Whether an update with α = 0 was made since the snapshot was taken.
    num_update : int
        Number of updates by all modules that share the snapshot.
    num_taken : int
        Number of snapshots that were taken so far.
    """

    def __init__(self):
        self._taken = _Taken(None, None, 0)
        self._is_moving = False
        self.is_stale = False
        self.num_update = self.num_taken = 0

    @property
    def full_gradient(self):
        """Full gradient; 0 before the first snapshot, None before `init_optimizer`."""
        return self._taken.full_gradient

    @property
    def epoch(self):
        """Epoch of ``fit`` that began with the snapshot; None outside of ``fit``."""
        return self._taken.epoch

    @property
    def taken_at(self):
        """Number of updates before the snapshot."""
        return self._taken.taken_at

    @property
    def is_active(self):
        """Whether there is a finished full gradient for the weights of the snapshot."""
        return not self._is_moving and (
            self.full_gradient is not None and self.full_gradient.finished)

    def replace(self, full_gradient, epoch=None, taken_at=None):
        """Activate a new snapshot with its full gradient."""
        self._taken = _Taken(full_gradient, None if epoch is None else int(epoch),
                             self.num_update if taken_at is None else taken_at)
        self._is_moving = self.is_stale = False

    def exchange_full_gradient(self, full_gradient):
        """Replace the full gradient, which was computed again at the same snapshot."""
        self._taken = self._taken._replace(full_gradient=full_gradient)

    @contextlib.contextmanager
    def being_replaced(self, move_back):
        """Deactivate the snapshot while its weights are replaced by those of the next one.

        An error, for example Ctrl-C, can occur between any two operations. The
        old snapshot is therefore inactive until the block has replaced it, or
        until its weights have been restored after an error.

        Parameters
        ----------
        move_back : callable
            Restores the weights of the snapshot module.
        """
        before, was_active = self._taken, self.is_active
        try:
            self._is_moving = True
            yield
        except BaseException:
            if self._taken is before and was_active:
                move_back()
                self._is_moving = False
            raise

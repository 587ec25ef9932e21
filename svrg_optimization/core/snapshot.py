"""The snapshot: its full gradient, and when it was taken."""

import contextlib

_STATE = 'number', 'num_taken', 'num_update', 'taken_at', 'is_stale'


class Snapshot:
    """Full gradient μ at the snapshot w̃, and the counts that say when it was taken.

    Modules that share their weights share one. The weights w̃ are the parameters
    of what computes gradients there.

    Attributes
    ----------
    full_gradient : FullGradient or None
        μ; 0 or None before the first snapshot.
    taken_at : int
        Number of updates before the snapshot.
    is_active : bool
        Whether there is a finished full gradient for the weights of the snapshot.
    is_stale : bool
        Whether an update with α = 0 was made since it was taken, or training has other data.
    num_update : int
        Number of updates by all modules that share the snapshot.
    number : int
        Number of this snapshot, which none before it had. It tells what was found of which one, and
        is the seed of what is drawn there.
    num_taken : int
        Number of snapshots since the weights were initialized, for `full_grad_batches`.
    """

    def __init__(self):
        self.full_gradient = None
        self.taken_at = self.num_update = self.num_taken = self.number = 0
        self.is_active = self.is_stale = False

    def state(self):
        """Return the counts, for a file."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state(self, state, full_gradient):
        """Go on with what `state` has returned, and with a full gradient, if there is one."""
        self.replace(full_gradient, **{name: state[name] for name in _STATE})

    def replace(self, full_gradient, taken_at=None, **resumed):
        """Set the full gradient of a new snapshot, which is active if there is one.

        Other attributes may be given.
        """
        # In one operation, so that Ctrl-C cannot come in between.
        vars(self).update({
            'full_gradient': full_gradient,
            'taken_at': self.num_update if taken_at is None else taken_at,
            'is_stale': False,
            'is_active': full_gradient is not None, **resumed})

    @contextlib.contextmanager
    def being_replaced(self, restore):
        """Deactivate the snapshot while its weights are replaced by those of the next one.

        An error, for example Ctrl-C, can occur between any two operations. The
        old snapshot is therefore inactive until the block has replaced it, or
        until its weights have been restored after an error.

        Parameters
        ----------
        restore : callable
            Restores the weights of the snapshot.
        """
        before, was_active = self.full_gradient, self.is_active
        try:
            self.is_active = False
            yield
        except BaseException:
            if self.full_gradient is before and was_active:
                restore()
                self.is_active = True
            raise

"""The snapshot: its full gradient, and when it was taken."""

import contextlib
import math

_STATE = ('num_update', 'num_taken', 'taken_at', 'is_stale', 'has_converged', 'curvature',
          'distance', 'num_stays')


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
    has_converged : bool
        Whether it was found to be within `tol` of the optimum, or at the floor of the precision.
    curvature : float
        Change of the gradient over the move of the weights, between the last two snapshots that
        differ; 0 before it is known. An optimizer with a rule does not need it.
    distance : float
        Smallest distance from the optimum so far, relative to the weights; infinite if none is
        known.
    num_stays : int
        How many of the latest snapshots in a row have not come closer than half of it.
    num_update : int
        Number of updates by all modules that share the snapshot.
    num_taken : int
        Number of snapshots that were taken so far.
    """

    def __init__(self):
        self.full_gradient = None
        self.taken_at = self.num_update = self.num_taken = 0
        self.is_active = self.is_stale = self.has_converged = False
        self.curvature, self.distance, self.num_stays = 0., math.inf, 0

    def state(self):
        """Return the counts and what is known of the snapshot, for a file."""
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
            'is_stale': False, 'has_converged': False,
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

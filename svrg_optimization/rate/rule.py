"""A rule of the learning rate: what it is asked at a snapshot, and what it decides there."""

import math
from typing import NamedTuple

from mxnet.lr_scheduler import LRScheduler

from ..core.requirements import ALL_ROWS, SNAPSHOTS
from .secant_pairs import Moves

_FLAT = 1e-8  # of Δw · Δg, relative to its largest value


class Change(NamedTuple):
    """What two snapshots tell, with Δw and Δg the changes of weights and gradient.

    Attributes
    ----------
    squared, product, changed : float
        The scalar products Δw · Δw, Δw · Δg and Δg · Δg.
    objective : float
        Change of the objective; -inf if it is not known.
    """

    squared: float = 0.
    product: float = 0.
    changed: float = 0.
    objective: float = -math.inf

    @property
    def is_curved(self):
        """Whether the objective is convex along Δw, beyond rounding."""
        return math.isfinite(self.changed) and (
            self.product > _FLAT * math.sqrt(self.squared * self.changed))


class Rule(LRScheduler):
    """What sets the learning rate at snapshots: the optimizer's `lr_scheduler`.

    A new rule derives from this class and sets `rate` in `take_snapshot`. All else is
    done for it by both front ends: it begins anew for another model, knows a resumed run,
    and is in checkpoints. One with attributes of its own overrides `restart`, which the
    constructor calls, `state` and `resume`.

    Attributes
    ----------
    rate : float or None
        Rate since the latest snapshot; None before the first.
    moves : Moves
        The last moves between snapshots.
    column_scales : Scales or None
        What steps are scaled by.
    needs : tuple of str
        What `requirements.py` refuses other settings for.
    advice : str
        What may help where training has not converged, for a warning.
    """

    column_scales, advice = None, 'more snapshots'
    needs = ALL_ROWS, SNAPSHOTS

    def __init__(self, base_lr=None):
        super().__init__(base_lr or 1.)
        self.base_lr = base_lr
        self.restart()

    @property
    def is_begun(self):
        """Whether there is a rate."""
        return not (self.rate is None and self.base_lr is None)

    def __call__(self, num_update):
        """Return the current rate.

        Parameters
        ----------
        num_update : int
            Number of updates so far; the rate does not depend on it.

        Returns
        -------
        float
            The rate, above 0.

        Raises
        ------
        RuntimeError
            If it is not known before the first snapshot.
        """
        if not self.is_begun:
            raise RuntimeError('%s has no learning rate before the first snapshot: call '
                               'update_full_grads(train_data) before the first update, or give '
                               'base_lr' % type(self).__name__)
        return self.base_lr if self.rate is None else self.rate

    def take_snapshot(self, svrg, trained, source, workers):
        """Take a snapshot with ``svrg.take_snapshot``, and set `rate` from what it finds.

        Where it goes back to the snapshot before it calls ``rate.rollback.go_back``; the way of
        a jump is ``svrg.snapshot.jump``.

        Parameters
        ----------
        svrg, trained, source, workers
            As in ``core.snapshots.take``. What workers decide by must be the same on
            all, as ``workers.largest`` makes it.

        Returns
        -------
        bool
            Whether training went back.
        """
        raise NotImplementedError

    def restart(self):
        """Forget all that earlier snapshots have told."""
        self.rate, self.moves = None, Moves()

    def begin_fit(self):
        """Compare no snapshot with one of other data; the rule of a resumed run goes on."""

    def begin_anew(self):
        """Compare the next snapshot with none: weights or data are others."""

    def state(self):
        """Return a dict of numbers, strings and arrays, and lists and dicts, for a checkpoint."""
        return {'rate': self.rate}

    def resume(self, state):
        """Go on with what `state` has returned."""
        self.rate = state['rate']


def rule_of(scheduler):
    """Return an optimizer's `lr_scheduler` if it is a Rule, None for all else."""
    return scheduler if isinstance(scheduler, Rule) else None

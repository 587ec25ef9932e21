"""What is known of a training, apart from its snapshot: its counts, and what that has found."""

import math
import weakref

from .._argument_checks import check_like
from .learned import Learned
from .result import Result
from .saved import learned_of, state_of
from .words import sentence


class Training:
    """A training: a ``fit``, or a loop over epochs.

    Attributes
    ----------
    epochs, checks : int
        Epochs so far, and passes that have checked how far the optimum is.
    is_resumed : bool
        Whether the next run goes on with a snapshot of a file.
    check : Check or None
        The latest one.
    is_hidden : bool
        Whether rounding hides how far the optimum is.
    data : callable or None
        Returns the data of the training, as `reference_to` does; None before any training.
    """

    def __init__(self):
        self._learned = self._converged_at = None
        self.is_resumed = self.keeps_history = False
        self.begin(0)

    def begin(self, num_taken, data=None):
        """Begin to count, given the number of snapshots so far."""
        self.data = data
        self._taken_before, self.epochs, self.checks = num_taken, 0, 0
        self._result = self._found_at = self._first = self.check = None
        self.is_hidden = False

    def passes(self, number):
        """Return how often each row was read with its gradient, in a step at both weights.

        `number` is that of the latest snapshot.
        """
        return 2 * self.epochs + self.checks + number - self._taken_before

    def learned(self, objective):
        """Return what 'svrg_lbfgs' has learned, or what is learned beside another optimizer."""
        if objective.rule is not None:
            return objective.rule.learned
        self._learned = self._learned or Learned()
        return self._learned

    def forget(self, trained):
        """Forget earlier snapshots, which say nothing of other data or of weights set by users."""
        if not self.keeps_history:
            for learned in filter(None, (trained.rule and trained.rule.learned, self._learned)):
                learned.forget()

    # What snapshots have found

    def has_converged(self, snapshot):
        """Tell whether the latest snapshot was found to be at the optimum."""
        return snapshot.is_active and self._converged_at == snapshot.num_taken

    def result(self, objective):
        """Return the Result of the latest snapshot, None without one."""
        if self._found_at != objective.number and objective.is_active:
            self.record(objective)
        return self._result if self._found_at == objective.number else None

    def record(self, objective, reason=None, distance=math.inf):
        """Make the Result of the latest snapshot, and keep it."""
        norm = objective.norm
        self._keep(Result(
            reason if math.isfinite(norm) else 'not finite', objective.value, norm,
            distance if math.isfinite(distance) else None, 0, 0), objective)

    def conclude(self, objective):
        """Return the Result of the latest snapshot, which now says why training has ended."""
        result = self.result(objective)
        self._keep(result._replace(reason=result.reason or 'epochs used up'), objective)
        return self._result

    def _keep(self, result, objective):
        number = objective.number
        result = result._replace(epochs=self.epochs, passes=self.passes(number))
        self._first = self._first or result
        if result.reason:
            result = result._replace(words=sentence(result, objective, self))
        self._result, self._found_at = result, number
        self._converged_at = number if result.has_converged else None

    def has_risen(self, result):
        """Tell whether a Result has a larger objective and gradient than the first one."""
        first = self._first
        return bool(None not in (result.objective, first.objective)
                    and result.objective > first.objective and result.norm > first.norm)

    # A file

    def state(self):
        """Return what `load_state` takes."""
        return {'converged_at': self._converged_at,
                'rule': self._learned and state_of(self._learned)}

    @staticmethod
    def check_state(name, state):
        """Raise a ValueError unless a file has what `state` returns."""
        check_like(name, 'training', {**state, 'rule': None}, {'converged_at': None, 'rule': None})
        _learned_of(state)

    def load_state(self, state):
        """Go on with what `state` has returned."""
        self._converged_at, self._learned = state['converged_at'], _learned_of(state)
        self.is_resumed = True


def _learned_of(state):
    return state['rule'] and learned_of(state['rule'], {})


def reference_to(data):
    """Return a function that returns data, or None if they are gone; a list or the like stays."""
    try:
        return weakref.ref(data)
    except TypeError:
        return lambda: data

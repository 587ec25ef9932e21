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

    def passes(self, objective):
        """Return how often each row was read with its gradient, in a step at both weights."""
        of_steps = 0 if objective.moves else 2 * self.epochs
        return of_steps + self.checks + objective.number - self._taken_before

    def learned(self):
        """Return what is learned."""
        self._learned = self._learned or Learned()
        return self._learned

    def forget(self):
        """Forget earlier snapshots, which say nothing of other data or of weights set by users."""
        if self._learned and not self.keeps_history:
            self._learned.forget()

    def is_of_other_data(self, train_data):
        """Tell whether these may be other data than in the last call, or a file has those."""
        former, self.data = self.data, reference_to(train_data)
        return self.is_resumed or former is None or former() is not train_data

    # What snapshots have found

    def has_converged(self, snapshot):
        """Tell whether the latest snapshot was found to be at the optimum."""
        return snapshot.is_active and self.has_converged_at(snapshot.num_taken)

    def has_converged_at(self, number):
        """Tell whether the snapshot of a number was found to be at the optimum."""
        return self._converged_at == number

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

    def conclude(self, objective, reason='epochs used up'):
        """Return the Result of the latest snapshot, which now says why training has ended."""
        result = self.result(objective)
        self._keep(result._replace(reason=result.reason or reason), objective)
        return self._result

    def _keep(self, result, objective):
        number = objective.number
        result = result._replace(epochs=self.epochs, passes=self.passes(objective))
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
                'learned': self._learned and state_of(self._learned)}

    @staticmethod
    def check_state(name, state):
        """Raise a ValueError unless a file has what `state` returns."""
        check_like(name, 'training', {**state, 'learned': None},
                   {'converged_at': None, 'learned': None})
        _learned_of(state)

    def load_state(self, state, names=None):
        """Go on with what `state` has returned; `names` maps former names to those of now."""
        self._converged_at, self._learned = state['converged_at'], _learned_of(state, names)
        self.is_resumed = True


def _learned_of(state, names=None):
    return state['learned'] and learned_of(state['learned'], names)


def reference_to(data):
    """Return a function that returns data, or None if they are gone; a list or the like stays."""
    try:
        return weakref.ref(data)
    except TypeError:
        return lambda: data

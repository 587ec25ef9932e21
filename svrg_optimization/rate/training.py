"""What is known of a training, apart from its snapshot: its counts, and what that has found."""

import math
import weakref

from .convergence import Verdict
from .learned import Learned
from .result import Result
from .saved import learned_of, state_of
from .words import sentence


class Training:
    """A training: a ``fit``, or a loop over epochs.

    Attributes
    ----------
    epochs, passes : int
        Epochs so far, and passes apart from those of steps, in which each row is read once with
        its gradient.
    learned : Learned
        What snapshots have taught.
    is_resumed : bool
        Whether the next run goes on with a snapshot of a file.
    verdict : Verdict
        The latest one.
    data : callable or None
        Returns the data of the training, as `reference_to` does; None before any training.
    """

    def __init__(self):
        self.learned, self._converged_at = Learned(), None
        self.is_resumed = self.keeps_history = False
        self.begin()

    def begin(self, data=None):
        """Begin to count."""
        self.data, self.epochs, self.passes, self.verdict = data, 0, 0, Verdict()
        self._result = self._found_at = self._first = None

    def forget(self):
        """Forget earlier snapshots, which say nothing of other data or of weights set by users."""
        if not self.keeps_history:
            self.learned.forget()

    def is_of_other_data(self, train_data):
        """Keep a reference to these; tell whether they may be other than in the last call."""
        former, self.data = self.data, reference_to(train_data)
        return self.is_resumed or former is None or former() is not train_data

    # What snapshots have found

    def has_converged(self, number):
        """Tell whether the snapshot of a number was found to be at the optimum."""
        return self._converged_at == number

    def result(self, objective):
        """Return the Result of the latest snapshot, None without one."""
        if self._found_at != objective.number and objective.is_active:
            self.record(objective)
        return self._result if self._found_at == objective.number else None

    def record(self, objective, verdict=None, reason=None):
        """Make the Result of the latest snapshot, and keep it."""
        norm, self.verdict = objective.norm, verdict or Verdict()
        distance, learned = self.verdict.distance, self.learned
        is_known = learned.metric is not None and learned.point is not None
        self._keep(Result(
            reason if math.isfinite(norm) else 'not finite', objective.value, norm,
            distance if math.isfinite(distance) else None, 0, 0,
            rounding=learned.rounding_of_objective(
                learned.point) / learned.point.units if is_known else 0.), objective)

    def conclude(self, objective, reason='epochs used up'):
        """Return the Result of the latest snapshot, which now says why training has ended."""
        result = self.result(objective)
        self._keep(result._replace(reason=result.reason or reason), objective)
        return self._result

    def _keep(self, result, objective):
        number = objective.number
        result = result._replace(epochs=self.epochs, passes=(
            self.passes if objective.moves else self.passes + 2 * self.epochs))
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
                'learned': self.learned.metric and state_of(self.learned)}

    def load_state(self, state, names=None):
        """Go on with what `state` has returned; `names` maps former names to those of now."""
        self._converged_at = state['converged_at']
        saved = state['learned']
        self.learned = Learned() if saved is None else learned_of(saved, names or {})
        self.is_resumed, self._found_at = True, None


def reference_to(data):
    """Return a function that returns data, or None if they are gone; a list or the like stays."""
    try:
        return weakref.ref(data)
    except TypeError:
        return lambda: data

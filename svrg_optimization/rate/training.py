"""What is known of a training, apart from its snapshot: its counts, and what that has found."""

import weakref

from .._argument_checks import check_like
from .snapshot_rule import SnapshotRule


class Training:
    """A training: a ``fit``, or a loop over epochs.

    Attributes
    ----------
    epochs, checks : int
        Epochs so far, and passes that have checked how far the optimum is.
    is_resumed : bool
        Whether the next run goes on with a snapshot of a file.
    flat : str
        The parameter along which the curvature was too small, in the latest check that has failed.
    is_other_function, is_hidden : bool
        Whether the latest check has found that passes are not of one function, and that rounding
        hides how far the optimum is.
    data : callable or None
        Returns the data of the training, as `reference_to` does; None before any training.
    """

    def __init__(self):
        self._rule = self._saved = self._result = self._found_at = self._converged_at = None
        self.is_resumed = self.keeps_history = False
        self.begin(0)

    def begin(self, num_taken, data=None):
        """Begin to count, given the number of snapshots so far."""
        self.data = data
        self._taken_before, self.epochs, self.checks = num_taken, 0, 0
        self._result, self._first, self.flat = None, None, ''
        self.is_other_function = self.is_hidden = False

    def passes(self, snapshot):
        """Return how often each row was read with its gradient, in a step at both weights."""
        return 2 * self.epochs + self.checks + snapshot.num_taken - self._taken_before

    def rule_of(self, trained):
        """Return the SnapshotRule of an optimizer, or one that only watches another optimizer."""
        if trained.rule is not None:
            return trained.rule
        if self._rule is None:
            self._rule = SnapshotRule()
            if self._saved:
                self._rule.load_state(self._saved, trained.mean_gradient().proximal)
        return self._rule

    def forget(self, trained):
        """Forget earlier snapshots, which say nothing of other data or of weights set by users."""
        if not self.keeps_history:
            self._saved = None
            for rule in filter(None, (trained.rule, self._rule)):
                rule.forget_history()

    def has_converged(self, snapshot):
        """Tell whether the latest snapshot was found to be at the optimum."""
        return snapshot.is_active and self._converged_at == snapshot.num_taken

    def result(self, snapshot):
        """Return the Result of the latest snapshot, None if it has not been asked for one."""
        return self._result if self._found_at == snapshot.num_taken else None

    def record(self, result, snapshot):
        """Keep the Result of the latest snapshot."""
        self._result, self._found_at = result, snapshot.num_taken
        self._first = self._first or result
        self._converged_at = snapshot.num_taken if result.has_converged else None

    def has_risen(self, result):
        """Tell whether a Result has a larger objective and gradient than the first one."""
        first = self._first
        return bool(result and None not in (result.objective, first.objective)
                    and result.objective > first.objective and result.norm > first.norm)

    # A file

    def state(self):
        """Return what `load_state` takes."""
        return {'converged_at': self._converged_at,
                'rule': self._saved if self._rule is None else self._rule.state()}

    @staticmethod
    def check_state(name, state):
        """Raise a ValueError unless a file has what `state` returns."""
        check_like(name, 'training', {**state, 'rule': None}, {'converged_at': None, 'rule': None})
        if state['rule'] is not None:
            SnapshotRule().load_state(state['rule'], {})

    def load_state(self, state):
        """Go on with what `state` has returned."""
        self._converged_at, self._saved, self._rule = state['converged_at'], state['rule'], None
        self.is_resumed = True


def reference_to(data):
    """Return a function that returns data, or None if they are gone; a list or the like stays."""
    try:
        return weakref.ref(data)
    except TypeError:
        return lambda: data

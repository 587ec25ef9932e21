"""Jumps at a snapshot: to where the regime has the optimum, as long as that pays."""

import numpy as np

from .learned import earned
from .learning import learn


class Jumps:
    """The jumps at one snapshot.

    Parameters
    ----------
    objective : Objective
        What is minimised.
    learned : Learned
        Is changed.

    Attributes
    ----------
    made : int
        Number of jumps so far.
    reach : float
        Part of the way of the next one; 0 after two that were undone.
    """

    def __init__(self, objective, learned):
        self._objective, self._learned, self._first_length = objective, learned, learned.length
        self.made, self.reach = 0, 1.

    def jump(self):
        """Jump, if that pays, and learn from it; tell whether weights have moved."""
        objective, learned = self._objective, self._learned
        is_open, = objective.agree([float(pays(
            self.made, earned(self._first_length, learned.length), learned))])
        if not (is_open and self.reach and self.made < learned.regime.jumps
                and np.isfinite(learned.way).all()) or objective.noise_sources or (
                    not objective.rewind()):
            return False
        begin, at, end = objective.kept(), learned.point.weights, learned.end
        try:
            if not objective.go_to(learned.regime.metric, end if self.reach == 1 else (
                    at + self.reach * (end - at))):
                return False
            is_undone = learn(objective, learned, begin, has_jumped=True)
        except BaseException:  # nobody has seen whether the jump lowers the objective
            objective.go_back(begin)
            learned.forget()
            raise
        self.made += 1
        # Once more, half as far, or as far as the new way.
        self.reach = 1. if not is_undone else 0.5 if self.reach == 1 else 0.
        return True


def pays(made, gained, learned):
    """Tell whether another jump pays, after some that have shortened the way by powers of e.

    It does as long as jumps have taken fewer passes than the steps before them, or shorten the way
    by more in a pass.
    """
    return made < learned.steps_cost or gained >= made * learned.steps_earn

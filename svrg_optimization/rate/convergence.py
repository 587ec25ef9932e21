r"""Convergence: what a snapshot finds, by three rules. Nothing is written here.

1. *Distance.* With the inverse H of the Hessian, as the secant pairs have it, and the mean gradient
   g, the optimum is :math:`\|H g\|` away, in the outputs.
2. *Confirmation.* That is so if H is right. Gradients near the snapshot measure the smallest
   curvature :math:`\theta` of the objective beside that of H, with which there is a bound of the
   distance (`confirmation.py`). What they find, H learns.
3. *Floor.* The weights are known to their precision :math:`\epsilon`, and g to about
   :math:`\epsilon \|g_{batch}\| / 2`, of which H makes a distance. Rounding that moves the outputs
   by a thousandth of their size is no floor.

Training has converged where the distance is at most `tol` times the spread of the outputs, and the
bound ten times that at most, or `tol` where a direction without curvature may hide. It is at the
floor where the bound is at most what rounding may be. Of a saturated loss gradients are small, and
their rounding is not: it is that of what cancels in them, as in the gradient at weights of 0.
Neither distance nor bound are below that of such a rounding.
"""

import math
from typing import NamedTuple, Optional

import numpy as np

from ..core.arrays import precision_of
from .confirmation import bound, flattest
from .constants import ROUGHLY, SLIGHT
from .learned import Noise


class Check(NamedTuple):
    """What gradients near a snapshot have found, of which `Learned.learn_check` learns.

    Attributes
    ----------
    noise, smallest
        As Learned has them.
    passes : int
        How many were made.
    flattest : numpy.ndarray or None
        The flattest direction, if the check has failed.
    pairs : list of (numpy.ndarray, numpy.ndarray)
        Moves and changes of the gradient that H lacks.
    flat : str
        The parameter along which the curvature is too small; '' if it is not.
    is_other_function : bool
        Whether passes are not of one function.
    """

    noise: Noise
    smallest: float
    passes: int
    flattest: Optional[np.ndarray]
    pairs: list
    flat: str
    is_other_function: bool


class Verdict(NamedTuple):
    """What a snapshot is found to be.

    Attributes
    ----------
    distance : float
        How far the optimum is, beside the spread of the outputs; inf if that is not known.
    word : str or None
        'converged' or 'at the floor', if that is confirmed.
    is_hidden : bool
        Whether rounding hides the distance.
    check : Check or None
        The check, if one was made.
    """

    distance: float = math.inf
    word: Optional[str] = None
    is_hidden: bool = False
    check: Optional[Check] = None


class Distance(NamedTuple):
    """How far the optimum is by H alone, and what hides it, in the outputs.

    Attributes
    ----------
    way, hidden : float
        The way to the optimum, and that by rounding of gradients at most.
    size, near : float
        Spread of the outputs, and `tol` times that.
    enough : float
        How large the bound may be: the floor, if it is one, or `near`.
    is_hidden : bool
        Whether rounding hides the distance.
    length, precision : float
        That of the moves of a check, so long that the rounding of weights and the change of the
        curvature weigh alike, and beside the scale of the outputs.
    """

    way: float
    hidden: float
    size: float
    near: float
    enough: float
    is_hidden: bool
    length: float
    precision: float


def distance(objective, learned, noise):
    """Return the Distance of the latest snapshot, given the Noise of gradients."""
    regime, weights = learned.regime, learned.point.weights
    metric, of_dtype = regime.metric, precision_of(regime.dtype)
    way = objective.agree(np.linalg.norm(learned.way))
    # The outputs: about their mean, about 0, and as a batch's gradient moves them.
    size, outputs = metric.spread(weights), metric.spread(weights, about_zero=True)
    of_gradient = regime.pairs.gamma * noise.of_batch
    scale = max(size, of_gradient) or 1.
    # Rounding: each batch's gradient has a random error, which H amplifies where it is flat.
    error = np.random.RandomState(0).normal(size=metric.size)
    moved = of_dtype / 2 * float(np.linalg.norm(regime.sees(
        regime.pairs.times(error / np.linalg.norm(error)), weights)))
    rounding, hidden = metric.rounding(weights, regime.dtype), moved * noise.of_zero
    precision = math.sqrt(max(of_dtype, rounding / scale))
    near, floor = (objective.tol or 0.) * size, rounding + ROUGHLY * (moved * noise.of_batch)
    enough = max(near, floor if floor < SLIGHT * max(outputs, of_gradient) else 0.)
    is_hidden = way <= max(enough, floor) and max(way, hidden) > enough
    return Distance(way, hidden, size, near, enough, is_hidden, precision * scale, precision)


def judge(objective, learned):
    """Return the Verdict on the latest snapshot."""
    if not learned.knows_distance or learned.rows_differ or objective.noise_sources:
        return Verdict()
    at = distance(objective, learned, learned.noise)
    left, word, check = at.way / learned.smallest, None, None
    if is_due(at, left, objective.number, learned.next_check) and objective.rewind():
        at, left, word, check = _confirmed(objective, learned, at)
    return Verdict(left / at.size if at.size else math.inf if left else 0., word, at.is_hidden,
                   check)


def is_due(at, left, number, next_check):
    """Tell whether a check is made: the way is short enough, and it is time or a word is likely."""
    return at.way <= at.enough and (
        number >= next_check or max(left, at.hidden) <= at.enough)


def word_of(at, left, bound):
    """Return the word for a distance and its bound: 'converged', 'at the floor' or None."""
    if left <= at.near:
        return 'converged'
    return 'at the floor' if max(bound, at.hidden) <= at.enough else None


class _Nearby:
    """Gradients near the latest snapshot, and the curvature that they find."""

    def __init__(self, objective, learned, at, noise):
        self.passes, self._objective, self._at = 0, objective, at
        self._regime, self._point, self._way = learned.regime, learned.point, learned.way
        self._rounding = noise.of_mean(learned.regime.dtype)

    def flattest(self, but=()):
        """Return the Curvature, of all parameters but some."""
        regime, metric = self._regime, self._regime.metric
        return flattest(
            self._product, self._at.precision, regime.pairs,
            lambda vector: metric.without(regime.sees(vector, self._point.weights), but),
            metric.size, self._objective.agree, self._objective.number)

    def _product(self, vector):
        """Return the product of the Hessian and a vector, by a pass."""
        self.passes += 1
        return self._change(self._at.length * vector) / self._at.length

    def _change(self, move=None):
        metric = self._regime.metric
        return metric.pull(
            self._objective.point_at(metric, move).gradient - self._point.gradient)

    def known(self, found):
        """List the moves and changes of a Curvature that are more than rounding."""
        least = self._rounding / self._at.length
        return [(move, change) for move, change in zip(found.moves, found.changes)
                if move @ change > least * (move @ move)]

    def bounded(self, found):
        """Return the smallest curvature, within bounds, and the bound of the distance with it."""
        smallest, least = min(max(found.smallest, precision_of(self._regime.dtype)), 1.), math.inf
        moves = np.count_nonzero(found.moves.any(axis=1))  # where nothing is seen there is none
        if found.smallest > 0 and len(self.known(found)) == moves:
            least = bound(self._regime.pairs, self._way, smallest)
        return smallest, self._objective.agree(least)

    def is_other_function(self):
        """Tell whether another pass finds another gradient at the snapshot, but for rounding."""
        return self._objective.agree(np.linalg.norm(self._change())) > self._rounding


def _confirmed(objective, learned, at):
    """Return the Distance that a check has found, what is left of it, the word, and the Check.

    Without a direction that may hide, a tenth of the bound counts. Where one may hide among many
    numbers, those without a weight decay are looked at once more, if a word hangs on them.
    """
    metric = learned.regime.metric
    noise = Noise.measured(objective, learned.regime) or learned.noise
    near = _Nearby(objective, learned, at, noise)
    found, smallest, least, left = near.flattest(), learned.smallest, math.inf, math.inf
    if found.is_resolved:
        at, is_sharp = distance(objective, learned, noise), found.is_sharp
        smallest, least = near.bounded(found)
        decayed = [name for name in metric.shapes if objective.mean_gradient.decays[name]]
        if decayed and not is_sharp and word_of(
                at, max(at.way, least / ROUGHLY, at.hidden), least):
            other = near.flattest(decayed)
            is_sharp = other.is_sharp and other.is_resolved
            found = min(found, other, key=lambda each: each.smallest)
            smallest, least = near.bounded(found)
        left = max(at.way, least / (ROUGHLY if is_sharp else 1), at.hidden)
    word, lacks = word_of(at, left, least), found.is_resolved and least > at.enough
    return at._replace(is_hidden=at.is_hidden or not found.is_resolved), left, word, Check(
        noise, smallest, near.passes, flattest=None if word else found.moves[0],
        pairs=near.known(found)[::-1] if lacks else [],
        flat=metric.largest_part(found.moves[0]) if lacks else '',
        is_other_function=word is None and near.is_other_function())

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
    of_gradient, rounding = regime.pairs.gamma * noise.of_batch, metric.rounding(
        weights, regime.dtype)
    error = np.random.RandomState(0).normal(size=metric.size)
    moved = of_dtype / 2 * float(np.linalg.norm(regime.sees(
        regime.pairs.times(error / np.linalg.norm(error)), weights)))
    way = objective.agree(np.linalg.norm(learned.way))
    size, hidden = metric.spread(weights), moved * noise.of_zero
    near, floor = (objective.tol or 0.) * size, rounding + ROUGHLY * (moved * noise.of_batch)
    is_floor = floor < SLIGHT * max(metric.spread(weights, about_zero=True), of_gradient)
    enough, scale = max(near, floor if is_floor else 0.), max(size, of_gradient) or 1.
    precision = math.sqrt(max(of_dtype, rounding / scale))
    is_hidden = way <= max(enough, floor) and max(way, hidden) > enough
    return Distance(way, hidden, size, near, enough, is_hidden, precision * scale, precision)


def judge(objective, learned):
    """Return the Verdict on the latest snapshot."""
    if not learned.knows_distance or learned.rows_differ:
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


def measured_noise(objective, regime):
    """Return the Noise that the drawn batch has, None if it is all padding."""
    here = objective.point_of_batch(regime.metric)
    if here is None:
        return None
    there = here if not regime.is_whole else objective.point_of_batch(
        regime.metric, -regime.metric.whiten(here.weights))
    sizes = [float(np.linalg.norm(regime.metric.pull(each.gradient))) for each in (here, there)]
    return Noise(sizes[0], max(filter(math.isfinite, sizes), default=0.))


def _confirmed(objective, learned, at):
    """Return the Distance that a check has found, what is left of it, the word, and the Check."""
    regime, point, length, made = learned.regime, learned.point, at.length, []
    metric, smallest, noise = regime.metric, learned.smallest, measured_noise(
        objective, regime) or learned.noise
    rounding = noise.of_mean(regime.dtype)

    def sees(vector):
        return regime.sees(vector, point.weights)

    def product(vector):
        made.append(vector)
        there = objective.point_at(metric, length * vector)
        return metric.pull(there.gradient - point.gradient) / length

    def curvature(sees):
        return flattest(product, at.precision, regime.pairs, sees, metric.size, objective.agree,
                        objective.number)

    def known(found):
        """List the moves and changes of a check that are more than rounding, the flattest first."""
        return [(move, change) for move, change in zip(found.moves, found.changes)
                if move @ change > rounding / length * (move @ move)]

    def bounded(found):
        """Return the smallest curvature of a check, within bounds, and the bound with it."""
        smallest = min(max(found.smallest, precision_of(regime.dtype)), 1.)
        is_known = found.smallest > 0 and len(known(found)) == np.count_nonzero(
            found.moves.any(axis=1))  # where nothing is seen there is no move
        return smallest, objective.agree(
            bound(regime.pairs, learned.way, smallest) if is_known else math.inf)

    found, least, left = curvature(sees), math.inf, math.inf
    if found.is_resolved:
        (smallest, least), is_sharp, at = bounded(found), found.is_sharp, distance(
            objective, learned, noise)
        decays = objective.mean_gradient.decays
        decayed = [name for name in metric.shapes if decays[name]]
        if decayed and not is_sharp and (
                max(least, at.hidden) <= at.enough
                or max(at.way, least / ROUGHLY, at.hidden) <= at.near):
            undecayed = curvature(lambda vector: metric.without(sees(vector), decayed))
            is_sharp = undecayed.is_sharp and undecayed.is_resolved
            found = min(found, undecayed, key=lambda each: each.smallest)
            smallest, least = bounded(found)
        left = max(at.way, least / (ROUGHLY if is_sharp else 1), at.hidden)
    at = at._replace(is_hidden=at.is_hidden or not found.is_resolved)
    word, lacks = word_of(at, left, least), found.is_resolved and least > at.enough
    is_other = word is None and objective.agree(np.linalg.norm(metric.pull(
        objective.point_at(metric).gradient - point.gradient))) > rounding
    return at, left, word, Check(
        noise, smallest, len(made), None if word else found.moves[0],
        known(found)[::-1] if lacks else [],
        metric.largest_part(found.moves[0]) if lacks else '', is_other)

r"""Convergence: what a snapshot finds, by three rules. Nothing is written here.

1. *Distance.* The optimum is as far as the step of Newton's method is long, if its equations are
   solved to a tenth, in each output beside its spread.
2. *Confirmation.* What these equations do not see may hide: products with a random vector measure
   the smallest curvature :math:`\theta`, with which there is a bound of the distance.
3. *Floor.* The weights are known to their precision :math:`\epsilon`, and the gradient to
   about :math:`\epsilon \|g_{batch}\| / 2`, of which H makes a distance. Where no point of the
   path lowers the objective by more than rounding, and that moves the outputs by less than a
   thousandth of their spread, training is at the floor.
"""

import math
from typing import NamedTuple, Optional

import numpy as np

from ..core.arrays import precision_of
from .confirmation import bound, flattest
from .constants import ROUGHLY, SLIGHT
from .nearby import Nearby
from .path import trial_at


class Check(NamedTuple):
    """What gradients near a snapshot have found.

    Attributes
    ----------
    pairs : list of (numpy.ndarray, numpy.ndarray)
        Moves and changes of the gradient that H lacks.
    flat : str
        The parameter along which the curvature is too small; '' if it is not.
    is_other_function : bool
        Whether passes are not of one function.
    rows_differ : bool
        Whether one had another number of rows.
    """

    pairs: list
    flat: str
    is_other_function: bool
    rows_differ: bool


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


def judge(objective, learned):
    """Return the Verdict on the latest snapshot, given the path from there."""
    path = learned.path
    if path is None:
        return Verdict(check=_other_function(objective, learned) if learned.is_stuck else None)
    is_exact, distance, enough = path.is_exact, learned.relative(path.move), objective.tol or 0.
    if learned.is_stuck:
        enough, trial = SLIGHT, trial_at(path, math.inf, learned.metric, learned.point)
        is_exact = is_exact and is_hidden(learned, trial)
    distance, is_exact = objective.agree(distance), not objective.agree(not is_exact)
    if not is_exact or learned.rows_differ or distance > enough:
        is_odd = learned.is_stuck or len(path.ray)  # as where passes are of other functions
        return Verdict(distance, check=_other_function(objective, learned) if is_odd else None)
    hidden = objective.agree(rounding_of_outputs(learned, objective.mean_gradient.proximal))
    if hidden > enough or not objective.rewind():
        return Verdict(distance, None, hidden > enough)
    found, check, left = _confirmed(objective, learned, enough)
    left = max(distance, hidden, left)
    word = 'at the floor' if learned.is_stuck else 'converged'
    return Verdict(left, word if left <= enough else None, not found.is_resolved, check)


def is_hidden(learned, trial):
    """Tell whether rounding of weights and gradients may hide a Trial, or how the model falls."""
    return 0 < trial.fall <= learned.noise.rounding * trial.length or (
        trial.length <= ROUGHLY * learned.rounding)


def rounding_of_outputs(learned, proximal):
    """Return how far rounding may move the outputs beside their spread.

    A random error of the gradient stands for that of rounding, which H amplifies where it is flat.
    Of each output it has the size of what cancels there.
    """
    metric, weights = learned.metric, learned.point.weights
    error = metric.scaled_by_outputs(
        np.random.RandomState(0).normal(size=metric.size), learned.noise.of_outputs)
    moved = learned.relative(learned.noise.rounding * metric.resolved(
        learned.pairs.times(error / np.linalg.norm(error)), weights, proximal))
    if learned.is_stuck:
        moved = math.hypot(moved, metric.rounding(weights, learned.dtype) / 2 / min(learned.sizes))
    return moved


def _confirmed(objective, learned, enough):
    """Return the Curvature of a check, the Check, and how far the optimum is beside the spread.

    Without a direction that may hide, a tenth of the bound counts, but at a floor.
    """
    metric, weights, path, pairs = (
        learned.metric, learned.point.weights, learned.path, learned.pairs)
    proximal, epsilon = objective.mean_gradient.proximal, precision_of(learned.dtype)
    nearby = Nearby(objective, learned)
    found = flattest(nearby, pairs, lambda vector: metric.resolved(vector, weights, proximal),
                     objective.agree, objective.number)
    noise, left = ROUGHLY * learned.noise.rounding, math.inf
    known = [(move, change) for move, change in zip(found.moves, found.changes)
             if move @ change > noise / nearby.shortest * (move @ move)]
    moves = np.count_nonzero(found.moves.any(axis=1))  # where nothing is seen there is none
    if found.is_resolved and found.smallest > 0 and len(known) == moves:
        smallest = min(max(found.smallest, epsilon), 1.)
        left = objective.agree((
            learned.relative(path.move - path.estimated)
            + bound(pairs, path.estimated, smallest) / min(learned.sizes)) / (
                ROUGHLY if found.is_sharp and not learned.is_stuck else 1))
    lacks = found.is_resolved and left > enough
    is_other = left > enough and _is_other(objective, learned, nearby)
    return found, Check(known[::-1] if lacks else [],
                        metric.largest_part(found.moves[0]) if (
                            lacks and found.smallest < SLIGHT) else '',
                        is_other, nearby.rows_differ), math.inf if nearby.rows_differ else left


def _is_other(objective, learned, nearby):
    """Tell whether another pass finds another gradient at the snapshot, but for rounding."""
    return objective.agree(
        np.linalg.norm(nearby.change()[1])) > ROUGHLY * learned.noise.rounding


def _other_function(objective, learned):
    """Return the Check of another pass alone."""
    if not objective.rewind():
        return None
    nearby = Nearby(objective, learned)
    is_other = _is_other(objective, learned, nearby)
    return Check([], '', is_other, nearby.rows_differ)

"""The comparison: whether a snapshot is worse than the one before."""

import math
from typing import NamedTuple, Optional

import numpy as np

from ..core.arrays import precision_of
from ..core.optimality import Point
from .constants import LEAST, ROUGHLY


class Move(NamedTuple):
    r"""A move s of the variables, with the change y of the gradient, where the loss sees them.

    The numbers are :math:`s^T s`, :math:`s^T y` and :math:`y^T y`, and of the whole move
    :math:`g^T s` and :math:`g'^T s` with the gradients before and after it, and whether g' is
    shorter. Workers agree on them.
    """

    move: np.ndarray = np.zeros(0)
    change: np.ndarray = np.zeros(0)
    length: float = 0.
    product: float = 0.
    square: float = 0.
    before: float = 0.
    after: float = 0.
    shrinks: float = 0.

    @classmethod
    def between(cls, metric, before, now, agree):
        """Return the Move from one Point to another."""
        whole = metric.whiten(now.weights - before.weights)
        slopes = [metric.pull(each.gradient) for each in (before, now)]
        move = metric.seen_by_loss(whole)
        change = metric.seen_by_loss(slopes[1] - slopes[0])
        return cls(move, change, *agree(
            move @ move, move @ change, change @ change, *(whole @ slope for slope in slopes),
            np.linalg.norm(slopes[1]) < np.linalg.norm(slopes[0])))


class Compared(NamedTuple):
    """A snapshot beside the one before.

    Attributes
    ----------
    former, now : Point
        The snapshots; no former one if it was of something else.
    move : Move
        From one to the other.
    rise : float
        By how much the objective has changed.
    is_undone : bool
        Whether training went back.
    """

    former: Optional[Point]
    now: Point
    move: Move
    rise: float
    is_undone: bool = False


def change(before, now, move, rounding, middle, warn_once):
    r"""Return by how much the objective has changed from one Point to the next.

    | what is known | change |
    |---|---|
    | no gradient, or no objective any more | inf |
    | a difference that is more than rounding | the difference |
    | other ones | :math:`(g + g')^T s / 2`, with the move s and the gradients before and after it |
    | one that rounding of the operators' values hides | 0 |

    `rounding` is that of the objective. The difference of a convex objective lies between
    :math:`g^T s` and :math:`g'^T s`. Where it does not, `middle` returns the slope in the middle of
    the move, by a pass, or None; it is None itself where this is not asked. By Simpson's rule the
    three tell whether the loss is the integral of its gradient, and only not convex. Otherwise
    `warn_once` is called, and slopes count alone.
    """
    if not np.isfinite(now.gradient).all() or (
            math.isfinite(before.objective) and not math.isfinite(now.objective)):
        return math.inf
    penalty, slopes = now.penalty - before.penalty, (move.before, move.after)
    difference, by_slopes = now.objective - before.objective, sum(slopes) / 2
    steepest = max(map(abs, slopes))
    slack, is_known = rounding + steepest / ROUGHLY, math.isfinite(difference)
    if middle and is_known and not min(slopes) - slack <= difference <= max(slopes) + slack:
        between = middle()
        is_straight = between is None or abs(between - by_slopes) <= steepest / ROUGHLY
        if between is not None:
            by_slopes = (2 * by_slopes + 4 * between) / 6
        is_known = between is not None and abs(difference - by_slopes) <= (
            rounding + max(steepest, abs(between)) / 3)
        if is_straight and not is_known:  # else the rule may be wrong, of a long move
            warn_once('the loss is not the function whose gradient is computed, as with BlockGrad '
                      'or an operator of your own: whether a step has made it larger is told by '
                      'the slopes along it')
    if is_known and abs(difference + penalty) > rounding:
        return difference + penalty
    hidden = precision_of(float) * (abs(before.penalty) + abs(now.penalty))
    return by_slopes + penalty if abs(by_slopes + penalty) > hidden else 0.


def is_worse(found, trial):
    """Tell whether a Trial that has led to what is Compared is undone.

    It is unless the objective has fallen by a part of the model's fall, or a penalty of the
    snapshot before may hide that; or if rounding may hide the move, and the gradient is not
    smaller.
    """
    if found.former is None or not found.rise and found.former.penalty:
        return False
    return not -found.rise > LEAST * trial.fall or trial.is_hidden and not found.move.shrinks

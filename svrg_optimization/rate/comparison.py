"""The comparison: whether a snapshot is worse than the one before."""

import math
from typing import NamedTuple, Optional

import numpy as np

from ..core.arrays import precision_of
from ..core.optimality import Point
from .constants import ROUGHLY
from .regime import Move


class Compared(NamedTuple):
    """A snapshot beside the one before.

    Attributes
    ----------
    former, now : Point
        The snapshots; no former one if it was of something else.
    move : Move
        From one to the other.
    rise, rounding : float
        By how much the objective has changed, and may have by rounding.
    restarts : bool
        Whether the former one was in other units.
    """

    former: Optional[Point]
    now: Point
    move: Move
    rise: float
    rounding: float
    restarts: bool


def change(before, now, move, rounding, warn_once=None):
    r"""Return by how much the objective has changed from one Point to the next.

    | what is known | change |
    |---|---|
    | no gradient | inf |
    | a difference that is more than rounding | the difference |
    | other ones | :math:`(g + g')^T s / 2`, with the move s and the gradients before and after it |
    | one that rounding of the operators' values hides | 0 |

    `rounding` is that of the objective. The difference of a convex objective lies between
    :math:`g^T s` and :math:`g'^T s`. If `warn_once` is given and it does not, it is not used.
    """
    if not np.isfinite(now.gradient).all():
        return math.inf
    penalty, slopes = now.penalty - before.penalty, (move.before, move.after)
    difference = now.objective - before.objective
    slack = rounding + max(map(abs, slopes)) / ROUGHLY
    if warn_once and math.isfinite(difference) and not (
            min(slopes) - slack <= difference <= max(slopes) + slack):
        warn_once('the loss is not the function whose gradient is computed, as with BlockGrad or '
                  'an operator of your own, or is not convex: whether a step has made it larger '
                  'is told by the slopes along it')
    elif abs(difference + penalty) > rounding:
        return difference + penalty
    by_slopes, hidden = sum(slopes) / 2 + penalty, precision_of(float) * (
        abs(before.penalty) + abs(now.penalty))
    return by_slopes if abs(by_slopes) > hidden else 0.


def is_worse(found):
    """Tell whether the move that has led to what is Compared is undone.

    It is if the objective has risen, and without a change, but where a penalty of the snapshot
    before may hide it.
    """
    return bool(found.former is not None and (
        found.rise > 0 or not found.rise and not found.former.penalty))

"""The rollback: by how much a snapshot is worse than the one before."""

import math

import numpy as np

from ..core.arrays import precision_of
from .constants import ROUGHLY


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


def is_worse(rise, steps, has_jumped, penalty):
    """Tell whether steps or a jump, which have changed the objective by `rise`, are undone.

    Jumps without a change end there, but where a penalty of the snapshot before may hide it.
    """
    return bool((steps or has_jumped) and (rise > 0 or has_jumped and not rise and not penalty))

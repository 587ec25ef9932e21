"""The rollback: whether a snapshot is worse than the one before, and the return to that one."""

import math
from typing import NamedTuple

import numpy as np

from ..core.arrays import precision_of
from .regime import ROUNDING, Move

_FAR = 10  # times the largest objective: a rise after which nothing of H is right
_CHANCE = 0.1  # those by chance, where each pass finds another objective, as with Dropout


class PreviousSnapshot:
    """The snapshot that the next one replaces, and the number of steps from it."""

    def __init__(self, svrg):
        self.weights = svrg.reference.copy_of_values()
        self.full_gradient = svrg.snapshot.full_gradient
        self.steps = svrg.snapshot.num_update - svrg.snapshot.taken_at


class Comparison(NamedTuple):
    """A snapshot beside the one before, as all workers agree on it.

    Attributes
    ----------
    move : Move
        From the one to the other.
    changed : float
        Change of the objective; -inf if there is none to compare with.
    steps, batches : int
        Number of steps from the one to the other, and of batches in the pass.
    rolls_back, fails_by_far : bool
        Whether training goes back to the one before, and whether the move went much too far.
    """

    move: Move
    changed: float
    steps: int
    batches: int
    rolls_back: bool
    fails_by_far: bool


def compare(former, now, steps, batches, has_jumped, regime, workers):
    """Return the Comparison of two Points; the former is None if there is none to compare with.

    Without a step or a jump between them there is nothing to undo.
    """
    move, changed, promised = Move(), -math.inf, regime.largest
    if former is not None:
        move = Move.between(regime.metric, former, now)
        if move.length:  # if not, another order of the rows has changed the objective
            changed = change(former, now, move, regime)
        promised = (abs(move.before) if math.isnan(former.objective)  # by the slope
                    else max(promised, abs(former.objective + former.penalty)))
    is_worse = former is not None and not (np.isfinite(now.gradient).all() and (
        changed < 0 or changed == 0 and not has_jumped))
    # Each worker with the largest of all workers' numbers.
    steps, batches, is_worse, changed, promised, *numbers = workers.allreduce_max(
        [steps, batches, is_worse, changed, promised, *move.numbers()])
    rolls_back = bool((steps or has_jumped) and is_worse)
    return Comparison(Move(*move[:2], *numbers), changed, steps, batches, rolls_back,
                      rolls_back and not regime.has_noise and not changed <= _FAR * promised)


def roll_back(svrg, before, trained):
    """Set a model and its snapshot to a PreviousSnapshot.

    Stored batches stay; their gradients are of another snapshot, and no step takes them.
    """
    def go():
        svrg.snapshot.replace(None)  # until it is whole again
        svrg.reference.set_values(before.weights)
        trained.go_to(before.weights)
        svrg.snapshot.replace(before.full_gradient)

    try:
        go()
    except BaseException:  # a Ctrl-C in the middle
        go()
        raise


def change(before, now, move, regime):
    r"""Return by how much the objective has changed from one Point to the next.

    | what is known | change |
    |---|---|
    | no gradient, or the earlier point is outside of bounds | inf; -inf |
    | no objective | :math:`(g + g')^T s / 2` |
    | a difference that is more than rounding or chance | the difference |
    | one that may be chance, as with Dropout | 0 |
    | one within rounding | the same, within the bounds :math:`g^T s` and :math:`g'^T s` |
    | one within rounding, with an operator | :math:`(g + g')^T s / 2`; or, if that is rounding, \
      that of the length of a proximal step |

    With the move s and the gradients g and g' before and after it, both bounds hold for a convex
    objective. What an operator's value changes by is added to both.

    Parameters
    ----------
    before, now : Point
        The points.
    move : Move
        Between them.
    regime : Regime
        Has the largest objective, whose rounding may be in all later ones, and the slowdown: with
        it chance gets larger, or all others would be above a lucky one.
    """
    if not math.isfinite(before.penalty):
        return -math.inf
    penalty = now.penalty - before.penalty
    if not np.isfinite(now.gradient).all() or math.isinf(now.objective):
        return math.inf
    difference = now.objective - before.objective
    if math.isnan(difference):
        return (move.before + move.after) / 2 + penalty
    size = max(abs(before.objective), abs(now.objective))
    if regime.has_noise and abs(difference) <= _CHANCE * regime.slowdown * size:
        return 0.
    if abs(difference + penalty) <= ROUNDING * precision_of(regime.dtype) * max(
            size, regime.largest):
        if regime.residual is not None:
            difference = (move.before + move.after) / 2 + penalty
            is_rounding = abs(difference) <= ROUNDING * precision_of(float) * abs(before.penalty)
            return regime.residual(now) - regime.residual(before) if is_rounding else difference
        difference = min(max(difference, move.before), move.after)
    return difference + penalty

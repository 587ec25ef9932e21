"""The rollback: whether a snapshot is worse than the one before, and the return to that one."""

import math

import numpy as np

ROUNDING = 25  # times the precision, relative: differences that are noise
_CHANCE = 0.1  # those by chance, where each pass finds another objective, as with Dropout


class PreviousSnapshot:
    """The snapshot that the next one replaces, and the number of steps from it."""

    def __init__(self, svrg):
        self.weights = svrg.reference.copy_of_values()
        self.full_gradient = svrg.snapshot.full_gradient
        self.steps = svrg.snapshot.num_update - svrg.snapshot.taken_at


def roll_back(svrg, before, trained):
    """Set a model and its snapshot to a PreviousSnapshot.

    Stored batches stay; their gradients are of another snapshot, and no step takes them.
    """
    svrg.snapshot.replace(None)  # until it is whole again
    svrg.reference.set_values(before.weights)
    trained.go_to(before.weights)
    svrg.snapshot.replace(before.full_gradient)


def change(before, now, move, regime, largest, slowdown):
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
        The regime.
    largest : float
        Largest objective so far, whose rounding may be in all later ones.
    slowdown : float
        What the rate is divided by. With it chance gets larger, or all others would be above a
        lucky one.
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
    if regime.has_noise and abs(difference) <= _CHANCE * slowdown * size:
        return 0.
    if abs(difference + penalty) <= ROUNDING * np.finfo(regime.dtype).eps * max(size, largest):
        if regime.residual is not None:
            difference = (move.before + move.after) / 2 + penalty
            is_rounding = abs(difference) <= ROUNDING * np.finfo(float).eps * abs(before.penalty)
            return regime.residual(now) - regime.residual(before) if is_rounding else difference
        difference = min(max(difference, move.before), move.after)
    return difference + penalty

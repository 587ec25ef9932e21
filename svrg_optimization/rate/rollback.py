"""The rollback: whether a snapshot is worse than the one before, and the return to that one."""

import math

import numpy as np

from ..core.arrays import dense

# Relative differences of objectives that tell nothing: from rounding, times the dtype's precision,
# and by chance if each pass finds another objective, as with Dropout.
_ROUNDING, _CHANCE = 25, 0.1
_NOISE = 10  # a gradient below this multiple of its change over the weights' spacing is noise


def roll_back(svrg, before, trained):
    """Set a model and its snapshot to a PreviousSnapshot.

    Stored batches stay; their gradients are of another snapshot, and no step takes them.
    """
    svrg.snapshot.replace(None)  # until it is whole again
    svrg.reference.set_values(before.weights)
    trained.go_to(before.weights)
    svrg.snapshot.replace(before.full_gradient)


class Guard:
    """Comparison of a snapshot with the one before.

    Attributes
    ----------
    slowdown : float
        Divisor of the rate: doubled by each rollback, halved by each other snapshot, at least 1.
    largest_objective : float
        Largest objective so far. Its rounding is noise.
    """

    def __init__(self, slowdown=1., largest_objective=0.):
        self.slowdown, self.largest_objective = slowdown, largest_objective

    def accept(self, objective):
        """Go on from a snapshot with this objective."""
        if math.isfinite(objective):
            self.largest_objective = max(self.largest_objective, abs(objective))

    def change(self, gradient, before, full_gradient, weights, noise, along, product, is_random):
        r"""Return the change of the objective since a PreviousSnapshot; -inf if it is not known.

        If both objectives are known, and their difference is more than rounding, it is their
        difference. If it is less, :math:`(g + g')^T s / 2` is returned, with the move s
        and the gradients g and g' before and after it. This is exact for a quadratic objective.
        If an objective is not known, :math:`g'^T s` is returned, which is an upper bound for a
        convex objective. If the gradient is only rounding errors, or the change is only those of
        the operators' values, none of these says which objective is smaller. Then the change of
        the gradient's length is returned if it is negative and both objectives are known, and
        otherwise 0.

        Parameters
        ----------
        gradient : MeanGradient
            The gradient that the optimizer steps along.
        before, full_gradient, weights
            The PreviousSnapshot, and full gradient and weights of the new one.
        noise : float
            Change of the gradient if the weights change by their spacing.
        along, product : float
            :math:`g'^T s` and :math:`(g' - g)^T s`.
        is_random : bool
            Whether another pass would find another objective.
        """
        penalties = [gradient.regularizer(each) for each in (before.weights, weights)]
        if not math.isfinite(penalties[0]):
            return -math.inf
        penalty, norm = penalties[1] - penalties[0], gradient.length(full_gradient, weights)
        is_noise = norm <= _NOISE * noise
        former = gradient.smooth_objective(before.full_gradient, before.weights)
        value = gradient.smooth_objective(full_gradient, weights)
        if math.isnan(former) or math.isnan(value):
            return 0. if is_noise else along + penalty
        size = max(abs(former), abs(value))
        precision = _ROUNDING * max(np.finfo(dense(weights[name][0]).dtype).eps
                                    for name in gradient.updated(full_gradient))
        if is_random:
            precision = _CHANCE * self.slowdown  # or all others would be above a lucky one
        elif is_noise:
            size = max(size, self.largest_objective)
        difference = value - former + penalty  # near the optimum their changes cancel
        if not (math.isfinite(value) and abs(difference) <= precision * size):
            return difference
        secant = along - product / 2 + penalty
        if is_noise or abs(secant) <= _ROUNDING * np.finfo(float).eps * abs(penalties[0]):
            return min(0., norm - gradient.length(before.full_gradient, before.weights))
        return 0. if is_random else secant

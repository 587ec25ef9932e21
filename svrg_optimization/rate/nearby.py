"""Gradients near a snapshot: products with the Hessian, by a pass each."""

import math

import numpy as np

from ..core.arrays import precision_of
from .constants import SLIGHT


class Nearby:
    """Products with the Hessian at the snapshot, as differences of gradients.

    A difference is so long that rounding and the change of the curvature weigh alike.

    Attributes
    ----------
    precision : float
        Relative one of the least precise product.
    shortest : float
        Length of the shortest difference.
    rows_differ : bool
        Whether a pass had another number of rows.
    """

    rows_differ = False

    def __init__(self, objective, learned):
        metric, point = learned.metric, learned.point
        self._objective, self._point, self._metric = objective, point, metric
        self._epsilon = precision_of(learned.dtype)
        self._scale = max(np.linalg.norm(learned.sizes), learned.pairs.gamma * max(
            learned.noise.of_batch, float(np.linalg.norm(metric.pull(point.gradient))))) or 1.
        self._of_weights = metric.rounding(point.weights, learned.dtype)
        self._of_gradient = learned.noise.rounding
        self.precision, self.shortest = math.sqrt(self._epsilon), math.inf

    def product(self, vector, curvature):
        """Return the vector, as rounding of weights leaves it, and the product with that.

        `curvature` is about that along it.
        """
        rounding = self._of_weights + self._of_gradient / max(curvature, self._epsilon)
        precision = math.sqrt(min(SLIGHT, max(self._epsilon, rounding / self._scale)))
        by = precision * self._scale / np.linalg.norm(vector)
        self.precision = max(self.precision, precision)
        self.shortest = min(self.shortest, precision * self._scale)
        moved, changed = self.change(by * vector)
        return moved / by, changed / by

    def change(self, move=None):
        """Return the move that was made, and the change of the gradient."""
        metric, here = self._metric, self._point
        there = self._objective.point_at(metric, move)
        self.rows_differ |= bool(self._objective.agree(there.rows != here.rows))
        return (metric.seen_by_loss(metric.whiten(there.weights - here.weights)),
                metric.seen_by_loss(metric.pull(there.gradient - here.gradient)))

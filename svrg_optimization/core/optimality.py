"""The mean objective at a snapshot, and its gradient: how far it is from an optimum."""

import math
from typing import NamedTuple

import numpy as np

from ..proximal import is_ours
from .arrays import as_float32, dense, precision_of


class Point(NamedTuple):
    """The mean objective at the weights of a snapshot: float64 vectors, as a Metric has them.

    Attributes
    ----------
    weights, gradient : numpy.ndarray
        Of the parameters that are updated. The gradient is that of the smooth objective.
    slopes : numpy.ndarray
        The gradient of the loss alone, in the scale of the full gradient.
    unseen : numpy.ndarray
        The part of the gradient where the loss is known to have none: rounding alone.
    objective, penalty : float
        Those of the smooth objective, NaN if it is not known, and of the proximal operators.
    units : float
        Factor from the objective per row to this one.
    rows : int
        Number of rows of the pass.
    """

    weights: np.ndarray
    gradient: np.ndarray
    slopes: np.ndarray
    unseen: np.ndarray
    objective: float
    penalty: float
    units: float
    rows: int


class MeanGradient:
    r"""Gradient of the mean objective, as an optimizer steps along it.

    .. math:: G = s \mu + wd \cdot w

    It is the gradient per row unless the user has given the optimizer a
    `rescale_grad`. Front ends give that and wd as steps apply them.

    Parameters
    ----------
    scale_of : callable
        Takes a FullGradient and returns s.
    multipliers : dict of str to float
        What the learning rate of each parameter that is updated is multiplied by.
    decays : dict of str to float
        Weight decay of each of these.
    optimizer : mxnet.optimizer.Optimizer, optional
        The optimizer.
    proximal : dict of str to operator
        Proximal operators.

    Attributes
    ----------
    multipliers, decays, proximal : dict
        The arguments.
    """

    def __init__(self, scale_of, multipliers, decays, optimizer=None, proximal=()):
        self._scale_of, self.multipliers, self.decays = scale_of, multipliers, decays
        self._optimizer, self.proximal = optimizer, dict(proximal)

    def updated(self, names):
        """List the parameters among some that are updated."""
        return [name for name in self.multipliers if name in names]

    def gradient(self, full_gradient, weights):
        """Map each parameter that is updated to G, given μ and lists of weights, one per device."""
        totals, scale = full_gradient.totals(), self._scale_of(full_gradient)
        return {name: totals[name] * scale + self.decays[name] * dense(weights[name][0])
                if self.decays[name] else totals[name] * scale
                for name in self.updated(full_gradient.shares[0])}

    def point(self, metric, full_gradient, weights):
        """Return the Point of a snapshot, as vectors of a Metric. Arguments as for `gradient`."""
        slopes = metric.vector(full_gradient.totals())
        vector = metric.vector({name: dense(weights[name][0]) for name in metric.shapes})
        decays = metric.vector({name: np.full(shape, self.decays[name])
                                for name, shape in metric.shapes.items()})
        scale, seen = self._scale_of(full_gradient), metric.without_common(slopes)
        return Point(vector, scale * seen + decays * vector, slopes, scale * (slopes - seen),
                     self.smooth_objective(full_gradient, weights), self.penalty(weights),
                     self.per_row(full_gradient), full_gradient.rows)

    def penalty(self, weights):
        """Return the sum of the proximal operators' values, R(w)."""
        return sum(float(operator.value(weights[name][0]))
                   for name, operator in self.proximal.items() if name in self.decays)

    def smooth_objective(self, full_gradient, weights):
        r"""Return the function whose gradient is G; NaN if the loss is not known.

        .. math:: s\, L + \frac{1}{2} wd \cdot w^2

        L is the loss in the scale of :math:`\mu`. Arguments are those of `gradient`.
        """
        total = self._scale_of(full_gradient) * full_gradient.loss
        for name in self.updated(full_gradient.shares[0]):
            if self.decays[name]:
                weight = dense(weights[name][0]).asnumpy().astype('float64')
                total += self.decays[name] * float(np.square(weight).sum()) / 2
        return total

    def objective(self, full_gradient, weights):
        """Return the mean objective per row, with weight decay and the proximal operators' value.

        None if the loss is not known. Arguments are those of `gradient`.
        """
        objective = self.smooth_objective(full_gradient, weights) + self.penalty(weights)
        return None if math.isnan(objective) else objective / self.per_row(full_gradient)

    def per_row(self, full_gradient):
        """Return the factor from the objective per row to the one that a step follows."""
        rows = 1 if full_gradient.loss_is_mean else full_gradient.batch_size
        return abs(rows * self._scale_of(full_gradient)) or 1

    def norm(self, full_gradient, weights):
        r"""Return the largest component per row, in absolute value.

        With a proximal operator it is that of the gradient mapping,

        .. math:: (w - \mathrm{prox}_{\eta R}(w - \eta G)) / \eta,

        at the current learning rate, which is 1 with 'newton_cg'. Arguments are those of
        `gradient`.
        """
        largest = [np.abs(gradient.asnumpy().astype('float64')).max()
                   for gradient in self.mapping(full_gradient, weights).values()]
        return float(np.max(largest or [0.]) / self.per_row(full_gradient))

    def dtype(self, weights):
        """Return the name of the least precise dtype of the weights that are updated."""
        return max((np.dtype(dense(weights[name][0]).dtype).name
                    for name in self.updated(weights)),
                   key=precision_of, default='float64')

    def mapping(self, full_gradient, weights):
        """Map each parameter to G, or to its gradient mapping."""
        gradients = self.gradient(full_gradient, weights)
        for name in self.proximal if self._optimizer else ():
            if name in gradients:
                gradients[name] = self._mapping(name, dense(weights[name][0]), gradients[name])
        return gradients

    def _mapping(self, name, weight, gradient):
        proximal = self.proximal[name]
        rate = as_float32([self._optimizer.learning_rate * self.multipliers[name]])[0] or 1.
        if is_ours(proximal):  # others may need the dtype of the parameter
            weight, gradient = weight.astype('float64'), gradient.astype('float64')
        stepped = weight - rate * gradient
        proximal.prox(stepped, rate)
        return (weight - stepped) / rate

"""The mean objective at a snapshot, and its gradient: how far it is from an optimum."""

import math

import numpy as np
from mxnet import ndarray as nd

from ..proximal import is_ours
from .arrays import as_float32, dense


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
        self._rule = getattr(optimizer, 'lr_scheduler', None)

    @property
    def momentum(self):
        """Momentum of the optimizer."""
        return getattr(self._optimizer, 'momentum', 0.)

    @property
    def rate(self):
        """Learning rate of the optimizer."""
        return getattr(self._optimizer, 'learning_rate', 0.)

    def of(self, full_gradient, weights):
        """Map each parameter that is updated to G, given μ and lists of weights, one per device."""
        totals, scale = full_gradient.totals(), self._scale_of(full_gradient)
        return {name: totals[name] * scale + decay * dense(weights[name][0])
                if self.decays[name] else totals[name] * scale
                for name, decay in self._decays_of(full_gradient).items()}

    def change(self, full_gradient, full_before, moved):
        """Map each parameter to the change of G between two full gradients, given the moves."""
        totals, before = full_gradient.totals(), full_before.totals()
        units = full_before.scale_for(full_gradient.batch_size)
        decays, scale = self._decays_of(full_gradient), self._scale_of(full_gradient)
        return {name: scale * (totals[name] - units * before[name]) + decays[name] * by
                for name, by in moved.items()}

    def units(self, full_gradient, full_before):
        """Return the factor from the scale of an earlier G to that of a later one."""
        return (self._scale_of(full_gradient) / self._scale_of(full_before)
                * full_before.scale_for(full_gradient.batch_size))

    def updated(self, full_gradient):
        """List the parameters that are updated and have a full gradient."""
        return list(self._decays_of(full_gradient))

    def _decays_of(self, full_gradient):
        """Map each parameter that is updated to its decay."""
        return {name: decay for name, decay in self.decays.items()
                if name in full_gradient.shares[0]}

    @property
    def is_smooth(self):
        """Whether there is no proximal operator."""
        return not self.proximal

    def regularizer(self, weights):
        """Return the sum of the proximal operators' values, R(w)."""
        return sum(float(operator.value(weights[name][0]))
                   for name, operator in self.proximal.items() if name in self.decays)

    def smooth_objective(self, full_gradient, weights):
        r"""Return the function whose gradient is G; NaN if the loss is not known.

        .. math:: s\, L + \frac{1}{2} wd \cdot w^2

        L is the loss in the scale of :math:`\mu`. Arguments are those of `of`.
        """
        total = self._scale_of(full_gradient) * full_gradient.loss
        for name, decay in self._decays_of(full_gradient).items():
            if decay:
                weight = dense(weights[name][0]).asnumpy().astype('float64')
                total += float((weight * weight * decay).sum()) / 2
        return total

    def objective(self, full_gradient, weights):
        """Return the mean objective per row, with weight decay and the proximal operators' value.

        None if the loss is not known. Arguments are those of `of`.
        """
        objective = self.smooth_objective(full_gradient, weights) + self.regularizer(weights)
        return None if math.isnan(objective) else objective / self.per_row(full_gradient)

    def per_row(self, full_gradient):
        """Return the factor from the objective per row to the one that a step follows."""
        rows = 1 if full_gradient.loss_is_mean else full_gradient.batch_size
        return abs(rows * self._scale_of(full_gradient)) or 1

    def norm(self, full_gradient, weights):
        r"""Return the largest component per row, in absolute value.

        With a proximal operator it is that of the gradient mapping,

        .. math:: (w - \mathrm{prox}_{\eta R}(w - \eta G)) / \eta,

        at the current learning rate. With 'svrg_lbfgs' each component is divided by the root of
        the metric's diagonal. Arguments are those of `of`.
        """
        gradients = self._residual(full_gradient, weights)
        largest = [gradient.abs().max() for gradient in gradients.values()]
        return float(np.max([value.asscalar() for value in largest] or [0.])
                     / self.per_row(full_gradient))

    def secant(self, full_gradient, weights, full_before, weights_before):
        """Return the norms of G here and at the snapshot before, of its change, and of the move.

        With a proximal operator they are those of the gradient mapping.
        """
        now = self._residual(full_gradient, weights)
        former = self._residual(full_before, weights_before)
        moved = {name: dense(weights[name][0]) - dense(weights_before[name][0]) for name in now}
        return (_length(now), _length(former),
                _length({name: array - former[name] for name, array in now.items()}),
                _length(self._scaled(moved, 0.5)))

    def length(self, full_gradient, weights):
        """Return the Euclidean norm of the vector that `norm` has the largest component of."""
        return _length(self._residual(full_gradient, weights))

    def decrement(self, full_gradient, weights, curvature):
        """Return the square of the Newton decrement, G' H G, and that of the weights' norm.

        Biases do not count in the norm. 'svrg_lbfgs' has an H and a norm of its own; else H is
        one over the curvature. The first number is NaN if no curvature is known.
        """
        gradients = self.mapping(full_gradient, weights)
        here = {name: dense(weights[name][0]) for name in gradients}
        if hasattr(self._rule, 'metric'):
            return self._rule.decrement(gradients, here, self.multipliers, curvature)
        return _length(gradients) ** 2 / (curvature or math.nan), _length(
            {name: array for name, array in here.items() if array.ndim > 1} or here) ** 2

    def dtype(self, weights):
        """Return the name of the least precise dtype of the weights that are updated."""
        return max((np.dtype(dense(weights[name][0]).dtype).name for name in self.multipliers),
                   key=lambda name: np.finfo(name).eps, default='float64')

    def spacing(self, *snapshots):
        """Return the norm of the updated weights times their precision; the least of snapshots'."""
        arrays = [{name: dense(weights[name][0]) for name in self.multipliers}
                  for weights in snapshots]
        return min(_length(self._scaled(each, 0.5)) for each in arrays) * np.finfo(
            self.dtype(snapshots[0])).eps

    def _scaled(self, arrays, power):
        """Return arrays by name times a power of the diagonal of the metric of 'svrg_lbfgs'."""
        scales = {name: scale for part in getattr(self._rule, 'metric', ())
                  for name, scale in part.by_column(power).items()}
        return {name: array * nd.array(scales[name], array.context, array.dtype)
                if name in scales else array for name, array in arrays.items()}

    def mapping(self, full_gradient, weights):
        """Map each parameter to G, or to its gradient mapping."""
        gradients = self.of(full_gradient, weights)
        for name in self.proximal if self._optimizer else ():
            if name in gradients:
                gradients[name] = self._mapping(name, dense(weights[name][0]), gradients[name])
        return gradients

    def _residual(self, full_gradient, weights):
        """Return `mapping` divided by the root of the metric's diagonal."""
        gradients = self.mapping(full_gradient, weights)
        return self._scaled(gradients, -0.5) if hasattr(self._rule, 'metric') else gradients

    def _mapping(self, name, weight, gradient):
        proximal, rate = self.proximal[name], 1.
        if getattr(self._rule, 'rate', 1.) is not None:
            rate = as_float32([self._optimizer.learning_rate * self.multipliers[name]])[0] or 1.
        if is_ours(proximal):  # others may need the dtype of the parameter
            weight, gradient = weight.astype('float64'), gradient.astype('float64')
        if hasattr(self._rule, 'step_size'):
            rate = self._rule.step_size(name, rate, weight)
        stepped = weight - rate * gradient
        proximal.prox(stepped, rate)
        return (weight - stepped) / rate


def _length(arrays):
    """Return the Euclidean norm of a dict of arrays, summed in float64."""
    return math.sqrt(sum(float(np.square(array.asnumpy().astype('float64')).sum())
                         for array in arrays.values()))

"""How far a snapshot is from an optimum: the gradient of the mean objective there."""

import operator

import numpy as np
from mxnet import ndarray as nd

from ..core.arrays import dense
from ..core.divergence import Divergence, length_of
from ..proximal import is_ours
from . import executor_group
from .optimizer_states import kvstore_of_weights, rate_multipliers, weight_decays


class MeanGradient:
    r"""Gradient of the mean objective, as the optimizer of a Module steps along it.

    .. math:: G = W r \mu + wd \cdot w

    with the optimizer's `rescale_grad` r and W workers that step together. It is
    the gradient per row unless r is a number of one's own.

    Parameters
    ----------
    module : SVRGModule
        Module being trained.
    batches_of_a_step : int
        W, the number of batches whose gradients make up one step.

    Attributes
    ----------
    scale : float
        W r. Without an optimizer it is 1.
    decays : dict of str to float
        Weight decay of each parameter that the optimizer updates.
    multipliers : dict of str to float
        What the learning rate of each of these is multiplied by.
    momentum : float
        Momentum of the optimizer.
    """

    def __init__(self, module, batches_of_a_step):
        self.scale, self.momentum, self._optimizer = 1., 0., None
        self.decays = dict.fromkeys(module._trainable, 0.)
        self.multipliers = dict.fromkeys(module._trainable, 1.)
        if module.optimizer_initialized:
            self._optimizer = optimizer = module._optimizer
            by_number = kvstore_of_weights(module) is None
            self.scale = optimizer.rescale_grad * batches_of_a_step
            self.momentum = getattr(optimizer, 'momentum', 0.)
            multipliers = rate_multipliers(optimizer, module._trainable, by_number)
            self.multipliers = {name: rate for name, rate in multipliers.items() if rate}
            self.decays = weight_decays(optimizer, list(self.multipliers), by_number)
        self._proximal = module._proximal.by_name

    def of(self, full_gradient, weights):
        """Map each parameter to G.

        Parameters
        ----------
        full_gradient : FullGradient
            μ.
        weights : dict of str to list of NDArray
            For each parameter w, one array per device.

        Returns
        -------
        dict of str to NDArray
        """
        totals = full_gradient.totals()
        return {name: totals[name] * self.scale + decay * dense(weights[name][0])
                if self.decays[name] else totals[name] * self.scale
                for name, decay in self.decays_of(full_gradient).items()}

    def change(self, full_gradient, full_before, moved, units=1):
        """Map each parameter to the change of G where weights have moved.

        Parameters
        ----------
        full_gradient, full_before : FullGradient
            μ after and before.
        moved : dict of str to NDArray
            Change of each parameter.
        units : float
            Factor that gives `full_before` the scale of `full_gradient`.

        Returns
        -------
        dict of str to NDArray
        """
        totals, before = full_gradient.totals(), full_before.totals()
        decays = self.decays_of(full_gradient)
        return {name: self.scale * (totals[name] - units * before[name]) + decays[name] * by
                for name, by in moved.items()}

    def decays_of(self, full_gradient):
        """Map each parameter that is updated to its decay, or to that of each of its rows.

        With `sparse_full_grad` a row is decayed only by the batches that contain it.
        """
        decays = {name: decay for name, decay in self.decays.items()
                  if name in full_gradient.shares[0]}
        for name, counts in full_gradient.row_counts.items():
            if decays.get(name):
                array = full_gradient.shares[0][name]
                shape = (-1,) + (1,) * (array.ndim - 1)
                devices = len(full_gradient.shares)
                decays[name] = nd.array(
                    decays[name] * counts.reshape(shape) / (devices * full_gradient.batches),
                    ctx=array.context, dtype=array.dtype)
        return decays

    def regularizer(self, weights):
        """Return the sum of what the proximal operators stand for."""
        return sum(float(operator.value(weights[name][0]))
                   for name, operator in self._proximal.items() if name in self.decays)

    def norm(self, full_gradient, weights):
        r"""Return the largest component per row, in absolute value.

        With a proximal operator it is that of the gradient mapping,

        .. math:: (w - \mathrm{prox}_{\eta R}(w - \eta G)) / \eta,

        at the current learning rate. Arguments are those of `of`.
        """
        gradients = self.of(full_gradient, weights)
        for name in self._proximal if self._optimizer else ():
            if name in gradients:
                gradients[name] = self._mapping(name, dense(weights[name][0]), gradients[name])
        rows = 1 if full_gradient.loss_is_mean else full_gradient.batch_size
        largest = [gradient.abs().max() for gradient in gradients.values()]
        return float(np.max([value.asscalar() for value in largest] or [0.])
                     / abs(rows * self.scale or 1))

    def _mapping(self, name, weight, gradient):
        proximal, rate = self._proximal[name], 1.
        if getattr(self._optimizer.lr_scheduler, 'is_begun', True):
            rate = self._optimizer.learning_rate * self.multipliers[name] or 1.
        if is_ours(proximal):  # others may need the dtype of the parameter
            weight, gradient = weight.astype('float64'), gradient.astype('float64')
        stepped = weight - rate * gradient
        proximal.prox(stepped, rate)
        return (weight - stepped) / rate


class Optimality:
    """Norm of the gradient at the latest snapshot of a module.

    The module and the number of batches of a step are arguments of its methods,
    as in MeanGradient.
    """

    def __init__(self):
        self._of = self._norm = None
        self._divergence = Divergence()

    def norm(self, module, batches_of_a_step):
        """Return the norm at the latest snapshot; None before the first."""
        svrg = module._svrg
        if not svrg.snapshot.is_active:
            return None
        of = svrg.snapshot.full_gradient, module._optimizer
        if self._of is None or any(map(operator.is_not, self._of, of)):
            self._of, self._norm = of, MeanGradient(module, batches_of_a_step).norm(
                svrg.snapshot.full_gradient, executor_group.parameters(svrg.at.module))
        return self._norm

    def look_at(self, module, batches_of_a_step):
        """Look at a new snapshot at a constant rate; warn once if training diverges."""
        weights = executor_group.parameters(module._svrg.at.module).values()
        self._divergence.look_at(
            self.norm(module, batches_of_a_step),
            lambda: length_of(dense(arrays[0]) for arrays in weights),
            module._optimizer.learning_rate if module.optimizer_initialized else None,
            module._svrg.warn_once)

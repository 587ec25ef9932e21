"""Does SVRG help here, and is the snapshot too old? The variance of gradients tells."""

from typing import Dict, NamedTuple

import numpy as np

from .data.iterators import check_iterator, rewind
from .mxnet_bridge import executor_group
from .svrg_module import SVRGModule


class Variance(NamedTuple):
    """The variance of a parameter's gradients over batches, without and with SVRG."""

    plain: float
    svrg: float


class GradientVariance(NamedTuple):
    """What `gradient_variance` measures.

    Attributes
    ----------
    plain, svrg : float
        The variance of the plain batch gradient and of the SVRG gradient, of
        all parameters together, in squared units of a batch gradient.
    by_parameter : dict of str to Variance
        The same for each parameter; these add up to the above.
    """

    plain: float
    svrg: float
    by_parameter: Dict[str, Variance]


class _Moments:
    """Mean and sum of squared deviations of vectors, by Welford's method in float64."""

    def __init__(self):
        self.count, self.mean, self.deviations = 0, 0., 0.

    def add(self, vector):
        self.count += 1
        before = vector - self.mean
        self.mean = self.mean + before / self.count
        self.deviations += float(np.vdot(before, vector - self.mean))

    @property
    def variance(self):
        return self.deviations / self.count


def gradient_variance(mod, data):
    r"""Measure the variance of the plain batch gradient and of the SVRG gradient.

    At the current weights, over batches b with gradients :math:`g_b` of mean
    :math:`\bar g`, it is :math:`\frac{1}{N} \sum_b \|g_b - \bar g\|^2`, the
    trace of their population covariance. The gradients are those that a step
    would hand to the optimizer, with `alpha` as it is now, and padding where a
    batch has some; summed over the devices of this process, in the units of a
    batch gradient. SVRG pays where its variance is well below the plain one: a
    step costs two gradients, and a batch of twice the rows would halve the
    variance of their mean too. Where the model fits each row, the plain
    gradients vanish at the optimum by themselves.

    Weights, auxiliary states, snapshot and full gradient stay as they are; the
    inputs, outputs and gradients of the latest batch do not. Random layers
    draw anew, and so does an iterator that shuffles. A schedule of `alpha` is
    called for each batch, with the number of updates so far.

    Parameters
    ----------
    mod : SVRGModule
        Between two steps, with a snapshot in force or `alpha` 0. A module of
        buckets will not do.
    data : DataIter
        It is reset, and read to its end.

    Returns
    -------
    GradientVariance

    Raises
    ------
    TypeError
        If `mod` is no SVRGModule, or `data` no iterator.
    RuntimeError
        If `mod` has no snapshot, is not bound for training, or awaits
        `backward` or `update`.
    ValueError
        If `data` yields no batch.

    Examples
    --------
    >>> import mxnet as mx
    >>> import numpy as np
    >>> from svrg_optimization import SVRGModule
    >>> from svrg_optimization.diagnostics import gradient_variance
    >>> rng = np.random.RandomState(0)
    >>> features = rng.normal(size=(100, 3))
    >>> targets = features.sum(axis=1) + rng.normal(size=100)
    >>> data = mx.io.NDArrayIter(features, targets, 10, label_name='target')
    >>> output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    >>> symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('target'))
    >>> module = SVRGModule(symbol, label_names=('target',), update_freq=1)
    >>> module.fit(data, eval_metric='mse', num_epoch=5,
    ...            optimizer_params={'learning_rate': 0.1})
    >>> variance = gradient_variance(module, data)
    >>> variance.svrg < variance.plain
    True
    >>> sorted(variance.by_parameter)
    ['fc_bias', 'fc_weight']
    """
    _check(mod, data)
    plain, svrg = {}, {}
    with mod._between_steps():
        rewind(data)
        for batch in data:
            executor_group.clear_added_gradients(mod)
            mod.forward(batch, is_train=True)
            mod._compute_gradients()
            _add_to(plain, mod)
            mod._update_svrg_gradients()
            _add_to(svrg, mod)
    if not plain:
        raise ValueError('data must yield at least one batch, and %r yielded none' % (data,))
    by_parameter = {name: Variance(plain[name].variance, svrg[name].variance) for name in plain}
    return GradientVariance(sum(each.plain for each in by_parameter.values()),
                            sum(each.svrg for each in by_parameter.values()), by_parameter)


def _check(mod, data):
    if not isinstance(mod, SVRGModule):
        raise TypeError('mod must be an SVRGModule, not %r' % (mod,))
    check_iterator('data', data)


def _add_to(moments, module):
    for name, arrays in executor_group.gradients(module).items():
        gradient = sum(array.asnumpy().astype(np.float64) for array in arrays)
        moments.setdefault(name, _Moments()).add(gradient)


class VarianceCallback:
    """Log the variance of the gradients at the end of each epoch.

    Give it to `fit` as an `epoch_end_callback`. It logs, through the module's
    logger, ``Epoch[%d] Gradient-variance=%g`` and ``Epoch[%d]
    SVRG-gradient-variance=%g``, and costs two gradient passes over the data.

    Parameters
    ----------
    mod : SVRGModule
        That is trained.
    data : DataIter
        To measure over. It may be that of the training, but a reset more
        changes what it yields where it shuffles or rolls rows over.

    Attributes
    ----------
    history : list of tuple of (int, GradientVariance)
        What was measured, with its epoch.

    Raises
    ------
    TypeError
        If `mod` is no SVRGModule, or `data` no iterator.
    """

    def __init__(self, mod, data):
        _check(mod, data)
        self.history = []
        self._module, self._data = mod, data

    def __call__(self, epoch, *_):
        """Measure and log; further arguments are those of any `epoch_end_callback`."""
        variance = gradient_variance(self._module, self._data)
        self.history.append((epoch, variance))
        for name, value in (('Gradient', variance.plain), ('SVRG-gradient', variance.svrg)):
            self._module.logger.info('Epoch[%d] %s-variance=%g', epoch, name, value)

"""Variance of gradients: does SVRG help, is the snapshot too old, and which α is best?"""

import contextlib
from typing import Any, NamedTuple, Union

import mxnet as mx
import numpy as np

from ._argument_checks import check_iterator
from .data.iterators import checked_batches, rewind
from .gluon import SVRGTrainer
from .svrg_module import SVRGModule


class GradientVariance(NamedTuple):
    r"""Result of `gradient_variance`.

    Attributes
    ----------
    plain, svrg : float
        Variance of the plain batch gradient and of the SVRG gradient, over all
        parameters together, in squared units of a batch gradient.
    best_alpha : float
        The coefficient :math:`\alpha` with which the variance of the SVRG
        gradient would be least at the current weights, one for all parameters
        together. It has no unit. It can lie outside of [0, 1], the range of
        `alpha`: below 0 the gradients at the snapshot are of no use. It is nan
        where the gradients at the snapshot do not vary, as over a single
        batch.
    """

    plain: float
    svrg: float
    best_alpha: float


def gradient_variance(mod: Union[SVRGModule, SVRGTrainer], data: Any) -> GradientVariance:
    r"""Measure the variance of the plain batch gradient and of the SVRG gradient.

    At the current weights, over N batches b with gradients :math:`g_b` of mean
    :math:`\bar g`, the variance is :math:`\frac{1}{N} \sum_b \|g_b - \bar g\|^2`,
    the trace of the population covariance. The gradients are those that a step
    would hand to the optimizer, at the present value of `alpha`, padding
    included, summed over the devices of this process, in the units of a batch
    gradient. Those of an SVRGTrainer are divided by the rows of the batch.

    With ``update_freq=m`` an epoch of SVRG takes 2 + 1/m gradient passes. In as
    many passes SGD could use batches with 2 + 1/m times the rows, whose variance
    is smaller by this factor. So SVRG pays if its variance is below
    1/(2 + 1/m) of the plain one: 1/3 for ``update_freq=1`` and 0.4 for 2. If the
    model fits each row exactly, the plain gradients too vanish at the optimum.

    The best :math:`\alpha` is

    .. math:: \alpha^* = \frac{\mathrm{Cov}(\nabla f_b(w), \nabla f_b(\tilde w))}
                              {\mathrm{Var}(\nabla f_b(\tilde w))},

    the minimum of :math:`\mathrm{Var}(\nabla f_b(w)) - 2 \alpha\,
    \mathrm{Cov} + \alpha^2\, \mathrm{Var}(\nabla f_b(\tilde w))`, in which
    Cov and Var are traces over all parameters.

    The model and its snapshot stay as they are. Random layers draw new numbers, and an
    iterator that shuffles draws a new order.

    Parameters
    ----------
    mod : SVRGModule or SVRGTrainer
        The module or trainer, with an active snapshot. An SVRGBucketingModule
        cannot be measured.
    data : DataIter, or for a trainer any iterable
        The data to measure over. An iterator is reset and read to its end.

    Returns
    -------
    GradientVariance

    Raises
    ------
    TypeError
        If `mod` is neither, or `data` is no iterator.
    RuntimeError
        If `mod` has no snapshot.
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
    """
    if isinstance(mod, SVRGTrainer):
        mod._check_ready()
    elif isinstance(mod, SVRGModule):
        check_iterator('data', data)
    else:
        raise TypeError('mod must be an SVRGModule or an SVRGTrainer, not %r' % (mod,))
    if not mod._svrg.snapshot.is_active:
        raise RuntimeError('mod must have a snapshot: call update_full_grads first')
    alpha = mod._svrg.settings.alpha_after(mod._svrg.snapshot.num_update)
    count, mean, product = 0, np.zeros(1), np.zeros((3, 3))
    with mod._svrg.reference.inputs_kept(mod), contextlib.closing(
            _gradients(mod, data)) as of_batches:
        for count, (plain, control) in enumerate(of_batches, 1):
            rows = np.array([plain, plain - alpha * control, control])
            before = rows - mean  # by Welford's method
            mean = mean + before / count
            # Not a matrix product, whose sums have other orders: equal rows, equal variances.
            product += np.einsum('ik,jk->ij', before, rows - mean)
    if not count:
        raise ValueError('data must yield at least one batch, and %r yielded none' % (data,))
    plain, svrg, control = map(float, product.diagonal())
    return GradientVariance(plain / count, svrg / count,
                            float(product[0, 2] / control) if control else float('nan'))


def _gradients(mod, data):
    """Yield for each batch the plain gradient and the control variate, each as a vector.

    The control is what α multiplies: the gradient at the snapshot minus the full gradient. The
    reference computes all gradients; for the current weights it has these for a while.
    """
    reference, snapshot = mod._svrg.reference, mod._svrg.snapshot
    is_gluon, full_gradient = isinstance(mod, SVRGTrainer), snapshot.full_gradient
    mu = _vector({name: [share[name] for share in full_gradient.shares]
                  for name in reference.weights()})
    if not is_gluon:
        rewind(data)
    then = reference.copy_of_values()
    snapshot.is_active = False  # until its weights are back, whatever happens
    try:
        reference.begin_pass()
        reference.copy_from(mod)
        now = reference.copy_of_values()
        for batch in (mod._batches(data).batches() if is_gluon
                      else checked_batches('data', data)):
            plain, rows = _gradient(mod, now, batch, draws=True)
            at_snapshot, _ = _gradient(mod, then, batch, draws=False)
            unit = 1 / rows if is_gluon else 1
            yield unit * plain, unit * (at_snapshot - full_gradient.scale_for(rows) * mu)
    finally:
        mx.nd.waitall()
        reference.set_values(then)
        snapshot.is_active = True


def _gradient(mod, values, batch, draws):
    """Return the gradient of a batch where the reference has these values, and its rows."""
    reference = mod._svrg.reference
    mx.nd.waitall()  # MXNet's BatchNorm writes its states behind the engine's back
    reference.set_values(values)
    gradient = reference.gradient(mod, batch, draws=draws)
    return _vector({name: gradient.gradients[name] for name in reference.weights()}), (
        gradient.summed)


def _vector(gradients):
    """Return all gradients as one vector, summed over the devices in float64."""
    return np.concatenate([
        sum(array.asnumpy().ravel().astype(np.float64) for array in arrays)
        for arrays in gradients.values()])

"""Step sizes that a snapshot gives: SVRG-BB, with Barzilai-Borwein steps."""

import math

import mxnet as mx
from mxnet.lr_scheduler import LRScheduler

from ._argument_checks import as_number, checked_bool


class BarzilaiBorwein(LRScheduler):
    r"""A learning rate for SVRG that needs no tuning.

    Give it where an lr_scheduler goes: ``optimizer_params={'lr_scheduler':
    BarzilaiBorwein()}``. From one snapshot to the next the rate
    is a constant, and the two snapshots tell the next one [1]_:

    .. math:: \eta_k = \frac{1}{m} \frac{\|\tilde w_k - \tilde w_{k-1}\|^2}
              {(\tilde w_k - \tilde w_{k-1})^T (g_k - g_{k-1})}

    with m the steps between them, and g the full gradient that a step goes
    along: the mean over the rows, :math:`\mu / B`, plus the optimizer's
    :math:`wd \cdot w`. (In general it is :math:`\mu`, summed over workers that
    step together, times the optimizer's `rescale_grad`, which Module sets.)
    Until the second snapshot the rate is the optimizer's `learning_rate`.

    With few steps between snapshots and a badly conditioned problem that may
    be too large, and a rate that overshoots is followed by a wrong one. So

    - it is at most :math:`1 / L`, where L is the largest curvature seen so far,
      :math:`\|g_k - g_{k-1}\|^2 / (\tilde w_k - \tilde w_{k-1})^T (g_k - g_{k-1})`;
    - where the curvature is not positive, as may be where the loss is not
      convex, or no step was made, the rate stays as it was.

    Parameters
    ----------
    base_lr : float
        The rate until the second snapshot, above 0. As in all schedulers of
        MXNet, the optimizer's `learning_rate` takes its place.
    bounded : bool
        Whether the rate is at most 1 / L. False is the formula alone.

    Attributes
    ----------
    rate : float or None
        The rate since the second snapshot; None before it.
    curvature : float
        L, and 0 before the second snapshot.

    Raises
    ------
    TypeError, ValueError
        If `base_lr` is no number above 0, or `bounded` no bool.

    Notes
    -----
    ``SVRGModule.init_optimizer`` raises a ValueError where the formula does not
    hold or the rate would not arrive: for another optimizer than sgd, or sgd
    with momentum or `clip_gradient`; with ``alpha=0``; for an optimizer that lives on the servers
    of a distributed KVStore (set ``MXNET_UPDATE_ON_KVSTORE=0`` on all workers,
    and these keep it). A checkpoint holds `rate` and `curvature`.

    References
    ----------
    .. [1] C. Tan, S. Ma, Y.-H. Dai and Y. Qian, "Barzilai-Borwein Step Size for
       Stochastic Gradient Descent", NIPS 2016, Algorithm 1.

    Examples
    --------
    >>> import mxnet as mx
    >>> import numpy as np
    >>> from svrg_optimization import BarzilaiBorwein, SVRGModule
    >>> rng = np.random.RandomState(0)
    >>> features = rng.normal(size=(100, 3))
    >>> data = mx.io.NDArrayIter(features, features.dot([1.0, -2.0, 3.0]), 10,
    ...                          label_name='target')
    >>> output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    >>> symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('target'))
    >>> module = SVRGModule(symbol, label_names=('target',), update_freq=1)
    >>> rule = BarzilaiBorwein()
    >>> module.fit(data, eval_metric='mse', num_epoch=40,
    ...            optimizer_params={'lr_scheduler': rule})
    >>> module.get_params()[0]['fc_weight'].asnumpy().round(4).tolist()
    [[1.0, -2.0, 3.0]]
    """

    def __init__(self, base_lr=0.01, bounded=True):
        rate = as_number(base_lr)
        if rate is None:
            raise TypeError('base_lr must be a number above 0, not %r' % (base_lr,))
        if not 0 < rate < math.inf:
            raise ValueError('base_lr must be a number above 0, not %r' % (base_lr,))
        self.bounded = checked_bool('bounded', bounded)
        super().__init__(float(rate))
        self.rate, self.curvature = None, 0.

    def __call__(self, num_update):
        """Return the rate, whatever the number of updates."""
        return self.base_lr if self.rate is None else self.rate

    def advance(self, displacements, changes, steps, units=1):
        """Take the rate that two snapshots give.

        Parameters
        ----------
        displacements : list of NDArray
            From the one to the other, for each parameter.
        changes : list of NDArray
            Those of the full gradient.
        steps : int
            Between the two.
        units : float
            What the largest curvature so far is to be multiplied by, as the
            unit of a gradient has changed.
        """
        largest = self.curvature * units
        squared = product = changed = 0.
        for displacement, change in zip(displacements, changes):
            moved, grown = (array.astype('float64') for array in (displacement, change))
            own = float((moved * moved).sum().asscalar())
            if own:  # a parameter that is never stepped says nothing
                squared += own
                product += float((moved * grown).sum().asscalar())
                changed += float((grown * grown).sum().asscalar())
        rate = self.rate
        if steps and 0 < product < math.inf and math.isfinite(changed / product):
            largest = max(largest, changed / product)
            rate = squared / product / steps
            if self.bounded:
                rate = min(rate, 1 / largest)
        self.rate, self.curvature = rate, largest

    def restart(self):
        """Forget what snapshots have told."""
        self.rate, self.curvature = None, 0.


def check_step_size(optimizer, optimizer_params, alpha, on_servers):
    """Raise a ValueError where an optimizer cannot have the rate of a BarzilaiBorwein it has.

    Parameters
    ----------
    optimizer : str or mxnet.optimizer.Optimizer
        That steps the weights.
    optimizer_params : dict
        Arguments of one that is given by name.
    alpha : float or callable
        The module's.
    on_servers : bool
        Whether it lives on the servers of a KVStore.
    """
    if isinstance(optimizer, str):
        arguments, name = dict(optimizer_params), optimizer.lower()
        is_sgd = mx.optimizer.Optimizer.opt_registry.get(name) is mx.optimizer.SGD
    else:
        optimizer = getattr(optimizer, 'default_opt', optimizer)
        arguments, name = getattr(optimizer, '__dict__', {}), type(optimizer).__name__.lower()
        is_sgd = type(optimizer) is mx.optimizer.SGD
    if not isinstance(arguments.get('lr_scheduler'), BarzilaiBorwein):
        return
    for argument in ('momentum', 'clip_gradient'):
        if arguments.get(argument):
            name += ' with %s %g' % (argument, arguments[argument])
            is_sgd = False
    if not is_sgd:
        raise ValueError('optimizer must be sgd without momentum and clip_gradient for '
                         'BarzilaiBorwein, not %s' % name)
    if not callable(alpha) and alpha == 0:
        raise ValueError('alpha must not be 0 for BarzilaiBorwein: there is no snapshot then')
    if on_servers:
        raise ValueError('kvstore must leave the updates to the workers for BarzilaiBorwein, whose '
                         'rate would not reach the servers: set MXNET_UPDATE_ON_KVSTORE=0 on all '
                         'workers, or choose another lr_scheduler')

"""Learning rates from snapshots: SVRG-BB, with Barzilai-Borwein steps."""

import math

import mxnet as mx
from mxnet.lr_scheduler import LRScheduler

from ._argument_checks import checked_bool, checked_positive
from .svrg_optimizer import described

_FIRST_RATE = 0.01  # where it cannot be measured
_ASTRAY = 100  # growth of the full gradient between two snapshots that shows a rate too large
_SLOWER = 2  # what the rate is divided by then
_FACTOR = 4  # of the formula's rate, where the rate is bounded
_KEPT = 0.98  # of the largest curvature, from each snapshot to the next
_PRECISION = 1e-6  # of float32 gradients: what is smaller, relative to the largest, is noise


class BarzilaiBorwein(LRScheduler):
    r"""Learning rate for SVRG that needs no tuning.

    Use it as the optimizer's scheduler: ``optimizer_params={'lr_scheduler':
    BarzilaiBorwein()}``. The rate is constant from one snapshot to the next.
    Each snapshot sets the next rate from itself and the snapshot before it [1]_:

    .. math:: \eta_k = \frac{1}{m} \frac{\|\tilde w_k - \tilde w_{k-1}\|^2}
              {(\tilde w_k - \tilde w_{k-1})^T (g_k - g_{k-1})}

    Here m is the number of steps between them. The vector g is the full
    gradient of a step: the mean over the rows, :math:`\mu / B`, plus the
    optimizer's :math:`wd \cdot w`. With another `rescale_grad` than Module's
    default, g is :math:`\mu` times `rescale_grad`; :math:`\mu` is summed over
    workers that step together.

    The first snapshot measures the curvature along G, the first full gradient of
    a step, with one more pass over the data:

    .. math:: L = \|g(w) - g(w - h\, G / \|G\|)\| / h,
              \quad h = 10^{-3} \max(1, \|w\|)

    and the first rate is :math:`1 / L`. With random layers differences of
    gradients are noise, and it is 0.01.

    With few steps between snapshots and a badly conditioned problem this rate
    can be too large, and after a rate that overshoots the next one is wrong. With
    many steps it is small: a snapshot brings the weights nearer to the optimum by
    a factor of e or so. Therefore

    - the rate is four times that of the formula;
    - it is at most :math:`1 / L`, where L is the largest curvature so far,
      :math:`\|g_k - g_{k-1}\|^2 / (\tilde w_k - \tilde w_{k-1})^T (g_k - g_{k-1})`.
      That of earlier snapshots counts 2 percent less at each one: it may be larger than
      near the optimum;
    - the rate does not change if the curvature is not positive, which happens
      with losses that are not convex, or if no step was made.

    The factor and the bound are not part of the paper. Nor is momentum: with the momentum
    :math:`\beta` of the optimizer each gradient moves the weights by
    :math:`1 / (1 - \beta)` times the rate in total, so the formula's rate is
    multiplied by :math:`1 - \beta`, and then bounded. The first rate is too.

    If the norm of the full gradient has grown a hundredfold since the snapshot
    before, or is not finite, the module goes back to that one, with half the rate
    and the momentum at 0, and warns of it once. So it does at the end of ``fit`` if
    the weights are not finite, or a thousand times those of the snapshot.

    Parameters
    ----------
    base_lr : float, optional
        Rate until the second snapshot, above 0. By default it is measured. As in
        all schedulers of MXNet, the optimizer's `learning_rate` replaces it.
    bounded : bool
        Whether the rate is four times that of the formula, and at most 1 / L. With
        False the formula alone is used.
    with_momentum : bool
        Without effect: the optimizer's momentum is known. It was needed before
        version 1.0.

    Attributes
    ----------
    rate : float or None
        Rate since the latest snapshot; None before it is known.
    curvature : float
        L; 0 before it is known.

    Raises
    ------
    TypeError
        If `base_lr` is not a number, or if `bounded` or `with_momentum` is not
        a bool.
    ValueError
        If `base_lr` is not above 0, or is infinite.

    Notes
    -----
    ``SVRGModule.init_optimizer`` raises a ValueError for an optimizer other
    than sgd and nag, for `clip_gradient`, for
    ``alpha=0`` and for `full_grad_batches`: the formula does not hold there. It
    also raises one if the servers of a distributed KVStore update the weights,
    because the rate would not reach them. Set ``MXNET_UPDATE_ON_KVSTORE=0`` on
    all workers in that case. A checkpoint contains the state of the rule.

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

    def __init__(self, base_lr=None, bounded=True, with_momentum=False):
        rate = checked_positive('base_lr', base_lr)
        self.bounded = checked_bool('bounded', bounded)
        self.with_momentum = checked_bool('with_momentum', with_momentum)
        super().__init__(rate or 1.)
        self.base_lr = rate
        self.restart()

    def __call__(self, num_update):
        """Return the current rate.

        Parameters
        ----------
        num_update : int
            Number of updates so far; the rate does not depend on it.

        Returns
        -------
        float
            The rate, above 0.

        Raises
        ------
        RuntimeError
            If it is not known before the first snapshot.
        """
        if not self.is_begun:
            raise RuntimeError('BarzilaiBorwein has no learning rate before the first snapshot: '
                               'call update_full_grads(train_data) before the first update, or '
                               'give base_lr')
        return self.base_lr if self.rate is None else self.rate

    @property
    def is_begun(self):
        """Whether there is a rate."""
        return not (self.rate is None and self.base_lr is None)

    def begin(self, curvature, momentum=0):
        """Set the first rate from a curvature; 0 if that cannot be measured."""
        self.curvature = curvature
        self.rate = (1 - momentum) / curvature if curvature else _FIRST_RATE

    def begin_fit(self):
        """Compare the next full gradient with none: weights and data may be others."""
        self._norm = None

    def note(self, norm):
        """Note the norm of the full gradient at a snapshot, in the scale of a step."""
        self._norm = norm
        self._largest_norm = max(self._largest_norm, norm)

    def is_astray(self, norm):
        """Tell whether the norm of a full gradient shows that the rate was too large."""
        if self._norm is None:
            return not math.isfinite(norm)
        return not norm <= _ASTRAY * max(self._norm, _PRECISION * self._largest_norm)

    def slow_down(self):
        """Reduce the rate for good, after it has led astray."""
        self.rate = self(None) / _SLOWER
        self.curvature = max(self.curvature, 1 / self.rate)

    def advance(self, displacements, changes, steps, units=1, momentum=0):
        """Set the rate from two snapshots.

        Parameters
        ----------
        displacements : list of NDArray
            For each parameter, the later snapshot minus the earlier one.
        changes : list of NDArray
            For each parameter, the later full gradient minus the earlier one,
            with weight decay and in the scale of a step.
        steps : int
            Number of steps between the snapshots.
        units : float
            Factor for the curvature so far, if the scale of gradients has
            changed.
        momentum : float
            Momentum of the optimizer.
        """
        largest = self.curvature * units
        squared = product = changed = 0.
        for displacement, change in zip(displacements, changes):
            moved, grown = (array.astype('float64') for array in (displacement, change))
            own = float((moved * moved).sum().asscalar())
            if own:  # a parameter that is never updated says nothing
                squared += own
                product += float((moved * grown).sum().asscalar())
                changed += float((grown * grown).sum().asscalar())
        rate = self.rate
        if steps and 0 < product < math.inf and math.isfinite(changed / product):
            largest = max(_KEPT * largest, changed / product)
            rate = (1 - momentum) * squared / product / steps
            if self.bounded:
                rate = min(_FACTOR * rate, 1 / largest)
        self.rate, self.curvature = rate, largest

    def restart(self):
        """Forget all that earlier snapshots have told."""
        self.rate, self.curvature = None, 0.
        self._norm, self._largest_norm = None, 0.


def check_step_size(optimizer, optimizer_params, alpha, on_servers, full_grad_batches=None):
    """Raise an error for a bad `lr_scheduler`, or a BarzilaiBorwein whose rate cannot be used.

    Parameters
    ----------
    optimizer : str or mxnet.optimizer.Optimizer
        Optimizer of the weights.
    optimizer_params : dict
        Arguments of an optimizer that is given by name.
    alpha : float or callable
        The module's `alpha`.
    on_servers : bool
        Whether the servers of a KVStore update the weights.
    full_grad_batches : int, callable or None
        The module's `full_grad_batches`.

    Raises
    ------
    TypeError
        If the optimizer's `lr_scheduler` is a class or not callable.
    ValueError
        As described in the notes on `BarzilaiBorwein`.
    """
    klass, name, arguments = described(optimizer, optimizer_params)
    rule = arguments.get('lr_scheduler')
    if rule is not None and (isinstance(rule, type) or not callable(rule)):
        raise TypeError('lr_scheduler must be an object like BarzilaiBorwein(), or None, not %r'
                        % (rule,))
    if not isinstance(rule, BarzilaiBorwein):
        return
    is_allowed = klass in (mx.optimizer.SGD, mx.optimizer.NAG)
    for argument in ('momentum', 'clip_gradient'):
        value = arguments.get(argument)
        if value:
            name += ' with %s %g' % (argument, value)
            is_allowed &= argument == 'momentum' and 0 < value < 1
    if not is_allowed:
        raise ValueError('optimizer must be sgd or nag, with a momentum from 0 to below 1 and '
                         'without clip_gradient, for BarzilaiBorwein, not %s' % name)
    if not callable(alpha) and alpha == 0:
        raise ValueError('alpha must not be 0 for BarzilaiBorwein: there is no snapshot then')
    if full_grad_batches is not None:
        raise ValueError('full_grad_batches must be None for BarzilaiBorwein, as differences of '
                         'samples are noise, and not %r' % (full_grad_batches,))
    if on_servers:
        raise ValueError('kvstore must leave the updates to the workers for BarzilaiBorwein, whose '
                         'rate would not reach the servers: set MXNET_UPDATE_ON_KVSTORE=0 on all '
                         'workers, or choose another lr_scheduler')

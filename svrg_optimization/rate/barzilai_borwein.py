"""Learning rates from snapshots: SVRG-BB, with Barzilai-Borwein steps."""

import math
from typing import NamedTuple

import mxnet as mx

from .._argument_checks import checked_bool, checked_positive
from ..core.requirements import ALL_ROWS, SNAPSHOTS, require
from ..svrg_optimizer import _register, described
from .rollback import take_guarded_snapshot
from .rule import Rule, rule_of
from .scales import Scales
from .secant_pairs import Moves

_MODULES_DEFAULT = (('learning_rate', 0.01),)  # of `fit` and `init_optimizer`: nobody has given it
_MOMENTUM = 0.9  # of svrg_bb
_FIRST_RATE = 0.01  # where it cannot be measured
_FACTOR = 4  # of the formula's rate, where the rate is bounded
_STABLE = 1.5  # of (1 + momentum) / (1 + 2 momentum) / L, where 2 is not stable any more
_KEPT = 0.9  # of the largest curvature, from each snapshot to the next
_SLOWER, _FASTER = 2, 1.1  # what the bound is divided by on the way back, multiplied by on others
_STATE = 'rate', 'curvature', 'slowdown', 'largest_norm', 'largest_objective', 'ways_back'
_PRECISION = 1e-6  # of float32 gradients: what is smaller, relative to the largest, is noise


class KeptSnapshot(NamedTuple):
    """The snapshot that training would go back to: the latest one.

    Attributes
    ----------
    objective : float
        Change of the mean objective since the first snapshot.
    norm : float
        Norm of its gradient.
    """

    objective: float
    norm: float


class BarzilaiBorwein(Rule):
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

    With few steps between snapshots and a badly conditioned problem this rate
    can be too large, and after a rate that overshoots the next one is wrong. With
    many steps it is small: a snapshot brings the weights nearer to the optimum by
    a factor of e or so. Therefore

    - the rate is four times that of the formula;
    - it is at most three quarters of the rate from which on nag is not stable where L,
      the largest curvature so far, is that of a quadratic function:
      :math:`\frac{3}{4} \frac{2 (1 + \beta)}{1 + 2 \beta} \frac{1}{L}` with the momentum
      :math:`\beta` of the optimizer. L loses a tenth at each snapshot;
    - without a step, or where the curvature is not positive, as with losses that are
      not convex, the rate stays as it is.

    The curvature is the larger of two. Between two snapshots it is
    :math:`\|g_k - g_{k-1}\|^2 / (\tilde w_k - \tilde w_{k-1})^T (g_k - g_{k-1})`. At
    each one it is that of a random batch, whose loss can be far more curved than the
    mean: two iterations of the power method on differences of its gradients,

    .. math:: L_b = \|g_b(\tilde w) - g_b(\tilde w - h\, v / \|v\|)\| / h,
              \quad h = 10^{-3} \max(1, \|\tilde w\|)

    first with v its gradient, then with v the difference. The first rate is
    :math:`(1 - \beta) / L`, or `base_lr`, with the same bound. Dropout's masks stay for
    the differences. With other random layers these are noise: batches are not measured,
    and the first rate is 0.01.

    With momentum each gradient moves the weights by :math:`1 / (1 - \beta)` times the
    rate in total, so the formula's rate is multiplied by :math:`1 - \beta`. Where a
    parameter has a multiplier of the rate (`lr_mult`), all this is
    measured in its weights divided by the root of the multiplier.

    The measured first rate is halved until one step along the batch's gradient lowers the
    batch's loss (Armijo's condition), since a saturated loss shows no curvature.

    **Way back.** A pass sums the loss of all rows. Where the mean objective, with weight
    decay and a proximal operator's `value`, is above that of the snapshot before, or the
    gradient is not finite, training goes back there, without momentum and with half the
    rate and half the bound, and a line of the log says so. The bound grows again by a tenth
    a snapshot. Where two objectives differ by no more than rounding,

    .. math:: (g_{k-1} + g_k)^T (\tilde w_k - \tilde w_{k-1}) / 2

    decides; where the loss is not known, as with an operator of one's own, its upper bound
    :math:`g_k^T (\tilde w_k - \tilde w_{k-1})` for a convex objective does. So the latest
    snapshot is the best one. With Dropout, BatchNorm and other layers with which each pass
    finds another objective, training goes back where it is above by more than a tenth,
    times `slowdown`. ``fit`` ends with a snapshot.

    **Jump.** The last five moves between snapshots, with the changes of the gradient, tell
    where a quadratic objective would be least on their span [2]_. The next steps begin
    there, without momentum, at most three times as far away as the longest of the moves;
    snapshot and full gradient stay. There is no jump with a proximal operator, whose
    objective is not quadratic, nor with layers such as Dropout and BatchNorm. The moves take
    at most 16 MB, so fewer are kept of more than 400,000 weights, and none of more than two
    million. A way back forgets them.

    **Scaled columns.** With `scaled` the data need not be scaled. The first pass finds for each
    weight on column j of an input

    .. math:: D_j = 1 / (\sum_i x_{ij}^2 / |\{i: x_{ij} \ne 0\}| + wd),

    which stays, and steps are :math:`w \leftarrow w - \eta D (g + wd \cdot w)`. It is the
    training on columns divided by the root of their mean square, with the objective as it was.
    Proximal operators use :math:`\eta D`; `gradient_norm`, and so `tol`, is that of
    :math:`\sqrt D` times the gradient, which does not depend on the scale of columns. The
    weights are those of FullyConnected and ``dot`` (Module) and Dense (Gluon) on an input, or
    on one that is flattened, reshaped or cast. All other parameters have D = 1, and so do
    float16 and row_sparse weights, and those with a proximal operator of one's own. With a
    GroupLasso whose groups have several columns, these have one D: that of all their numbers.

    The factors, the bounds, the batches' curvature, the way back, the jump and D are not part
    of the first paper.

    Parameters
    ----------
    base_lr : float, optional
        Rate before the first snapshot, above 0, and with the bound from there on. By
        default it is measured. As in all schedulers of MXNet, the optimizer's
        `learning_rate` replaces it.
    bounded : bool
        Whether the rate is four times that of the formula, and bounded. With False the
        formula alone is used, after a first rate as always, with the way back and without
        jumps.
    scaled : bool
        Whether steps are scaled by the columns of the inputs.

    Attributes
    ----------
    rate : float or None
        Rate since the latest snapshot; None before the first.
    curvature : float
        L; 0 before it is known.
    slowdown : float
        What the bound is divided by: 1, and more after a way back.
    best : KeptSnapshot or None
        The best snapshot so far, which is the latest one.
    moves : Moves
        The last moves between snapshots.
    column_scales : Scales
        D of each weight that has one.
    ways_back : int
        How often training went back to it.
    begins_anew : bool
        Whether the next snapshot is compared with none.

    Raises
    ------
    TypeError
        If `base_lr` is not a number, or if `bounded` or `scaled` is not a bool.
    ValueError
        If `base_lr` is not above 0, or is infinite.

    Notes
    -----
    ``SVRGModule.init_optimizer`` and SVRGTrainer raise a ValueError for an optimizer other
    than sgd and nag, for `clip_gradient`, for
    ``alpha=0`` and for `full_grad_batches`: the formula does not hold there. It
    also raises one if the servers of a distributed KVStore must update the weights,
    because the rate would not reach them: in ``dist_async``, for row_sparse weights, and
    with ``MXNET_UPDATE_ON_KVSTORE=1``. Otherwise the workers update them. A checkpoint
    contains the state of the rule and its moves.

    References
    ----------
    .. [1] C. Tan, S. Ma, Y.-H. Dai and Y. Qian, "Barzilai-Borwein Step Size for
       Stochastic Gradient Descent", NIPS 2016, Algorithm 1.
    .. [2] D. Scieur, A. d'Aspremont and F. Bach, "Regularized Nonlinear Acceleration",
       NIPS 2016.

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

    def __init__(self, base_lr=None, bounded=True, scaled=False):
        rate = checked_positive('base_lr', base_lr)
        self.bounded = checked_bool('bounded', bounded)
        self.scaled = checked_bool('scaled', scaled)
        super().__init__(rate)

    def take_snapshot(self, svrg, trained, source, workers):
        """Take a snapshot, and set the rate or go back."""
        return take_guarded_snapshot(self, svrg, trained, source, workers)

    @property
    def advice(self):
        """What may help where training has not converged."""
        return 'centred features' if self.scaled else 'BarzilaiBorwein(scaled=True)'

    def restart(self):
        """Forget all that earlier snapshots have told."""
        super().restart()
        self.curvature, self.slowdown = 0., 1.
        self.best, self.largest_norm, self.largest_objective, self.ways_back = None, 0., 0., 0
        self.column_scales, self._is_resumed = Scales(), False
        self.begin_anew()

    def state(self):
        """Return what a checkpoint contains."""
        return {**{name: getattr(self, name) for name in _STATE}, 'best': self.best,
                'scales': self.column_scales.by_name, 'moves': self.moves.moves,
                'changes': self.moves.changes}

    def resume(self, state):
        """Go on with what `state` has returned."""
        vars(self).update({name: state[name] for name in _STATE})
        self.best = KeptSnapshot(*state['best']) if state['best'] else None
        self.moves = Moves(state['moves'], state['changes'])
        self.column_scales = Scales(state['scales'])
        self.begins_anew, self._is_resumed = False, True

    def begin_fit(self):
        """Compare the next snapshot with none, but in a resumed run: data may be others."""
        if not self._is_resumed:
            self.begin_anew()
        self._is_resumed = False

    def begin_anew(self):
        """Compare the next snapshot with none: weights or data are others."""
        self.begins_anew = True
        self.moves.clear()

    def is_noise(self, norm):
        """Tell whether the norm of a gradient may be float32's rounding alone."""
        return norm <= _PRECISION * self.largest_norm

    def is_worse(self, change, norm):
        """Tell whether a new snapshot, a Change after the one before, is the worse one.

        It is if its objective is above, or if its gradient's norm is not finite.
        """
        return not math.isfinite(norm) or (change.objective > 0 and not self.begins_anew)

    def accept(self, change, norm, objective=math.nan):
        """Go on from a new snapshot, a Change after the one before, with these values."""
        if math.isfinite(norm):
            self.largest_norm = max(self.largest_norm, norm)
        if math.isfinite(objective):
            self.largest_objective = max(self.largest_objective, abs(objective))
        compares = self.best and not self.begins_anew and math.isfinite(change.objective)
        self.best = KeptSnapshot(self.best.objective + change.objective if compares else 0., norm)
        self.begins_anew = False

    def slow_down(self):
        """Reduce the rate and its bound, and forget the moves, where training goes back."""
        self.rate = self(None) / _SLOWER
        self.slowdown *= _SLOWER
        self.ways_back += 1
        self.moves.clear()

    def advance(self, change, steps, curvature, units=1, momentum=0):
        """Set the rate at a snapshot.

        Parameters
        ----------
        change : Change
            Change since the snapshot before, with weight decay and in the scale of a
            step.
        steps : int
            Number of steps between the snapshots.
        curvature : float
            Curvature of batches; 0 if it is not measured.
        units : float
            Factor for the curvature so far, if the scale of gradients has
            changed.
        momentum : float
            Momentum of the optimizer.
        """
        if steps:
            self.slowdown = max(1., self.slowdown / _FASTER)
        largest = max(self.curvature * units * (_KEPT if steps else 1), curvature)
        if not self.is_begun:
            rate = (1 - momentum) / largest if largest else _FIRST_RATE
        else:
            rate = self(None)
        if self.rate is not None and steps and change.product > 0 and math.isfinite(
                change.changed / change.product):
            largest = max(largest, change.changed / change.product)
            rate = (1 - momentum) * change.squared / change.product / steps
            rate *= _FACTOR if self.bounded else 1 / self.slowdown
        if self.bounded and largest:
            rate = min(rate, _STABLE * (1 + momentum) / (1 + 2 * momentum)
                       / (self.slowdown * largest))
        self.rate, self.curvature = rate, largest


@_register
class SVRG_BB(mx.optimizer.NAG):  # noqa: N801 (MXNet registers the name in lower case)
    """Optimizer 'svrg_bb', which finds its learning rate: nag with a BarzilaiBorwein.

    It is ``optimizer='nag'`` with ``{'momentum': 0.9, 'lr_scheduler': BarzilaiBorwein()}``.
    SVRGModule and SVRGTrainer give it its rates.

    Parameters
    ----------
    momentum : float
        As in ``mxnet.optimizer.NAG``.
    lr_scheduler : BarzilaiBorwein, optional
        By default a new one.
    **others
        As in ``mxnet.optimizer.NAG``, for example `wd`. A `learning_rate` is the first one.
    """

    def __init__(self, momentum=_MOMENTUM, lr_scheduler=None, **others):
        super().__init__(momentum=momentum, lr_scheduler=lr_scheduler or BarzilaiBorwein(),
                         **others)


def spelled_out(optimizer, optimizer_params):
    """Return the arguments of an optimizer, with those that 'svrg_bb' has by default.

    Parameters
    ----------
    optimizer, optimizer_params
        As ``Module.init_optimizer`` or Trainer takes them.
    """
    if not (isinstance(optimizer, str) and optimizer.lower() == SVRG_BB.__name__.lower()):
        return optimizer_params or {}
    given = {} if optimizer_params == _MODULES_DEFAULT else dict(optimizer_params or {})
    return {'momentum': _MOMENTUM, 'lr_scheduler': BarzilaiBorwein(), **given}


def check_step_size(optimizer, optimizer_params, alpha, on_servers, batches=None):
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
    batches : int, callable or None
        The module's `full_grad_batches`.

    Raises
    ------
    TypeError
        If the optimizer's `lr_scheduler` is a class or not callable.
    ValueError
        As described in the notes on `BarzilaiBorwein`, or if the `learning_rate` with one is
        not above 0.
    """
    klass, name, arguments = described(optimizer, optimizer_params)
    scheduler = arguments.get('lr_scheduler')
    if scheduler is not None and (isinstance(scheduler, type) or not callable(scheduler)):
        raise TypeError('lr_scheduler must be an object like BarzilaiBorwein(), or None, not %r'
                        % (scheduler,))
    if rule_of(scheduler) is None:
        return
    checked_positive('learning_rate', arguments.get('learning_rate'))
    is_allowed = klass in (mx.optimizer.SGD, mx.optimizer.NAG, SVRG_BB)
    for argument in ('momentum', 'clip_gradient'):
        value = arguments.get(argument)
        if value:
            name += ' with %s %g' % (argument, value)
            is_allowed &= argument == 'momentum' and 0 < value < 1
    if not is_allowed:
        raise ValueError('optimizer must be sgd or nag, with a momentum from 0 to below 1 and '
                         'without clip_gradient, for %s, not %s'
                         % (type(scheduler).__name__, name))
    if not callable(alpha) and alpha == 0:
        require(SNAPSHOTS, {'rule': scheduler}, 'alpha', alpha)
    if batches is not None:
        require(ALL_ROWS, {'rule': scheduler}, 'full_grad_batches', batches)
    if on_servers:
        raise ValueError('kvstore must leave the updates to the workers for BarzilaiBorwein, whose '
                         'rate would not reach the servers. They keep them with '
                         'MXNET_UPDATE_ON_KVSTORE=1, in dist_async and for row_sparse weights: '
                         'unset the variable, or choose another lr_scheduler')

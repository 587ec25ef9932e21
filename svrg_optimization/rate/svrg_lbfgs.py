"""Optimizer 'svrg_lbfgs': SVRG with L-BFGS at snapshots, in the metric of the inputs."""

import mxnet as mx

from .._argument_checks import checked_number
from ..core.arrays import is_row_sparse
from ..core.requirements import ALL_ROWS, SNAPSHOTS, require
from ..svrg_optimizer import _register, class_name_and_arguments
from .constants import MOMENTUM
from .snapshot_rule import SnapshotRule

_MODULES_DEFAULT = (('learning_rate', 0.01),)  # of `fit` and `init_optimizer`: nobody has given it


@_register
class SVRG_LBFGS(mx.optimizer.NAG):  # noqa: N801 (MXNet registers the name in lower case)
    """Optimizer 'svrg_lbfgs', which finds its learning rate.

    It is nag with the gradients that SVRGModule and SVRGTrainer give it.

    Parameters
    ----------
    momentum : float
        As in ``mxnet.optimizer.NAG``; 0.7 by default. For row_sparse weights and with
        proximal operators as in ``mxnet.optimizer.SGD``, where the last move counts as the
        operators left it.
    **others
        As in ``mxnet.optimizer.NAG``, for example `wd`.
    """

    lazy_update = has_operators = False

    def __init__(self, momentum=MOMENTUM, lr_scheduler=None, **others):
        super().__init__(momentum=momentum, lr_scheduler=lr_scheduler or SnapshotRule(), **others)

    def _get_wds(self, indices):
        """Return no decay where gradients have it: nag's momentum would take the new weights."""
        decays = super()._get_wds(indices)
        return [0.] * len(decays) if self.lr_scheduler.preconditions else decays

    def _update_impl(self, indices, weights, *step, **how):
        one = weights[0] if isinstance(weights, (list, tuple)) else weights
        has_no_nag = self.has_operators or is_row_sparse(one)  # MXNet would copy sparse arrays
        base = mx.optimizer.SGD if has_no_nag else mx.optimizer.NAG
        base._update_impl(self, indices, weights, *step, **how)


def with_default_arguments(optimizer, optimizer_params):
    """Return the arguments of an optimizer, for 'svrg_lbfgs' with those that it has by default."""
    if not (isinstance(optimizer, str) and optimizer.lower() == SVRG_LBFGS.__name__.lower()):
        return optimizer_params or {}
    given = {} if optimizer_params == _MODULES_DEFAULT else dict(optimizer_params or {})
    return {'momentum': MOMENTUM, 'lr_scheduler': SnapshotRule(), **given}


def rule_of(optimizer):
    """Return the SnapshotRule of an optimizer, None without one."""
    scheduler = getattr(optimizer, 'lr_scheduler', None)
    if isinstance(getattr(optimizer, 'default_opt', optimizer), SVRG_LBFGS):
        _check_scheduler(scheduler)
    return scheduler if isinstance(scheduler, SnapshotRule) else None


def _check_scheduler(scheduler):
    if not isinstance(scheduler, SnapshotRule):
        raise ValueError('lr_scheduler must not be given with svrg_lbfgs, which finds its learning '
                         'rate, and not be %r' % (scheduler,))


def check_rule(optimizer, optimizer_params, alpha, on_servers, batches=None):
    """Raise an error for a bad `lr_scheduler`, or for 'svrg_lbfgs' where it cannot be used.

    Parameters
    ----------
    optimizer, optimizer_params
        As ``Module.init_optimizer`` or Trainer takes them.
    alpha : float or callable
        The setting.
    on_servers : bool
        Whether the servers of a KVStore update the weights.
    batches : int, callable or None
        The setting `full_grad_batches`.

    Raises
    ------
    TypeError
        If the optimizer's `lr_scheduler` is a class or not callable.
    ValueError
        If another argument does not fit.
    """
    klass, name, arguments = class_name_and_arguments(optimizer, optimizer_params)
    scheduler = arguments.get('lr_scheduler')
    if scheduler is not None and (isinstance(scheduler, type) or not callable(scheduler)):
        raise TypeError('lr_scheduler must be an object or None, not %r' % (scheduler,))
    if klass is not SVRG_LBFGS:
        if isinstance(scheduler, SnapshotRule):
            raise ValueError('lr_scheduler must not be that of svrg_lbfgs with %s' % name)
        return
    _check_scheduler(scheduler)
    for argument, value in (('learning_rate', arguments.get('learning_rate', arguments.get('lr'))),
                            ('clip_gradient', arguments.get('clip_gradient'))):
        if value:
            raise ValueError('%s must not be given with svrg_lbfgs, whose rate is that of '
                             'the whole gradient, and not be %r' % (argument, value))
    checked_number('momentum', arguments.get('momentum', 0.), 'a number from 0 to below 1',
                   lambda number: 0 <= number < 1)
    if not callable(alpha) and alpha == 0:
        require(SNAPSHOTS, {'svrg_lbfgs': scheduler}, 'alpha', alpha)
    if batches is not None:
        require(ALL_ROWS, {'svrg_lbfgs': scheduler}, 'full_grad_batches', batches)
    if on_servers:
        raise ValueError('kvstore must leave the updates to the workers for svrg_lbfgs, whose '
                         'rate would not reach the servers. They keep them with '
                         'MXNET_UPDATE_ON_KVSTORE=1, in dist_async and for row_sparse weights: '
                         'unset the variable, or choose another optimizer')

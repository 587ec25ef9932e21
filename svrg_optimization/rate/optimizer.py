"""The optimizer 'newton_cg', which has no learning rate. `newton_cg.py` is what it does."""

import mxnet as mx

from .._warn_once import warn
from ..core.requirements import ALL_ROWS, SNAPSHOTS, require
from ..svrg_optimizer import _register, class_name_and_arguments

_MODULES_DEFAULT = (('learning_rate', 0.01),)  # of `fit` and `init_optimizer`: nobody has given it


@_register
class Newton_CG(mx.optimizer.Optimizer):  # noqa: N801 (MXNet registers the name in lower case)
    """Optimizer 'newton_cg', which makes no steps: iterations of Newton's method move the weights.

    Parameters
    ----------
    momentum : float
        Has no effect, so that scripts which give it for steps run.
    **others
        As in ``mxnet.optimizer.Optimizer``, for example `wd`; but none of a learning rate.
    """

    def __init__(self, momentum=0., **others):
        super().__init__(learning_rate=1., **others)
        if momentum:
            warn('momentum=%r has no effect with newton_cg, which makes no steps' % momentum)

    def create_state(self, index, weight):
        """Return None."""

    def update(self, *step):
        """Raise a RuntimeError."""
        raise RuntimeError('newton_cg moves the weights in update_full_grads: leave out forward, '
                           'backward and update')


def with_default_arguments(optimizer, optimizer_params):
    """Return the arguments of an optimizer, for 'newton_cg' without Module's default ones."""
    is_ours = isinstance(optimizer, str) and optimizer.lower() == Newton_CG.__name__.lower()
    return {} if is_ours and optimizer_params == _MODULES_DEFAULT else optimizer_params or {}


def moves_weights(optimizer):
    """Tell whether an optimizer, which may be wrapped, is 'newton_cg'."""
    return isinstance(getattr(optimizer, 'default_opt', optimizer), Newton_CG)


def check_newton_cg(optimizer, optimizer_params, alpha, on_servers, batches=None):
    """Raise an error for a bad `lr_scheduler`, or for 'newton_cg' where it cannot be used.

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
    klass, _, arguments = class_name_and_arguments(optimizer, optimizer_params)
    scheduler = arguments.get('lr_scheduler')
    if scheduler is not None and (isinstance(scheduler, type) or not callable(scheduler)):
        raise TypeError('lr_scheduler must be an object or None, not %r' % (scheduler,))
    if klass is not Newton_CG:
        return
    names = ('lr_scheduler', 'clip_gradient', *['learning_rate'] * isinstance(
        optimizer, str))  # an instance has its own rate
    for argument in names:
        if arguments.get(argument):
            raise ValueError('%s must not be given with newton_cg, which makes no steps: leave '
                             'out %r' % (argument, arguments[argument]))
    if not callable(alpha) and alpha == 0:
        require(SNAPSHOTS, {'newton_cg': True}, 'alpha', alpha)
    if batches is not None:
        require(ALL_ROWS, {'newton_cg': True}, 'full_grad_batches', batches)
    if on_servers:
        raise ValueError('kvstore must leave the updates to the workers for newton_cg, which '
                         'moves their weights. Servers keep them with MXNET_UPDATE_ON_KVSTORE=1, '
                         'in dist_async and for row_sparse weights: unset the variable, or choose '
                         'another optimizer')

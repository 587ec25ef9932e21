"""The optimizer 'newton_cg', which has no learning rate. `newton_cg.py` is what it does."""

import mxnet as mx

from .._warn_once import warn
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


def features_of_optimizer(optimizer, optimizer_params):
    """Return what `check_together` takes of an optimizer and its arguments."""
    klass, name, arguments = class_name_and_arguments(optimizer, optimizer_params)
    momentum, is_ours = arguments.get('momentum'), klass is Newton_CG
    if momentum:
        name += ' with momentum %g' % momentum
    # Without momentum nag steps as sgd does.
    has_one_rate = is_ours or klass in (mx.optimizer.SGD, mx.optimizer.NAG) and not momentum
    return {'newton_cg': is_ours, 'steps of several rates': not has_one_rate and name,
            **{argument: arguments.get(argument)
               for argument in ('learning_rate', 'lr_scheduler', 'clip_gradient')}}

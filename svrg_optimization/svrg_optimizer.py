"""Optimizers of an SVRGModule, which decide how each KVStore key is updated.

Only ``mxnet.optimizer`` may be imported from MXNet here: parameter servers
unpickle these classes before the rest of MXNet is imported.
"""

import math
import numbers
from functools import partialmethod
from inspect import signature

import numpy as np
from mxnet import optimizer as opt

from ._argument_checks import checked_number

_SUFFIX = '_full'
_RATES = {'lr': 'learning_rate', 'wd': 'wd'}  # attributes of an optimizer


def check_optimizer(optimizer, optimizer_params):
    """Raise an error unless this is an Optimizer or a registered name, and its scheduler is one."""
    names = opt.Optimizer.opt_registry
    if not isinstance(optimizer, (str, opt.Optimizer)):
        raise TypeError('optimizer must be a str or an mxnet.optimizer.Optimizer, not %r'
                        % (optimizer,))
    if isinstance(optimizer, str) and optimizer.lower() not in names:
        raise ValueError("optimizer must be 'newton_cg', or one of MXNet's or your own (%s), and "
                         'not %r' % (', '.join(sorted(
                             name for name in names if name[0] != '_' and name not in (
                                 'newton_cg', 'test'))), optimizer))
    scheduler = class_name_and_arguments(optimizer, optimizer_params)[-1].get('lr_scheduler')
    if scheduler is not None and (isinstance(scheduler, type) or not callable(scheduler)):
        raise TypeError('lr_scheduler must be an object or None, not %r' % (scheduler,))


def check_rate(name, rate):
    """Return a learning rate, a weight decay or a multiplier as a number, or raise an error."""
    return checked_number(name, rate, 'a finite number of 0 or more',
                          lambda number: 0 <= number < math.inf)


def check_rates(optimizer):
    """Raise an error if an optimizer has a rate with which steps go uphill, or are not finite."""
    scheduler = optimizer.lr_scheduler
    check_rate('learning_rate', optimizer.lr if scheduler is None
               else getattr(scheduler, 'base_lr', 0))
    check_rate('wd', optimizer.wd)
    for kind in ('lr_mult', 'wd_mult'):
        of_params = {param.name: getattr(param, kind) for param in optimizer.param_dict.values()}
        for name, value in {**getattr(optimizer, kind), **of_params}.items():
            check_rate('%s of %s' % (kind, name), value)


def check_rates_of_training(optimizer, tol, warn_once):
    """Check the rates as they are now; warn once of a rate of 0, which comes no nearer to `tol`."""
    check_rates(optimizer)
    if tol is not None and optimizer.lr_scheduler is None and optimizer.lr == 0:
        warn_once('learning_rate is 0, with which no step moves the weights, and should be above '
                  '0 with tol')


def _register(klass):
    """Register an optimizer, unless another package has already used its name.

    mxnet.contrib registers classes of the same names and creates its own
    optimizers through them.
    """
    opt.Optimizer.opt_registry.setdefault(klass.__name__.lower(), klass)
    return klass


def class_name_and_arguments(optimizer, optimizer_params):
    """Return the class, the name and the arguments of an optimizer as `init_optimizer` takes it.

    The class is None for a name that is not registered.
    """
    if isinstance(optimizer, str):
        name = optimizer.lower()
        return opt.Optimizer.opt_registry.get(name), name, dict(optimizer_params)
    optimizer = getattr(optimizer, 'default_opt', optimizer)
    klass = type(optimizer)
    return klass, klass.__name__.lower(), getattr(optimizer, '__dict__', {})


def agreed(optimizer):
    """Return, by names for messages, what of an optimizer must be equal on workers that update.

    That is its class, its arguments and its present rate. `rescale_grad` is the front end's.
    """
    optimizer = getattr(optimizer, 'default_opt', optimizer)
    names = {name for base in type(optimizer).__mro__[:-1] for name in signature(base).parameters}
    arguments, scheduler = {'learning_rate': float(optimizer.learning_rate)}, optimizer.lr_scheduler
    for name in sorted(names - {'rescale_grad', 'learning_rate'}):
        value = getattr(optimizer, name, None)
        arguments[name] = value if isinstance(value, (numbers.Real, np.generic)) else None
    for name in ('lr_mult', 'wd_mult'):
        arguments[name] = {str(key): value for key, value in getattr(optimizer, name).items()}
    return {'optimizer': type(optimizer).__name__, 'lr_scheduler': type(scheduler).__name__,
            **{'%s of the optimizer' % name: value for name, value in arguments.items()}}


def update_counts(optimizer):
    """Return `num_update` of an optimizer, and under 'counts' the updates of each parameter."""
    counts = {}
    for of_device in optimizer._all_index_update_counts.values():
        for index, count in of_device.items():
            name = optimizer.idx2name.get(index, index)
            counts[name] = max(count, counts.get(name, 0))
    return {'num_update': optimizer.num_update, 'counts': counts}


def set_update_counts(optimizer, saved, contexts):
    """Set what `update_counts` has returned, for the devices of an optimizer."""
    by_name = saved['counts']
    counts = {**by_name, **{index: by_name[name] for index, name in optimizer.idx2name.items()
                            if name in by_name}}
    optimizer.num_update = saved['num_update']
    for device_id in {0, *(context.device_id for context in contexts)}:
        optimizer._all_index_update_counts[device_id] = dict(counts)
    optimizer._set_current_context(0)


def check_state(source, name, state, fresh):
    """Raise a ValueError if an optimizer cannot go on with its state of a parameter in a file.

    It can have a momentum that the optimizer no longer uses, where a `fresh` state is None.
    """
    if not _fits(state, fresh):
        raise ValueError('%s was saved with other arguments of the optimizer, or other shapes of '
                         'parameters: the state of %s must have %s, and has %s'
                         % (source, name, *map(_shapes, (fresh, state))))


def _fits(state, fresh):
    if isinstance(fresh, tuple):
        return (isinstance(state, tuple) and len(state) == len(fresh)
                and all(map(_fits, state, fresh)))
    return fresh is None or _shapes(state) == _shapes(fresh)


def _shapes(state):
    if isinstance(state, tuple):
        return list(map(_shapes, state))
    return getattr(state, 'shape', None)


@_register
class _AssignmentOptimizer(opt.Optimizer):
    """Optimizer that assigns the pushed value to the stored one.

    As the updater of a KVStore it turns a key into the sum of what all devices
    and workers push. With dist_async the pushes of the workers arrive one by
    one, and each sum consists of `pushes_per_sum` of them.
    """

    pushes_per_sum = 1

    def update(self, index, weight, grad, state):
        """Copy `grad` into `weight`, or add it if the sum is not complete yet."""
        self._update_count(index)
        if (self._index_update_count[index] - 1) % self.pushes_per_sum:
            weight += grad
        else:
            grad.copyto(weight)


@_register
class _SVRGOptimizer(opt.Optimizer):
    """Optimizer that assigns full gradients and updates all other keys with another optimizer.

    All other attributes, for example the learning rate, are those of the optimizer that it wraps.

    Parameters
    ----------
    default_optimizer : str or mxnet.optimizer.Optimizer
        Optimizer of the weights, or its registered name. The attribute `default_opt` is this
        optimizer, and `aux_opt` is that of the full gradients.
    full_keys : iterable of str or int, optional
        Keys of full gradients in the KVStore. By default ``X_full`` is such a
        key if ``X`` is a value of `param_idx2name`.
    proximal : dict of (str or int) to ProximalStep, optional
        For the key of a weight, what is applied to the weight after its step.
    **kwargs
        Arguments of `default_optimizer`, if that is a name. If it is an instance, only
        `param_idx2name` is used, and only if the instance has no such table yet.

    Examples
    --------
    >>> import mxnet as mx
    >>> from svrg_optimization.svrg_optimizer import _SVRGOptimizer
    >>> optimizer = _SVRGOptimizer('sgd', momentum=0.9, learning_rate=0.1,
    ...                            param_idx2name={0: 'w', 1: 'w_full'})
    >>> optimizer.set_learning_rate(0.05)
    >>> optimizer.default_opt.lr, optimizer.momentum
    (0.05, 0.9)
    >>> weight, full = mx.nd.zeros((2,)), mx.nd.zeros((2,))
    >>> for index, stored in enumerate([weight, full]):
    ...     state = optimizer.create_state(index, stored)
    ...     optimizer.update(index, stored, mx.nd.ones((2,)), state)
    >>> weight.asnumpy().tolist(), full.asnumpy().tolist()
    ([-0.05000000074505806, -0.05000000074505806], [1.0, 1.0])
    """

    def __init__(self, default_optimizer, *, full_keys=None, proximal=None, **kwargs):
        # Optimizer.__init__ is not called: learning rate, update counts and so on are there.
        if isinstance(default_optimizer, str):
            default_optimizer = opt.create(default_optimizer, **kwargs)
        elif not isinstance(default_optimizer, opt.Optimizer):
            raise TypeError('default_optimizer must be a str or an mxnet.optimizer.Optimizer, '
                            'not %r' % (default_optimizer,))
        elif not default_optimizer.idx2name:
            default_optimizer.idx2name = dict(kwargs.get('param_idx2name') or {})
        vars(self).update(
            default_opt=default_optimizer, aux_opt=_AssignmentOptimizer(),
            _full_keys=None if full_keys is None else frozenset(full_keys), _keys_by_number={},
            _proximal=proximal or {})

    def place_on_servers(self, keys_by_number, pushes_per_sum):
        """Prepare for servers, which pass the number of a key and may get its sum in parts."""
        self._keys_by_number = dict(keys_by_number)
        self.aux_opt.pushes_per_sum = pushes_per_sum

    def __getattr__(self, name):
        return getattr(super().__getattribute__('default_opt'), name)

    def __setattr__(self, name, value):
        if name in vars(self):
            vars(self)[name] = value
        else:
            if name in _RATES:
                check_rate(_RATES[name], value)
            setattr(self.default_opt, name, value)

    def __getstate__(self):
        """Return the attributes, with numbers of Python: servers may have another NumPy."""
        wrapped = self.default_opt
        for values in (vars(wrapped), wrapped.lr_mult, wrapped.wd_mult,
                       getattr(wrapped.lr_scheduler, '__dict__', {})):
            values.update({name: value.item() for name, value in values.items()
                           if isinstance(value, (np.number, np.bool_))})
        return vars(self)

    def __setstate__(self, state):
        vars(self).update(state)

    @property
    def learning_rate(self):
        """Current learning rate of the wrapped optimizer."""
        return self.default_opt.learning_rate

    def _create(self, method, index, weight):
        """Create the state of one key; it is None for a full gradient."""
        key = self._keys_by_number.get(index, index)
        full_keys = self._full_keys_by_name() if self._full_keys is None else self._full_keys
        optimizer = self.aux_opt if key in full_keys else self.default_opt
        return getattr(optimizer, method)(key, weight)

    def _update(self, method, index, weight, grad, state):
        """Update one key, or those of a list: assign full gradients, step all others."""
        are_several = isinstance(index, (list, tuple))
        if not are_several:
            index, weight, grad, state = [index], [weight], [grad], [state]
        full_keys = self._full_keys_by_name() if self._full_keys is None else self._full_keys
        steps = []
        for number, *others in zip(index, weight, grad, state):
            step = self._keys_by_number.get(number, number), *others
            if step[0] in full_keys:
                getattr(self.aux_opt, method)(*step)
            else:
                steps.append(step)
        if not steps:
            return
        keys, weights, gradients, states = zip(*steps)
        step = keys, weights, gradients, list(states)
        getattr(self.default_opt, method)(*step if are_several else [values[0] for values in step])
        for key, of_key, _, state_of_key in steps:
            if key in self._proximal:
                # The count of updates is that of the step, and so is the rate.
                rate = float(np.float32(self.default_opt._get_lrs([key])[0]))  # as MXNet steps
                self._proximal[key](of_key, state_of_key, rate)

    create_state = partialmethod(_create, 'create_state')
    create_state_multi_precision = partialmethod(_create, 'create_state_multi_precision')
    update = partialmethod(_update, 'update')
    update_multi_precision = partialmethod(_update, 'update_multi_precision')

    def _full_keys_by_name(self):
        names = self.default_opt.idx2name
        full = {'%s%s' % (name, _SUFFIX) for name in names.values()}
        return full.union(number for number, name in names.items() if name in full)

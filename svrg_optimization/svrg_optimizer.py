"""Optimizers of an SVRGModule, which decide how each KVStore key is updated.

Only ``mxnet.optimizer`` may be imported from MXNet here: parameter servers
unpickle these classes before the rest of MXNet is imported.
"""

import math
import numbers

import numpy as np
from mxnet import optimizer as opt

_SUFFIX = '_full'


def _python_number(value):
    """Convert a NumPy scalar to a number of Python; return all else unchanged.

    NumPy 1 and 2 calculate with float32 scalars differently, and a server with
    one of them cannot always unpickle scalars of the other.
    """
    return value.item() if isinstance(value, (np.number, np.bool_)) else value


def _with_python_numbers(values):
    return {name: _python_number(value) for name, value in values.items()}


def check_learning_rate(optimizer):
    """Raise a ValueError if the optimizer's own learning rate is infinite or a NaN."""
    rate = optimizer.lr
    if isinstance(rate, numbers.Real) and not math.isfinite(rate):
        raise ValueError('learning_rate must be a finite number, not %r' % (rate,))


def _register(klass):
    """Register an optimizer, unless another package has already used its name.

    mxnet.contrib registers classes of the same names and creates its own
    optimizers through them.
    """
    opt.Optimizer.opt_registry.setdefault(klass.__name__.lower(), klass)
    return klass


def described(optimizer, optimizer_params):
    """Return the class, the name and the arguments of an optimizer as `init_optimizer` takes it.

    Parameters
    ----------
    optimizer : str or mxnet.optimizer.Optimizer
        The optimizer, wrapped or not, or its registered name.
    optimizer_params : dict
        Arguments of an optimizer that is given by name.

    Returns
    -------
    klass : type or None
        None for a name that is not registered.
    name : str
        Name in lower case.
    arguments : dict
        Arguments by name.
    """
    if isinstance(optimizer, str):
        name = optimizer.lower()
        return opt.Optimizer.opt_registry.get(name), name, dict(optimizer_params)
    optimizer = getattr(optimizer, 'default_opt', optimizer)
    klass = type(optimizer)
    return klass, klass.__name__.lower(), getattr(optimizer, '__dict__', {})


@_register
class _AssignmentOptimizer(opt.Optimizer):
    """Optimizer that assigns the pushed value to the stored one.

    As the updater of a KVStore it turns a key into the sum of what all devices
    and workers push. With dist_async the pushes of the workers arrive one by
    one, and each sum consists of `pushes_per_sum` of them.

    The constructor takes the arguments of ``mxnet.optimizer.Optimizer`` and needs
    none of them.

    Attributes
    ----------
    pushes_per_sum : int
        Number of pushes that make up one sum; 1 unless servers receive the
        pushes of the workers one by one.
    """

    pushes_per_sum = 1

    def update(self, index, weight, grad, state):
        """Copy `grad` into `weight`, or add it if the sum is not complete yet.

        Parameters
        ----------
        index : str or int
            The key.
        weight : NDArray
            Stored value; overwritten.
        grad : NDArray
            Pushed value, of the same shape.
        state : None
            Not used.
        """
        self._update_count(index)
        if (self._index_update_count[index] - 1) % self.pushes_per_sum:
            weight += grad
        else:
            grad.copyto(weight)


@_register
class _SVRGOptimizer(opt.Optimizer):
    """Optimizer that assigns full gradients and updates all other keys with another optimizer.

    It replaces the optimizer that it wraps. Attributes that are read from it or
    set on it, for example the learning rate, are those of the wrapped optimizer.

    Parameters
    ----------
    default_optimizer : str or mxnet.optimizer.Optimizer
        Optimizer of the weights, or its registered name.
    full_keys : iterable of str or int, optional
        Keys of full gradients in the KVStore. By default ``X_full`` is such a
        key if ``X`` is a value of `param_idx2name`.
    proximal : dict of (str or int) to ProximalStep, optional
        What is applied to a weight after its step, under the weight's key.
    **kwargs
        Arguments of `default_optimizer`, if that is a name. If it is an
        instance, only `param_idx2name` is used, and only if the instance has no
        such table yet.

    Attributes
    ----------
    default_opt : mxnet.optimizer.Optimizer
        Optimizer of the weights.
    aux_opt : _AssignmentOptimizer
        Optimizer of the full gradients.

    Raises
    ------
    TypeError
        If `default_optimizer` is neither a name nor an optimizer.
    ValueError
        If no optimizer is registered under the name.

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

    __slots__ = 'default_opt', 'aux_opt', '_full_keys', '_keys_by_number', '_proximal'

    def __init__(self, default_optimizer, *, full_keys=None, proximal=None, **kwargs):
        # Optimizer.__init__ is not called: the learning rate, the update counts and so on
        # are those of the wrapped optimizer, whose attributes this one has as its own.
        if isinstance(default_optimizer, str):
            default_opt = opt.create(default_optimizer, **_with_python_numbers(kwargs))
        elif isinstance(default_optimizer, opt.Optimizer):
            default_opt = default_optimizer
            if not default_opt.idx2name:
                default_opt.idx2name = dict(kwargs.get('param_idx2name') or {})
        else:
            raise TypeError('default_optimizer must be a str or an mxnet.optimizer.Optimizer, '
                            'not %r' % (default_optimizer,))
        for holder in (default_opt, default_opt.lr_scheduler):
            if hasattr(holder, '__dict__'):
                vars(holder).update(_with_python_numbers(vars(holder)))
        self.default_opt = default_opt
        super().__setattr__('__dict__', vars(default_opt))
        self.aux_opt = _AssignmentOptimizer()
        self._full_keys = None if full_keys is None else frozenset(full_keys)
        self._keys_by_number = {}
        self._proximal = proximal or {}

    def place_on_servers(self, keys_by_number, pushes_per_sum):
        """Prepare for servers, which pass numbers in place of keys.

        Parameters
        ----------
        keys_by_number : dict of int to str
            Key of each number. The two optimizers receive keys only.
        pushes_per_sum : int
            Number of pushes that make up one sum of full gradients.
        """
        self._keys_by_number = dict(keys_by_number)
        self.aux_opt.pushes_per_sum = pushes_per_sum

    def __getattr__(self, name):
        return getattr(super().__getattribute__('default_opt'), name)

    def __setattr__(self, name, value):
        if name in self.__slots__:
            super().__setattr__(name, value)
        else:
            setattr(self.default_opt, name, _python_number(value))

    def __getstate__(self):
        return {name: getattr(self, name) for name in self.__slots__}

    def __setstate__(self, state):
        for name, value in state.items():
            setattr(self, name, value)
        super().__setattr__('__dict__', vars(self.default_opt))

    @property
    def learning_rate(self):
        """Current learning rate of the wrapped optimizer."""
        return self.default_opt.learning_rate

    def set_learning_rate(self, lr):
        """Set the learning rate of the wrapped optimizer.

        Parameters
        ----------
        lr : float
            The new rate.

        Raises
        ------
        UserWarning
            If the optimizer has a scheduler.
        """
        self.default_opt.set_learning_rate(_python_number(lr))

    def set_lr_mult(self, args_lr_mult):
        """Set the learning rate multipliers of the wrapped optimizer.

        Parameters
        ----------
        args_lr_mult : dict of str or int to float
            Multiplier of each parameter, by name or key.
        """
        self.default_opt.set_lr_mult(_with_python_numbers(args_lr_mult))

    def set_wd_mult(self, args_wd_mult):
        """Set the weight decay multipliers of the wrapped optimizer.

        Parameters
        ----------
        args_wd_mult : dict of str or int to float
            Multiplier of each parameter, by name or key.
        """
        self.default_opt.set_wd_mult(_with_python_numbers(args_wd_mult))

    def _set_current_context(self, device_id):
        self.default_opt._set_current_context(device_id)

    def create_state(self, index, weight):
        """Create the state of one key.

        Parameters
        ----------
        index : str or int
            The key, or its number on a server.
        weight : NDArray
            Stored value of the key.

        Returns
        -------
        object
            State of the wrapped optimizer; None for a full gradient.
        """
        key = self._keys_by_number.get(index, index)
        return self._optimizer_of(key).create_state(key, weight)

    def create_state_multi_precision(self, index, weight):
        """Create the state of one key, with a float32 copy of a float16 weight.

        The copy is made only if the wrapped optimizer has `multi_precision`.

        Parameters
        ----------
        index : str or int
            The key, or its number on a server.
        weight : NDArray
            Stored value of the key.

        Returns
        -------
        object
            State of the wrapped optimizer; None for a full gradient.
        """
        key = self._keys_by_number.get(index, index)
        return self._optimizer_of(key).create_state_multi_precision(key, weight)

    def update(self, index, weight, grad, state):
        """Update one key or several.

        Parameters
        ----------
        index : str, int or list
            The key or keys, or their numbers on a server.
        weight : NDArray or list of NDArray
            Stored value of each key; overwritten.
        grad : NDArray or list of NDArray
            Pushed value of each key, of the same shape.
        state : object or list of object
            State of each key.
        """
        self._route('update', index, weight, grad, state)

    def update_multi_precision(self, index, weight, grad, state):
        """Update one key or several, with float32 copies of float16 weights.

        Parameters
        ----------
        index : str, int or list
            As in `update`.
        weight : NDArray or list of NDArray
            As in `update`.
        grad : NDArray or list of NDArray
            As in `update`.
        state : object or list of object
            As in `update`.
        """
        self._route('update_multi_precision', index, weight, grad, state)

    def _route(self, method, index, weight, grad, state):
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
        step_size = getattr(self.default_opt.lr_scheduler, 'step_size', None)
        for key, of_key, _, state_of_key in steps if self._proximal else ():
            if key in self._proximal:
                # The count of updates is that of the step, and so is the rate.
                rate = float(np.float32(self.default_opt._get_lrs([key])[0]))  # as MXNet steps
                self._proximal[key](of_key, state_of_key, step_size(
                    self.default_opt.idx2name.get(key, key), rate, of_key) if step_size else rate)

    def _optimizer_of(self, key):
        full_keys = self._full_keys_by_name() if self._full_keys is None else self._full_keys
        return self.aux_opt if key in full_keys else self.default_opt

    def _full_keys_by_name(self):
        names = self.default_opt.idx2name
        full = {'%s%s' % (name, _SUFFIX) for name in names.values()}
        return full.union(number for number, name in names.items() if name in full)

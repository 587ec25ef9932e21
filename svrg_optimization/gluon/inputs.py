"""Inputs of the layers that a loss function applies: arrays that no parameter is recorded for."""

import contextlib
import ctypes
import functools
import inspect
import threading
from types import SimpleNamespace

import mxnet as mx
from mxnet import autograd
from mxnet.base import _LIB, c_str, check_call

from ..core.front_end import Layer

_lock = threading.RLock()  # several threads may train


@contextlib.contextmanager
def calls_seen(owner, name, by):
    """Give the calls of a function, an attribute, that this thread makes to another function.

    It gets the function and the arguments, and returns the result.
    """
    thread = threading.get_ident()
    with _lock:
        call = getattr(owner, name)

        def seen(*args):
            return by(call, *args) if threading.get_ident() == thread else call(*args)

        try:
            setattr(owner, name, seen)
            yield
        finally:
            setattr(owner, name, call)


class Inputs:
    """Layers that operators apply to arrays, of which some are parameters.

    `names` maps the id of a parameter's array to the parameter's name. A layer whose input has a
    parameter before it does not count, nor does another one with the same weight.
    """

    def __init__(self, names):
        self._names, self._hidden, self._uses, self._weighted = names, set(), [], []

    def see(self, call, handle, arrays, keys, values, *others):
        """Look at a call of an operator."""
        result = call(handle, arrays, keys, values, *others)
        kind = _kinds().get(handle)
        if kind:
            names, attrs = [self._names.get(id(array)) for array in arrays], dict(zip(keys, values))
            if kind == 'add':  # the bias of a product, or of a sum with it
                for use in self._uses:
                    if any(use.result is array for array in arrays):
                        use.bias = use.bias or next(filter(None, names), None)
                        use.result = result
            elif names[1] and not attrs.get('transpose_a'):
                self._uses.append(SimpleNamespace(
                    weight=names[1], bias=names[2] if names[2:] else None,
                    axis=int(kind == 'dense' or bool(attrs.get('transpose_b'))),
                    inputs=arrays[0], result=result, factors=None))
                if _has_parameter(arrays[0]):
                    self._hidden.add(names[1])
        return result

    def see_loss(self, loss, given):
        """Look at a call of a loss, which may multiply the losses of the rows by an argument."""
        uses = [use for use in self._uses if use.factors is None]
        arguments = list(inspect.signature(loss.hybrid_forward).parameters)[1:]
        factors = [value for name, value in zip(arguments, given) if name == 'sample_weight'
                   and value is not None]
        for use in uses or self._weighted:  # a second loss counts rows otherwise
            use.factors = factors if uses else []
        self._weighted = uses or self._weighted

    def found(self):
        """List the Layers, the input of each, and what its rows' losses are multiplied by."""
        return [(Layer(use.weight, use.bias, use.axis), use.inputs, *(use.factors or []))
                for use in self._uses if use.weight not in self._hidden]


def _has_parameter(array):
    """Tell whether a variable with a gradient, whose name MXNet makes, is recorded for an array."""
    try:
        return any(name.startswith('var') for name in autograd.get_symbol(array).list_arguments())
    except mx.MXNetError:
        return False  # it is not computed


@functools.lru_cache(maxsize=None)
def _kinds():
    """Map the handles of operators to what they are; aliases have the same."""
    kinds, handle = {}, ctypes.c_void_p()
    for name, kind in (('FullyConnected', 'dense'), ('dot', 'dot'), ('_np_dot', 'dot'),
                       ('_npi_matmul', 'dot'), ('broadcast_add', 'add'), ('elemwise_add', 'add'),
                       ('_npi_add', 'add')):
        check_call(_LIB.NNGetOpHandle(c_str(name), ctypes.byref(handle)))
        kinds[handle.value] = kind
    return kinds

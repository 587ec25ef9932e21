"""The border between Gluon, whose arrays may be mx.np arrays, and the algorithm on mx.nd arrays."""

import numpy as np
from mxnet import nd, util

ARRAYS = nd.NDArray, np.ndarray


def as_nd(value):
    """Return mx.np arrays as mx.nd arrays of the same memory, also within lists and tuples."""
    if isinstance(value, (list, tuple)):
        return [as_nd(each) for each in value]
    return value.as_nd_ndarray() if isinstance(value, nd.NDArray) else value


def as_blocks_take(arrays):
    """Return mx.nd arrays as Gluon's blocks take them: as mx.np arrays after ``set_np``."""
    return [array.as_np_ndarray() for array in arrays] if util.is_np_array() else arrays


def arrays_in(inputs):
    """List the arrays among inputs, and among the values of those that are dicts."""
    return [array for value in inputs for array in (
        arrays_in(value.values()) if isinstance(value, dict)
        else [value] if isinstance(value, ARRAYS) else [])]


def mapped(function, value):
    """Return what a function returns for a value, of a dict for each of its values."""
    if isinstance(value, dict):
        return {key: mapped(function, each) for key, each in value.items()}
    return function(value)


def on_device(value, device):
    """Return a value as it is, or the copy of an array that is on another device."""
    is_elsewhere = isinstance(value, nd.NDArray) and value.ctx != device
    return value.copyto(device) if is_elsewhere else value

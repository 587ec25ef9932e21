"""Storage type, dtype and size of arrays."""

import ctypes

import numpy as np
from mxnet import ndarray as nd
from mxnet.base import _LIB, check_call


def is_row_sparse(array):
    """Tell whether an array stores only some of its rows."""
    return array.stype == 'row_sparse'


def is_same(array, other):
    """Tell whether two dense arrays have the same memory."""
    if array.stype != 'default' or other.stype != 'default':
        return False
    places = [ctypes.c_void_p() for _ in range(2)]
    for each, place in zip((array, other), places):
        check_call(_LIB.MXNDArrayGetData(each.handle, ctypes.byref(place)))
    return places[0].value == places[1].value


def with_all_rows(array):
    """Return a row_sparse copy of a dense array that stores all rows, zeros too."""
    rows = nd.arange(array.shape[0], ctx=array.context, dtype='int64')
    return nd.sparse.row_sparse_array((array, rows), shape=array.shape, ctx=array.context,
                                      dtype=array.dtype)


def as_float32(numbers):
    """List numbers rounded to float32, as MXNet's operators take their parameters."""
    return [float(np.float32(number)) for number in numbers]


def precision_of(dtype):
    """Return the relative precision of a dtype, as a number of Python.

    In NumPy 2 a float32 times such a number is a float32, which soon overflows.
    """
    return float(np.finfo(dtype).eps)


def with_dense_storage(array):
    """Return a dense copy of a row_sparse array, or the array itself."""
    return array.tostype('default') if is_row_sparse(array) else array


def dense(array):
    """Return a dense copy of an array or the array itself, with float32 for float16."""
    array = with_dense_storage(array)
    return array.astype('float32') if array.dtype == np.float16 else array


def as_numpy(array):
    """Return an NDArray, or what NumPy takes for an array, as a numpy.ndarray."""
    return array.asnumpy() if hasattr(array, 'asnumpy') else np.asarray(array)


def like(array, values):
    """Return values, a numpy.ndarray, in the dtype, storage type and context of an array."""
    found = nd.array(values, array.context, array.dtype)
    return with_all_rows(found) if is_row_sparse(array) else found  # zeros too, as sgd demands


def shifted(array, by):
    """Return an array plus a numpy.ndarray, in its dtype, storage type and context."""
    total = dense(array)
    total = (total + nd.array(by, total.context, total.dtype)).astype(array.dtype)
    return with_all_rows(total) if is_row_sparse(array) else total


def set_all(targets, values):
    """Set arrays, by name and device, to copies of others; leave those that `values` lacks."""
    for name, arrays in targets.items():
        for value, target in zip(values.get(name, ()), arrays):
            value.copyto(target)


def summed(arrays):
    """Return the sum of arrays, one per device, on the first device; a single array itself."""
    total, *others = arrays
    for other in others:
        total = total + other.as_in_context(total.context)
    return total


def distance(arrays, others):
    """Return how far arrays, by name and device, are from others, and the length of these."""
    pairs = [(one.asnumpy().astype(float), other.asnumpy().astype(float))
             for name in others for one, other in zip(arrays[name], others[name])]
    with np.errstate(invalid='ignore'):  # the difference of infinities is a NaN
        return (np.linalg.norm([np.linalg.norm(one - other) for one, other in pairs]),
                np.linalg.norm([np.linalg.norm(other) for _, other in pairs]))


def dtype_of_sum(dtype):
    """Return the dtype in which gradients of a dtype are summed."""
    return np.float32 if dtype == np.float16 else dtype


def bytes_of(array):
    """Return the bytes of an array's values and, if it is sparse, of its indices."""
    if isinstance(array, np.ndarray):
        return array.nbytes
    if array.stype == 'default':
        return array.size * np.dtype(array.dtype).itemsize
    parts = [array.data, array.indices, *([array.indptr] if array.stype == 'csr' else [])]
    return sum(map(bytes_of, parts))

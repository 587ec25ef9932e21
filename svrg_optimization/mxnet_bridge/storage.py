"""Storage type, dtype and size of arrays."""

import numpy as np


def is_row_sparse(array):
    """Tell whether an array holds only some of its rows."""
    return array.stype == 'row_sparse'


def dense(array):
    """Return an array with all of its rows, in float32 at least."""
    array = array.tostype('default') if is_row_sparse(array) else array
    return array.astype('float32') if array.dtype == np.float16 else array


def dtype_of_sum(dtype):
    """Tell the dtype in which gradients of a dtype are summed up."""
    return np.float32 if dtype == np.float16 else dtype


def bytes_of(array):
    """Count the bytes of an array's values, and of the indices of a sparse one."""
    if array.stype == 'default':
        return array.size * np.dtype(array.dtype).itemsize
    parts = [array.data, array.indices, *([array.indptr] if array.stype == 'csr' else [])]
    return sum(map(bytes_of, parts))

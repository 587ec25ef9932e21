"""Storage type, dtype and size of arrays."""

import numpy as np


def is_row_sparse(array):
    """Tell whether an array stores only some of its rows."""
    return array.stype == 'row_sparse'


def dense(array):
    """Return a dense copy of an array or the array itself, with float32 for float16."""
    array = array.tostype('default') if is_row_sparse(array) else array
    return array.astype('float32') if array.dtype == np.float16 else array


def dtype_of_sum(dtype):
    """Return the dtype in which gradients of a dtype are summed."""
    return np.float32 if dtype == np.float16 else dtype


def bytes_of(array):
    """Return the bytes of an array's values and, if it is sparse, of its indices."""
    if array.stype == 'default':
        return array.size * np.dtype(array.dtype).itemsize
    parts = [array.data, array.indices, *([array.indptr] if array.stype == 'csr' else [])]
    return sum(map(bytes_of, parts))

"""NDArrayIter without copies of its rows that are not needed."""

import numpy as np
from mxnet import ndarray as nd
from mxnet.io import DataBatch, NDArrayIter

from .large_pages import empty_like


def reset(train_data):
    """Reset an iterator.

    An NDArrayIter that shuffles copies its rows three times, through NumPy. Here
    one operation for each array puts them into the same order, which takes the
    same numbers from NumPy's generator.

    Parameters
    ----------
    train_data : DataIter
        The iterator.
    """
    if not (has_dense_rows(train_data) and train_data.shuffle):
        train_data.reset()
        return
    np.random.shuffle(train_data.idx)
    vars(train_data).update({kind: [(name, _in_order(array, train_data.idx))
                                    for name, array in getattr(train_data, kind)]
                             for kind in ('data', 'label')})
    try:
        train_data.shuffle = False
        train_data.reset()
    finally:
        train_data.shuffle = True


def batches_to_read(train_data):
    """Return an iterator over the batches, not to be written to.

    Whole batches of an NDArrayIter are views of its rows, and read-only.

    Parameters
    ----------
    train_data : DataIter
        The iterator.
    """
    if has_dense_rows(train_data):
        return _views(train_data)
    return iter(train_data)


def has_dense_rows(train_data):
    """Tell whether an iterator is an NDArrayIter whose arrays are dense, float32 and in rows."""
    return (type(train_data) is NDArrayIter and train_data.layout.find('N') == 0
            and all(type(array) is nd.NDArray and array.dtype == np.float32
                    for _, array in train_data.data + train_data.label))


def _in_order(array, order):
    order = nd.array(order, ctx=array.context, dtype=np.int64)
    return nd.take(array, order, out=empty_like(array))


def _views(train_data):
    while True:
        begin = train_data.cursor + train_data.batch_size
        end = begin + train_data.batch_size
        if begin >= 0 and end <= train_data.num_data:
            train_data.cursor = begin
            data, label = ([_view(array, begin, end) for _, array in arrays]
                           for arrays in (train_data.data, train_data.label))
            yield DataBatch(data, label, pad=0)
        else:
            batch = next(train_data, None)
            if batch is None:
                return
            yield batch


class _View(nd.NDArray):
    """Rows of the data, whose owner does not expect others to write to them."""

    __slots__ = []

    def __setitem__(self, key, value):
        raise ValueError('this batch is a view of the rows of train_data: only a copy of it can be '
                         'written to')


def _view(array, begin, end):
    rows = array[begin:end]
    rows.__class__, rows.writable = _View, False
    return rows

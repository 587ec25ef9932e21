"""Batches of an NDArrayIter without copies, and an array of any number of rows in batches."""

import functools
import itertools
from types import SimpleNamespace

import numpy as np
from mxnet import ndarray as nd
from mxnet.io import DataBatch, DataIter, NDArrayIter


def views_of_batches(train_data):
    """Return an iterator over batches that nobody may write to.

    The whole batches of an NDArrayIter are views of its rows. They stay as they
    are when it shuffles, since that makes new arrays.

    Parameters
    ----------
    train_data : DataIter
        The iterator.
    """
    return _views(train_data) if _is_plain(train_data) else iter(train_data)


def joined_views(batches):
    """Return views of consecutive rows as one batch in a list, and other batches as they are."""
    joined = None
    for batch in batches:
        if not isinstance(batch, _View):
            return batches
        if joined is None:
            joined = _View(batch.rows, batch.begin, batch.end)
        elif batch.rows is not joined.rows or batch.begin != joined.end:
            return batches
        joined.end = batch.end
    return [joined]


def _is_plain(train_data):
    """Tell whether an iterator is an NDArrayIter with its own methods and dense arrays."""
    return (type(train_data) is NDArrayIter
            and vars(NDArrayIter).keys().isdisjoint(vars(train_data))
            and train_data.layout.find('N') == 0
            and all(type(array) is nd.NDArray and len(array) == train_data.num_data
                    for _, array in itertools.chain(train_data.data, train_data.label)))


def _views(train_data):
    """Yield the batches of an NDArrayIter, and move it as it does itself."""
    rows = SimpleNamespace(data=train_data.data, label=train_data.label)
    size = train_data.batch_size
    while True:
        begin = train_data.cursor + size
        if 0 <= begin <= train_data.num_data - size:
            train_data.cursor = begin
            yield _View(rows, begin, begin + size)
            continue
        try:
            batch = next(train_data)
        except StopIteration:
            return
        yield batch


class _View(DataBatch):
    """Batch of consecutive rows, which are views that are made when they are asked for."""

    def __init__(self, rows, begin, end):
        self.rows, self.begin, self.end = rows, begin, end
        self.pad = 0
        self.index = self.bucket_key = self.provide_data = self.provide_label = None

    @functools.cached_property
    def data(self):
        return [array[self.begin:self.end] for _, array in self.rows.data]

    @functools.cached_property
    def label(self):
        return [array[self.begin:self.end] for _, array in self.rows.label]


class BatchesOfArray(DataIter):
    """Batches of an array's rows for the one input of a network. NDArrayIter needs a whole one.

    Parameters
    ----------
    name : str
        Name of the argument that the array is.
    array : numpy.ndarray or NDArray
        The array, of any number of rows and any dtype.
    data_shapes : list of DataDesc
        What the network is bound for.

    Raises
    ------
    ValueError
        If there are several inputs, or if the array has no rows of the shape of the input's.
    """

    def __init__(self, name, array, data_shapes):
        (_, shape), dtype = data_shapes[0][:2], data_shapes[0].dtype
        if len(data_shapes) > 1 or data_shapes[0].layout.find('N') > 0:
            raise ValueError('%s must be an iterator for a network with several inputs, or with '
                             'rows along another axis than the first, and not an array' % name)
        if len(array.shape) == 0 or array.shape[0] == 0 or array.shape[1:] != shape[1:]:
            raise ValueError('%s must have the shape (rows, %s) with one row or more, and not %s'
                             % (name, ', '.join(map(str, shape[1:])), array.shape))
        super().__init__(shape[0])
        self._array, self._shape, self._dtype, self._begin = array, shape, dtype, 0

    def reset(self):
        """Go to the first row."""
        self._begin = 0

    def next(self):
        """Return the next batch, without labels. The last one is padded with zeros."""
        rows = self._array[self._begin:self._begin + self.batch_size]
        if not len(rows):
            raise StopIteration
        self._begin += len(rows)
        data = nd.zeros(self._shape, dtype=self._dtype)
        data[:len(rows)] = rows if isinstance(rows, np.ndarray) else rows.asnumpy()
        return DataBatch([data], [], pad=self.batch_size - len(rows))

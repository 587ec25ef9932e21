"""Batches as a pass reads them: views of rows, and several small ones as one."""

import itertools
import math

from mxnet import ndarray as nd
from mxnet.io import DataBatch, NDArrayIter
from mxnet.ndarray.sparse import CSRNDArray

from .batch_rows import held, labels_of


class Batches(DataBatch):
    """Several whole batches of one size, joined into one: `number` of them."""

    number = 1

    def part(self, place):
        """Return one of the batches."""
        size = self.data[0].shape[0] // self.number
        rows = slice(place * size, (place + 1) * size)
        return DataBatch([array[rows] for array in self.data],
                         [array[rows] for array in self.label], pad=0)


def is_viewable(train_data):
    """Tell whether an iterator is a plain NDArrayIter, all of whose arrays have the rows first."""
    return (type(train_data) is NDArrayIter
            and vars(NDArrayIter).keys().isdisjoint(vars(train_data))
            and train_data.layout.find('N') == 0
            and all(type(array) in (nd.NDArray, CSRNDArray)
                    and array.shape[0] == train_data.num_data
                    for _, array in itertools.chain(train_data.data, train_data.label)))


def views(train_data, count=None, at_once=None):
    """Yield the batches of a viewable iterator, and move it as its own methods do.

    Whole batches are views of its rows, which nobody may write to. They stay as they are when it
    shuffles, since that makes new arrays. `at_once` takes a batch, and returns how many like it
    may be joined. So many are joined that at most `count` batches need the fewest runs.
    """
    size, count = train_data.batch_size, math.inf if count is None else count
    arrays = [array for _, array in train_data.data + train_data.label]
    inputs = len(train_data.data)

    def rows_from(begin, number):
        rows = [array[begin:begin + number * size] for array in arrays]
        batch = Batches(rows[:inputs], rows[inputs:], pad=0)
        batch.number = number
        return batch

    whole, number = min(train_data.num_data // size, count), 1
    if at_once and whole > 1:
        _, number = max([(-(whole // each + whole % each), each)
                         for each in range(1, at_once(rows_from(0, 1)) + 1)])
    while count > 0:
        begin = train_data.cursor + size
        left = (train_data.num_data - begin) // size if begin >= 0 else 0
        several = number if number <= min(left, count) else 1
        if left > 0:
            train_data.cursor += several * size
            yield rows_from(begin, several)
        else:
            batch = next(train_data, None)
            if batch is None:
                return
            yield batch
        count -= several


def joined(batches, at_once):
    """Yield batches, of which whole csr ones are copied and joined.

    In each run MXNet multiplies csr data by the whole weight, however few rows the data have.
    """
    waiting, most = [], None
    for batch in batches:
        is_csr = any(getattr(array, 'stype', '') == 'csr'
                     for array in [*getattr(batch, 'data', []), *labels_of(batch)])
        number = at_once(batch) if is_csr else 1
        most = number if most is None else most
        if number > 1:
            waiting.append(held(batch, copies=True))  # the data may overwrite it
        if waiting and (number == 1 or len(waiting) == most):
            if len(waiting) == most:
                rows = ([nd.concat(*parts, dim=0) for parts in zip(*(
                    getattr(each, kind) for each in waiting))] for kind in ('data', 'label'))
                waiting = [Batches(*rows, pad=0)]
                waiting[0].number = most
            yield from waiting
            waiting = []
        if number == 1:
            yield batch
    yield from waiting

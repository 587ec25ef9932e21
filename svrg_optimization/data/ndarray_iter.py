"""Batches as a pass reads them: views of rows, and several small ones as one."""

import itertools
import math

from mxnet import ndarray as nd
from mxnet.io import DataBatch, NDArrayIter
from mxnet.ndarray.sparse import CSRNDArray

from ..core.front_end import joined_count
from .batch_rows import held

# Csr batches that are joined at most: those that are left at the end of a pass are not.
_CSR_AT_ONCE = 16


class JoinedBatch(DataBatch):
    """Several whole batches of one size, joined into one: `number` of them."""

    def __init__(self, data, label, number):
        super().__init__(data, label, pad=0)
        self.number = number

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
    rows = train_data.num_data

    def joined(begin, number):
        data, label = ([array[begin:begin + number * size] for _, array in arrays]
                       for arrays in (train_data.data, train_data.label))
        return JoinedBatch(data, label, number)

    whole, number = min(rows // size, count), 1
    if at_once and whole > 1:
        _, number = max((-(whole // each + whole % each), each)
                        for each in range(1, at_once(joined(0, 1)) + 1))
    while count > 0:
        begin = train_data.cursor + size
        left = min((rows - begin) // size, count) if begin >= 0 else 0
        if left > 0:
            batch = joined(begin, number if number <= left else 1)
            train_data.cursor += batch.number * size
        else:
            batch = next(train_data, None)
        if batch is None:
            return
        yield batch
        count -= joined_count(batch)


def join_csr(batches, at_once):
    """Yield batches, of which whole csr ones are copied and joined.

    In each run MXNet multiplies csr data by the whole weight, however few rows the data have.
    """
    waiting = []
    for batch in batches:
        is_csr = any(getattr(array, 'stype', '') == 'csr' for array in getattr(batch, 'data', []))
        number = min(at_once(batch), _CSR_AT_ONCE) if is_csr else 1
        if number == 1:
            yield from [*waiting, batch]
            waiting = []
            continue
        waiting.append(held(batch, copies=True))  # the data may overwrite it
        if len(waiting) == number:
            data, label = ([nd.concat(*parts, dim=0) for parts in zip(*arrays)] for arrays in (
                [each.data for each in waiting], [each.label for each in waiting]))
            yield JoinedBatch(data, label, number)
            waiting = []
    yield from waiting

"""Mistakes of a loop by hand, which are told once: batches that it changes, data at their end."""

import weakref

import numpy as np
from mxnet.gluon.data import ArrayDataset
from mxnet.gluon.data.dataloader import default_batchify_fn, default_mp_batchify_fn
from mxnet.io import NDArrayIter

from ..core.arrays import as_numpy, precision_of
from .batch_rows import labels_of

_CHANGED = ('the loop, or a subclass, has changed a batch after %s yielded it, and the full '
            'gradient is over the batches as they are yielded: training converges on these. What '
            'changes batches must be in the data or in the %s')


_ROWS_AT_ONCE = 4096  # which are compared: a copy of all would take much memory


class YieldedBatches:
    """Copies of the batches that a front end yields, until the first step after a pass.

    `arrays_of` lists the arrays of a batch. `names` are those of the batches and of the loss.
    """

    def __init__(self, warn_once, arrays_of, names=('training_batches', 'loss_fn')):
        self._warn_once, self._arrays_of, self.copies = warn_once, arrays_of, None
        self._names, self._rows = names, []

    def end_pass(self, train_data=None):
        """Begin to copy batches. Without such a loop is over the data of the pass, as they are."""
        self.copies, self._rows = [], _arrays_of_rows(train_data)

    def add(self, batch):
        """Copy a batch; the first and the last two are kept, as a loop may read ahead."""
        if self.copies is not None:
            copy = [array.copy() for array in self._arrays_of(batch)]
            self.copies = [*self.copies[:1], *[*self.copies[1:], copy][-2:]]

    def check_first_step(self, batch):
        """Compare the batch of the first step with those that were yielded."""
        copies, rows, self.copies, self._rows = self.copies, self._rows, None, []
        if copies is None or not (copies or rows):
            return
        given = self._arrays_of(batch)
        if all(_have_changed(given, each) for each in copies) if copies else (
                len(given) == len(rows) and not all(map(_are_rows_of, given, rows))):
            self._warn_once(_CHANGED % self._names, 'changed')


class LoopOverIterator:
    """A loop over an iterator, which is only known to it by its passes and steps.

    What is told needs an NDArrayIter, which shows where it stands.

    Attributes
    ----------
    unchecked : DataIter or None
        Data whose first step is still to come.
    """

    def __init__(self, warn_once):
        self._warn_once = warn_once
        self._data, self._updates, self._end = lambda: None, 0, 0  # of the latest pass
        self.unchecked = None

    def begin_pass(self, train_data, updates):
        """Tell of a loop after the last pass that has found no batch, given the updates so far."""
        if self._updates == updates and self._data() is train_data and (
                train_data.cursor > self._end):
            self._warn_once('no step was made from the last snapshot, since train_data were at '
                            'their end: call train_data.reset() after update_full_grads')

    def end_pass(self, train_data, updates, may_change=True):
        """Let the first step be checked, unless the loop has been over these data before."""
        if not isinstance(train_data, NDArrayIter):
            self._data, self.unchecked = (lambda: None), None
            return
        if may_change and self._data() is not train_data:
            self.unchecked = train_data
        self._data, self._updates = weakref.ref(train_data), updates
        self._end = train_data.cursor

    def check_first_step(self, batch):
        """Compare the first batch of the loop with what the iterator has at its place.

        Where that still is the end of the pass, the loop may read other data: a later step decides.
        """
        data = self.unchecked
        if data.cursor == self._end:
            return
        self.unchecked = None
        if self._is_changed(data, batch):
            self._warn_once(_CHANGED % ('train_data', 'symbol'), 'changed')

    def _is_changed(self, data, batch):
        """Tell whether a batch differs from all up to the iterator's place: a loop reads ahead."""
        if (type(data) is not NDArrayIter or isinstance(batch, list) or batch.pad
                or data.layout.find('N') != 0 or data.last_batch_handle == 'roll_over'
                or not 0 <= data.cursor < data.num_data):
            return False
        size, given = data.batch_size, [*batch.data, *labels_of(batch)]
        places = [begin for begin in range(data.cursor, -1, -size)
                  if begin <= data.num_data - size]
        return bool(places) and all(_have_changed(given, [
            array[begin:begin + size] for _, array in data.data + data.label])
            for begin in places)


def _arrays_of_rows(train_data):
    """List arrays of all rows of data that are known to yield them as they are."""
    dataset, batchify = (getattr(train_data, name, None) for name in ('_dataset', '_batchify_fn'))
    if type(dataset) is ArrayDataset and batchify in (default_batchify_fn, default_mp_batchify_fn):
        return dataset._data
    return [array for _, array in train_data.data + train_data.label] if (
        type(train_data) is NDArrayIter) else []


@np.errstate(all='ignore')
def _are_rows_of(given, rows):
    """Tell whether all rows of a step stand in the data, by a weighted sum of each.

    Rows of another size are not compared, nor those that are not finite.
    """
    size = int(np.prod(given.shape[1:]))
    if size != np.prod(np.shape(rows[0])):
        return True

    def sums(array, begin=0):
        part = as_numpy(array[begin:begin + _ROWS_AT_ONCE])
        return part.reshape(-1, size) @ np.linspace(1, 2, size)

    known = np.sort(np.concatenate([sums(rows, begin) for begin in range(
        0, len(rows), _ROWS_AT_ONCE)]))
    found = sums(given)
    after = np.searchsorted(known, found).clip(1, max(len(known) - 1, 1))
    nearest = np.minimum(abs(found - known[after - 1]), abs(found - known[after % len(known)]))
    dtype = np.dtype(given.dtype)
    rounding = max(1e-6, 10 * precision_of(dtype) if dtype.kind == 'f' else 0.)
    return not (nearest > rounding * sums(abs(given))).any()


def _have_changed(given, read):
    """Tell whether arrays of a step have other values than those that were read for it.

    Arrays of another size are not compared, as a loop may cut a batch or encode a label.
    """
    return any(np.prod(one.shape) == np.prod(other.shape) and not np.allclose(
        as_numpy(one).ravel(), as_numpy(other).ravel(), rtol=1e-2, atol=1e-6, equal_nan=True)
               for one, other in zip(given, read))

"""Mistakes of a loop by hand, which are told once: batches that it changes, data at their end."""

import weakref

import numpy as np
from mxnet.gluon.data import ArrayDataset, DataLoader
from mxnet.gluon.data.dataloader import default_batchify_fn, default_mp_batchify_fn
from mxnet.io import NDArrayIter

from ..core.arrays import as_numpy, precision_of

_NUMBERS_AT_ONCE = 1 << 22  # which are compared: a copy of all would take much memory


class Watch:
    """The batch of the first step after a pass, beside what the pass has read.

    That are the batches that a front end yields, or in a loop by hand the rows of an NDArrayIter
    or of a DataLoader of arrays.

    Parameters
    ----------
    warn_once : callable
        Warns of each message once.
    arrays_of : callable
        Lists the arrays of a batch.
    yielded_by, loss : str
        Names of what yields batches, and of the loss.

    Attributes
    ----------
    is_waiting : bool
        Whether the first step is still to come.
    """

    def __init__(self, warn_once, arrays_of, yielded_by, loss):
        self._warn_once, self._arrays_of = warn_once, arrays_of
        self._names, self.is_waiting = (yielded_by, loss), False
        self._copies, self._data = [], _nothing
        self._checked = _nothing  # data that are not watched again
        self._end, self._updates = None, 0  # the place of an NDArrayIter after its pass

    def begin_pass(self, train_data, updates):
        """Tell of a loop after the last pass that has found no batch, given the updates so far."""
        if self._data() is train_data and self._updates == updates and (
                self._end is not None and train_data.cursor > self._end):
            self._warn_once('no step was made from the last snapshot, since train_data were at '
                            'their end: call train_data.reset() after update_full_grads')

    def end_pass(self, train_data, updates):
        """Watch the first step after a pass over these data, unless one has been checked."""
        self._data = weakref.ref(train_data) if isinstance(
            train_data, (NDArrayIter, DataLoader)) else _nothing
        self._end = getattr(self._data(), 'cursor', None)
        self.is_waiting = self._checked() is not train_data
        self._copies, self._updates = [], updates

    def add(self, batch):
        """Copy a batch; the first and the last two are kept, as a loop may read ahead."""
        if self.is_waiting:
            copy = [array.copy() for array in self._arrays_of(batch)]
            self._copies = [*self._copies[:1], *[*self._copies[1:], copy][-2:]]

    def check_step(self, batch):
        """Compare the batch of the first step with what was yielded, or with the rows.

        Where an NDArrayIter stands at the end of its pass, the loop may read other data: a later
        step decides.
        """
        data, copies = self._data(), self._copies
        is_at_end = self._end is not None and getattr(data, 'cursor', None) == self._end
        if not self.is_waiting or is_at_end and not copies:
            return
        self.is_waiting, self._copies, given = False, [], self._arrays_of(batch)
        self._checked = self._data
        if copies:
            is_changed = all(_have_changed(given, each) for each in copies)
        else:
            rows = _arrays_of_rows(data)
            is_changed = len(given) == len(rows) and not all(map(_are_rows_of, given, rows))
        if is_changed:
            self._warn_once(
                'the loop, or a subclass, has changed a batch after %s yielded it, and the full '
                'gradient is over the batches as they are yielded: training converges on these. '
                'What changes batches must be in the data or in the %s' % self._names, 'changed')


def _nothing():
    """Return what a weak reference to lost data returns."""


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
    at_once = max(1, _NUMBERS_AT_ONCE // size)

    def sums(array, begin=0):
        part = as_numpy(array[begin:begin + at_once])
        return part.reshape(-1, size) @ np.linspace(1, 2, size)

    known = np.sort(np.concatenate([sums(rows, begin) for begin in range(0, len(rows), at_once)]))
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

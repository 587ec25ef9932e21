"""Batches of a pass for the full gradient: all or the first few."""

import itertools

from ..core.front_end import BatchesOfPass
from ..data.batch_rows import held
from ..data.iterators import batches_stay, checked_batches
from ..data.ndarray_iter import is_viewable, join_csr, views


class Pass(BatchesOfPass):
    """Batches of a pass over an iterator that stands at its beginning."""

    rewind = None

    def batches(self, at_once=None):
        """Return an iterator over the batches, which may be views of rows.

        `at_once` takes a batch, and returns how many like it may be joined into one.
        """
        if is_viewable(self.train_data):
            return views(self.train_data, self.count, at_once)
        batches = itertools.islice(checked_batches('train_data', self.train_data), self.count)
        return join_csr(batches, at_once) if at_once else batches

    def again(self):
        """Return the pass once more."""
        data = self.train_data
        if batches_stay(data) and data.last_batch_handle != 'roll_over':
            data.cursor = -data.batch_size  # its reset would copy all rows in another order
        else:
            self.rewind()
        return self

    def kept(self, batch):
        """Return a copy of a batch, unless its iterator is known not to overwrite it."""
        return held(batch, copies=not batches_stay(self.train_data))

"""Batches of a pass for the full gradient: all or the first few."""

import itertools
import sys

from ..core.front_end import BatchesOfPass
from ..data.batch_rows import held
from ..data.iterators import batches_stay
from ..data.ndarray_iter import is_viewable, join_csr, views

_END = object()


class Pass(BatchesOfPass):
    """Batches of a pass over an iterator that stands at its beginning."""

    _batches = rewind = None

    def batches(self, are_kept=False, at_once=None):
        """Return an iterator over the batches, which may be views of rows unless they are kept.

        `at_once` takes a batch, and returns how many like it may be joined into one.
        """
        self._batches = iter(self.train_data)
        if not are_kept and is_viewable(self.train_data):
            return views(self.train_data, self.count, at_once)
        # The end of the data ends map too. Unlike islice it does not call __iter__ again.
        count = () if self.count is None else (min(self.count, sys.maxsize),)
        batches = map(next, itertools.repeat(self._batches, *count))
        return join_csr(batches, at_once) if at_once else batches

    def again(self):
        """Return the pass once more."""
        data = self.train_data
        if batches_stay(data) and data.last_batch_handle != 'roll_over':
            data.cursor = -data.batch_size  # its reset would copy all rows in another order
        else:
            self.rewind()
        return self

    def is_whole(self, yielded):
        """Tell whether `yielded` batches were all batches; read one more to find out, if needed."""
        return yielded != self.count or next(self._batches, _END) is _END

    def kept(self, batch):
        """Return a copy of a batch, unless its iterator is known not to overwrite it."""
        return held(batch, copies=not batches_stay(self.train_data))

"""Batches of a pass for the full gradient: all or the first few."""

import itertools
import sys

from ..core.front_end import BatchesOfPass
from ..data.batch_rows import held
from ..data.iterators import batches_stay
from ..data.ndarray_iter import views_of_batches

_END = object()


class Pass(BatchesOfPass):
    """Batches of a pass over an iterator that stands at its beginning."""

    _batches = None

    def batches(self, are_kept=False):
        """Return an iterator over the batches, which may be views of rows unless they are kept."""
        data = self.train_data
        self._batches = iter(data) if are_kept else views_of_batches(data)
        # The end of the data ends map, too. It calls no __iter__ once more.
        count = () if self.count is None else (min(self.count, sys.maxsize),)
        return map(next, itertools.repeat(self._batches, *count))

    def is_whole(self, yielded):
        """Tell whether `yielded` batches were all; read one more if that is not known."""
        return yielded != self.count or next(self._batches, _END) is _END

    def kept(self, batch):
        """Return a batch that stays as it is, which the data may overwrite."""
        return held(batch, copies=not batches_stay(self.train_data))

"""Batches of a pass for the full gradient: all or the first few."""

import itertools
import sys

from ..core.front_end import BatchesOfPass
from ..data.batch_rows import held
from ..data.iterators import batches_stay, rewind
from ..data.ndarray_iter import views_of_batches

_END = object()


class _Source(BatchesOfPass):
    """Iterator over the batches of a pass, which ``fit`` gives to `update_full_grads`.

    A subclass that overrides that method may read it, reset it and hand it on as
    any iterator. All further attributes are those of its data.

    Parameters
    ----------
    train_data : DataIter
        The data.
    count : int, optional
        Largest number of batches, all by default.
    """

    _own = None  # what it yields to an override

    def __getattr__(self, name):
        if name == 'train_data':  # not set yet, as where it is unpickled
            raise AttributeError(name)
        return getattr(self.train_data, name)

    def kept(self, batch):
        """Return a batch that stays as it is, which the data may overwrite."""
        return held(batch, copies=not batches_stay(self.train_data))

    def __iter__(self):
        self._own = self.batches()
        return self._own

    def next(self):
        """Return the next batch."""
        return next(self._own or iter(self))


class Pass(_Source):
    """Batches of a pass over an iterator: all of them or the first few.

    Parameters
    ----------
    train_data : DataIter
        Iterator at its beginning.
    count : int, optional
        Largest number of batches, all by default.
    is_of_training : bool
        Whether ``fit`` trains on these batches.
    are_seen_later : bool
        Whether others see the batches if they are stored.
    """

    _batches = None

    def __init__(self, train_data, count=None, *, is_of_training=False, are_seen_later=True):
        super().__init__(train_data, count)
        self.is_of_training, self.are_seen_later = is_of_training, are_seen_later

    def reset(self):
        """Go to the beginning."""
        if self._batches is not None:
            rewind(self.train_data)
            self._batches = self._own = None

    def batches(self, *, are_seen=True, are_kept=False):
        """Return an iterator over the batches.

        Parameters
        ----------
        are_seen : bool
            Whether others see them. Otherwise they may be views of rows.
        are_kept : bool
            Whether they are stored. Then others may see them later.
        """
        are_views = not are_seen and not (are_kept and self.are_seen_later)
        self._batches = views_of_batches(self.train_data) if are_views else iter(self.train_data)
        # The end of the data ends map, too. It calls no __iter__ once more.
        count = () if self.count is None else (min(self.count, sys.maxsize),)
        return map(next, itertools.repeat(self._batches, *count))

    def is_whole(self, yielded):
        """Tell whether `yielded` batches were all; read one more if that is not known."""
        return yielded != self.count or next(self._batches, _END) is _END

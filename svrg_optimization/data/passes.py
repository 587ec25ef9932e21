"""Batches of a pass for the full gradient: all, the first few, or the next few of a stream."""

import math

from .iterators import batches_in, batches_read, rewind_for_pass
from .ndarray_iter import reset

_END = object()


class Pass:
    """Batches of a pass over an iterator: all of them or the first few.

    Parameters
    ----------
    train_data : DataIter
        Iterator at its beginning.
    count : int, optional
        Largest number of batches, all by default.
    stands_for : DataIter, optional
        Iterator that ``fit`` trains on, if an override of `update_full_grads`
        has passed another one on.

    Attributes
    ----------
    train_data : DataIter
        The iterator.
    stands_for : DataIter
        Iterator whose batches these are: the same, or the argument.
    is_of_training : bool
        Whether ``fit`` trains on this iterator too.
    count : int or None
        The argument.
    read : callable
        Takes the iterator and returns an iterator over its batches; `iter` by
        default.
    """

    is_of_training = True
    read = iter

    def __init__(self, train_data, count=None, stands_for=None):
        self.train_data = train_data
        self.stands_for = train_data if stands_for is None else stands_for
        self.count = count

    def __iter__(self):
        self._batches = self.read(self.train_data)
        return self._batches if self.count is None else self._first_batches()

    def _first_batches(self):
        for _ in range(self.count):
            batch = next(self._batches, _END)
            if batch is _END:
                return
            yield batch

    def is_whole(self, yielded):
        """Tell whether `yielded` batches were all; read one more if that is not known."""
        return yielded != self.count or next(self._batches, _END) is _END


class Stream:
    """Batches of passes that go on where the last one stopped and begin again at the end.

    The iterator may stand anywhere at first, and it may have no end. A pass over
    all data begins at their beginning: a shuffled iterator would otherwise yield
    some rows twice and others not at all.

    Parameters
    ----------
    train_data : DataIter
        The iterator.

    Attributes
    ----------
    train_data : DataIter
        The iterator.
    count : int or None
        Largest number of batches of the next pass. With None it is over all data.
    is_of_training : bool
        Whether ``fit`` trains on this iterator too.
    """

    is_of_training = False

    def __init__(self, train_data):
        self.train_data = train_data
        self.count = self._batches = None
        self._place = None  # number of batches since the beginning, NaN if unknown
        self._length = batches_in(train_data)

    def __iter__(self):
        if self.count is None or self.count >= self._length:
            rewind_for_pass(self.train_data)
            self._batches, self._place = None, 0
        else:
            place = batches_read(self.train_data)
            if self._place is None or not (math.isnan(place) or place == self._place):
                self._batches, self._place = None, place  # somebody else has moved it
        begin, yielded, has_ended = self._place, 0, False
        while (self.count is None or yielded < self.count) and not (
                has_ended and self._place == begin):
            if self._batches is None:
                self._batches = iter(self.train_data)
            batch = next(self._batches, _END)
            if batch is not _END:
                self._place += 1
                yielded += 1
                yield batch
                continue
            if math.isnan(self._length):
                self._length = self._place
            if has_ended:
                return
            reset(self.train_data)
            self._batches, self._place, has_ended = None, 0, True
            if yielded and math.isnan(begin):
                return  # it may have been all


def whole_batches_in(data_pass):
    """Return how many batches without padding a pass over an NDArrayIter has.

    Parameters
    ----------
    data_pass : Pass or Stream
        The pass.

    Returns
    -------
    int
    """
    whole = data_pass.train_data.num_data // data_pass.train_data.batch_size
    return whole if data_pass.count is None else min(whole, data_pass.count)

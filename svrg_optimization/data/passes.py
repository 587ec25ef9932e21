"""Batches of a pass for the full gradient: all, the first few, or the next few of a stream."""

import contextlib

from .iterators import batches_read

_END = object()


class Pass:
    """Batches of a pass over an iterator: all of them or the first few.

    Parameters
    ----------
    train_data : DataIter
        Iterator at its beginning.
    count : int, optional
        Largest number of batches, all by default.

    Attributes
    ----------
    train_data : DataIter
        The iterator.
    is_of_training : bool
        Whether ``fit`` trains on this iterator too.
    """

    is_of_training = True

    def __init__(self, train_data, count=None):
        self.train_data = train_data
        self._count = count

    def __iter__(self):
        self._batches = iter(self.train_data)
        return self._batches if self._count is None else self._first_batches()

    def _first_batches(self):
        for _ in range(self._count):
            batch = next(self._batches, _END)
            if batch is _END:
                return
            yield batch

    def is_whole(self, yielded):
        """Tell whether `yielded` batches were all; read one more if that is not known."""
        return yielded != self._count or next(self._batches, _END) is _END


class Stream:
    """Batches of passes that go on where the last one stopped and begin again at the end.

    The iterator is reset only at its end, so it may stand anywhere at first, and
    it may have no end. A pass yields no batch twice.

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
        self.count = self._batches = self._place = None

    def __iter__(self):
        if self._place is None:
            self._place = batches_read(self.train_data)
        begin, yielded, has_ended, end = self._place, 0, False, None
        while self.count is None or yielded < self.count:
            if self._place == end:
                return
            if self._batches is None:
                self._batches = iter(self.train_data)
            batch = next(self._batches, _END)
            if batch is not _END:
                self._place += 1
                yielded += 1
                yield batch
            elif has_ended:
                return
            else:
                self.train_data.reset()
                self._batches, self._place, has_ended = None, 0, True
                end = begin if yielded else None  # a pass that began at the end is over all


@contextlib.contextmanager
def errors_named(name):
    """Let errors about ``train_data`` within the block name another argument instead."""
    try:
        yield
    except (TypeError, ValueError) as error:
        subject, _, rest = str(error).partition(' ')
        if subject == 'train_data':
            error.args = ('%s %s' % (name, rest),)
        raise

"""The training data as Module.fit iterates it."""

import itertools


class SnapshotIterator:
    """Announce the beginning of each epoch to the module that is trained.

    ``Module.fit`` iterates the training data once an epoch, and resets it at
    the epoch's end. That is all that SVRG needs of a training loop.

    Parameters
    ----------
    train_data : DataIter
        The data; all else that is asked of this object is answered by it.
    begin_epoch : int
        The number of the first epoch.
    epoch_begins : callable
        Called with the epoch's number and `train_data`.
    """

    def __init__(self, train_data, begin_epoch, epoch_begins):
        self._train_data = train_data
        self._epochs = itertools.count(begin_epoch)
        self._epoch_begins = epoch_begins

    def __iter__(self):
        self._epoch_begins(next(self._epochs), self._train_data)
        return iter(self._train_data)

    def __getattr__(self, name):
        return getattr(self._train_data, name)

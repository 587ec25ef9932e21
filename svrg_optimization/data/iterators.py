"""Data iterators: how a pass begins, and the iterator that Module.fit is given."""

import itertools
import reprlib

from mxnet.io import MXDataIter, NDArrayIter, PrefetchingIter, ResizeIter

from .batch_rows import batch_axis


def check_iterator(name, data):
    """Raise a TypeError where an argument is no iterator over data.

    Parameters
    ----------
    name : str
        Of the argument.
    data : object
    """
    if not (callable(getattr(data, 'reset', None)) and callable(getattr(data, '__iter__', None))):
        raise TypeError('%s must be a DataIter, not %s' % (name, reprlib.repr(data)))


def rewind(train_data):
    """Set an iterator to its beginning.

    The iterators over files that MXNet has in C++ must be read to their end
    before they are reset, and not be reset where they stand at the beginning:
    else their next pass begins in the middle of the file and goes on with all
    of it.

    Parameters
    ----------
    train_data : DataIter
    """
    if isinstance(_source(train_data), MXDataIter):
        if isinstance(train_data, MXDataIter) and _is_at_beginning(train_data):
            return
        for _ in train_data:
            pass
    train_data.reset()


def read_to_end(train_data):
    """Do to an iterator what a pass does, and nothing with its batches."""
    rewind(train_data)
    for _ in train_data:
        pass


def rows_left_over(train_data):
    """Count the rows that an NDArrayIter with ``roll_over`` leaves to its second pass."""
    while isinstance(train_data, PrefetchingIter):
        train_data = train_data.iters[0]
    if not (isinstance(train_data, NDArrayIter) and pads_in_front(train_data)):
        return 0
    return train_data.num_data % train_data.batch_size


def rows_of_batch(train_data, data_shapes):
    """Tell the rows of an iterator's batches; those that are bound where it does not say.

    Parameters
    ----------
    train_data : DataIter
    data_shapes : list of DataDesc
        The module's description of its batches.
    """
    described = {description[0]: description[1]
                 for description in getattr(train_data, 'provide_data', None) or []}
    for description in data_shapes:
        axis = batch_axis(description)
        if axis >= 0:
            return described.get(description.name, description.shape)[axis]
    return 0


def pads_in_front(train_data):
    """Tell whether an iterator's padding is at the front of a batch.

    ``NDArrayIter(last_batch_handle='roll_over')`` begins with the rows that
    the pass before could not place, and counts them as padding.
    """
    return getattr(_source(train_data), 'last_batch_handle', None) == 'roll_over'


def yields_new_arrays(train_data):
    """Tell whether an iterator is known not to write to a batch that it has yielded."""
    return type(train_data) is NDArrayIter


def _source(train_data):
    while isinstance(train_data, (ResizeIter, PrefetchingIter)):
        train_data = (train_data.data_iter if isinstance(train_data, ResizeIter)
                      else train_data.iters[0])
    return train_data


def _is_at_beginning(train_data):
    return train_data.first_batch is not None or train_data._debug_at_begin


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
        Called with the epoch's number and `train_data`; returns batches to
        train on in their place, or None.

    Raises
    ------
    ValueError
        If an epoch has no batch.
    """

    def __init__(self, train_data, begin_epoch, epoch_begins):
        self._train_data = train_data
        self._epochs = itertools.count(begin_epoch)
        self._epoch_begins = epoch_begins
        self._is_read = False

    def __iter__(self):
        epoch = next(self._epochs)
        held = self._epoch_begins(epoch, self._train_data)
        if held is not None:
            return iter(held)
        self._is_read = True
        batches = iter(self._train_data)
        for first in batches:
            return itertools.chain([first], batches)
        raise ValueError('train_data must yield at least one batch in each epoch, and %r yielded '
                         'none in epoch %d. A snapshot reads the data before the epoch trains on '
                         'them: reset() must begin them anew. Where they can be read only once, '
                         'store_snapshot_grads=True trains on the batches that the snapshot has '
                         'read' % (self._train_data, epoch))

    @property
    def __class__(self):
        # So that callbacks may ask what the data in their param.locals are.
        return type(self._train_data)

    def reset(self):
        """Reset the data, unless they are at their beginning."""
        if self._is_read:
            self._train_data.reset()
            self._is_read = False

    def __getattr__(self, name):
        return getattr(self._train_data, name)

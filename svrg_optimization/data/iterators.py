"""Data iterators: where a pass begins, and what is known of their batches."""

import functools
import itertools
import reprlib

from mxnet.gluon.data import BatchSampler, RandomSampler
from mxnet.io import MXDataIter, NDArrayIter, PrefetchingIter, ResizeIter

from .batch_rows import as_list, batch_axis


def checked_batches(name, data):
    """Yield the batches of data for a Module; raise a TypeError for what is none, such as None."""
    for batch in data:
        if not all(hasattr(piece, 'data') for piece in as_list(batch)):
            raise TypeError('%s must yield DataBatches, and not %s' % (name, reprlib.repr(batch)))
        yield batch


def rewind(train_data):
    """Set an iterator to its beginning.

    MXNet's C++ iterators over files must be read to their end before they are
    reset, and must not be reset at their beginning. Otherwise their next pass
    begins in the middle of the file, and the whole file follows. This also holds for those that
    are attributes of a user's own iterator. A ResizeIter that does not reset the
    iterator that it reads goes on where this one stands.
    """
    goes_on = isinstance(train_data, ResizeIter) and not train_data.reset_internal
    if isinstance(_source(train_data), MXDataIter) and not goes_on:
        if isinstance(train_data, MXDataIter) and _is_at_beginning(train_data):
            return
        for _ in train_data:
            pass
    else:
        wrapped = [value for value in getattr(train_data, '__dict__', {}).values()
                   if isinstance(value, MXDataIter)]
        if wrapped and all(map(_is_at_beginning, wrapped)):
            return
        for _ in itertools.chain(*wrapped):
            pass
    train_data.reset()


def rewind_for_pass(train_data, is_rewound=False):
    """Set an iterator to its beginning for a pass; return what sets it there again.

    When an NDArrayIter that shuffles is reset, it copies all rows. If it stands at
    its beginning, it is therefore not reset. The pass then takes the rows in the
    order in which the next epoch trains on them, with those that it rolls over.
    """
    if type(train_data) is not NDArrayIter:
        if not is_rewound:
            rewind(train_data)
        return functools.partial(rewind, train_data)
    if train_data.cursor > -train_data.batch_size:
        train_data.reset()
    place = {name: getattr(train_data, name) for name in ('cursor', '_cache_data', '_cache_label')}
    return functools.partial(vars(train_data).update, place)  # at once, whatever Ctrl-C does


def rows_left_over(train_data):
    """Return the rows that an NDArrayIter with ``roll_over`` leaves for its second pass."""
    data = _source(train_data)
    rolls_over = isinstance(data, NDArrayIter) and pads_in_front(data)
    return data.num_data % data.batch_size if rolls_over else 0


def leaves_out_other_rows(train_data):
    """Tell whether each pass over data is known to leave out some rows, each time other ones."""
    batches = getattr(train_data, '_batch_sampler', None)  # of a DataLoader
    if type(batches) is BatchSampler:
        return len(batches._sampler) % batches._batch_size > 0 and (
            batches._last_batch == 'rollover' or batches._last_batch == 'discard'
            and isinstance(batches._sampler, RandomSampler))
    data = _source(train_data)
    return (isinstance(data, NDArrayIter) and data.num_data % data.batch_size > 0
            and (data.last_batch_handle == 'roll_over'
                 or data.last_batch_handle == 'discard' and data.shuffle))


def rows_of_batch(train_data, data_shapes):
    """Return the rows of an iterator's batches, by default of the module's; 0 without an axis."""
    described = {description[0]: description[1]
                 for description in getattr(train_data, 'provide_data', None) or []}
    for description in data_shapes:
        axis = batch_axis(description)
        if axis >= 0:
            return described.get(description.name, description.shape)[axis]
    return 0


def pads_in_front(train_data):
    """Tell whether an iterator has its padding at the beginning of a batch.

    ``NDArrayIter(last_batch_handle='roll_over')`` begins with the rows that the
    previous pass left over, and counts them as padding.
    """
    return getattr(_source(train_data), 'last_batch_handle', None) == 'roll_over'


def batches_stay(train_data):
    """Tell whether an iterator is known not to overwrite batches that it has yielded."""
    return type(train_data) is NDArrayIter


def _source(train_data):
    while isinstance(train_data, (ResizeIter, PrefetchingIter)):
        train_data = (train_data.data_iter if isinstance(train_data, ResizeIter)
                      else train_data.iters[0])
    return train_data


def _is_at_beginning(train_data):
    return train_data.first_batch is not None or train_data._debug_at_begin

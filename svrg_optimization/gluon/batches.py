"""The batches of a pass and of an epoch, as the inputs of the loss function on each device."""

import itertools
import operator
import reprlib

from mxnet import gluon
from mxnet.io import DataDesc

from ..core.front_end import BatchesOfPass
from ..data.batch_rows import without_padding
from ..data.iterators import batches_stay, pads_in_front, rewind
from .numpy_arrays import ARRAYS, arrays_in, as_blocks_take, mapped, on_device


class GluonPass(BatchesOfPass):
    """Batches of a pass or an epoch. Each is a list of the inputs of each device.

    The `first` batch, None without one, is read already. `in_form` makes of a tuple of inputs what
    the data have yielded: a dict, an array, a named tuple or a tuple.
    """

    in_form = tuple

    def __init__(self, train_data, count, devices, rows, states=()):
        super().__init__(train_data, count)
        self.states, self._devices, self._rows = states, devices, rows
        if isinstance(train_data, ARRAYS):
            raise TypeError('train_data must be a DataLoader or another iterable of batches, and '
                            'not %s' % reprlib.repr(train_data))
        dataset = getattr(train_data, '_dataset', None)
        if isinstance(dataset, gluon.data.ArrayDataset) and any(
                hasattr(each, 'iloc') for each in dataset._data):
            raise TypeError('train_data must be a DataLoader of arrays, and not of pandas, whose '
                            'rows have names: give its ArrayDataset df.to_numpy()')
        self.rewind()
        read = map(self._split, itertools.islice(train_data, count))
        self.first = next(read, None)
        self._batches = itertools.chain([] if self.first is None else [self.first], read)

    def rewind(self):
        """Set a DataIter to its beginning."""
        if hasattr(self.train_data, 'reset'):
            rewind(self.train_data)

    def batches(self, at_once=None):
        """Return an iterator over the batches."""
        return self._batches

    def again(self):
        """Return the pass once more, None of data that are read once."""
        batches = GluonPass(self.train_data, self.count, self._devices, self._rows, self.states)
        return batches if batches.first else None

    def kept(self, batch):
        """Return a batch that stays as it is when the next one is read."""
        if isinstance(self.train_data, gluon.data.DataLoader) or batches_stay(self.train_data):
            return batch
        return [[mapped(lambda each: each.copy() if isinstance(each, ARRAYS) else each, value)
                 for value in inputs] for inputs in batch]

    def _split(self, batch):
        """Return the inputs of the loss function for each device."""
        devices, data = self._devices, self.train_data
        if isinstance(getattr(batch, 'data', None), list) and not isinstance(batch, tuple):
            batch = without_padding(batch, *_descriptions(batch, data), pads_in_front(data))
            batch = as_blocks_take([*batch.data, *(batch.label or [])])
        is_one = isinstance(batch, ARRAYS) or isinstance(batch, dict) and batch
        if not (is_one or isinstance(batch, (list, tuple)) and batch):
            raise TypeError('train_data must yield tuples or lists of what objective takes, dicts '
                            'or arrays, not %s' % reprlib.repr(batch))
        self.in_form = operator.itemgetter(0) if is_one else getattr(type(batch), '_make', tuple)
        batch = [batch] if is_one else batch
        axes, rows = self._rows.axes(batch), self._rows.of_inputs(batch)
        if len(axes) != len(batch):
            raise ValueError('batch_axis must have one for each of the %d inputs in a batch of '
                             'train_data, and not be %s' % (len(batch), axes))
        if len(devices) == 1:
            return [[mapped(lambda each: on_device(each, devices[0]), value) for value in batch]]
        if None in rows or len(set(rows)) > 1 or rows and rows[0] < len(devices):
            raise ValueError('batch_axis must be the axis of the rows in each input, at least one '
                             'for each of %d devices, or None: the inputs have %s rows along %s'
                             % (len(devices), rows, axes))
        return list(zip(*(_parts_of(value, axis, devices) for value, axis in zip(batch, axes))))


def _descriptions(batch, data):
    """Return the DataDescs of the data and labels of a DataBatch, of which a list has none."""
    return [getattr(data, kind, None) or [DataDesc(str(place), array.shape) for place, array in
                                          enumerate(arrays or [])]
            for kind, arrays in (('provide_data', batch.data), ('provide_label', batch.label))]


def _parts_of(value, axis, devices):
    if isinstance(value, dict):
        parts = {key: _parts_of(each, axis, devices) for key, each in value.items()}
        return [{key: each[place] for key, each in parts.items()} for place in range(len(devices))]
    if isinstance(value, (list, tuple)):
        if len(value) != len(devices):
            raise ValueError('train_data must yield lists of one for each of the devices, '
                             '%s, and not of %d' % (devices, len(value)))
        return value
    if axis is None or not isinstance(value, ARRAYS):
        return [on_device(value, device) for device in devices]
    return gluon.utils.split_and_load(value, devices, axis, even_split=False)


def arrays_of(inputs):
    """List the arrays of a batch as `SVRGTrainer.backward` takes it, on all devices."""
    inputs = [inputs] if isinstance(inputs, dict) else inputs
    return arrays_in(part for value in inputs for part in (
        value if isinstance(value, (list, tuple)) else [value]))


def by_value(outputs):
    """Turn what `objective` returned on each device into a list of all devices for each value."""
    return tuple(map(list, zip(*outputs))) if isinstance(outputs[0], (list, tuple)) else outputs


def with_states(batch, states):
    """Return a batch whose inputs are followed by the states, on each device."""
    return [(*inputs, *of_device) for inputs, of_device in zip(batch, states)]


"""Rows of a batch: which are data and which are padding."""

import numbers
import reprlib

from mxnet import ndarray as nd
from mxnet.io import DataBatch, DataDesc


def as_list(batch):
    """List the pieces of a batch: one for each device, or only the batch itself."""
    return batch if isinstance(batch, list) else [batch]


def padding_of(batch):
    """Return the `pad` of a DataBatch, 0 if it has none."""
    return getattr(batch, 'pad', None) or 0


def labels_of(batch):
    """List the labels of a DataBatch; the list is empty if it has none."""
    return getattr(batch, 'label', None) or []


def held(batch, copies):
    """Return a batch with the arrays that a batch has now, or with copies of them."""
    if isinstance(batch, list):
        return [held(piece, copies) for piece in batch]
    data, label = ([nd.identity(array) if copies else array for array in arrays]
                   for arrays in (batch.data, labels_of(batch)))
    return DataBatch(data, label, padding_of(batch), **{
        name: getattr(batch, name, None) for name in ('bucket_key', 'provide_data',
                                                      'provide_label')})


def batch_axis(description):
    """Return the axis of the rows in a DataDesc, -1 if there is none."""
    return DataDesc.get_batch_axis(description.layout)


def resized(descriptions, rows):
    """Return the DataDescs with another number of rows."""
    result = []
    for description in descriptions:
        shape, axis = list(description.shape), batch_axis(description)
        if axis >= 0:
            shape[axis] = rows
        result.append(DataDesc(description.name, tuple(shape), description.dtype,
                               description.layout))
    return result


def shapes_of(batch, data_shapes, label_shapes):
    """Return DataDescs of a batch's data and labels; of labels that it lacks, too.

    A list of one batch for each device may differ from those given only in its number of rows.
    """
    rows, _ = count_rows(batch, data_shapes)

    def describe(kind, descriptions):
        arrays = [] if isinstance(batch, list) else getattr(batch, kind) or []
        return [DataDesc(description.name, arrays[i].shape, description.dtype, description.layout)
                if i < len(arrays) else description
                for i, description in enumerate(resized(descriptions, rows))]

    return describe('data', data_shapes), label_shapes and describe('label', label_shapes)


def check_batch(name, batch, data_shapes, label_shapes):
    """Raise an error unless a batch has the described inputs.

    `name` is what the user calls the data. Without `label_shapes` labels are not counted.
    """
    for piece in as_list(batch):
        if not isinstance(getattr(piece, 'data', None), (list, tuple)):
            raise TypeError('%s must yield DataBatches, not %s' % (name, reprlib.repr(piece)))
        for kind, arrays, descriptions in (('data', piece.data, data_shapes),
                                           ('label', labels_of(piece), label_shapes)):
            if descriptions and len(arrays) != len(descriptions):
                raise ValueError('%s must yield batches with the %s %s, not with %d arrays'
                                 % (name, kind, [description.name for description in descriptions],
                                    len(arrays)))
            for array, description in zip(arrays, descriptions):
                if len(array.shape) <= batch_axis(description):
                    raise ValueError('%s must yield batches with %s in the layout %s, and not of '
                                     'the shape %s' % (name, description.name, description.layout,
                                                       array.shape))
        if not isinstance(padding_of(piece), numbers.Integral):
            raise TypeError('%s must yield batches whose pad is an int, not %s'
                            % (name, reprlib.repr(piece.pad)))
        rows, padding = count_rows(piece, data_shapes)
        if not 0 <= padding <= rows:
            raise ValueError('%s must yield batches whose pad is from 0 to their %d rows, not %r'
                             % (name, rows, padding))
        for array, description in zip([*piece.data, *labels_of(piece)],
                                      [*data_shapes, *label_shapes]):
            axis = batch_axis(description)
            if axis >= 0 and array.shape[axis] != rows:
                raise ValueError('%s must yield batches with as many rows of %s as of the others, '
                                 '%d, and not the shape %s'
                                 % (name, description.name, rows, array.shape))


def count_rows(batch, data_shapes):
    """Count the rows of a batch, and the padding rows among them."""
    axes = [batch_axis(description) for description in data_shapes]
    position = next(i for i, axis in enumerate(axes) if axis >= 0)
    pieces = as_list(batch)
    return (sum(piece.data[position].shape[axes[position]] for piece in pieces),
            sum(padding_of(piece) for piece in pieces))


def without_padding(batch, data_shapes, label_shapes, padding_first):
    """Return the real rows of a batch, of which there is one, in their order, as one batch."""
    pieces = []
    for piece in as_list(batch):
        rows, padding = count_rows(piece, data_shapes)
        if padding < rows:
            kept = slice(padding, rows) if padding_first else slice(0, rows - padding)
            pieces.append((piece, kept))

    def real_rows(kind, descriptions):
        axes = [batch_axis(description) for description in descriptions]
        return [_join([_cut(getattr(piece, kind)[i], axis, kept) for piece, kept in pieces], axis)
                for i, axis in enumerate(axes)]

    return DataBatch(data=real_rows('data', data_shapes),
                     label=real_rows('label', label_shapes) if label_shapes else None, pad=0)


def _cut(array, axis, kept):
    if axis < 0:
        return array
    if axis == 0:
        return array[kept]
    return nd.slice_axis(array, axis=axis, begin=kept.start, end=kept.stop)


def _join(arrays, axis):
    if len(arrays) == 1 or axis < 0:
        return arrays[0]
    return nd.concat(*[array.as_in_context(arrays[0].context) for array in arrays], dim=axis)

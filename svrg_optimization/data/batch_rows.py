"""Rows of a batch: which are data and which are padding."""

from mxnet import ndarray as nd
from mxnet.io import DataBatch, DataDesc


def as_list(batch):
    """List the pieces of a batch: one for each device, or only the batch itself."""
    return batch if isinstance(batch, list) else [batch]


def labels_of(batch):
    """List the labels of a DataBatch; the list is empty if it has none."""
    return getattr(batch, 'label', None) or []


def arrays_of(batch):
    """List the arrays of a batch, or of its pieces."""
    return [array for piece in as_list(batch) for array in [*piece.data, *labels_of(piece)]]


def held(batch, copies):
    """Return a new batch with the arrays that a batch has now, or with copies of them."""
    if isinstance(batch, list):
        return [held(piece, copies) for piece in batch]
    data, label = ([nd.identity(array) if copies else array for array in arrays]
                   for arrays in (batch.data, labels_of(batch)))
    return DataBatch(data, label, getattr(batch, 'pad', None), **{
        name: getattr(batch, name, None) for name in ('bucket_key', 'provide_data',
                                                      'provide_label')})


def batch_axis(description):
    """Return the axis of the rows in a DataDesc, -1 if there is none."""
    return DataDesc.get_batch_axis(description.layout)


def resized(descriptions, rows):
    """Return the DataDescs with another number of rows."""
    return [DataDesc(each.name, tuple(rows if axis == batch_axis(each) else size
                                      for axis, size in enumerate(each.shape)),
                     each.dtype, each.layout) for each in descriptions]


def shapes_of(batch, data_shapes, label_shapes):
    """Return DataDescs of a batch's data and labels, even of labels that it lacks.

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
    """Raise a ValueError unless a batch has the described inputs, and no more padding than rows.

    `name` is what the user calls the data. Without `label_shapes` labels are not counted.
    """
    for piece in as_list(batch):
        for kind, arrays, descriptions in (('data', piece.data, data_shapes),
                                           ('label', labels_of(piece), label_shapes)):
            if descriptions and len(arrays) != len(descriptions):
                raise ValueError('%s must yield batches with the %s %s, not with %d arrays'
                                 % (name, kind, [description.name for description in descriptions],
                                    len(arrays)))
        rows, padding = count_rows(piece, data_shapes)
        if not 0 <= padding <= rows:
            raise ValueError('%s must yield batches whose pad is an int from 0 to their %d rows, '
                             'not %r' % (name, rows, padding))


def count_rows(batch, data_shapes):
    """Count the rows of a batch, and the padding rows among them."""
    axes = [batch_axis(description) for description in data_shapes]
    position = next(i for i, axis in enumerate(axes) if axis >= 0)
    pieces = as_list(batch)
    return (sum([piece.data[position].shape[axes[position]] for piece in pieces]),
            sum(getattr(piece, 'pad', None) or 0 for piece in pieces))


def without_padding(batch, data_shapes, label_shapes, padding_first):
    """Return the real rows of a batch, at least one, in their order, as one batch."""
    pieces = []
    for piece in as_list(batch):
        rows, padding = count_rows(piece, data_shapes)
        if padding < rows:
            kept = slice(padding, rows) if padding_first else slice(0, rows - padding)
            pieces.append((piece, kept))

    def real_rows(kind, descriptions):
        whole = []
        for place, axis in enumerate(map(batch_axis, descriptions)):
            arrays = [getattr(piece, kind)[place] for piece, _ in pieces]
            if axis >= 0:
                arrays = [array[kept] if axis == 0 else nd.slice_axis(
                    array, axis=axis, begin=kept.start, end=kept.stop)
                          for array, (_, kept) in zip(arrays, pieces)]
            whole.append(arrays[0] if len(arrays) == 1 or axis < 0 else nd.concat(
                *[array.as_in_context(arrays[0].context) for array in arrays], dim=axis))
        return whole

    return DataBatch(data=real_rows('data', data_shapes),
                     label=real_rows('label', label_shapes) if label_shapes else None, pad=0)

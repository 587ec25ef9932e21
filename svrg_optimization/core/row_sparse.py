"""SVRG gradients of row_sparse parameters."""

from mxnet import ndarray as nd


def correct_all_rows(gradient, at_snapshot, full):
    """Turn a row_sparse gradient into the SVRG gradient with all rows, in place.

    All rows are stored, even zeros: an optimizer updates only stored rows, but
    momentum and weight decay must reach every row.

    Parameters
    ----------
    gradient : RowSparseNDArray
        Gradient of the batch at the current weights; overwritten.
    at_snapshot : RowSparseNDArray
        Gradient of the batch at the snapshot.
    full : NDArray
        Full gradient, dense.
    """
    rows = nd.arange(full.shape[0], ctx=full.context, dtype='int64')
    _assign(gradient, nd.elemwise_add(full, gradient - at_snapshot), rows)


def correct_rows_of_batch(gradient, at_snapshot, full_by_row, alpha=1):
    """Turn a row_sparse gradient into an SVRG gradient of the batch's rows, in place.

    Parameters
    ----------
    gradient : RowSparseNDArray
        Gradient of the batch at the current weights; overwritten.
    at_snapshot : RowSparseNDArray
        Gradient of the batch at the snapshot.
    full_by_row : NDArray
        Full gradient, dense. Each row is divided by the fraction of the batches
        that contain it.
    alpha : float
        α; 1 in plain SVRG.
    """
    difference = gradient - (at_snapshot if alpha == 1 else at_snapshot * alpha)
    rows = difference.indices
    if len(rows):
        full = nd.take(full_by_row, rows)
        _assign(gradient, difference.data + (full if alpha == 1 else full * alpha), rows)


def _assign(target, data, rows):
    nd.sparse.row_sparse_array((data, rows), shape=target.shape, ctx=target.context,
                               dtype=target.dtype).copyto(target)

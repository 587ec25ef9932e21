r"""The SVRG gradient of a batch: the formula, and faster forms of it for each kind of array.

.. math:: g = \nabla f_{batch}(w) - \alpha (\nabla f_{batch}(\tilde w) - \mu)
"""

import itertools

import numpy as np
from mxnet import ndarray as nd

from .arrays import is_row_sparse, ones_in_rows_of, with_all_rows
from .fused import add_fused


def svrg_gradient(g, g_snapshot, mu, alpha=1):
    """Return g - α (g̃ - μ), of dense arrays of one dtype: what all other forms compute."""
    return g - alpha * g_snapshot + alpha * mu


def correct(gradient, snapshot_gradient, full, alpha=1):
    """Turn one gradient into the SVRG gradient, in place.

    Parameters
    ----------
    gradient : NDArray
        Gradient of the batch at the current weights, dense or row_sparse;
        overwritten with the SVRG gradient.
    snapshot_gradient : NDArray
        Gradient of the batch at the snapshot, of the same shape and dtype.
    full : NDArray
        Full gradient of the same shape in the scale of a batch gradient, float32
        for float16 gradients; dense, or row_sparse with all rows where the gradient
        is row_sparse.
    alpha : float
        α; 1 in plain SVRG.
    """
    if is_row_sparse(gradient):
        _correct_all_rows(gradient, snapshot_gradient, full, alpha)
    elif gradient.dtype != full.dtype:
        gradient[:] = svrg_gradient(gradient.astype(full.dtype),
                                    snapshot_gradient.astype(full.dtype), full, alpha)
    elif alpha == 1:
        _correct_in_place(gradient, snapshot_gradient, full)
    elif _is_float32(gradient):
        _correct_by_steps(gradient, snapshot_gradient, full, alpha)
    else:
        gradient[:] = svrg_gradient(gradient, snapshot_gradient, full, alpha)


def _correct_in_place(gradient, snapshot_gradient, full):
    """Do without arrays for results in between; α is 1."""
    gradient -= snapshot_gradient
    gradient += full


def _correct_by_steps(gradient, snapshot_gradient, full, alpha):
    """Do without arrays for the products: a step of sgd, whose rate is a float32, adds each."""
    nd.sgd_update(gradient, snapshot_gradient, lr=alpha, wd=0, out=gradient)
    nd.sgd_update(gradient, full, lr=-alpha, wd=0, out=gradient)


def _correct_all_rows(gradient, snapshot_gradient, full, alpha):
    """Store all rows, even zeros, and add the difference to its rows alone, by a step of sgd.

    An optimizer updates only stored rows, but momentum and weight decay must reach every row.
    """
    snapshot_gradient, full = _times(alpha, snapshot_gradient, full)
    difference = gradient - snapshot_gradient
    (full if is_row_sparse(full) else with_all_rows(full)).copyto(gradient)
    nd.sgd_update(gradient, difference, lr=-1, wd=0, out=gradient)


def correct_fused(arrays, alpha=1):
    """Turn several gradients into SVRG gradients, in place; bit-identical to `correct`.

    Parameters
    ----------
    arrays : list of (NDArray, NDArray, NDArray)
        For each parameter the full gradient, the gradient at the snapshot, and the gradient
        that is overwritten, as in `correct`, but dense arrays of a group, on one device.
    alpha : float
        As in `correct`.
    """
    full, snapshot_gradients, gradients = zip(*arrays)
    if alpha == 1:
        # A step of sgd with momentum: the weight is `full`, and the momentum the gradient.
        count = len(gradients)
        nd.multi_sgd_mom_update(*itertools.chain(*arrays), lrs=(1,) * count, wds=(0,) * count,
                                momentum=1, num_weights=count, out=gradients)
    elif _is_float32(*gradients):
        add_fused(gradients, snapshot_gradients, -alpha)
        add_fused(gradients, full, alpha)
    else:
        for mu, then, gradient in arrays:
            correct(gradient, then, mu, alpha)


def correct_rows_of_batch(gradient, snapshot_gradient, full_by_row, alpha=1):
    """Turn a row_sparse gradient into an SVRG gradient of the batch's rows, in place.

    Parameters
    ----------
    gradient : RowSparseNDArray
        Gradient of the batch at the current weights; overwritten.
    snapshot_gradient : RowSparseNDArray
        Gradient of the batch at the snapshot.
    full_by_row : NDArray
        Full gradient, dense. Each row is divided by the fraction of the batches
        that contain it.
    alpha : float
        α; 1 in plain SVRG.
    """
    difference = gradient - (snapshot_gradient if alpha == 1 else snapshot_gradient * alpha)
    full = nd.elemwise_mul(ones_in_rows_of(difference), full_by_row)
    nd.elemwise_add(difference, full if alpha == 1 else full * alpha, out=gradient)


def correct_batch(gradients, snapshot_gradients, full_gradient, rows, alpha=1, formula=None):
    """Turn all gradients of a batch into SVRG gradients, in place.

    Parameters
    ----------
    gradients : dict of str to list of NDArray
        For each parameter one gradient per device, at the current weights;
        overwritten with the SVRG gradients.
    snapshot_gradients : dict of str to list of NDArray
        Gradients of the batch at the snapshot.
    full_gradient : FullGradient
        Full gradient of the snapshot.
    rows : int
        Number of rows that the full gradient is scaled to.
    alpha : float
        α; 1 in plain SVRG.
    formula : callable, optional
        Takes a gradient, the gradient at the snapshot times α and the full
        gradient times α, and returns the SVRG gradient. By default it is
        `correct`.
    """
    scale = full_gradient.scale_for(rows)
    groups, others = full_gradient.groups(gradients, fuses=formula is None and scale == 1)
    for device, share in enumerate(full_gradient.shares):
        for names in groups:
            correct_fused([(share[name], snapshot_gradients[name][device],
                            gradients[name][device]) for name in names], alpha)
    for name in others:
        for device, gradient in enumerate(gradients[name]):
            by_row = full_gradient.by_row[device]
            if name in by_row:
                full = by_row[name]
            elif formula is None and is_row_sparse(gradient):
                full = full_gradient.with_all_rows(device, name)
            else:
                full = full_gradient.shares[device][name]
            if scale != 1:
                full = full * scale
            then = snapshot_gradients[name][device]
            if name in by_row:
                correct_rows_of_batch(gradient, then, full, alpha)
            elif formula is None:
                correct(gradient, then, full, alpha)
            else:
                corrected = formula(gradient, *_times(alpha, then, full))
                if corrected is not gradient:
                    corrected.copyto(gradient)


def _times(alpha, *arrays):
    return arrays if alpha == 1 else [array * alpha for array in arrays]


def _is_float32(*arrays):
    return all(array.dtype == np.float32 for array in arrays)

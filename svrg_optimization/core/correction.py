r"""Sums of gradients, and the SVRG gradient with its coefficient α.

.. math:: g = \nabla f_{batch}(w) - \alpha (\nabla f_{batch}(\tilde w) - \mu)

For small arrays the call of an operation takes longer than its arithmetic, so
many of them are added in one operation. MXNet has no operation that adds many
arrays; a step of sgd with a rate of 1 or -1 is used instead.
"""

import numpy as np
from mxnet import ndarray as nd

from ..mxnet_bridge.storage import dtype_of_sum, is_row_sparse
from .row_sparse import correct_all_rows

# Elements up to which this is faster than one vectorized operation for each array: 0.5 ms
# instead of 3.9 for 160 small gradients.
_SMALL = 1 << 14
_ARRAYS_OF_AN_OPERATION = 60


def correct(gradient, at_snapshot, full, alpha=1):
    """Turn one gradient into the SVRG gradient, in place.

    Parameters
    ----------
    gradient : NDArray
        Gradient of the batch at the current weights, dense or row_sparse;
        overwritten with the SVRG gradient.
    at_snapshot : NDArray
        Gradient of the batch at the snapshot, of the same shape and dtype.
    full : NDArray
        Full gradient of the same shape in the scale of a batch gradient; dense,
        float32 for float16 gradients.
    alpha : float
        α; 1 in plain SVRG.
    """
    if alpha != 1 and gradient.stype == 'default' and _is_float32(gradient, full):
        _add_times(gradient, at_snapshot, -alpha)
        _add_times(gradient, full, alpha)
        return
    if alpha != 1:
        at_snapshot, full = at_snapshot * alpha, full * alpha
    if is_row_sparse(gradient):
        correct_all_rows(gradient, at_snapshot, full)
    elif gradient.dtype == full.dtype:
        gradient -= at_snapshot
        gradient += full
    else:
        gradient[:] = gradient.astype(full.dtype) - at_snapshot.astype(full.dtype) + full


def correct_fused(gradients, at_snapshot, full, alpha=1):
    """Turn several gradients into SVRG gradients, in place; bit-identical to `correct`.

    For an α of 1 this is one step of sgd with momentum: the weight is the full
    gradient, the momentum is the gradient, and all rates are 1.

    Parameters
    ----------
    gradients, at_snapshot, full : list of NDArray
        As in `correct`, but dense, of one dtype and on one device.
    alpha : float
        As in `correct`.
    """
    if alpha != 1 and _is_float32(*gradients):
        _add_fused_times(gradients, at_snapshot, -alpha)
        _add_fused_times(gradients, full, alpha)
        return
    if alpha != 1:
        for arrays in zip(gradients, at_snapshot, full):
            correct(*arrays, alpha)
        return
    for targets, *others in _parts(gradients, full, at_snapshot, gradients):
        count = len(targets)
        nd.multi_sgd_mom_update(*_interleaved(others), lrs=(1,) * count, wds=(0,) * count,
                                momentum=1, num_weights=count, out=targets)


def add_fused(totals, gradients):
    """Add gradients to sums, in place.

    Parameters
    ----------
    totals, gradients : list of NDArray
        Dense arrays of one dtype on one device. `totals` are overwritten.
    """
    _add_fused_times(totals, gradients, 1)


def _is_float32(*arrays):
    """Tell whether a step of sgd, whose rate is a float32, can scale these arrays."""
    return all(array.dtype == np.float32 for array in arrays)


def _add_times(total, gradient, factor):
    """Add a gradient times a factor, as a step of sgd with the rate -factor."""
    nd.sgd_update(total, gradient, lr=-factor, wd=0, out=total)


def _add_fused_times(totals, gradients, factor):
    """Add several gradients times a factor, many in one operation."""
    for targets, *others in _parts(totals, totals, gradients):
        count = len(targets)
        nd.multi_sgd_update(*_interleaved(others), lrs=(-factor,) * count, wds=(0,) * count,
                            num_weights=count, out=targets)


def copies_fused(gradients):
    """Copy gradients, many in one operation if they are float32.

    Parameters
    ----------
    gradients : list of NDArray
        Dense gradients of one dtype on one device.

    Returns
    -------
    list of NDArray
        Copies in the same order.
    """
    if any(gradient.dtype != np.float32 for gradient in gradients):  # oneDNN supports no other
        return [gradient.copy() for gradient in gradients]
    copies = []
    for [part] in _parts(gradients):
        made = nd.amp_multicast(*part, num_outputs=len(part))
        copies += [made] if len(part) == 1 else made
    return copies


def _parts(*lists):
    for begin in range(0, len(lists[0]), _ARRAYS_OF_AN_OPERATION):
        yield [arrays[begin:begin + _ARRAYS_OF_AN_OPERATION] for arrays in lists]


def _interleaved(lists):
    return [array for arrays in zip(*lists) for array in arrays]


def fusable_parameters(gradients):
    """Group the parameters whose gradients are small, dense and summed in their own dtype.

    Parameters
    ----------
    gradients : dict of str to list of NDArray
        For each parameter one gradient per device.

    Returns
    -------
    list of list of str
        Groups of parameters; the dtype is the same within a group.
    """
    groups = {}
    for name, arrays in gradients.items():
        gradient = arrays[0]
        if gradient.stype == 'default' and gradient.size <= _SMALL and (
                gradient.dtype == dtype_of_sum(gradient.dtype)):
            groups.setdefault(gradient.dtype, []).append(name)
    return list(groups.values())

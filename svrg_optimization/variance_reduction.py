r"""The SVRG gradient, :math:`g = \nabla f_{batch}(w) - \nabla f_{batch}(\tilde w) + \mu`."""

from mxnet import ndarray as nd

from .sparse_rows import correct_all_rows, is_row_sparse

# An array up to this size takes less time in one operation over many arrays;
# a larger one in vectorized operations of its own.
_SMALL = 1 << 14
_ARRAYS_OF_AN_OPERATION = 60


def is_small(array):
    """Tell whether an array takes more time in operations of its own than with others."""
    return array.size <= _SMALL


def correct(gradient, at_snapshot, full):
    """Turn one gradient into the SVRG gradient, in place.

    Parameters
    ----------
    gradient : NDArray
        The batch's gradient at the current weights; overwritten.
    at_snapshot : NDArray
        The batch's gradient at the snapshot.
    full : NDArray
        The full gradient, in the units of a batch gradient; float32 for
        float16 gradients.
    """
    if is_row_sparse(gradient):
        correct_all_rows(gradient, at_snapshot, full)
    elif gradient.dtype == full.dtype:
        gradient -= at_snapshot
        gradient += full
    else:
        gradient[:] = gradient.astype(full.dtype) - at_snapshot.astype(full.dtype) + full


def correct_small(gradients, at_snapshot, full):
    """Turn several gradients into SVRG gradients, in place, in one operation for many.

    A step of sgd with momentum computes it, to the same bits: the weight is
    the full gradient, the momentum is the gradient, and both rates are 1.

    Parameters
    ----------
    gradients, at_snapshot, full : list of NDArray
        As for `correct`, but dense, of one dtype and on one device.
    """
    for begin in range(0, len(gradients), _ARRAYS_OF_AN_OPERATION):
        part = slice(begin, begin + _ARRAYS_OF_AN_OPERATION)
        targets = gradients[part]
        arrays = [array for triple in zip(full[part], at_snapshot[part], targets)
                  for array in triple]
        count = len(targets)
        nd.multi_sgd_mom_update(*arrays, lrs=(1,) * count, wds=(0,) * count, momentum=1,
                                num_weights=count, out=targets)


def small_parameters(gradients, full):
    """Group the parameters whose gradients `correct_small` may take.

    Parameters
    ----------
    gradients : dict of str to list of NDArray
        One gradient a device for each parameter.
    full : dict of str to NDArray
        Their full gradients on one device.

    Returns
    -------
    list of list of str
        Parameters of one dtype each.
    """
    groups = {}
    for name, arrays in gradients.items():
        gradient = arrays[0]
        if gradient.stype == 'default' and is_small(gradient) and (
                gradient.dtype == full[name].dtype):
            groups.setdefault(gradient.dtype, []).append(name)
    return list(groups.values())

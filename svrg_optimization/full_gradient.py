"""The full gradient of one snapshot: summed, exchanged, held."""

import numpy as np
from mxnet import ndarray as nd

from .sparse_rows import is_row_sparse


def dtype_of_sum(dtype):
    """Tell the dtype in which gradients of a dtype are summed up."""
    return np.float32 if dtype == np.float16 else dtype


class FullGradient:
    r"""The full gradient :math:`\mu` at a snapshot, in the units of a batch gradient.

    .. math:: \mu = \frac{B}{n} \sum_{j=1}^{n} \nabla f_j(\tilde w)

    It is held in one share for each device; the shares add up to
    :math:`\mu`. Until a pass has been finished, all of them are 0.

    Parameters
    ----------
    gradients : dict of str to list of NDArray
        One gradient a device for each parameter, of which only shape, dtype,
        storage type and context are taken.
    devices : int
        How many devices there are.
    counts_rows : bool
        Whether to count, for row_sparse gradients, how often each row occurs.

    Attributes
    ----------
    shares : list of dict of str to NDArray
        One dict a device, from parameter name to that device's share; dense,
        of the gradient's dtype, but float32 for a float16 one.
    by_row : list of dict of str to NDArray
        The same for parameters whose rows are counted, but the whole full
        gradient, each row of it over the part of the batches that contain it.
    row_counts : dict of str to numpy.ndarray
        For these parameters, the batches (on each device) that contain a row.
    batches : int
        The batches that were summed.
    rows : int
        n, the rows that it is a mean over; 0 before the pass is finished.
    """

    def __init__(self, gradients, devices, counts_rows=False):
        self.shares = [{name: nd.zeros(arrays[device].shape, ctx=arrays[device].context,
                                       dtype=dtype_of_sum(arrays[device].dtype))
                        for name, arrays in gradients.items()}
                       for device in range(devices)]
        self.by_row = [{} for _ in range(devices)]
        self.row_counts = {name: np.zeros(arrays[0].shape[0], np.int64)
                           for name, arrays in gradients.items()
                           if counts_rows and is_row_sparse(arrays[0])}
        self.batches = 0
        self.rows = 0

    def add(self, gradients, weight):
        """Add `weight` times the gradient of one batch to the sum."""
        self.batches += 1
        for device, share in enumerate(self.shares):
            for name, arrays in gradients.items():
                total, gradient = share[name], arrays[device]
                if name in self.row_counts:
                    self.row_counts[name][gradient.indices.asnumpy()] += 1
                if gradient.dtype != total.dtype:
                    gradient = gradient.astype(total.dtype)
                nd.elemwise_add(total, gradient if weight == 1 else weight * gradient, out=total)

    def finish(self, batch_size, rows, kvstore=None, keys=None):
        """Make the sum over all batches a mean, over all devices.

        Parameters
        ----------
        batch_size : int
            B, the rows of a batch.
        rows : int
            n, the rows that were summed.
        kvstore : mxnet.kvstore.KVStore, optional
            Sums over the devices. Without one, each device's share stays its
            own.
        keys : dict of str to str
            From parameter name to its key in `kvstore`.
        """
        for share in self.shares:
            for total in share.values():
                total *= batch_size / rows
        if kvstore:
            self.exchange(kvstore, keys, {name: [share[name] for share in self.shares]
                                          for name in self.shares[0]})
        for share in self.shares:
            for mean in share.values():
                mean.wait_to_read()
        self.rows = rows
        self._divide_by_row()

    def _divide_by_row(self):
        for name, counts in self.row_counts.items():
            factor = len(self.shares) * self.batches / np.maximum(counts, 1)
            for share, by_row in zip(self.shares, self.by_row):
                full = share[name]
                by_row[name] = nd.broadcast_mul(full, nd.array(
                    factor.reshape((-1,) + (1,) * (full.ndim - 1)), ctx=full.context,
                    dtype=full.dtype))

    def exchange(self, kvstore, keys, values):
        """Sum values over all devices in a KVStore and share the sums out.

        Parameters
        ----------
        kvstore : mxnet.kvstore.KVStore
            Holds a key for each full gradient.
        keys : dict of str to str
            From parameter name to its key.
        values : dict of str to list of NDArray
            From parameter name to one value a device; overwritten with the sum.
        """
        for priority, (name, arrays) in enumerate(values.items()):
            kvstore.push(keys[name], arrays, priority=-priority)
        for priority, (name, arrays) in enumerate(values.items()):
            kvstore.pull(keys[name], out=arrays, priority=-priority)
        for name, arrays in values.items():
            self.share_out(name, arrays)

    def restore(self, shares, rows, row_counts, batches):
        """Set the full gradient to one that was held before.

        Parameters
        ----------
        shares : list of dict of str to numpy.ndarray
            One dict a device, on as many devices as there were then.
        rows : int
            n, the rows that it is a mean over.
        row_counts : dict of str to numpy.ndarray
            For each parameter whose rows are counted.
        batches : int
            The batches that were summed.
        """
        for device, share in enumerate(self.shares):
            for name, value in share.items():
                if len(shares) == len(self.shares):
                    value[:] = shares[device][name]
                else:
                    value[:] = sum(saved[name] for saved in shares) / len(self.shares)
        self.row_counts = {name: row_counts[name] for name in self.row_counts}
        self.batches = batches
        self.rows = rows
        self._divide_by_row()

    def share_out(self, name, totals):
        """Give each device its part of a full gradient that all of them have whole."""
        for share, total in zip(self.shares, totals):
            share[name] = total / len(self.shares)

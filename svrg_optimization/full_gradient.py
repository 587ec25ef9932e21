"""The full gradient of one snapshot: summed, exchanged, held."""

import numpy as np
from mxnet import ndarray as nd


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
        One gradient a device for each parameter, of which only shape, dtype
        and context are taken.
    devices : int
        How many devices there are.

    Attributes
    ----------
    shares : list of dict of str to NDArray
        One dict a device, from parameter name to that device's share; of the
        gradient's dtype, but float32 for a float16 one.
    rows : int
        n, the rows that it is a mean over; 0 before the pass is finished.
    """

    def __init__(self, gradients, devices):
        self.shares = [{name: nd.zeros(arrays[device].shape, ctx=arrays[device].context,
                                       dtype=dtype_of_sum(arrays[device].dtype))
                        for name, arrays in gradients.items()}
                       for device in range(devices)]
        self.rows = 0

    def add(self, gradients, weight):
        """Add `weight` times the gradient of one batch to the sum."""
        for device, share in enumerate(self.shares):
            for name, arrays in gradients.items():
                total = share[name]
                gradient = arrays[device].astype(total.dtype, copy=False)
                total += gradient if weight == 1 else weight * gradient

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

    def set_shares(self, shares, rows):
        """Set the full gradient to one that was held before.

        Parameters
        ----------
        shares : list of dict of str to numpy.ndarray
            One dict a device, on as many devices as there were then.
        rows : int
            n, the rows that it is a mean over.
        """
        for device, share in enumerate(self.shares):
            for name, value in share.items():
                if len(shares) == len(self.shares):
                    value[:] = shares[device][name]
                else:
                    value[:] = sum(saved[name] for saved in shares) / len(self.shares)
        self.rows = rows

    def share_out(self, name, totals):
        """Give each device its part of a full gradient that all of them have whole."""
        for share, total in zip(self.shares, totals):
            share[name] = total / len(self.shares)

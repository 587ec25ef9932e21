"""Full gradient of one snapshot, and the loss there: the sum over batches, then the mean."""

import math
from typing import Any, List, NamedTuple, Optional

import numpy as np
from mxnet import ndarray as nd

from .arrays import dtype_of_sum, is_row_sparse, ones_in_rows_of, with_all_rows
from .fused import add_fused, fusable_parameters


class Part(NamedTuple):
    """Gradients of one batch of a pass, without its padding. The next run overwrites them.

    Attributes
    ----------
    batch : object
        The batch.
    gradients : dict of str to list of NDArray
        For each parameter one gradient per device.
    weights : list of float, or None
        Weight of each device's gradients in the sum; 1 each by default.
    rows, batches : int
        Number of rows without padding (of labels, with a mask), and of batches, that the
        sum counts here. With no row there are no gradients.
    losses : list of list of (NDArray, float), or None
        For each device arrays with factors: the elements, times these, add up to the loss
        that has these gradients. None if it is not known.
    is_of_step : bool
        Whether the step on the batch has the same gradients: it has no padding.
    """

    batch: Any
    gradients: Any
    weights: Optional[List[float]] = None
    rows: int = 0
    batches: int = 1
    losses: Optional[List[list]] = None
    is_of_step: bool = True


class FullGradient:
    r"""Full gradient :math:`\mu` at a snapshot, in the scale of a batch gradient.

    .. math:: \mu = \frac{B}{n} \sum_{j=1}^{n} \nabla f_j(\tilde w)

    Each device has one share of it; the shares add up to :math:`\mu`. All are 0
    until a pass adds gradients.

    Parameters
    ----------
    gradients : dict of str to list of NDArray
        For each parameter one gradient per device. Only shape, dtype, storage
        type and context are used.
    devices : int
        Number of devices.
    batch_size : int
        B, the number of rows of a batch.
    loss_is_mean : bool
        Whether gradients are means over the rows of a batch rather than sums.
    counted : list of str
        Parameters with row_sparse gradients whose rows are counted.

    Attributes
    ----------
    shares : list of dict of str to NDArray
        For each device a dict from parameter name to its share. A share is
        dense and has the shape and dtype of the gradient, but float32 for
        float16.
    by_row : list of dict of str to NDArray
        For each device a dict with the parameters whose rows are counted. Each
        row of the whole full gradient is divided by the fraction of the batches
        that contain it.
    row_counts : dict of str to numpy.ndarray
        For these parameters the number of batches that contain each row,
        counted on each device and added.
    batches : int
        Number of batches that were summed.
    yielded : int
        Number of batches of this worker's pass, with those that are all padding.
    rows : int
        n, the number of rows in the mean.
    share_of_rows : float or None
        This worker's share of these rows; None in a full gradient from a file.
    loss : float
        The loss, summed and divided as its gradients; NaN if it is not known.
    small : list of list of str
        Groups of parameters that are added many in one operation.
    finished : bool
        Whether the pass was finished. Before that the shares are 0 or a sum.
    is_sparse : bool
        Whether gradients are row_sparse.
    may_be_written : bool
        Whether somebody else has the shares, and may write into them after the pass.
    loss_is_mean : bool
        The argument.
    shares_differ : bool
        Whether each device has kept its own sum. Otherwise all shares are equal.
    batch_size : int
        B, the number of rows of a batch whose gradient has this scale.
    """

    def __init__(self, gradients, devices, batch_size, loss_is_mean=False, counted=()):
        self.shares = [{name: nd.zeros(arrays[device].shape, ctx=arrays[device].context,
                                       dtype=dtype_of_sum(arrays[device].dtype))
                        for name, arrays in gradients.items()}
                       for device in range(devices)]
        self.by_row = [{} for _ in range(devices)]
        self.small = fusable_parameters(gradients)
        self.row_counts = {name: np.zeros(gradients[name][0].shape[0], np.int64)
                           for name in counted}
        self._counters, self._with_all_rows, self._groups = {}, {}, {}
        self.may_be_written = False
        self.is_sparse = any(arrays[0].stype != 'default' for arrays in gradients.values())
        self.batches = 0
        self.yielded = 0
        self.rows, self.share_of_rows = 0, None
        self.loss, self._losses = 0., []
        self.finished = self.shares_differ = False
        self.batch_size = batch_size
        self.loss_is_mean = loss_is_mean

    def add(self, part):
        """Add the gradients and losses of a Part, each times the weight of its device."""
        gradients = part.gradients
        weights = part.weights or [1] * len(self.shares)
        self.rows += part.rows
        self.batches += part.batches
        if part.losses is None:
            self.loss = math.nan
        else:
            self._losses += [(loss, weight * factor)
                             for weight, of_device in zip(weights, part.losses)
                             for loss, factor in of_device]
        for device, share in enumerate(self.shares):
            groups, others = self.groups(gradients, fuses=weights[device] == 1)
            for names in groups:
                add_fused([share[name] for name in names],
                          [gradients[name][device] for name in names])
            for name in others:
                total, gradient = share[name], gradients[name][device]
                if gradient.dtype != total.dtype:
                    gradient = gradient.astype(total.dtype)
                if weights[device] != 1:
                    gradient = gradient * weights[device]
                # For dense gradients it takes half the time of elemwise_add.
                add = nd.elemwise_add if is_row_sparse(gradient) else nd.broadcast_add
                add(total, gradient, out=total)

    def groups(self, names, fuses=True):
        """Return groups of parameters for one operation each, and the other parameters.

        Parameters
        ----------
        names : iterable of str
            The parameters.
        fuses : bool
            Whether there are groups at all.
        """
        key = (*names, fuses)
        if key not in self._groups:
            groups = [[name for name in group if name in names] for group in self.small if fuses]
            grouped = set().union(*groups)
            self._groups[key] = (list(filter(None, groups)),
                                 [name for name in names if name not in grouped])
        return self._groups[key]

    def wait(self):
        """Wait until all gradients and losses so far are added."""
        for loss, factor in self._losses:
            self.loss += factor * float(loss.asnumpy().sum(dtype='float64'))
        self._losses = []
        for share in self.shares:
            for total in share.values():
                total.wait_to_read()

    def count_rows(self, gradients):
        """Count the rows that the row_sparse gradients of a batch store, as its step has them."""
        for name in self.row_counts if gradients else ():
            counters = self._counters.setdefault(name, [])
            for device, gradient in enumerate(gradients[name]):
                if device == len(counters):
                    counters.append(nd.zeros(gradient.shape, ctx=gradient.context,
                                             dtype=dtype_of_sum(gradient.dtype)))
                ones = ones_in_rows_of(gradient).astype(counters[device].dtype, copy=False)
                nd.sgd_update(counters[device], ones, lr=-1, wd=0, out=counters[device])

    def divide(self, workers):
        """Turn the sum over all batches into the mean over rows, devices and workers.

        Parameters
        ----------
        workers : Workers
            Sums gradients, rows, batches and row counts over devices and workers.
        """
        for name, counters in self._counters.items():
            for counter in counters:  # all columns are equal
                column = counter.asnumpy().reshape(len(counter), -1)[:, 0]
                self.row_counts[name] += np.nan_to_num(column).astype(np.int64)
        self._counters = {}
        self.wait()
        units = workers.sum(self)
        if not self.rows:
            return
        self.scale(units / self.rows)
        self.wait()
        self.finished = True
        self._divide_by_row()

    def by_parameter(self):
        """Map each parameter to its shares, one per device."""
        return {name: [share[name] for share in self.shares] for name in self.shares[0]}

    def with_all_rows(self, device, name):
        """Return the share of a parameter as a row_sparse array that stores all rows."""
        share = self.shares[device][name]
        made_of, made = self._with_all_rows.get((device, name), (None, None))
        if made_of is not share or self.may_be_written:
            made = with_all_rows(share)
            self._with_all_rows[device, name] = share, made
        return made

    def scale(self, factor):
        """Multiply all shares and the loss by a factor."""
        self.loss *= factor
        for share in self.shares:
            for total in share.values():
                total *= factor

    def _divide_by_row(self):
        for name, counts in self.row_counts.items():
            factor = len(self.shares) * self.batches / np.maximum(counts, 1)
            for share, by_row in zip(self.shares, self.by_row):
                full = share[name]
                by_row[name] = nd.broadcast_mul(full, nd.array(
                    factor.reshape((-1,) + (1,) * (full.ndim - 1)), ctx=full.context,
                    dtype=full.dtype))

    def pack(self):
        """Return what a file contains. Of equal shares there is only the first one."""
        return {'rows': self.rows, 'batches': self.batches, 'batch_size': self.batch_size,
                'loss': self.loss, 'devices': len(self.shares), 'row_counts': self.row_counts,
                'shares': self.shares if self.shares_differ else self.shares[:1]}

    def unpack(self, saved):
        """Set what `pack` has returned, for any number of devices.

        It returns the parameters that are missing. If there are any, nothing is set.
        """
        shares = [{name: array.asnumpy() for name, array in share.items()}
                  for share in saved['shares']]
        lacking = (self.shares[0].keys() - shares[0].keys()) | (
            self.row_counts.keys() - saved['row_counts'].keys())
        if lacking:
            return lacking
        differ = saved['devices'] == len(self.shares) == len(shares) > 1
        shares = shares * (saved['devices'] if len(shares) == 1 else 1)
        units = 1 / self.scale_for(saved['batch_size'])
        for device, share in enumerate(self.shares):
            for name, value in share.items():
                if len(shares) == len(self.shares):
                    value[:] = shares[device][name] * units
                else:
                    value[:] = sum(other[name] for other in shares) * (units / len(self.shares))
        self.row_counts = {name: saved['row_counts'][name] for name in self.row_counts}
        self.batches, self.rows, self.loss = saved['batches'], saved['rows'], saved['loss'] * units
        self.finished, self.shares_differ = True, differ
        self._divide_by_row()
        return lacking

    def scale_for(self, batch_size):
        """Return the factor that scales it to the gradient of a batch of `batch_size` rows."""
        return 1 if self.loss_is_mean else batch_size / self.batch_size

    def nonfinite(self):
        """List the parameters whose full gradient has an infinite value or a NaN."""
        flags = {name: [nd.all_finite(share[name]) for share in self.shares]
                 for name in self.shares[0]}
        return [name for name, of_devices in flags.items()
                if not all(flag.asscalar() for flag in of_devices)]

    def totals(self):
        """Map each parameter to its full gradient, the sum of the shares of all devices.

        It is on the first device: the share itself if there is only one.
        """
        if len(self.shares) == 1:
            return dict(self.shares[0])
        return {name: nd.add_n(*[share[name].as_in_context(first.context)
                                 for share in self.shares])
                for name, first in self.shares[0].items()}

    def share_out(self, name, totals):
        """Give each device its share of a full gradient that all devices have whole."""
        for share, total in zip(self.shares, totals):
            share[name] = total / len(self.shares)

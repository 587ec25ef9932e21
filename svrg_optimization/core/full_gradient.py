"""Full gradient of one snapshot, and the loss there: the sum over batches, then the mean."""

import math
from typing import Any, List, NamedTuple, Optional

import numpy as np
from mxnet import ndarray as nd

from .arrays import dtype_of_sum, is_row_sparse, like, summed, with_all_rows
from .correction import Groups, add_fused


class BatchGradient(NamedTuple):
    """Gradients of one batch at the snapshot. The next ones overwrite them.

    Attributes
    ----------
    gradients : dict of str to list of NDArray
        For each parameter one gradient per device.
    summed : float
        Number of rows whose gradients are added up in these; the mean over rows counts as one.
    rows : int
        Number of rows for the mean. Rows of padding do not count; with a mask these are the labels
        that count. Without rows there are no gradients.
    weights : list of float, or None
        Weight of each device's gradients in the sum; 1 each by default.
    losses : list of list of (NDArray, float), or None
        For each device arrays with their factors. The sum of all elements, each times its
        factor, is the loss that has these gradients. None if it is not known.
    """

    gradients: Any
    summed: float
    rows: int = 0
    weights: Optional[List[float]] = None
    losses: Optional[List[list]] = None


class Sum:
    """Sum of the gradients and losses of a pass, which `Workers.sum` adds up over all workers.

    Attributes
    ----------
    shares : list of dict of str to NDArray
        For each device a dict from parameter name to its share of the sum, which is dense, and
        float32 for float16.
    shares_differ : bool
        Whether each device has kept its own sum. Otherwise all shares are equal.
    rows, batches : int
        Number of rows and of batches that were summed.
    yielded : int
        Number of batches of this worker's pass, including those that are all padding.
    loss : float
        The loss; NaN if it is not known.
    batch_size : int or None
        Number of rows of a batch; None until the first batch or a file tells it.
    loss_is_mean : bool
        Whether gradients are means over these, not sums.
    """

    def __init__(self, gradients, devices, batch_size, loss_is_mean=False):
        self.shares = [{name: nd.zeros(arrays[device].shape, ctx=arrays[device].context,
                                       dtype=dtype_of_sum(arrays[device].dtype))
                        for name, arrays in gradients.items()}
                       for device in range(devices)]
        self.shares_differ, self.groups = devices > 1, Groups(gradients)
        self.rows = self.batches = self.yielded = 0
        self.loss, self._losses = 0., []
        self.batch_size, self.loss_is_mean, self._is_over_rows = batch_size, loss_is_mean, False

    def add(self, part, batches=1):
        """Add a BatchGradient of some batches, on each device times the weight of the device."""
        gradients = part.gradients
        weights = part.weights or [1] * len(self.shares)
        self.batch_size = self.batch_size or part.summed
        self.rows += part.rows
        self.batches += batches
        if part.losses is None:
            self.loss = math.nan
        else:
            self._losses += [(loss, weight * factor)
                             for weight, of_device in zip(weights, part.losses)
                             for loss, factor in of_device]
        for device, share in enumerate(self.shares):
            groups, others = (self.groups[tuple(gradients)] if weights[device] == 1
                              else ([], gradients))
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

    def wait(self):
        """Wait until all gradients and losses so far are added."""
        with np.errstate(all='ignore'):  # what is not finite is told in words
            for loss, factor in self._losses:
                self.loss += factor * float(loss.asnumpy().sum(dtype='float64'))
        self._losses = []
        for share in self.shares:
            for total in share.values():
                total.wait_to_read()

    def by_parameter(self):
        """Map each parameter to its shares, one per device."""
        return {name: [share[name] for share in self.shares] for name in self.shares[0]}

    def scale(self, factor):
        """Multiply all shares and the loss by a factor."""
        self.loss *= factor
        for share in self.shares:
            for total in share.values():
                total *= factor

    def sum_over_rows(self):
        """Turn means over rows into sums, since other workers may have other batch sizes."""
        if self.loss_is_mean:
            self.scale(self.batch_size)
            self._is_over_rows = True

    def mean(self):
        """Turn the sum into a FullGradient and return this; return None without any row."""
        units = 1 if self._is_over_rows else self.batch_size
        return FullGradient(self, units / self.rows) if self.rows else None


class FullGradient:
    r"""Full gradient :math:`\mu` at a snapshot, in the scale of a batch gradient.

    .. math:: \mu = \frac{B}{n} \sum_{j=1}^{n} \nabla f_j(\tilde w)

    It is a Sum times a scale, B/n. Each device has one share of it; the shares add up to
    :math:`\mu`.

    Attributes
    ----------
    shares, shares_differ, rows, batches, loss_is_mean
        Those of the sum.
    loss : float
        The mean loss, in the scale of :math:`\mu`; NaN if it is not known.
    batch_size : int
        B, the number of rows of a batch whose gradient has this scale.
    may_be_written : bool
        Whether somebody else has the shares, and may write into them after the pass.
    """

    def __init__(self, total, scale=1):
        total.scale(scale)
        self.shares, self.shares_differ, self.groups = (
            total.shares, total.shares_differ, total.groups)
        self.rows, self.batches, self.loss = total.rows, total.batches, total.loss
        self.batch_size, self.loss_is_mean = total.batch_size, total.loss_is_mean
        self.may_be_written, self._with_all_rows = False, {}

    def with_all_rows(self, device, name):
        """Return the share of a parameter as a row_sparse array that stores all rows."""
        share = self.shares[device][name]
        made_of, made = self._with_all_rows.get((device, name), (None, None))
        if made_of is not share or self.may_be_written:
            made = with_all_rows(share)
            self._with_all_rows[device, name] = share, made
        return made

    def scale_for(self, batch_size):
        """Return the factor that scales it to the gradient of a batch of `batch_size` rows."""
        return 1 if self.loss_is_mean else batch_size / self.batch_size

    def totals(self):
        """Map each parameter to its full gradient on the first device; one share is not copied."""
        return {name: summed([share[name] for share in self.shares]) for name in self.shares[0]}

    def nonfinite(self):
        """List the parameters whose full gradient has an infinite value or a NaN."""
        return [name for name in self.shares[0]
                if not all(nd.all_finite(share[name]).asscalar() for share in self.shares)]

    def state(self):
        """Return what a file has: the share of a device, the mean of all where they differ."""
        share = self.shares[0] if not self.shares_differ else {
            name: total / len(self.shares) for name, total in self.totals().items()}
        return {'rows': self.rows, 'batches': self.batches, 'batch_size': self.batch_size,
                'loss': self.loss, 'devices': len(self.shares), 'share': share}

    def load_state(self, state):
        """Set what `state` has returned, for any number of devices.

        Parameters that it lacks are left out.
        """
        self.batch_size = self.batch_size or state['batch_size']
        units = 1 / self.scale_for(state['batch_size'])
        saved = {name: array.asnumpy() * (units * state['devices'] / len(self.shares))
                 for name, array in state['share'].items()}
        self.shares = [{name: like(value, saved[name]) for name, value in share.items()
                        if name in saved} for share in self.shares]
        self.batches, self.rows, self.loss = state['batches'], state['rows'], state['loss'] * units
        self.shares_differ = False


def share_out(shares, name, totals):
    """Give each device its share of a sum that all devices have whole."""
    for share, total in zip(shares, totals):
        share[name] = total / len(shares)

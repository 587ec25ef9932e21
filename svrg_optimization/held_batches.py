"""Batches of a full gradient's pass that are held, with their gradients at the snapshot."""

import numpy as np
from mxnet.io import DataBatch


def bytes_of(array):
    """Count the bytes of an array's values, and of the indices of a sparse one."""
    if array.stype == 'default':
        return array.size * np.dtype(array.dtype).itemsize
    parts = [array.data, array.indices, *([array.indptr] if array.stype == 'csr' else [])]
    return sum(map(bytes_of, parts))


class HeldBatch(DataBatch):
    """A batch that trains without another look at the snapshot.

    Attributes
    ----------
    at_snapshot : dict of str to list of NDArray, or None
        Its gradients at the snapshot, one a device for each parameter; None
        where they are to be computed again.
    full_gradient : FullGradient
        That of the snapshot.
    """

    def __init__(self, data, label, pad, full_gradient):
        super().__init__(data, label, pad)
        self.at_snapshot = None
        self.full_gradient = full_gradient


class HeldBatches:
    """The batches of one pass within a budget of memory.

    Data come first: a gradient that leaves no room for them goes.

    Parameters
    ----------
    budget : int
        Bytes of data, labels and gradients on all devices together.
    full_gradient : FullGradient
        That the pass is for.

    Attributes
    ----------
    batches : list of HeldBatch
        Empty where the data exceed the budget.
    exceeded_at : int or None
        The batch whose data did not fit any more, counted from 1.
    """

    def __init__(self, budget, full_gradient):
        self.batches = []
        self.exceeded_at = None
        self._left = budget
        self._full_gradient = full_gradient
        self._stored = []
        self._costs = {}

    def add(self, batch, gradients, copies):
        """Hold a batch.

        Parameters
        ----------
        batch : DataBatch
        gradients : dict of str to list of NDArray
            Its gradients at the snapshot, which are copied; empty for none.
        copies : bool
            Whether to copy its data, which are else not written to any more.

        Returns
        -------
        list of dict of str to list of NDArray
            Gradients that were stored until now, and had to make room.
        """
        if self.exceeded_at:
            return []
        data, label = [array.copy() if copies else array for array in batch.data], batch.label
        if copies and label:
            label = [array.copy() for array in label]
        held = HeldBatch(data, label, batch.pad, self._full_gradient)
        self.batches.append(held)
        self._left -= self._cost(data) + self._cost(label or [])
        dropped = []
        while self._left < 0 and self._stored:
            latest = self._stored.pop()
            dropped.append(latest.at_snapshot)
            latest.at_snapshot = None
            self._left += self._cost_of_gradients(dropped[-1])
        if self._left < 0:
            self.exceeded_at = len(self.batches)
            self.batches = []
        elif gradients:
            cost = self._cost_of_gradients(gradients)
            if cost <= self._left:
                held.at_snapshot = self._full_gradient.copies_of(gradients)
                self._left -= cost
                self._stored.append(held)
        return dropped

    def _cost_of_gradients(self, gradients):
        return sum(map(self._cost, gradients.values()))

    def _cost(self, arrays):
        """Count the bytes of arrays; dense ones of the same shapes and dtypes have the same."""
        if any(array.stype != 'default' for array in arrays):
            return sum(map(bytes_of, arrays))
        key = tuple((array.shape, array.dtype) for array in arrays)
        if key not in self._costs:
            self._costs[key] = sum(map(bytes_of, arrays))
        return self._costs[key]

    @property
    def stored(self):
        """How many batches have their gradients."""
        return len(self._stored)

    @property
    def latest(self):
        """The stored gradients of the batch that was added last, None if they are not."""
        return self.batches[-1].at_snapshot if self.batches else None

    def in_order_of(self, generator):
        """List the batches in a random order.

        Parameters
        ----------
        generator : numpy.random.RandomState
        """
        return [self.batches[i] for i in generator.permutation(len(self.batches))]

"""Batches of a full gradient's pass that are held, with their gradients at the snapshot."""

import numpy as np
from mxnet.io import DataBatch


def bytes_of(array):
    """Count the bytes of an array's values, and of the indices of a sparse one."""
    parts = [array] if array.stype == 'default' else [
        array.data, array.indices, *([array.indptr] if array.stype == 'csr' else [])]
    return sum(part.size * np.dtype(part.dtype).itemsize for part in parts)


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
        self._costs = []

    def add(self, batch, gradients, copies):
        """Hold a batch.

        Parameters
        ----------
        batch : DataBatch
        gradients : dict of str to list of NDArray
            Its gradients at the snapshot, which are copied; empty for none.
        copies : bool
            Whether to copy its data, which are else not written to any more.
        """
        if self.exceeded_at:
            return
        data, label = [array.copy() if copies else array for array in batch.data], batch.label
        if copies and label:
            label = [array.copy() for array in label]
        held = HeldBatch(data, label, batch.pad, self._full_gradient)
        self.batches.append(held)
        self._left -= sum(map(bytes_of, [*data, *(label or [])]))
        while self._left < 0 and self._costs:
            dropped, cost = self._costs.pop()
            dropped.at_snapshot = None
            self._left += cost
        if self._left < 0:
            self.exceeded_at = len(self.batches)
            self.batches = []
            return
        cost = sum(bytes_of(array) for arrays in gradients.values() for array in arrays)
        if gradients and cost <= self._left:
            held.at_snapshot = {name: [array.copy() for array in arrays]
                                for name, arrays in gradients.items()}
            self._left -= cost
            self._costs.append((held, cost))

    @property
    def stored(self):
        """How many batches have their gradients."""
        return len(self._costs)

    def in_order_of(self, generator):
        """List the batches in a random order.

        Parameters
        ----------
        generator : numpy.random.RandomState
        """
        return [self.batches[i] for i in generator.permutation(len(self.batches))]

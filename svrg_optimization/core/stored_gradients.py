"""Batches of a full gradient's pass that are held, with their gradients at the snapshot."""

import numpy as np
from mxnet.io import DataBatch

from .._argument_checks import checked_count
from ..data.batch_rows import labels_of, padding_of
from ..mxnet_bridge.storage import bytes_of


class StoredBatch(DataBatch):
    """A batch that trains without another look at the snapshot.

    Attributes
    ----------
    at_snapshot : dict of str to list of NDArray, or None
        Its gradients at the snapshot, one a device for each parameter; None
        where they are to be computed again.
    full_gradient : FullGradient
        That of the snapshot.
    cut_from : int or None
        Rows of the padded batch that it was cut from. It takes a step in that
        one's place, and so with as much of the full gradient: with less, its
        weight decay would be too much, and SVRG would not converge.
    """

    def __init__(self, data, label, pad, full_gradient):
        super().__init__(data, label, pad)
        self.at_snapshot = self.cut_from = None
        self.full_gradient = full_gradient


class StoredBatches:
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
    batches : list of StoredBatch
        Empty where the data exceed the budget.
    exceeded_at : int or None
        The batch whose data did not fit any more, counted from 1.
    dropped : list of dict of str to list of NDArray
        Gradients that were stored once, and had to make room.
    """

    def __init__(self, budget, full_gradient):
        self.batches = []
        self.exceeded_at = None
        self.dropped = []
        self._left = budget
        self._full_gradient = full_gradient
        self._stored = []
        self._costs = {}

    def add(self, batch, copies):
        """Hold a batch, without gradients so far.

        Parameters
        ----------
        batch : DataBatch
        copies : bool
            Whether to copy its data, which are else not written to any more.

        Returns
        -------
        StoredBatch
        """
        data, label = batch.data, labels_of(batch)
        if copies and not self.exceeded_at:
            data = [array.copy() for array in data]
            label = [array.copy() for array in label]
        held = StoredBatch(data, label, padding_of(batch), self._full_gradient)
        if self.exceeded_at:
            return held
        self.batches.append(held)
        self._left -= self._cost(data) + self._cost(label)
        while self._left < 0 and self._stored:
            latest = self._stored.pop()
            self.dropped.append(latest.at_snapshot)
            latest.at_snapshot = None
            self._left += self._cost_of_gradients(self.dropped[-1])
        if self._left < 0:
            self.exceeded_at = len(self.batches)
            self.batches = []
        return held

    def store(self, batches, gradients):
        """Store copies of the gradients of batches, as far as they fit.

        Parameters
        ----------
        batches : list of StoredBatch
        gradients : list of dict of str to list of NDArray
        """
        if self.exceeded_at:
            return
        fit = []
        for held, of_batch in zip(batches, gradients):
            cost = self._cost_of_gradients(of_batch)
            if cost <= self._left:
                self._left -= cost
                fit.append((held, of_batch))
        copies = self._full_gradient.copies_of([of_batch for _, of_batch in fit])
        for (held, _), copy in zip(fit, copies):
            held.at_snapshot = copy
            self._stored.append(held)

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


class StoredGradients:
    """What is held from one snapshot to the next.

    Parameters
    ----------
    store_snapshot_grads : bool or int
        The constructor's argument of this name.

    Attributes
    ----------
    budget : int
        In bytes; 0 where nothing is to be held.
    held : StoredBatches or None
        Those of the latest pass; None before it, and where they do not fit.
    """

    def __init__(self, store_snapshot_grads):
        self.budget = _bytes_to_hold(store_snapshot_grads)
        self.held = self._train_data = self._generator = None

    def let_go(self):
        """Hold no batches any more."""
        self.held = self._train_data = None

    def begin(self, full_gradient):
        """Let go of what is held; return what receives the batches of a new pass, if any does."""
        self.let_go()
        return StoredBatches(self.budget, full_gradient) if self.budget else None

    def keep(self, held, yielded, train_data, warn_once):
        """Hold the batches of a pass, and warn of what does not fit.

        Parameters
        ----------
        held : StoredBatches
        yielded : int
            How many batches there were.
        train_data : DataIter
            That they are of.
        warn_once : callable
            Takes a message and what it is about.
        """
        self._train_data = train_data
        if held.exceeded_at:
            warn_once('store_snapshot_grads: the first %d of %d batches are more than %d bytes of '
                      'data alone: none is held until the next snapshot'
                      % (held.exceeded_at, yielded, self.budget), 'nothing held')
            return
        if held.stored < len(held.batches):
            warn_once('store_snapshot_grads: %d bytes have room for all %d batches and the '
                      'gradients of %d: the others are computed again at each step'
                      % (self.budget, len(held.batches), held.stored), 'not all stored')
        self.held = held
        if self._generator is None:
            self._generator = np.random.RandomState(np.random.randint(2 ** 31))

    def is_of(self, train_data):
        """Tell whether the latest pass was over this iterator."""
        return train_data is self._train_data

    def shuffled(self):
        """List the held batches in a new random order; None where none are held."""
        if self.held is None:
            return None
        return [self.held.batches[i] for i in self._generator.permutation(len(self.held.batches))]


def _bytes_to_hold(store_snapshot_grads):
    if isinstance(store_snapshot_grads, (bool, np.bool_)):
        return int(store_snapshot_grads) * 2 ** 30
    return checked_count('store_snapshot_grads', store_snapshot_grads,
                         'True, False or an int of 1 or more')

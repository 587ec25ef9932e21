"""Stored batches of the pass for the full gradient, with their gradients at the snapshot."""

import numpy as np
from mxnet.io import DataBatch

from .._argument_checks import checked_count
from ..data.batch_rows import labels_of, padding_of
from ..mxnet_bridge.storage import bytes_of


class StoredBatch(DataBatch):
    """Batch with stored gradients at the snapshot, so that a step needs no second pass.

    Attributes
    ----------
    at_snapshot : dict of str to list of NDArray, or None
        For each parameter the gradients of the batch at the snapshot, one a
        device. None if they have to be computed again.
    full_gradient : FullGradient
        Full gradient of the snapshot.
    cut_from : int or None
        Number of rows of the padded batch that it was cut from. In its step the
        full gradient is scaled to this number of rows. With fewer it would not
        balance the weight decay, and SVRG would not converge.
    """

    def __init__(self, data, label, pad, full_gradient):
        super().__init__(data, label, pad)
        self.at_snapshot = self.cut_from = None
        self.full_gradient = full_gradient


class StoredBatches:
    """Batches of one pass within a memory budget.

    Data have priority: gradients are dropped if the data need their room.

    Parameters
    ----------
    budget : int
        Bytes for data, labels and gradients on all devices together.
    full_gradient : FullGradient
        Full gradient of the pass.

    Attributes
    ----------
    batches : list of StoredBatch
        Stored batches; empty if the data exceed the budget.
    exceeded_at : int or None
        Number of the batch whose data did not fit, counted from 1.
    """

    def __init__(self, budget, full_gradient):
        self.batches = []
        self.exceeded_at = None
        self._left = budget
        self._full_gradient = full_gradient
        self._with_gradients = []
        self._cost_if_dense = None

    def add(self, batch, copies):
        """Store a batch, without gradients so far.

        Parameters
        ----------
        batch : DataBatch
            The batch.
        copies : bool
            Whether to copy its data. Otherwise nothing may write to them later.

        Returns
        -------
        StoredBatch
            The stored batch. If the data exceed the budget it is not stored.
        """
        data, label = batch.data, labels_of(batch)
        if copies and not self.exceeded_at:
            data = [array.copy() for array in data]
            label = [array.copy() for array in label]
        stored_batch = StoredBatch(data, label, padding_of(batch), self._full_gradient)
        if self.exceeded_at:
            return stored_batch
        self.batches.append(stored_batch)
        self._left -= sum(map(bytes_of, [*data, *label]))
        while self._left < 0 and self._with_gradients:
            latest = self._with_gradients.pop()
            self._left += self._cost_of_gradients(latest.at_snapshot)
            latest.at_snapshot = None
        if self._left < 0:
            self.exceeded_at = len(self.batches)
            self.batches = []
        return stored_batch

    def store(self, batches, gradients):
        """Store copies of the gradients of batches, as far as the budget allows.

        Parameters
        ----------
        batches : list of StoredBatch
            Stored batches.
        gradients : list of dict of str to list of NDArray
            For each batch its gradients at the snapshot.
        """
        if self.exceeded_at:
            return
        fit = []
        for stored_batch, of_batch in zip(batches, gradients):
            cost = self._cost_of_gradients(of_batch)
            if cost <= self._left:
                self._left -= cost
                fit.append((stored_batch, of_batch))
        copies = self._full_gradient.copies_of([of_batch for _, of_batch in fit])
        for (stored_batch, _), copy in zip(fit, copies):
            stored_batch.at_snapshot = copy
            self._with_gradients.append(stored_batch)

    def _cost_of_gradients(self, gradients):
        """Return the bytes of a batch's gradients. If all are dense they do not change."""
        if self._cost_if_dense is not None:
            return self._cost_if_dense
        arrays = [array for of_devices in gradients.values() for array in of_devices]
        cost = sum(map(bytes_of, arrays))
        if all(array.stype == 'default' for array in arrays):
            self._cost_if_dense = cost
        return cost

    @property
    def num_with_gradients(self):
        """Number of batches with stored gradients."""
        return len(self._with_gradients)


class StoredGradients:
    """Stored batches from one snapshot to the next.

    Parameters
    ----------
    store_snapshot_grads : bool or int
        Constructor argument of this name.

    Attributes
    ----------
    budget : int
        Memory in bytes; 0 if nothing is stored.
    latest : StoredBatches or None
        Batches of the latest pass; None if there was none, if it was over a
        sample or failed, and if its data do not fit.
    """

    def __init__(self, store_snapshot_grads):
        self.budget = _bytes_to_store(store_snapshot_grads)
        self.latest = self._train_data = self._generator = None

    def drop(self):
        """Drop the stored batches."""
        self.latest = self._train_data = None

    def begin(self, full_gradient):
        """Drop the stored batches; return the storage of a new pass, None if nothing is stored."""
        self.drop()
        return StoredBatches(self.budget, full_gradient) if self.budget else None

    def keep(self, stored, yielded, train_data, warn_once):
        """Keep the batches of a finished pass, and warn of what does not fit.

        Parameters
        ----------
        stored : StoredBatches
            Batches of the pass.
        yielded : int
            Number of batches of the pass.
        train_data : DataIter
            Iterator whose batches they are.
        warn_once : callable
            Takes a message and its kind, and warns once of each kind.
        """
        self._train_data = train_data
        if stored.exceeded_at:
            warn_once('store_snapshot_grads: the first %d of %d batches are more than %d bytes of '
                      'data alone: none is stored until the next snapshot'
                      % (stored.exceeded_at, yielded, self.budget), 'nothing stored')
            return
        if stored.num_with_gradients < len(stored.batches):
            warn_once('store_snapshot_grads: %d bytes have room for all %d batches and the '
                      'gradients of %d: the others are computed again at each step'
                      % (self.budget, len(stored.batches), stored.num_with_gradients),
                      'not all stored')
        self.latest = stored
        if self._generator is None:
            self._generator = np.random.RandomState(np.random.randint(2 ** 31))

    def lacks(self, train_data):
        """Tell whether batches are to be stored, and the latest pass was not over this iterator."""
        return self.budget > 0 and train_data is not self._train_data

    def shuffled(self, train_data, warn_once):
        """List the stored batches of an iterator in a new random order; return None without any.

        `warn_once`, as in `keep`, says if there are batches of another iterator.
        """
        if self.latest is None:
            return None
        if self.lacks(train_data):
            warn_once('store_snapshot_grads: the stored batches are of another iterator than the '
                      'one to train on, so the gradients at the snapshot are computed again in '
                      'each step', 'other data')
            return None
        batches = self.latest.batches
        return [batches[i] for i in self._generator.permutation(len(batches))]


def _bytes_to_store(store_snapshot_grads):
    if isinstance(store_snapshot_grads, (bool, np.bool_)):
        return int(store_snapshot_grads) * 2 ** 30
    return checked_count('store_snapshot_grads', store_snapshot_grads,
                         'True, False or an int of 1 or more')

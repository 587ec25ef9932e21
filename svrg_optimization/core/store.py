"""Store of the batches of a pass, with their gradients at the snapshot."""

import numpy as np

from .._argument_checks import checked_count
from .arrays import bytes_of


class StoredBatch:
    """Batch of a pass, with its gradients at the snapshot, so that a step needs no second pass.

    Attributes
    ----------
    batch : object
        The front end's batch, which stays as it is.
    snapshot_gradients : dict of str to list of NDArray, or None
        For each parameter the gradients of the batch at the snapshot, one a
        device. None if they have to be computed again.
    full_gradient : FullGradient
        Full gradient of the snapshot.
    cut_from : int or None
        Number of rows of the padded batch that it was cut from. In its step the
        full gradient is scaled to this number of rows. With fewer it would not
        balance the weight decay, and SVRG would not converge.
    """

    def __init__(self, batch, full_gradient, cut_from):
        self.batch, self.full_gradient, self.cut_from = batch, full_gradient, cut_from
        self.snapshot_gradients = None


class Store:
    """Batches of the latest pass within a memory budget, from one snapshot to the next.

    Data have priority: gradients are dropped if the data need their room.

    Parameters
    ----------
    budget : bool or int
        Bytes, or whether they are 1 GiB.

    Attributes
    ----------
    budget : int
        Bytes for data, labels and gradients on all devices; 0 if nothing is stored.
    batches : list of StoredBatch
        Batches of the latest pass. It is empty if there was none, if it was
        over a sample or failed, and if its data do not fit.
    num_with_gradients : int
        Number of them that have their gradients.
    train_data : DataIter or None
        Iterator whose batches they are.
    """

    def __init__(self, budget):
        self.budget = budget * 2 ** 30 if isinstance(budget, bool) else budget
        self.train_data = self._generator = None
        self.drop()

    def drop(self):
        """Drop all batches."""
        self.batches, self._by_arrays, self._of_pass, self._with_gradients = [], {}, {}, []
        self._left, self._exceeded_at = self.budget, None
        self._lacks_room = False  # for all gradients that there are
        self.train_data = None

    @property
    def num_with_gradients(self):
        """Number of batches with their gradients."""
        return len(self._with_gradients)

    @property
    def is_exceeded(self):
        """Whether the data of the pass so far are larger than the budget."""
        return self._exceeded_at is not None

    def add(self, batch, arrays, part, full_gradient):
        """Store a batch of a pass, with its gradients as far as the budget allows.

        Parameters
        ----------
        batch : object
            The batch, which stays as it is.
        arrays : list of NDArray
            Its arrays, by which it is found.
        part : Part
            Its gradients, which are copied.
        full_gradient : FullGradient
            Full gradient of the pass.
        """
        gradients = part.gradients
        stored = StoredBatch(batch, full_gradient, part.cut_from)
        self._of_pass[_key(arrays) or id(batch)] = stored  # without arrays it is not found
        self._left -= sum(map(bytes_of, arrays))
        while self._left < 0 and self._with_gradients:
            latest = self._with_gradients.pop()
            self._left += _bytes_of_all(latest.snapshot_gradients)
            latest.snapshot_gradients, self._lacks_room = None, True
        if self._left < 0:
            self._exceeded_at, self._of_pass = len(self._of_pass), {}
            return
        if not gradients:
            return
        size = _bytes_of_all(gradients)
        self._lacks_room |= size > self._left
        if size <= self._left:
            stored.snapshot_gradients = {name: [array.copy() for array in arrays]
                                         for name, arrays in gradients.items()}
            self._left -= size
            self._with_gradients.append(stored)

    def complete(self, train_data, yielded, warn_once):
        """Offer the batches of a finished pass, and warn of what does not fit.

        Parameters
        ----------
        train_data : DataIter
            Iterator whose batches they are.
        yielded : int
            Number of batches of the pass.
        warn_once : callable
            Takes a message and its kind, and warns once of each kind.
        """
        self.train_data = train_data
        if self.is_exceeded:
            warn_once('store_snapshot_grads: the first %d of %d batches are more than %d bytes of '
                      'data alone: none is stored until the next snapshot'
                      % (self._exceeded_at, yielded, self.budget), 'nothing stored')
        elif self._lacks_room:
            warn_once('store_snapshot_grads: %d bytes have room for all %d batches and the '
                      'gradients of %d: the others are computed again at each step'
                      % (self.budget, len(self._of_pass), self.num_with_gradients),
                      'not all stored')
        self._by_arrays, self._of_pass = self._of_pass, {}
        self.batches = list(self._by_arrays.values())
        if self.batches and self._generator is None:
            self._generator = np.random.RandomState(np.random.randint(2 ** 31))

    def say_data(self, train_data):
        """Say which iterator the batches are of, if there are any: an override may read others."""
        if self.train_data is not None:
            self.train_data = train_data

    def lacks(self, train_data):
        """Tell whether batches are to be stored, and the latest pass was not over this iterator."""
        return self.budget > 0 and train_data is not self.train_data

    def found(self, arrays):
        """Return the StoredBatch that has these very arrays, None if there is none."""
        return self._by_arrays.get(_key(arrays))

    def shuffled(self, train_data, warn_once):
        """List the batches of an iterator in a new random order; return None without any.

        `warn_once`, as in `complete`, says if there are batches of another iterator.
        """
        if not self.batches:
            return None
        if self.lacks(train_data):
            warn_once('store_snapshot_grads: the stored batches are of another iterator than the '
                      'one to train on, so the gradients at the snapshot are computed again in '
                      'each step', 'other data')
            return None
        return [self.batches[i].batch for i in self._generator.permutation(len(self.batches))]


def _key(arrays):
    return tuple(map(id, arrays))  # of arrays that live, since the store has them


def _bytes_of_all(gradients):
    return sum(bytes_of(array) for arrays in gradients.values() for array in arrays)


def checked_budget(name, value):
    """Return True, False or a number of bytes, 1 or more; raise an error for all else."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    return checked_count(name, value, 'True, False or an int of 1 or more')

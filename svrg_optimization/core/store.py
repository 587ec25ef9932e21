"""Store of the batches of a pass, with their gradients at the snapshot."""

import numpy as np

from .._argument_checks import checked_count
from .arrays import bytes_of


class Store:
    """Batches of the latest pass with their gradients, all of them or, above a budget, none.

    Attributes
    ----------
    budget : int
        Bytes for data, labels and gradients on all devices; 0 if nothing is stored.
    batches : list
        Batches of the latest pass. It is empty if there was none, if it was
        over a sample or failed, and if they do not fit.
    train_data : DataIter or None
        Iterator whose batches they are.
    full_gradient : FullGradient or None
        Full gradient of the snapshot that the gradients are of.
    """

    def __init__(self, budget):
        self.budget = budget * 2 ** 30 if isinstance(budget, bool) else budget
        self._generator, self._must_save_time = None, budget is True
        self._drop()

    def _drop(self):
        self.batches, self._of_pass, self._gradients = [], [], {}
        self.train_data = self.full_gradient = None
        self._left = self.budget

    def begin_pass(self, reference, warn_once):
        """Drop all batches, and tell whether those of the next pass are stored."""
        self._drop()
        if not (self._must_save_time and reference.is_cheap):
            return self.budget > 0
        warn_once('store_snapshot_grads=True stores nothing for this network, whose gradients are '
                  'computed faster than they are stored. A number of bytes stores them')
        return False

    @property
    def is_exceeded(self):
        """Whether the batches of the pass so far, with their gradients, are above the budget."""
        return self._left < 0

    def add(self, batch, arrays, gradient):
        """Store a batch of a pass, which is found by its arrays, and a copy of its gradient."""
        gradients = gradient.gradients
        self._left -= sum(map(bytes_of, [*arrays, *sum(gradients.values(), [])]))
        if self.is_exceeded:
            self._of_pass, self._gradients = [], {}
            return
        self._of_pass.append(batch)
        self._gradients[_key(arrays) or id(batch)] = gradient._replace(losses=None, gradients={
            name: [array.copy() for array in of_devices]
            for name, of_devices in gradients.items()})

    def complete(self, train_data, full_gradient, warn_once):
        """Offer the batches of a finished pass, or warn that they do not fit."""
        if self.is_exceeded:
            warn_once('store_snapshot_grads: the batches and their gradients are more than %d '
                      'bytes, so none is stored' % self.budget, 'not stored')
        self.train_data, self.full_gradient, self.batches = (
            train_data, full_gradient, self._of_pass)
        if self.batches and self._generator is None:
            self._generator = np.random.RandomState(np.random.randint(2 ** 31))

    def found(self, arrays):
        """Return the BatchGradient of the batch that has these very arrays; None without any."""
        return self._gradients.get(_key(arrays))

    def shuffled(self, train_data):
        """List the batches of an iterator in a new random order; return None without any."""
        if not self.batches or train_data is not self.train_data:
            return None
        return [self.batches[i] for i in self._generator.permutation(len(self.batches))]


def _key(arrays):
    return tuple(map(id, arrays))  # which no other array has while the store keeps these


def checked_budget(name, value):
    """Return True, False or a number of bytes, 1 or more; raise an error for all else."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    return checked_count(name, value, 'True, False or an int of 1 or more')

"""Devices and workers that a full gradient is summed over, and what workers exchange."""

import json
import zlib

import numpy as np
from mxnet import ndarray as nd

from ..core.arrays import dtype_of_sum, summed
from ..core.front_end import Workers
from ..core.full_gradient import share_out
from ..data.iterators import rewind_for_pass
from ..mxnet_repair.kvstore import number_of_first_key, prepare_exit, push_all, warn_of_rounding
from .keys import NumberedKeys
from .kinds import has_servers, is_asynchronous, is_distributed, is_synchronous

_WIDTH = 64  # numbers of each worker in a message, more than there are settings


def workers_of_trainer(kvstore, names, arrays_of, created):
    """Return the Workers over which the full gradient of a Gluon trainer is summed.

    `arrays_of` has by name arrays like those that are summed. They get keys in the KVStore, unless
    the set `created` has them.
    """
    if not is_distributed(kvstore):
        return OverDevices() if kvstore is not None else Workers()
    keys = NumberedKeys(names)
    if not created:
        prepare_exit(kvstore)
        if has_servers(kvstore):
            number_of_first_key(kvstore, keys.first)
    created.update(create_keys(
        kvstore, keys, {name: arrays[0] for name, arrays in arrays_of.items()}, created))
    return OverWorkers(kvstore, keys, True, created)


def create_keys(kvstore, keys, arrays, created=()):
    """Create keys for what is summed and for the gathered numbers; return the new ones."""
    values = {key: nd.zeros(arrays[name].shape, dtype=dtype_of_sum(arrays[name].dtype))
              for name, key in keys.full.items() if name in arrays}
    if is_distributed(kvstore):
        values[keys.gathered] = _row_of_this_worker(kvstore, ()) + 1 / 3  # which float32 rounds
    else:
        values[keys.first] = nd.zeros((2,))  # for `compresses`
    values = {key: value for key, value in values.items() if key not in created}
    if values:
        kvstore.init(list(values), list(values.values()))
    if keys.gathered in values and has_servers(kvstore):
        warn_of_rounding(kvstore, keys.gathered, values[keys.gathered])
    return values.keys()


class OverDevices(Workers):
    """Devices of this process, summed by a KVStore if one is given with its keys."""

    def __init__(self, kvstore=None, keys=None):
        self._kvstore, self._keys = kvstore, keys

    def sum(self, total):
        """Give each device its share of the sum over all of them."""
        values = total.by_parameter()
        if self._kvstore is not None:
            exchange(self._kvstore, self._keys, total.shares, values)
        elif total.shares_differ:
            for name, arrays in values.items():
                whole = summed(arrays)
                share_out(total.shares, name, [whole.as_in_context(each.context)
                                               for each in arrays])
        total.shares_differ = False


class OverWorkers(Workers):
    """Devices of all workers of a distributed KVStore.

    `trains_on_pass` tells whether training uses the data of the pass. `created` has the keys that
    exist; `total` adds its own.
    """

    def __init__(self, kvstore, keys, trains_on_pass, created):
        self._kvstore, self._keys, self._created = kvstore, keys, created
        self._trains_on_pass = trains_on_pass

    def sum(self, total):
        """Add a Sum up over all workers, and give each device its share.

        It raises a ValueError on all workers if ``fit`` would wait forever with the data of this
        pass.
        """
        kvstore, keys = self._kvstore, self._keys
        total.sum_over_rows()
        values = total.by_parameter()
        context = next((arrays[0].context for arrays in values.values()), None)
        gathered = _row_of_this_worker(
            kvstore, [total.rows, total.batches, total.yielded, total.loss], context)
        exchange(kvstore, keys, total.shares, values, {keys.gathered: [gathered]})
        rows, batches, yielded, losses, *_ = gathered.asnumpy().T
        total.shares_differ, total.loss = False, float(losses.sum())
        total.rows, total.batches = int(rows.sum()), int(batches.sum())
        if self._trains_on_pass:
            self._check_batch_counts(yielded)

    def check_same(self, plan):
        """Raise a ValueError on all workers if settings and arguments are not the same on all.

        The plan maps names, as error messages have them, to values that JSON supports. Workers
        exchange a checksum of each.
        """
        gathered = self._allgather([
            zlib.crc32(json.dumps(item, sort_keys=True, default=np.generic.item).encode())
            for item in plan.items()])
        for (name, value), sums in zip(plan.items(), gathered.T):
            if len(set(sums)) > 1:
                raise ValueError('%s must be the same on all workers with the kvstore %r, and is '
                                 '%r on rank %d' % (name, self._kvstore.type, value,
                                                    self._kvstore.rank))

    def check_batches(self, train_data):
        """Count the batches of each worker's data, and rewind them; raise as `sum` does."""
        rewind_data = rewind_for_pass(train_data)
        yielded = sum(1 for _ in train_data)
        rewind_data()
        self._check_batch_counts(self._allgather([yielded])[:, 0])

    def _check_batch_counts(self, batches):
        """Raise a ValueError if a worker has no batch, or too few, so that others wait forever."""
        batches = list(map(int, batches))
        if is_synchronous(self._kvstore) and len(set(batches)) > 1:
            raise ValueError('train_data must have as many batches on each worker with the kvstore '
                             '%r, and it has, in the order of ranks, %s'
                             % (self._kvstore.type, batches))
        if not all(batches):
            raise ValueError('train_data must have at least one batch on each worker in fit, and '
                             'it has, in the order of ranks, %s' % batches)

    def allreduce_max(self, numbers):
        """Return for each number the largest of all workers; its own in dist_async."""
        if is_asynchronous(self._kvstore):
            return numbers
        return self._allgather(numbers).max(axis=0).tolist()

    def total(self, array):
        """Return the sum of all workers' arrays, in one message."""
        key = self._keys.total
        if key not in self._created:
            self._created.add(key)
            self._kvstore.init([key], [nd.zeros(array.shape, dtype=np.float64)])
        summed = nd.array(array, dtype=np.float64)
        allreduce(self._kvstore, {key: [summed]})
        return summed.asnumpy()

    def _allgather(self, numbers):
        """Give all workers some numbers of each; return an array with a row for each, by rank."""
        gathered = _row_of_this_worker(self._kvstore, numbers)
        allreduce(self._kvstore, {self._keys.gathered: [gathered]})
        if is_asynchronous(self._kvstore):  # or another worker's next push would begin a new sum
            wait_for_all_workers(self._kvstore)
        return gathered.asnumpy()[:, :len(numbers)]


def _row_of_this_worker(kvstore, numbers, context=None):
    """Return an array with at most 64 numbers in this worker's row, to be summed over workers."""
    rows = np.zeros((kvstore.num_workers, _WIDTH))
    rows[kvstore.rank, :len(numbers)] = numbers
    return nd.array(rows, ctx=context, dtype=np.float64)


# Arrays of all workers

def exchange(kvstore, keys, shares, values, others=()):
    """Sum values by parameter, one array a device, over all workers, and set their shares.

    The values, and the others, which are given by key, are overwritten with the sums.
    """
    allreduce(kvstore, {
        **{keys.full[name]: arrays for name, arrays in values.items()}, **dict(others)})
    for name, arrays in values.items():
        share_out(shares, name, arrays)


def allreduce(kvstore, values):
    """Sum values, which are one array per device for each key, over all workers, in place.

    All values are pushed before the first one is pulled.
    """
    push_all(kvstore, values)
    if is_asynchronous(kvstore):
        wait_for_all_workers(kvstore)
    for priority, (key, arrays) in enumerate(values.items()):
        kvstore.pull(key, out=arrays, priority=-priority)


def broadcast(kvstore, values):
    """Give all workers the values of the worker with rank 0, in place."""
    for arrays in values.values():
        for array in arrays[1 if kvstore.rank == 0 else 0:]:
            array[:] = 0
    allreduce(kvstore, values)


def wait_for_all_workers(kvstore):
    """Wait until all workers are here and the servers have processed all their requests."""
    nd.waitall()
    kvstore._barrier()

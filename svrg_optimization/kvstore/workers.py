"""Devices and workers that a full gradient is summed over, with a KVStore or without."""

import numpy as np
from mxnet import ndarray as nd

from ..core.arrays import dtype_of_sum, summed
from ..core.front_end import Workers
from ..core.full_gradient import share_out
from ..mxnet_repair.kvstore import number_of_first_key, prepare_exit, warn_of_rounding
from .agreement import allgather, check_batch_counts, check_same, row_of_this_worker
from .keys import NumberedKeys
from .kinds import has_servers, is_asynchronous, is_distributed
from .operations import allreduce


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
        values[keys.gathered] = row_of_this_worker(kvstore) + 1 / 3  # which float32 rounds
    values = {key: value for key, value in values.items() if key not in created}
    if values:
        kvstore.init(list(values), list(values.values()))
    if keys.gathered in values and has_servers(kvstore):
        warn_of_rounding(kvstore, keys.gathered, values[keys.gathered])
    return values.keys()


class OverDevices(Workers):
    """Devices of this process. No KVStore sums, as it may compress what is pushed."""

    def sum(self, total):
        """Give each device its share of the sum over all of them."""
        if total.shares_differ:
            for name, arrays in total.by_parameter().items():
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
        gathered = row_of_this_worker(
            kvstore, [total.rows, total.batches, total.yielded, total.loss], context)
        exchange(kvstore, keys, total.shares, values, {keys.gathered: [gathered]})
        rows, batches, yielded, losses, *_ = gathered.asnumpy().T
        total.shares_differ, total.loss = False, float(losses.sum())
        total.rows, total.batches = int(rows.sum()), int(batches.sum())
        if self._trains_on_pass:
            check_batch_counts(kvstore, yielded)

    def check_same(self, plan):
        """Raise a ValueError on all workers if a number of a dict is not the same on all."""
        check_same(self._kvstore, self._keys.gathered, plan)

    def allreduce_max(self, numbers):
        """Return for each number the largest of all workers; its own in dist_async."""
        if is_asynchronous(self._kvstore):
            return numbers
        return allgather(self._kvstore, self._keys.gathered, numbers).max(axis=0).tolist()

    def total(self, array):
        """Return the sum of all workers' arrays, in one message."""
        key = self._keys.total
        if key not in self._created:
            self._created.add(key)
            self._kvstore.init([key], [nd.zeros(array.shape, dtype=np.float64)])
        summed = nd.array(array, dtype=np.float64)
        allreduce(self._kvstore, {key: [summed]})
        return summed.asnumpy()


def exchange(kvstore, keys, shares, values, others=()):
    """Sum values by parameter, one array a device, over all workers, and set their shares.

    The values, and the others, which are given by key, are overwritten with the sums.
    """
    allreduce(kvstore, {
        **{keys.full[name]: arrays for name, arrays in values.items()}, **dict(others)})
    for name, arrays in values.items():
        share_out(shares, name, arrays)

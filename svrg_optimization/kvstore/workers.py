"""Devices and workers that a full gradient is summed over, with a KVStore or without."""

import numpy as np
from mxnet import ndarray as nd

from ..core.arrays import dtype_of_sum
from ..core.front_end import Workers
from ..mxnet_repair.kvstore import number_of_first_key, prepare_exit
from .agreement import check_batch_counts, check_same, tally, told_by_each
from .keys import NumberedKeys
from .kinds import has_servers, is_asynchronous, is_distributed, steps_alone
from .operations import allreduce


def workers_of_trainer(kvstore, names, arrays_of, created):
    """Return what the full gradient of a Gluon trainer is summed over.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore or None
        KVStore of the trainer.
    names : list of str
        All its parameters, whose places are their keys.
    arrays_of : dict of str to list of NDArray
        Arrays like those that are summed: of those that are trained, and where workers
        step alone of all.
    created : set of int
        Keys that this has created so far; new ones are added.
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
    return OverWorkers(kvstore, keys, lambda: None, True, created)


def create_keys(kvstore, keys, arrays, created=()):
    """Create the keys of what is summed, and of what workers tell; return those that are new.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        The KVStore.
    keys : KVStoreKeys or NumberedKeys
        Keys in it.
    arrays : dict of str to NDArray
        Arrays like those that are summed.
    created : collection
        Keys that there are.
    """
    values = {key: nd.zeros(arrays[name].shape, dtype=dtype_of_sum(arrays[name].dtype))
              for name, key in keys.full.items() if name in arrays}
    if is_distributed(kvstore):
        values.update((key, nd.zeros(arrays[name].shape[:1], dtype='float64'))
                      for name, key in keys.row_counts.items())
        values[keys.tally] = tally(kvstore)
    else:
        values[keys.first] = nd.zeros((2,))  # for `compresses`
    values = {key: value for key, value in values.items() if key not in created}
    if values:
        kvstore.init(list(values), list(values.values()))
    return values.keys()


class OverDevices(Workers):
    """Devices of this process, without a KVStore."""

    def sum(self, full_gradient):
        """Give each device its share of the sum; return B."""
        if len(full_gradient.shares) > 1:
            for name, total in full_gradient.totals().items():
                full_gradient.share_out(name, [
                    total.as_in_context(share[name].context) for share in full_gradient.shares])
        return full_gradient.batch_size


class ByKVStore(OverDevices):
    """Devices of this process, summed by a KVStore.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        The KVStore.
    keys : KVStoreKeys
        Keys of the module.
    """

    def __init__(self, kvstore, keys):
        self._kvstore, self._keys = kvstore, keys

    def sum(self, full_gradient):
        """Give each device its share of the sum; return B."""
        exchange(self._kvstore, self._keys, full_gradient, full_gradient.by_parameter())
        return full_gradient.batch_size

    def within_process(self):
        """Return what sums without the KVStore."""
        return OverDevices()


class OverWorkers(Workers):
    """Devices of all workers of a distributed KVStore.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        Distributed KVStore.
    keys : KVStoreKeys
        Keys in it.
    forget_agreement : callable
        Called when all workers are in the pass.
    trains_on_pass : bool
        Whether training takes the data of the pass.
    created : set
        Keys that have been created; `total` adds its own.
    """

    def __init__(self, kvstore, keys, forget_agreement, trains_on_pass, created):
        self._created = created
        self._kvstore, self._keys, self._forget_agreement = kvstore, keys, forget_agreement
        self._trains_on_pass, self._batches = trains_on_pass, []
        self.step_alone = steps_alone(kvstore)

    def sum(self, full_gradient):
        """Give each device its share of the sum, and add the counts.

        It returns how many rows the scale of the sum is to be of: B, or 1 where
        sums of means are over rows already.
        """
        self._forget_agreement()
        keys, units = self._keys, full_gradient.batch_size
        if full_gradient.loss_is_mean:
            # Workers may have batches of different sizes, so sums over rows are sent.
            full_gradient.scale(units)
            units = 1
        values = full_gradient.by_parameter()
        context = next((arrays[0].context for arrays in values.values()), None)
        told = tally(self._kvstore, [full_gradient.rows, full_gradient.batches,
                                     full_gradient.yielded, full_gradient.loss], context)
        counted = {keys.row_counts[name]: [nd.array(counts, ctx=context, dtype=np.float64)]
                   for name, counts in full_gradient.row_counts.items()}
        counted[keys.tally] = [told]
        exchange(self._kvstore, keys, full_gradient, values, counted)
        rows, batches, self._batches, losses, *_ = told.asnumpy().T
        full_gradient.loss = float(losses.sum())
        full_gradient.share_of_rows = full_gradient.rows / max(rows.sum(), 1)
        full_gradient.rows, full_gradient.batches = int(rows.sum()), int(batches.sum())
        for name in full_gradient.row_counts:
            full_gradient.row_counts[name] = (
                counted[keys.row_counts[name]][0].asnumpy().astype(np.int64))
        return units

    def check_same(self, plan):
        """Raise a ValueError on all workers if a number of a dict is not the same on all."""
        check_same(self._kvstore, self._keys.tally, plan)

    def check_batches(self):
        """Raise a ValueError if ``fit`` would wait forever on data of this pass."""
        if self._trains_on_pass:
            check_batch_counts(self._kvstore, self._batches)

    def largest(self, numbers):
        """Return for each number the largest of all workers, who decide nothing in dist_async."""
        if is_asynchronous(self._kvstore):
            return numbers
        told = told_by_each(self._kvstore, self._keys.tally, numbers)
        return told.max(axis=0).tolist()

    def total(self, array):
        """Return the sum of all workers' arrays, in one message."""
        key = self._keys.total
        if key not in self._created:
            self._created.add(key)
            self._kvstore.init([key], [nd.zeros(array.shape, dtype=np.float64)])
        summed = nd.array(array, dtype=np.float64)
        allreduce(self._kvstore, {key: [summed]})
        return summed.asnumpy()

    def average(self, values, full_gradient):
        """Return the mean of all workers' values, by rows."""
        share = full_gradient and full_gradient.share_of_rows
        if share is None:
            share = float(self._kvstore.rank == 0)
        parts = {name: [array.astype(dtype_of_sum(array.dtype)) * (share / len(arrays))
                        for array in arrays] for name, arrays in values.items()}
        allreduce(self._kvstore, {self._keys.full[name]: arrays for name, arrays in parts.items()})
        return {name: [total.astype(arrays[0].dtype) for total in parts[name]]
                for name, arrays in values.items()}

    def within_process(self):
        """Return what sums over the devices of this process, without a KVStore."""
        return OverDevices()


def exchange(kvstore, keys, full_gradient, values, counted=()):
    """Sum values over all devices and workers and give each device its share.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        KVStore with one key for each full gradient.
    keys : KVStoreKeys
        Keys of the module in `kvstore`.
    full_gradient : FullGradient
        Full gradient whose shares are set.
    values : dict of str to list of NDArray
        For each parameter one array per device; overwritten with the sum.
    counted : dict of str to list of NDArray
        Further arrays to sum, by key; overwritten with the sum.
    """
    allreduce(kvstore, {
        **{keys.full[name]: arrays for name, arrays in values.items()}, **dict(counted)})
    for name, arrays in values.items():
        full_gradient.share_out(name, arrays)

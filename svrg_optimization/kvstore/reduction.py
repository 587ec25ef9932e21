"""Sum of the full gradient over the devices of this process, or over all workers."""

import numpy as np
from mxnet import ndarray as nd

from ..module.optimizer_states import kvstore_of
from ..svrg_optimizer import _SVRGOptimizer
from .agreement import check_batch_counts, tally, told_by_each
from .kinds import is_distributed
from .operations import allreduce, compresses


def reduction_for(module, membership, trains_on_pass=False):
    """Return what sums the full gradient of a module.

    A KVStore with compression would quantize it. The KVStore of an optimizer
    that was borrowed from a plain Module has no keys for it.

    Parameters
    ----------
    module : mxnet.module.Module
        Module being trained.
    membership : Membership
        What it has in its KVStore.
    trains_on_pass : bool
        Whether ``fit`` trains on the data of the pass.

    Returns
    -------
    WithinProcess or OverWorkers
    """
    kvstore, keys = kvstore_of(module), membership.keys
    if is_distributed(kvstore):
        return OverWorkers(kvstore, membership, trains_on_pass)
    has_keys = kvstore is not None and isinstance(module._optimizer, _SVRGOptimizer) and not (
        module._compression_params or compresses(kvstore, keys.first, module._context))
    return WithinProcess(kvstore if has_keys else None, keys, kvstore is not None)


class WithinProcess:
    """Sum over the devices of this process.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore or None
        Local KVStore that sums.
    keys : KVStoreKeys
        Keys of the module.
    adds_devices : bool
        Whether to sum without a `kvstore` too. Otherwise each device, which then
        trains by itself, keeps its own sum.
    """

    def __init__(self, kvstore, keys, adds_devices):
        self._kvstore, self._keys, self._adds_devices = kvstore, keys, adds_devices

    def sum(self, full_gradient):
        """Give each device its share of the sum; return B."""
        full_gradient.batches_of_workers = [full_gradient.yielded]
        if self._kvstore:
            exchange(self._kvstore, self._keys, full_gradient, full_gradient.by_parameter())
        elif self._adds_devices and len(full_gradient.shares) > 1:
            for name, arrays in full_gradient.by_parameter().items():
                total = nd.add_n(*[array.as_in_context(arrays[0].context) for array in arrays])
                full_gradient.share_out(
                    name, [total.as_in_context(array.context) for array in arrays])
        else:
            full_gradient.shares_differ = len(full_gradient.shares) > 1
        return full_gradient.batch_size

    def check_batches(self, full_gradient):
        """Check nothing: there is only this worker."""

    def largest(self, numbers):
        """Return for each number the largest of all workers: itself."""
        return numbers

    def within_process(self):
        """Return what sums over the devices of this process, without a KVStore."""
        return WithinProcess(None, None, self._adds_devices)


class OverWorkers:
    """Sum over the devices of all workers of a distributed KVStore.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        Distributed KVStore.
    membership : Membership
        What the module has in it.
    trains_on_pass : bool
        Whether ``fit`` trains on the data of the pass.
    """

    def __init__(self, kvstore, membership, trains_on_pass):
        self._kvstore, self._membership = kvstore, membership
        self._trains_on_pass = trains_on_pass

    def sum(self, full_gradient):
        """Give each device its share of the sum, and add the counts.

        It returns how many rows the scale of the sum is to be of: B, or 1 where
        sums of means are over rows already.
        """
        self._membership.forget_agreement()
        keys, units = self._membership.keys, full_gradient.batch_size
        if full_gradient.loss_is_mean:
            # Workers may have batches of different sizes, so sums over rows are sent.
            full_gradient.scale(units)
            units = 1
        values = full_gradient.by_parameter()
        context = next((arrays[0].context for arrays in values.values()), None)
        told = tally(self._kvstore, [full_gradient.rows, full_gradient.batches,
                                     full_gradient.yielded], context)
        counted = {keys.row_counts[name]: [nd.array(counts, ctx=context, dtype=np.float64)]
                   for name, counts in full_gradient.row_counts.items()}
        counted[keys.tally] = [told]
        exchange(self._kvstore, keys, full_gradient, values, counted)
        rows, batches, full_gradient.batches_of_workers, *_ = told.asnumpy().T
        full_gradient.rows, full_gradient.batches = int(rows.sum()), int(batches.sum())
        for name in full_gradient.row_counts:
            full_gradient.row_counts[name] = (
                counted[keys.row_counts[name]][0].asnumpy().astype(np.int64))
        return units

    def check_batches(self, full_gradient):
        """Raise a ValueError if ``fit`` would wait forever on data of this pass."""
        if self._trains_on_pass:
            check_batch_counts(self._kvstore, full_gradient.batches_of_workers)

    def largest(self, numbers):
        """Return for each number the largest of all workers."""
        told = told_by_each(self._kvstore, self._membership.keys.tally, numbers)
        return told.max(axis=0).tolist()

    def within_process(self):
        """Return what sums over the devices of this process, without a KVStore."""
        return WithinProcess(None, None, adds_devices=True)


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

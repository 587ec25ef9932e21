"""Operations on a KVStore: allreduce, broadcast, wait."""

from mxnet import ndarray as nd

from ..core.arrays import summed
from ..mxnet_repair.kvstore import errors_of_updater_raised
from .kinds import is_asynchronous


def sum_over_devices(arrays, out):
    """Set the array of each device to the sum of one array per device."""
    total = summed(arrays)
    for array in out:
        if array is not total:
            total.copyto(array)


def allreduce(kvstore, values):
    """Sum values over the devices of all workers.

    All values are pushed before the first one is pulled.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        KVStore that assigns what is pushed to these keys.
    values : dict of str to list of NDArray
        For each key one array per device; overwritten with the sum.
    """
    with errors_of_updater_raised():
        for priority, (key, arrays) in enumerate(values.items()):
            kvstore.push(key, arrays, priority=-priority)
    if is_asynchronous(kvstore):
        wait_for_all_workers(kvstore)
    for priority, (key, arrays) in enumerate(values.items()):
        kvstore.pull(key, out=arrays, priority=-priority)


def broadcast(kvstore, values):
    """Give all workers the values of the worker with rank 0.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        Synchronous distributed KVStore that assigns what is pushed to these keys.
    values : dict of str to list of NDArray
        For each key one array per device; overwritten.
    """
    for arrays in values.values():
        for array in arrays[1 if kvstore.rank == 0 else 0:]:
            array[:] = 0
    allreduce(kvstore, values)


def wait_for_all_workers(kvstore):
    """Wait until all workers are here and the servers have processed all their requests."""
    nd.waitall()
    kvstore._barrier()

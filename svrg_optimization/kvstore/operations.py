"""Operations on a KVStore: allreduce, broadcast, wait."""

from mxnet import ndarray as nd

from .kinds import is_asynchronous


def allreduce(kvstore, values):
    """Sum values, which are one array per device for each key, over all workers, in place.

    All values are pushed before the first one is pulled.
    """
    for priority, (key, arrays) in enumerate(values.items()):
        kvstore.push(key, arrays, priority=-priority)
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

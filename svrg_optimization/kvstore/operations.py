"""Operations on a KVStore: connect, probe, allreduce, broadcast, wait."""

import atexit
import gc
import os
import re

from mxnet import kv as kv_of_mxnet
from mxnet import ndarray as nd
from mxnet.base import MXNetError

from ..core.requirements import COMPRESSED
from .kinds import is_asynchronous, is_distributed

_opened_by_name = []


def open_distributed(kind):
    """Return this worker's connection to the servers.

    A process has only one: MXNet waits forever when a second one is created.

    Parameters
    ----------
    kind : str
        Name of the KVStore, as in ``mxnet.kv.create``.

    Returns
    -------
    mxnet.kvstore.KVStore
        The connection, which is created the first time.

    Raises
    ------
    ValueError
        If there is a connection of another kind already, or no cluster.
    """
    if 'DMLC_PS_ROOT_URI' not in os.environ:
        raise ValueError('kvstore %r needs a cluster, whose scheduler the environment names '
                         '(DMLC_PS_ROOT_URI): start the script with a launcher' % kind)
    stores = (known for known in gc.get_objects() if issubclass(type(known), kv_of_mxnet.KVStore))
    kvstore = next(filter(is_distributed, stores), None)
    if kvstore is None:
        kvstore = kv_of_mxnet.create(kind)
        _opened_by_name.append(kvstore)
        atexit.register(_opened_by_name.clear)
    if kvstore.type != kind:
        raise ValueError('kvstore must be %r, as this process is connected to its servers '
                         'already, not %r' % (kvstore.type, kind))
    return kvstore


def number_of_first_key(kvstore, key):
    """Create our first key on the servers and return its number there.

    Servers number the keys in the order of their creation. MXNet shows the
    number only in the error about a push of another size. That error does not
    occur in a KVStore with compression, for which this raises a ValueError.
    """
    value = nd.zeros((1,))
    kvstore.init(key, value)
    kvstore.pull(key, out=value)
    value.wait_to_read()
    try:
        kvstore.push(key, nd.zeros((2,)))
    except MXNetError as error:
        number = re.search(r'Key is (\d+)', str(error))
        if number is None:
            raise
        return int(number.group(1))
    raise ValueError('kvstore must not compress gradients: ' + COMPRESSED)


def summed(arrays):
    """Return the sum of one array per device on the first device; of one array itself."""
    total, *others = arrays
    for other in others:
        total = total + other.as_in_context(total.context)
    return total


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
    kvstore : mxnet.kvstore.KVStore or None
        KVStore that assigns what is pushed to these keys; not asked if it is of this
        process alone.
    values : dict of str to list of NDArray
        For each key one array per device; overwritten with the sum.
    """
    if not is_distributed(kvstore):
        for arrays in values.values():
            sum_over_devices(arrays, arrays)
        return
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

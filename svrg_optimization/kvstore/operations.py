"""Operations on a KVStore: connect, probe, allreduce, broadcast, wait."""

import atexit
import contextlib
import gc
import os
import re
import sys

import numpy as np
from mxnet import kv as kv_of_mxnet
from mxnet import ndarray as nd
from mxnet.base import MXNetError

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


def number_of_new_key(kvstore, key):
    """Create a key on the servers and return its number there, None if gradients are compressed.

    Servers number the keys in the order of their creation. MXNet shows the
    number only in the error about a push of another size. That error does not
    occur in a KVStore with compression.
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
    return None


def probe_of_compression():
    """Return the initial value of the key that `compresses` uses."""
    return nd.zeros((2,))


def compresses(kvstore, key, contexts):
    """Tell whether a KVStore compresses gradients. This can be switched on at any time.

    A distributed KVStore with compression is refused when its keys are created.
    """
    if is_distributed(kvstore) or 'device' not in kvstore.type:  # only these compress
        return False
    return quantizes(kvstore, key, contexts)


def quantizes(kvstore, key, contexts):
    """Tell whether a KVStore that all workers ask changes what is pushed to a key of a probe."""
    pushed = np.array([2.0 ** -10, 2.0 ** -11], np.float32)  # not both can be the threshold
    values = [nd.array(pushed, ctx=context) for context in contexts]
    kvstore.push(key, values)
    kvstore.pull(key, out=values)
    pushes = len(contexts) * kvstore.num_workers
    return bool((values[0].asnumpy() != pushes * pushed).any())


def summed(arrays):
    """Return the sum of one array per device on the first device; of one array itself."""
    total, *others = arrays
    for other in others:
        total = total + other.as_in_context(total.context)
    return total


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
    with _errors_of_callbacks_raised():
        for priority, (key, arrays) in enumerate(values.items()):
            kvstore.push(key, arrays, priority=-priority)
    if is_asynchronous(kvstore):
        wait_for_all_workers(kvstore)
    for priority, (key, arrays) in enumerate(values.items()):
        kvstore.pull(key, out=arrays, priority=-priority)


@contextlib.contextmanager
def _errors_of_callbacks_raised():
    """Raise errors of a KVStore's updater, for example a Ctrl-C, at the end of the block.

    MXNet calls the updater through ctypes, which reports an error and
    continues without the pushed value.
    """
    errors, report = [], sys.unraisablehook

    def keep(unraisable):
        if 'ctypes callback' in (unraisable.err_msg or ''):
            errors.append(unraisable.exc_value)
        else:
            report(unraisable)

    try:
        sys.unraisablehook = keep
        yield
    finally:
        sys.unraisablehook = report
        if errors:
            raise errors[0]


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

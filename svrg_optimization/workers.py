"""What the workers of a distributed training agree on when a snapshot is taken."""

import numpy as np
from mxnet import ndarray as nd

from . import executors, kvstores
from .iterators import rewind


class Tally:
    """What the workers tell each other of a pass: rows and batches, and the batches of each.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
    rows, batches : int
        Of this worker's pass, those of padding alone left out.
    yielded : int
        All of its batches.
    context : Context
        The device that the numbers are sent from.
    """

    def __init__(self, kvstore, rows=0, batches=0, yielded=0, context=None):
        numbers = np.zeros(2 + kvstore.num_workers)
        numbers[:2] = rows, batches
        numbers[2 + kvstore.rank] = yielded
        self.value = nd.array(numbers, ctx=context, dtype=np.float64)

    def read(self):
        """Return the rows, the batches, and a list of the batches of each worker, by rank."""
        numbers = self.value.asnumpy().astype(int).tolist()
        return numbers[0], numbers[1], numbers[2:]


def meet_at_same_weights(kvstore, module, servers_update):
    """Move all workers to the servers' weights, or to those of rank 0 where workers update.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        A distributed one.
    module : mxnet.module.Module
    servers_update : bool
    """
    if kvstores.is_asynchronous(kvstore):
        kvstores.wait_for_all_workers(kvstore)
    if servers_update:
        executors.pull_dense_weights(kvstore, module)
    else:
        kvstores.set_to_those_of_first_worker(kvstore, executors.parameters(module))
        module._params_dirty = True


def count_batches(kvstore, key, train_data):
    """Read an iterator to its end; tell how many batches each worker has, by rank.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
    key : str
        Of a tally.
    train_data : DataIter
        It is reset before and after.
    """
    rewind(train_data)
    tally = Tally(kvstore, yielded=sum(1 for _ in train_data))
    train_data.reset()
    kvstores.sum_over_devices_and_workers(kvstore, {key: [tally.value]})
    _, _, batches_of_workers = tally.read()
    return batches_of_workers


def check_batches(kvstore, batches_of_workers):
    """Raise a ValueError where workers that step together would wait for ever.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
    batches_of_workers : list of int
        How many each has, by rank.
    """
    if len(set(batches_of_workers)) > 1 and not kvstores.is_asynchronous(kvstore):
        raise ValueError('train_data must have as many batches on each worker with the kvstore '
                         '%r, and it has, in the order of ranks, %s'
                         % (kvstore.type, batches_of_workers))

"""What the workers of a distributed training agree on, when fit begins and at a snapshot."""

from typing import NamedTuple

import numpy as np
from mxnet import ndarray as nd

from ..data.iterators import rewind
from ..mxnet_bridge import executor_group
from .kinds import is_asynchronous, is_distributed, is_synchronous
from .operations import allreduce, broadcast, wait_for_all_workers


class Plan(NamedTuple):
    """What a worker is about to do in ``fit``.

    Attributes
    ----------
    batch_size : int
        Rows of a batch of its iterator.
    rescale_grad : float
        What its optimizer multiplies gradients by; 0 where servers step.
    update_freq : int
        0 where it takes no snapshots.
    epoch : int
        The first one.
    takes_snapshot : bool
        Whether that begins with a snapshot.
    left_over : int
        Rows that its iterator leaves to the next pass.
    """

    batch_size: int
    rescale_grad: float
    update_freq: int
    epoch: int
    takes_snapshot: bool
    left_over: int


class PassCounts:
    """Numbers that the workers tell each other: two that are summed, and some of each.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
    rows, batches : int
        Of this worker's pass, those of padding alone left out.
    own : tuple of float
        Up to as many numbers as a Plan has.
    context : Context
        The device that the numbers are sent from.
    """

    def __init__(self, kvstore, rows=0, batches=0, own=(), context=None):
        numbers = np.zeros(2 + kvstore.num_workers * len(Plan._fields))
        numbers[:2] = rows, batches
        begin = 2 + kvstore.rank * len(Plan._fields)
        numbers[begin:begin + len(own)] = own
        self.value = nd.array(numbers, ctx=context, dtype=np.float64)

    def read(self):
        """Return the rows, the batches, and a list of each worker's own numbers, by rank."""
        numbers = self.value.asnumpy()
        return (int(numbers[0]), int(numbers[1]),
                numbers[2:].reshape(-1, len(Plan._fields)).tolist())


def _told_by_each(kvstore, key, own):
    """Tell all workers some numbers; return those of each, by rank."""
    tally = PassCounts(kvstore, own=own)
    allreduce(kvstore, {key: [tally.value]})
    return tally.read()[2]


def synchronize_weights(kvstore, module, servers_update):
    """Move all workers to the servers' weights, or to those of rank 0 where workers update.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        A distributed one.
    module : mxnet.module.Module
    servers_update : bool
    """
    if is_asynchronous(kvstore):
        wait_for_all_workers(kvstore)
    if servers_update:
        executor_group.pull_dense_weights(kvstore, module)
    else:
        broadcast(kvstore, executor_group.parameters(module))
        executor_group.weights_have_moved(module)


def check_plans(kvstore, key, plan):
    """Raise a ValueError on all workers where they would wait for ever, or differ in weights.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
    key : str
        Of a tally.
    plan : Plan
        This worker's.
    """
    plans = [Plan(*numbers) for numbers in _told_by_each(kvstore, key, plan)]
    demands = {
        'update_freq': 'update_freq must be the same on all workers (0 stands for alpha=0)',
        'epoch': 'begin_epoch must be the same on all workers',
        'takes_snapshot': 'all workers must have a snapshot when fit begins, or none (1 stands '
                          'for one that takes it now)'}
    if is_synchronous(kvstore):
        demands['batch_size'] = 'train_data must have batches of as many rows on all workers'
        demands['rescale_grad'] = ('the optimizer must have the same rescale_grad on all workers '
                                   '(by default 1 over the rows that the module was bound for)')
        demands['left_over'] = ("train_data must have as many rows on all workers where "
                                "last_batch_handle is 'roll_over', or some would have more "
                                'batches in an epoch; left over are')
    for name, demand in demands.items():
        told = [getattr(other, name) for other in plans]
        if len(set(told)) > 1:
            raise ValueError('%s with the kvstore %r, and not, in the order of ranks, [%s]'
                             % (demand, kvstore.type, ', '.join('%g' % each for each in told)))


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
    yielded = sum(1 for _ in train_data)
    train_data.reset()
    return [int(own[0]) for own in _told_by_each(kvstore, key, (yielded,))]


def check_batch_counts(kvstore, batches_of_workers):
    """Raise a ValueError where a worker would have no batch, or others would wait for ever.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
    batches_of_workers : list of int
        How many each has, by rank.
    """
    if is_synchronous(kvstore) and len(set(batches_of_workers)) > 1:
        raise ValueError('train_data must have as many batches on each worker with the kvstore '
                         '%r, and it has, in the order of ranks, %s'
                         % (kvstore.type, batches_of_workers))
    if is_distributed(kvstore) and not all(batches_of_workers):
        raise ValueError('train_data must have at least one batch on each worker in fit, and it '
                         'has, in the order of ranks, %s' % batches_of_workers)

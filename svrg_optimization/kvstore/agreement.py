"""Agreement of the workers of a distributed training run, in fit and at a snapshot."""

from typing import NamedTuple

import numpy as np
from mxnet import ndarray as nd

from ..data.iterators import rewind_for_pass
from ..module import executor_group
from .kinds import is_asynchronous, is_distributed, is_synchronous
from .operations import allreduce, broadcast, wait_for_all_workers

TOL_IN_ASYNC = ('tol must be None with the kvstore %r, whose workers go on while one takes a '
                'snapshot, and not %g')


class Plan(NamedTuple):
    """Values of one worker in ``fit`` that are compared with those of the others.

    Attributes
    ----------
    batch_size : int
        Number of rows of a batch of its iterator.
    rescale_grad : float
        Factor that its optimizer multiplies gradients by; 0 if servers update
        the weights.
    update_freq : int
        Epochs from one snapshot to the next; 0 if it takes no snapshots.
    epoch : int
        Number of the first epoch.
    takes_snapshot : bool
        Whether the first epoch begins with a snapshot.
    stores_again : bool
        Whether it begins with a pass that stores batches for an active snapshot.
    left_over : int
        Number of rows that its iterator leaves for the next pass.
    full_grad_batches : int
        Number of batches of the next pass; 0 if it is over all.
    updates_per_snapshot : int
        Updates from one snapshot to the next; 0 if epochs count.
    has_full_grad_data : bool
        Whether the pass is over `full_grad_data`.
    tol : float
        Gradient norm at which it ends; 0 if it does not.
    """

    batch_size: int
    rescale_grad: float
    update_freq: int
    epoch: int
    takes_snapshot: bool
    stores_again: bool
    left_over: int
    full_grad_batches: int = 0
    updates_per_snapshot: int = 0
    has_full_grad_data: bool = False
    tol: float = 0


class PassCounts:
    """Numbers that the workers exchange: two sums, and some numbers of each worker.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        Distributed KVStore.
    rows, batches : int
        Rows and batches of this worker's pass, without those that are all padding.
    own : tuple of float
        Further numbers of this worker, at most as many as a Plan has.
    context : Context
        Device that the numbers are sent from.

    Attributes
    ----------
    value : NDArray
        All numbers as one float64 vector, to be summed over the workers.
    """

    def __init__(self, kvstore, rows=0, batches=0, own=(), context=None):
        numbers = np.zeros(2 + kvstore.num_workers * len(Plan._fields))
        numbers[:2] = rows, batches
        begin = 2 + kvstore.rank * len(Plan._fields)
        numbers[begin:begin + len(own)] = own
        self.value = nd.array(numbers, ctx=context, dtype=np.float64)

    def read(self):
        """Return the sum of the rows, the sum of the batches, and each worker's numbers by rank."""
        numbers = self.value.asnumpy()
        return (int(numbers[0]), int(numbers[1]),
                numbers[2:].reshape(-1, len(Plan._fields)).tolist())


def _told_by_each(kvstore, key, own):
    """Send some numbers to all workers; return the numbers of each worker, by rank."""
    tally = PassCounts(kvstore, own=own)
    allreduce(kvstore, {key: [tally.value]})
    return tally.read()[2]


def largest_of_workers(kvstore, key, *numbers):
    """Return for each number the largest of all workers, NaN if one has NaN."""
    told = np.array(_told_by_each(kvstore, key, numbers))
    return told[:, :len(numbers)].max(axis=0).tolist()


def synchronize_weights(kvstore, module, servers_update):
    """Give all workers the weights of the servers, or of rank 0 if workers update them.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        Distributed KVStore.
    module : mxnet.module.Module
        Module being trained on this worker.
    servers_update : bool
        Whether the servers update the weights.
    """
    if is_asynchronous(kvstore):
        wait_for_all_workers(kvstore)
    if servers_update:
        executor_group.pull_dense_weights(kvstore, module)
    else:
        broadcast(kvstore, executor_group.parameters(module))
        executor_group.weights_have_moved(module)


def check_plans(kvstore, key, plan):
    """Raise a ValueError on all workers if they would wait forever or get different weights.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        Distributed KVStore.
    key : str
        Key of PassCounts.
    plan : Plan
        Plan of this worker.
    """
    plans = [Plan(*numbers) for numbers in _told_by_each(kvstore, key, plan)]
    demands = {
        'update_freq': 'update_freq must be the same on all workers (0 stands for alpha=0)',
        'epoch': 'begin_epoch must be the same on all workers',
        'takes_snapshot': 'all workers must have a snapshot when fit begins, or none (1 stands '
                          'for one that takes it now)',
        'full_grad_batches': 'full_grad_batches must be the same on all workers (0 stands for '
                             'None, and a schedule for its value at the next snapshot)',
        'updates_per_snapshot': 'updates_per_snapshot must be the same on all workers (0 stands '
                                'for None)',
        'tol': 'tol must be the same on all workers (0 stands for None)',
        'has_full_grad_data': 'full_grad_data must be given on all workers or on none (1 stands '
                              'for one that has them)',
        'stores_again': 'where fit begins between two snapshots, all workers must have stored the '
                        'batches of their train_data, or none (1 stands for one that has '
                        'store_snapshot_grads and none of these batches)'}
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
    if plan.tol and is_asynchronous(kvstore):
        raise ValueError(TOL_IN_ASYNC % (kvstore.type, plan.tol))
    if plan.updates_per_snapshot and is_asynchronous(kvstore):
        raise ValueError('updates_per_snapshot must be None with the kvstore %r, whose workers '
                         'would wait for each other at different updates, and not %d'
                         % (kvstore.type, plan.updates_per_snapshot))


def count_batches(kvstore, key, train_data):
    """Read an iterator to its end; return the number of batches of each worker, by rank.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        Distributed KVStore.
    key : str
        Key of PassCounts.
    train_data : DataIter
        Iterator, which stands at its beginning afterwards.
    """
    go_back = rewind_for_pass(train_data)
    yielded = sum(1 for _ in train_data)
    go_back()
    return [int(own[0]) for own in _told_by_each(kvstore, key, (yielded,))]


def check_batch_counts(kvstore, batches_of_workers):
    """Raise a ValueError if a worker would have no batch, or others would wait forever.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
        KVStore of the module.
    batches_of_workers : list of int
        Number of batches of each worker, by rank.
    """
    if is_synchronous(kvstore) and len(set(batches_of_workers)) > 1:
        raise ValueError('train_data must have as many batches on each worker with the kvstore '
                         '%r, and it has, in the order of ranks, %s'
                         % (kvstore.type, batches_of_workers))
    if is_distributed(kvstore) and not all(batches_of_workers):
        raise ValueError('train_data must have at least one batch on each worker in fit, and it '
                         'has, in the order of ranks, %s' % batches_of_workers)

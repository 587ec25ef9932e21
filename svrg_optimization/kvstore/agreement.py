"""Agreement of the workers of a distributed training run, in fit and at a snapshot."""

import json
import zlib

import numpy as np
from mxnet import ndarray as nd

from ..data.iterators import rewind_for_pass
from .kinds import is_asynchronous, is_synchronous, kind_of
from .operations import allreduce, wait_for_all_workers

_WIDTH = 64  # numbers of each worker in a message, more than there are settings


def row_of_this_worker(kvstore, numbers=(), context=None):
    """Return an array with at most 64 numbers in this worker's row, to be summed over workers."""
    rows = np.zeros((kvstore.num_workers, _WIDTH))
    rows[kvstore.rank, :len(numbers)] = numbers
    return nd.array(rows, ctx=context, dtype=np.float64)


def allgather(kvstore, key, numbers):
    """Give all workers some numbers of each; return an array with a row for each, by rank."""
    gathered = row_of_this_worker(kvstore, numbers)
    allreduce(kvstore, {key: [gathered]})
    if is_asynchronous(kvstore):  # or the next push of another worker would begin a new sum
        wait_for_all_workers(kvstore)
    return gathered.asnumpy()[:, :len(numbers)]


def check_same(kvstore, key, plan):
    """Raise a ValueError on all workers if settings and arguments are not the same on all.

    The plan maps names, as error messages have them, to values that JSON supports. Workers
    exchange a checksum of each.
    """
    gathered = allgather(kvstore, key, [
        zlib.crc32(json.dumps(item, sort_keys=True, default=np.generic.item).encode())
        for item in plan.items()])
    for (name, value), sums in zip(plan.items(), gathered.T):
        if len(set(sums)) > 1:
            raise ValueError('%s must be the same on all workers with the kvstore %r, and is %r '
                             'on rank %d' % (name, kvstore.type, value, kvstore.rank))


def check_waits(kvstore, tol):
    """Raise a ValueError for a `tol` if the workers do not wait for each other in a step."""
    if tol is not None and is_asynchronous(kvstore):
        raise ValueError('tol must be None with the kvstore %r, whose workers do not wait for '
                         'each other, and not %g' % (kind_of(kvstore), tol))


def batches_of_each(kvstore, key, train_data):
    """Read an iterator to its end and rewind it; return the batches of each worker, by rank."""
    rewind_data = rewind_for_pass(train_data)
    yielded = sum(1 for _ in train_data)
    rewind_data()
    return allgather(kvstore, key, [yielded])[:, 0]


def check_batch_counts(kvstore, batches_of_workers):
    """Raise a ValueError if a worker has no batch, or too few, so that others wait forever."""
    batches = list(map(int, batches_of_workers))
    if is_synchronous(kvstore) and len(set(batches)) > 1:
        raise ValueError('train_data must have as many batches on each worker with the kvstore '
                         '%r, and it has, in the order of ranks, %s' % (kvstore.type, batches))
    if not all(batches):
        raise ValueError('train_data must have at least one batch on each worker in fit, and it '
                         'has, in the order of ranks, %s' % batches)

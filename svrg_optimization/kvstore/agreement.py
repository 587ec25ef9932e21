"""Agreement of the workers of a distributed training run, in fit and at a snapshot."""

import numpy as np
from mxnet import ndarray as nd

from ..data.iterators import rewind_for_pass
from .kinds import is_asynchronous, is_distributed, kind_of, waits_in_steps
from .operations import allreduce

_NUMBERS_AT_ONCE = 35  # that a worker tells the others


def tally(kvstore, numbers=(), context=None):
    """Return an array with some numbers in this worker's row, to be summed over the workers."""
    rows = np.zeros((kvstore.num_workers, _NUMBERS_AT_ONCE))
    rows[kvstore.rank, :len(numbers)] = numbers
    return nd.array(rows, ctx=context, dtype=np.float64)


def told_by_each(kvstore, key, numbers):
    """Tell all workers some numbers; return an array with a row for each worker, by rank."""
    parts = []
    for begin in range(0, len(numbers), _NUMBERS_AT_ONCE):
        told = tally(kvstore, numbers[begin:begin + _NUMBERS_AT_ONCE])
        allreduce(kvstore, {key: [told]})
        parts.append(told.asnumpy())
    return np.hstack(parts)[:, :len(numbers)]


def check_same(kvstore, key, plan):
    """Raise a ValueError on all workers if a number is not the same on all.

    They would wait for each other forever or get different weights.

    Parameters
    ----------
    kvstore, key
        KVStore, and its key of numbers that workers tell each other.
    plan : dict of str to float
        Numbers, by what errors call them.
    """
    for name, told in zip(plan, told_by_each(kvstore, key, list(plan.values())).T):
        if len(set(told)) > 1:
            raise ValueError('%s must be the same on all workers with the kvstore %r, and not, in '
                             'the order of ranks, [%s]'
                             % (name, kvstore.type, ', '.join('%g' % each for each in told)))


def check_waits(kvstore, **settings):
    """Raise a ValueError for a setting with which workers must wait for each other in a step."""
    for name, value in settings.items():
        if value is not None and is_asynchronous(kvstore):
            raise ValueError('%s must be None with the kvstore %r, whose workers do not wait for '
                             'each other, and not %g' % (name, kind_of(kvstore), value))


def batches_of_each(kvstore, key, train_data):
    """Read an iterator to its end and rewind it; return the batches of each worker, by rank."""
    rewind_data = rewind_for_pass(train_data)
    yielded = sum(1 for _ in train_data)
    rewind_data()
    return told_by_each(kvstore, key, [yielded])[:, 0]


def check_batch_counts(kvstore, batches_of_workers):
    """Raise a ValueError if a worker would have no batch, or others would wait forever."""
    told = [int(batches) for batches in batches_of_workers]
    if waits_in_steps(kvstore) and len(set(told)) > 1:
        raise ValueError('train_data must have as many batches on each worker with the kvstore '
                         '%r, and it has, in the order of ranks, %s' % (kvstore.type, told))
    if is_distributed(kvstore) and not all(told):
        raise ValueError('train_data must have at least one batch on each worker in fit, and it '
                         'has, in the order of ranks, %s' % told)

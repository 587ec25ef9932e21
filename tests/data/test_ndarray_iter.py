"""Batches of NDArrayIter without copies, compared with its own."""

import functools
import itertools

import mxnet as mx
import numpy as np
import pytest

from problems import Problem
from svrg_optimization.data.ndarray_iter import is_viewable, views


def several_inputs(rows=23):
    rng = np.random.RandomState(0)
    return ({'image': rng.normal(size=(rows, 2, 3)), 'age': rng.normal(size=(rows, 1))},
            {'label': np.arange(rows), 'weight': rng.normal(size=(rows, 2))})


def made(kind=mx.io.NDArrayIter, rows=23, seed=3, batch_size=5, **kwargs):
    np.random.seed(seed)
    return kind(*several_inputs(rows), batch_size, **kwargs)


def copies(batches):
    return [([array.asnumpy() for array in batch.data + batch.label], batch.pad)
            for batch in batches]


@pytest.mark.parametrize('shuffle', [False, True])
@pytest.mark.parametrize('rows, handle', [
    *itertools.product([23, 25], ['pad', 'discard', 'roll_over']), (3, 'pad'), (3, 'discard')])
def test_batches_are_those_of_ndarray_iter(rows, handle, shuffle):
    found = []
    for read in (iter, views):
        train_data = made(rows=rows, shuffle=shuffle, last_batch_handle=handle)
        batches = []
        for _ in range(3):
            batches += copies(read(train_data))
            train_data.reset()
        batches += copies(itertools.islice(read(train_data), 1))  # reset in the middle
        train_data.reset()
        found.append(batches + copies(read(train_data)))
    np.testing.assert_equal(*reversed(found))


def test_a_pass_does_not_copy_batches(monkeypatch):
    problem = Problem(rows=40)
    module, train_data = problem.bound(), problem.iterator()

    def fail(_):
        raise AssertionError('copied')

    monkeypatch.setattr(mx.io.NDArrayIter, 'getdata', fail)
    module.update_full_grads(train_data)


class OwnIter(mx.io.NDArrayIter):
    pass


def with_own(name):
    """A method of one iterator is replaced."""
    train_data = made()
    setattr(train_data, name, getattr(train_data, name))
    return train_data


def with_labels_of_other_rows():
    return mx.io.NDArrayIter(np.ones((23, 2)), np.arange(30), 5)


@pytest.mark.parametrize('make', [
    with_labels_of_other_rows, lambda: made(OwnIter), lambda: made(layout='TN', batch_size=1),
    *(functools.partial(with_own, name) for name in ('next', 'getdata', 'reset'))])
def test_others_yield_their_own_batches(make):
    assert is_viewable(made()) and not is_viewable(make())

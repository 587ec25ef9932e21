"""Resets and batches of NDArrayIter, compared with its own."""

import itertools
import mmap
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from problems import Problem
from svrg_optimization.data.ndarray_iter import batches_to_read, reset


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


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for (arrays, pad), (own, own_pad) in zip(actual, expected):
        assert pad == own_pad
        for array, other in zip(arrays, own):
            np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize('shuffle', [False, True])
@pytest.mark.parametrize('rows, handle', [
    *itertools.product([23, 25], ['pad', 'discard', 'roll_over']), (3, 'pad'), (3, 'discard')])
def test_batches_and_random_numbers_are_those_of_ndarray_iter(rows, handle, shuffle):
    found = []
    for begin, read in ((mx.io.NDArrayIter.reset, iter), (reset, batches_to_read)):
        train_data = made(rows=rows, shuffle=shuffle, last_batch_handle=handle)
        epochs = []
        for _ in range(4):
            epochs += copies(read(train_data))
            begin(train_data)
        epochs += copies(itertools.islice(read(train_data), 1))  # reset in the middle
        begin(train_data)
        found.append((epochs + copies(read(train_data)), np.random.randint(10 ** 9)))
    (expected, own_number), (actual, number) = found
    assert number == own_number
    assert_same(actual, expected)


def test_rows_before_a_reset_stay():
    """Somebody may have kept them."""
    train_data = made(shuffle=True)
    kept = [array for _, array in train_data.data + train_data.label]
    before = [array.asnumpy() for array in kept]
    for _ in range(3):
        reset(train_data)
    for array, values in zip(kept, before):
        np.testing.assert_array_equal(array.asnumpy(), values)


@pytest.mark.parametrize('has_large_pages', [True, False])
def test_many_rows_are_shuffled_alike(has_large_pages, monkeypatch):
    """They are in large pages, if the system has some."""
    monkeypatch.setattr('svrg_optimization.data.large_pages.mmap', SimpleNamespace(
        PAGESIZE=mmap.PAGESIZE, **{'MADV_HUGEPAGE': 14} if has_large_pages else {}))
    features = np.arange(3 << 20, dtype=np.float32).reshape(-1, 3)
    found = []
    for begin in (mx.io.NDArrayIter.reset, reset):
        np.random.seed(1)
        train_data = mx.io.NDArrayIter(features, features[:, 0], 1000, shuffle=True)
        begin(train_data)
        begin(train_data)
        found.append([train_data.data[0][1].asnumpy(), train_data.label[0][1].asnumpy()])
    for expected, actual in zip(*found):
        np.testing.assert_array_equal(actual, expected)


def test_whole_batches_are_views_that_cannot_be_written_to():
    train_data = made()
    batch = next(batches_to_read(train_data))
    train_data.data[0][1][0] = 7
    assert (batch.data[0][0].asnumpy() == 7).all()
    with pytest.raises(ValueError, match='view of the rows'):
        batch.data[0][:] = 0
    with pytest.raises(ValueError, match='readonly'):
        batch.data[0] += 1


def with_csr():
    rows = mx.nd.array(np.eye(23)).tostype('csr')
    return mx.io.NDArrayIter(rows, np.arange(23), 5, last_batch_handle='discard')


def with_float64():
    return mx.io.NDArrayIter(mx.nd.array(np.arange(46).reshape(23, 2), dtype='float64'),
                             np.arange(23), 5)


class OwnIter(mx.io.NDArrayIter):
    pass


@pytest.mark.parametrize('make', [with_csr, with_float64, lambda: made(OwnIter),
                                  lambda: made(layout='TN', batch_size=1)])
def test_others_reset_and_yield_themselves(make):
    train_data = make()
    train_data.shuffle = True
    assert batches_to_read(train_data) is iter(train_data)
    calls = []
    train_data.reset = lambda: calls.append(train_data.shuffle)
    reset(train_data)
    assert calls == [True]


def test_reset_that_fails_leaves_an_iterator_that_shuffles():
    train_data = made(shuffle=True)

    def fail():
        raise OSError('no')

    train_data.reset = fail
    with pytest.raises(OSError):
        reset(train_data)
    del train_data.reset
    assert train_data.shuffle


@pytest.mark.parametrize('handle', ['pad', 'discard', 'roll_over'])
def test_full_gradients_have_the_same_bits_as_over_copies(handle, monkeypatch):
    problem, found = Problem('softmax', rows=370), []
    for uses_views in (True, False):
        if not uses_views:
            monkeypatch.setattr('svrg_optimization.data.ndarray_iter.has_dense_rows',
                                lambda _: False)
        np.random.seed(5)
        train_data = problem.iterator(shuffle=True, last_batch_handle=handle)
        module = problem.bound()
        for _ in range(3):
            module.update_full_grads(train_data)
            found.append(module._param_dict[0]['fc_weight'].asnumpy())
    for expected, actual in zip(found[:3], found[3:]):
        np.testing.assert_array_equal(actual, expected)

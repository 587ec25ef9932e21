"""What is held of batches and gradients within the bytes that are given."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from held_batches import ReusingIter, cost_of_batch, cost_of_gradient, expect, train
from problems import Problem
from svrg_optimization import SVRGModule
from svrg_optimization.core.arrays import bytes_of
from svrg_optimization.core.full_gradient import Part
from svrg_optimization.core.store import Store
from svrg_optimization.module import passes

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def test_the_budget_is_kept(runs):
    problem = Problem('perceptron', rows=200)
    for budget in range(1, 30000, 3300):
        module = problem.bound(store_snapshot_grads=budget)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', UserWarning)
            module.update_full_grads(problem.iterator())
        held = module._svrg.store.batches
        total = sum(bytes_of(array) for stored in held
                    for array in stored.batch.data + stored.batch.label)
        total += sum(bytes_of(array) for batch in held for arrays in
                     (batch.snapshot_gradients or {}).values() for array in arrays)
        assert total <= budget
        if held:
            room = budget - total
            stored = sum(batch.snapshot_gradients is not None for batch in held)
            assert stored == 20 or room < cost_of_gradient(problem)


def test_the_budget_is_kept_where_inputs_grow():
    """The second input's shape changes from batch to batch, the first one's does not."""
    one, two = mx.sym.Variable('one'), mx.sym.Variable('two')
    total = mx.sym.FullyConnected(one, num_hidden=1, name='fc') + mx.sym.FullyConnected(
        mx.sym.sum(two, axis=1), num_hidden=1, name='fc2')
    symbol = mx.sym.LinearRegressionOutput(total, mx.sym.Variable('label'))
    batches = [mx.io.DataBatch([mx.nd.ones((4, 3)), mx.nd.ones((4, length, 5))],
                               [mx.nd.ones((4,))], pad=0) for length in [2] + 9 * [100]]

    class Batches(list):
        def reset(self):
            pass

    module = SVRGModule(symbol, ('one', 'two'), ('label',), update_freq=1,
                        store_snapshot_grads=5000)
    module.bind([('one', (4, 3)), ('two', (4, 2, 5))], [('label', (4,))])
    module.init_params(mx.init.One())
    with pytest.warns(UserWarning, match='first 2 of 10 batches'):
        module.update_full_grads(Batches(batches))
    assert not module._svrg.store.batches


def test_sparse_arrays_cost_their_values_and_indices():
    """Values of 4 bytes and indices of 8; of csr the ends of the rows too."""
    dense = mx.nd.array([[1, 0, 2], [0, 0, 0]])
    assert bytes_of(dense) == 6 * 4 and bytes_of(dense.astype('float64')) == 6 * 8
    assert bytes_of(dense.tostype('csr')) == 2 * 4 + 2 * 8 + 3 * 8
    assert bytes_of(dense.tostype('row_sparse')) == 3 * 4 + 8


def add(store, batch, gradients=None):
    if not store.is_exceeded:
        store.add(batch, [*batch.data, *(batch.label or [])], Part(gradients or {}),
                  'full gradient')


def test_a_budget_may_be_used_up():
    store = Store(24 + 8)
    add(store, mx.io.DataBatch([mx.nd.ones((2, 2))], [mx.nd.ones((2,))]), {'w': [mx.nd.ones((2,))]})
    store.complete(object(), 1, pytest.fail)
    assert store.num_with_gradients == len(store.batches) == 1


def test_gradients_go_where_data_need_their_room():
    """Data of 24 bytes a batch and gradients of 8: the latter go where data need their room."""
    made = [mx.io.DataBatch([mx.nd.ones((2, 2))], [mx.nd.ones((2,))], pad) for pad in (0, 1, 0, 0)]
    gradients = {'w': [mx.nd.ones((2,))]}
    for count in range(5):
        store = Store(24 + 8 + 24 + 24)
        assert store.batches == []
        for batch in made[:count]:
            add(store, batch, gradients)
        assert store.batches == []  # not before the pass is complete
        said, data = [], object()
        store.complete(data, count, lambda _, kind, said=said: said.append(kind))
        expected = [[], [True], [True, True], [True, False, False], []][count]
        assert [batch.snapshot_gradients is not None for batch in store.batches] == expected
        assert store.num_with_gradients == sum(expected)
        assert said == [[], [], [], ['not all stored'], ['nothing stored']][count]
        for stored, batch in zip(store.batches, made):
            assert stored.batch is batch and stored.full_gradient == 'full gradient'
            assert store.found([*batch.data, *batch.label]) is stored
            assert store.found([batch.data[0].copy(), *batch.label]) is None
            if stored.snapshot_gradients:
                assert stored.snapshot_gradients['w'][0] is not gradients['w'][0]
                assert (stored.snapshot_gradients['w'][0].asnumpy() == 1).all()


def test_sparse_batches_of_one_shape_cost_what_they_have():
    store = Store(500)
    for count, left in ((1, 500 - 12 - 88), (8, 500 - 12 - 88 - 8 * 12 - 88)):
        data = mx.nd.array(np.eye(10)[:, :10] * (np.arange(10) < count)).tostype('csr')
        add(store, mx.io.DataBatch([data], None))
        assert store._left == left


def test_gradients_of_padded_batches_make_room_too():
    problem = Problem('perceptron', rows=37)
    expected = problem.svrg()
    expected.take_snapshot()
    for budget in range(8 * cost_of_batch(problem), 8 * cost_of_batch(problem)
                        + 6 * cost_of_gradient(problem), cost_of_gradient(problem) // 2):
        module = problem.bound(store_snapshot_grads=budget)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', UserWarning)
            module.update_full_grads(mx.io.ResizeIter(problem.iterator(), 8))
        problem.assert_full_gradient(module, expected.full_gradient)
        assert len(module._svrg.store.batches) == 8


@pytest.mark.parametrize('reuses', [False, True])
def test_data_are_copied_where_they_might_change(monkeypatch, reuses):
    problem, asked, held = Problem(rows=37), [], passes.held
    monkeypatch.setattr(passes, 'held', lambda batch, copies: (
        asked.append(copies), held(batch, copies))[1])
    train_data = ReusingIter(problem.features, problem.targets, 10, label_name='label') if (
        reuses) else problem.iterator()
    problem.bound(store_snapshot_grads=True).update_full_grads(train_data)
    assert asked == 4 * [reuses]


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_what_is_held_of_a_padded_batch_has_no_padding(context):
    problem = Problem(rows=37)
    module = problem.bound(context=context, store_snapshot_grads=True)
    train_data = problem.iterator()
    module.update_full_grads(train_data)
    batches = module.training_batches(train_data)
    assert sorted((len(batch.data[0]), len(batch.label[0]), batch.pad) for batch in batches) == [
        (7, 7, 0), (10, 10, 0), (10, 10, 0), (10, 10, 0)]


def test_it_is_said_what_is_not_held():
    said, data = [], object()
    store = Store(10)
    assert store.lacks(data)
    add(store, mx.io.DataBatch([mx.nd.ones((2, 2))], None))
    store.complete(data, 3, lambda *arguments: said.append(arguments))
    assert said == [('store_snapshot_grads: the first 1 of 3 batches are more than 10 bytes of '
                     'data alone: none is stored until the next snapshot', 'nothing stored')]
    assert store.shuffled(data, None) is None and not store.lacks(data)
    del said[:]
    store = Store(24)
    add(store, mx.io.DataBatch([mx.nd.ones((2, 2))], None), {'w': [mx.nd.ones((3,))]})
    store.complete(data, 1, lambda *arguments: said.append(arguments))
    assert said == [('store_snapshot_grads: 24 bytes have room for all 1 batches and the gradients '
                     'of 0: the others are computed again at each step', 'not all stored')]
    assert store.shuffled(data, None) == [stored.batch for stored in store.batches]
    del said[:]
    store = Store(24)
    add(store, mx.io.DataBatch([mx.nd.ones((2, 2))], None))  # computed as one with others
    store.complete(data, 1, lambda *arguments: said.append(arguments))
    assert not said and len(store.batches) == 1


def test_default_budget_is_a_gibibyte():
    assert Store(True).budget == 2 ** 30
    assert Store(False).budget == 0 and Store(1).budget == 1


@pytest.mark.sizes_count
@pytest.mark.parametrize('rows', [40, 47])
def test_batches_that_are_computed_as_one_keep_no_gradients(rows, recwarn):
    """To compute these again is faster. Steps take the same batches until the next snapshot."""
    problem = Problem('softmax', rows=rows)
    module = problem.module(2, store_snapshot_grads=True)
    steps = train(problem, module, 5, problem.iterator(shuffle=True))
    store = module._svrg.store
    assert len(store.batches) == -(-rows // 10) and store.num_with_gradients == 0
    problem.assert_weights(module, expect(problem, steps, 2).weights)
    for first, second in ((0, 1), (2, 3)):
        assert sorted(map(tuple, steps[first])) == sorted(map(tuple, steps[second]))
    assert not recwarn


@pytest.mark.sizes_count
def test_a_few_large_batches_keep_their_gradients():
    problem = Problem('softmax', rows=30)
    module = problem.bound(store_snapshot_grads=True)
    module.update_full_grads(problem.iterator())
    assert module._svrg.store.num_with_gradients == len(module._svrg.store.batches) == 3

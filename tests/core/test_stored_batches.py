"""What is held of batches and gradients within the bytes that are given."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from held_batches import ReusingIter, cost_of_batch, cost_of_gradient
from problems import Problem
from svrg_optimization import SVRGModule
from svrg_optimization.core.stored_batches import StoredBatches, StoredGradients
from svrg_optimization.mxnet_bridge.storage import bytes_of

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def test_the_budget_is_kept(runs):
    problem = Problem('perceptron', rows=200)
    for budget in range(1, 30000, 3300):
        module = problem.bound(store_snapshot_grads=budget)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', UserWarning)
            module.update_full_grads(problem.iterator())
        held = module._svrg.stored.latest.batches if module._svrg.stored.latest else []
        total = sum(bytes_of(array) for batch in held for array in batch.data + batch.label)
        total += sum(bytes_of(array) for batch in held for arrays in
                     (batch.at_snapshot or {}).values() for array in arrays)
        assert total <= budget
        if held:
            room = budget - total
            stored = sum(batch.at_snapshot is not None for batch in held)
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
    assert module._svrg.stored.latest is None


def test_sparse_arrays_cost_their_values_and_indices():
    """Values of 4 bytes and indices of 8; of csr the ends of the rows too."""
    dense = mx.nd.array([[1, 0, 2], [0, 0, 0]])
    assert bytes_of(dense) == 6 * 4 and bytes_of(dense.astype('float64')) == 6 * 8
    assert bytes_of(dense.tostype('csr')) == 2 * 4 + 2 * 8 + 3 * 8
    assert bytes_of(dense.tostype('row_sparse')) == 3 * 4 + 8


class Copies:
    """Copy gradients as a FullGradient does."""

    def copies_of(self, batches):
        return [{name: [array.copy() for array in arrays] for name, arrays in gradients.items()}
                for gradients in batches]


def test_gradients_go_where_data_need_their_room():
    """Data of 24 bytes a batch and gradients of 8: the latter go where data need their room."""
    made = [mx.io.DataBatch([mx.nd.ones((2, 2))], [mx.nd.ones((2,))], pad) for pad in (0, 1, 0, 0)]
    gradients = {'w': [mx.nd.ones((2,))]}
    held = StoredBatches(24 + 8 + 24 + 24, Copies())
    assert held.exceeded_at is None and held.batches == []
    kept = []
    for number, batch in enumerate(made[:3]):
        kept.append(held.add(batch, copies=number == 1))
        held.store(kept[-1:], [gradients])
        expected = [[True], [True, True], [True, False, False]][number]
        assert [one.at_snapshot is not None for one in kept] == expected
        assert held.num_with_gradients == sum(expected) and held.batches == kept
    assert [one.at_snapshot for one in kept[1:]] == [None, None]
    assert [batch.pad for batch in kept] == [0, 1, 0]
    assert [one.data[0] is batch.data[0] for one, batch in zip(kept, made)] == [True, False, True]
    assert [one.label[0] is batch.label[0] for one, batch in zip(kept, made)] == [True, False, True]
    for one in kept:
        assert one.full_gradient is held._full_gradient
        assert (one.data[0].asnumpy() == 1).all() and (one.label[0].asnumpy() == 1).all()
    latest = held.add(made[3], copies=True)
    assert held.exceeded_at == 4 and held.batches == [] and held.num_with_gradients == 0
    assert latest.data[0] is not made[3].data[0]
    held.store([latest], [gradients])
    later = held.add(made[0], copies=True)
    assert later.data[0] is made[0].data[0]  # nobody is to keep it
    assert latest.at_snapshot is None and held.exceeded_at == 4


def test_sparse_batches_of_one_shape_cost_what_they_have():
    held = StoredBatches(500, Copies())
    for count, left in ((1, 500 - 12 - 88), (8, 500 - 12 - 88 - 8 * 12 - 88)):
        data = mx.nd.array(np.eye(10)[:, :10] * (np.arange(10) < count)).tostype('csr')
        held.add(mx.io.DataBatch([data], None), copies=False)
        assert held._left == left


def test_gradients_of_padded_batches_make_room_too():
    """A padded batch's are summed at once, and the others' when they go or the pass ends."""
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
        assert len(module._svrg.stored.latest.batches) == 8


@pytest.mark.parametrize('reuses, copies', [(False, [False, False, False, True]),
                                            (True, [True, True, True, True])])
def test_data_are_copied_where_they_might_change(monkeypatch, reuses, copies):
    """Or where they are a part of the padded batch, whose memory they would keep."""
    problem, asked = Problem(rows=37), []
    add = StoredBatches.add
    monkeypatch.setattr(StoredBatches, 'add', lambda held, batch, copies: (
        asked.append(copies), add(held, batch, copies))[1])
    train_data = ReusingIter(problem.features, problem.targets, 10, label_name='label') if (
        reuses) else problem.iterator()
    problem.bound(store_snapshot_grads=True).update_full_grads(train_data)
    assert asked == copies


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
    holding = StoredGradients(10)
    assert holding.lacks(data)
    held = holding.begin(Copies())
    held.add(mx.io.DataBatch([mx.nd.ones((2, 2))], None), copies=False)
    holding.keep(held, 3, data, lambda *arguments: said.append(arguments))
    assert said == [('store_snapshot_grads: the first 1 of 3 batches are more than 10 bytes of '
                     'data alone: none is stored until the next snapshot', 'nothing stored')]
    assert holding.shuffled(data, None) is None and not holding.lacks(data)
    del said[:]
    holding = StoredGradients(24)
    held = holding.begin(Copies())
    held.add(mx.io.DataBatch([mx.nd.ones((2, 2))], None), copies=False)
    holding.keep(held, 1, data, lambda *arguments: said.append(arguments))
    assert said == [('store_snapshot_grads: 24 bytes have room for all 1 batches and the gradients '
                     'of 0: the others are computed again at each step', 'not all stored')]
    assert holding.shuffled(data, None) == held.batches


def test_the_default_budget_is_a_gibibyte():
    assert StoredGradients(True).budget == 2 ** 30
    assert StoredGradients(False).budget == 0 and StoredGradients(1).budget == 1
    assert StoredGradients(False).begin(None) is None

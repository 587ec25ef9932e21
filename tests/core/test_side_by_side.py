"""Gradients of small stored batches are computed by copies of the network side by side."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from held_batches import cost_of_batch, cost_of_gradient, expect, rows_of, train
from pairs import in_pairs
from problems import Problem
from svrg_optimization import SVRGModule


@in_pairs({
    'kind': ['linear', 'perceptron'],
    'rows': [370, 373],
    'stored': [37, 20, 16, 3]})
def test_small_batches_are_computed_side_by_side(runs, runs_side_by_side, kind, rows, stored):
    problem = Problem(kind, rows=rows)
    budget = rows * cost_of_batch(problem, 1) + stored * cost_of_gradient(problem)
    module = problem.module(1, store_snapshot_grads=budget)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)
        steps = train(problem, module, 2, problem.iterator())
    svrg = expect(problem, steps, 1)
    problem.assert_weights(module, svrg.weights)
    assert module._snapshot.full_gradient.rows == rows
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert runs_side_by_side == 2 * [12, 12, 12]
    assert len(runs) == 2 * (len(steps[0]) - stored)


@pytest.mark.parametrize('batch_size, batches, expected', [
    (20, 13, [12]), (42, 13, [6, 6]), (50, 13, [])])
def test_batches_of_two_mebibytes_are_computed_side_by_side(runs_side_by_side, batch_size,
                                                            batches, expected):
    """With 2000 features a row has 8 kB."""
    problem = Problem('perceptron', rows=batches * batch_size, features=2000)
    problem.weights['hidden_weight'] /= 30  # or all hidden units are saturated
    module = problem.bound(batch_size, store_snapshot_grads=True)
    module.update_full_grads(problem.iterator(batch_size))
    svrg = problem.svrg(batch_size)
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert runs_side_by_side == expected


def test_copies_side_by_side_follow_the_snapshot(runs_side_by_side):
    problem = Problem('perceptron', rows=160)
    module = problem.bound(store_snapshot_grads=True)
    svrg = problem.svrg()
    rng = np.random.RandomState(0)
    for _ in range(3):
        weights = {name: rng.normal(size=value.shape) for name, value in svrg.weights.items()}
        module.set_params({name: mx.nd.array(value) for name, value in weights.items()}, {})
        module.update_full_grads(problem.iterator())
        held = module._svrg.stored.latest.batches
        assert len(held) == 16
        for batch in held:
            expected = svrg.gradients(weights, rows_of(problem, batch))
            for name, value in expected.items():
                np.testing.assert_allclose(batch.at_snapshot[name][0].asnumpy(), value,
                                           rtol=1e-5, atol=1e-5)
    assert runs_side_by_side == [16, 16, 16]


def test_as_many_copies_as_pay_run_side_by_side(runs_side_by_side):
    """Seven runs of five copies would be the fewest, but would take longer than alone."""
    problem = Problem('linear', rows=35 * 600, features=134)
    module = problem.bound(600, store_snapshot_grads=True)
    module.update_full_grads(problem.iterator(600))
    svrg = problem.svrg(600)
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert runs_side_by_side == 5 * [6]


def test_as_many_run_side_by_side_as_suit_the_batches_that_are_bound(runs_side_by_side):
    problem = Problem('linear', rows=240, features=4000)
    module = problem.bound(40, store_snapshot_grads=True)
    for batch_size, expected in ((40, []), (20, [6, 6]), (10, [12, 12]), (40, [])):
        train_data = problem.iterator(batch_size)
        module.bind(train_data.provide_data, train_data.provide_label, force_rebind=True)
        module.update_full_grads(train_data)
        assert runs_side_by_side == expected
        runs_side_by_side.clear()


def test_the_number_of_copies_side_by_side_may_change(runs_side_by_side):
    module = Problem('perceptron', rows=160).bound(store_snapshot_grads=True)
    for rows in (70, 130, 50, 70):
        problem = Problem('perceptron', rows=rows)
        module.set_params(problem.arg_params(), {})
        module.update_full_grads(problem.iterator())
        svrg = problem.svrg()
        svrg.take_snapshot()
        problem.assert_full_gradient(module, svrg.full_gradient)
        assert module._svrg.stored.latest.num_with_gradients == rows // 10
    assert runs_side_by_side == [7, 13, 7]


def test_an_input_may_be_called_name(runs_side_by_side):
    rows = np.random.RandomState(0).normal(size=(160, 3))
    loss = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(
        mx.sym.Variable('name'), num_hidden=1), mx.sym.Variable('label'))
    module = SVRGModule(loss, ('name',), ('label',), update_freq=1, store_snapshot_grads=True)
    module.fit(mx.io.NDArrayIter(rows, rows.sum(axis=1), 10, data_name='name',
                                 label_name='label'), eval_metric='mse', num_epoch=1)
    assert not runs_side_by_side and module._svrg.stored.latest.num_with_gradients == 16


def test_auxiliary_states_see_one_batch_after_the_other(runs_side_by_side):
    rows = np.random.RandomState(0).normal(size=(160, 3))
    loss = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.BatchNorm(
        mx.sym.Variable('data'), fix_gamma=False), num_hidden=1), mx.sym.Variable('label'))
    module = SVRGModule(loss, label_names=('label',), update_freq=1, store_snapshot_grads=True)
    train_data = mx.io.NDArrayIter(rows, rows.sum(axis=1), 10, label_name='label')
    module.fit(train_data, eval_metric='mse', num_epoch=1)
    assert not runs_side_by_side and len(module._svrg.stored.latest.batches) == 16

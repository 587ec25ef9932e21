"""Small batches of a pass are computed as one."""

import mxnet as mx
import numpy as np
import pytest

from full_gradients import ShortBatches, full_gradient, randomize
from pairs import in_pairs
from problems import CsrIter, Problem, SparseProblem
from svrg_optimization.module import executors

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@in_pairs({
    'grad_req': ['write', 'add'],
    'kind': ['linear', 'softmax', 'perceptron'],
    'rows, runs': [
        (19, []), (25, [2]), (150, [15]), (160, [16]), (373, 3 * [12]), (480, 3 * [16])]})
def test_small_batches_are_computed_as_one(merged, kind, rows, runs, grad_req):
    problem = Problem(kind, rows=rows)
    module = problem.bound(grad_req=grad_req)
    for seed in range(2):
        weights = randomize(module, problem, seed)
        module.update_full_grads(problem.iterator())
        problem.assert_full_gradient(module, full_gradient(problem, weights, np.arange(rows)))
        full = module._snapshot.full_gradient
        assert (full.rows, full.batches, full.yielded) == (
            rows, -(-rows // 10), -(-rows // 10))
    assert merged == 2 * runs


def test_the_number_of_batches_computed_as_one_may_change(merged, capfd):
    problem = Problem('softmax', rows=130)
    module = problem.bound()
    for batches, runs in ((3, [3]), (None, [13]), (5, [5]), (1, []), (None, [13])):
        module.full_grad_batches = batches
        module.update_full_grads(problem.iterator())
        problem.assert_full_gradient(module, full_gradient(
            problem, problem.weights, np.arange(10 * (batches or 13))))
        assert merged == runs
        merged.clear()
    assert 'Need to re-allocate' not in capfd.readouterr().err  # as MXNet would print


@pytest.mark.parametrize('stored', [False, True])
def test_batches_on_another_device_are_joined_there(monkeypatch, stored):
    """The data of an NDArrayIter are on the CPU. An operation needs all arrays on one device."""
    concat, devices = mx.nd.concat, []

    def recorded(*arrays, **kwargs):
        devices.append({array.context for array in (*arrays, kwargs.get('out', arrays[0]))})
        return concat(*arrays, **kwargs)

    monkeypatch.setattr(mx.nd, 'concat', recorded)
    problem = Problem('softmax', rows=130)
    module = problem.bound(context=mx.cpu(1), store_snapshot_grads=stored)
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(130)))
    assert all(found == {mx.cpu(0)} for found in devices)


@pytest.mark.parametrize('batch_size, expected', [(20, [3] * 4), (30, [2] * 4), (50, [])])
def test_batches_of_two_mebibytes_are_computed_as_one(merged, batch_size, expected):
    """With 8000 features a row has 32 kB."""
    problem = Problem('perceptron', rows=267, features=8000)
    problem.weights['hidden_weight'] /= 50  # or all hidden units are saturated
    module = problem.bound(batch_size)
    module.update_full_grads(problem.iterator(batch_size))
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(267),
                                                       batch_size))
    assert merged == expected


def test_as_many_are_computed_as_one_as_suit_the_batches_that_are_bound(merged):
    problem = Problem('perceptron', rows=240, features=8000)
    problem.weights['hidden_weight'] /= 50
    module = problem.bound(30)
    for batch_size, expected in ((30, [2] * 4), (15, [4] * 4), (30, [2] * 4)):
        train_data = problem.iterator(batch_size)
        module.bind(train_data.provide_data, train_data.provide_label, force_rebind=True)
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, full_gradient(problem, problem.weights,
                                                           np.arange(240), batch_size))
        assert merged == expected
        merged.clear()


class OverwrittenBatches(CsrIter):
    """Csr batches in the same arrays, as an iterator may yield them."""

    batch = None

    def next(self):
        batch = super().next()
        self.batch = self.batch or batch
        for array, ours in zip(batch.data + batch.label, self.batch.data + self.batch.label):
            if array is not ours:
                array.copyto(ours)
        self.batch.pad = batch.pad
        return self.batch


@pytest.mark.parametrize('settings, size, expected', [
    ({}, 1 << 21, [16, 16]), ({}, 1 << 11, [3] * 11), ({'store_snapshot_grads': True}, 1 << 21, []),
    ({'sparse_full_grad': True}, 1 << 21, [])])
def test_csr_batches_are_computed_as_one(merged, monkeypatch, settings, size, expected):
    monkeypatch.setattr(executors, '_BYTES_AT_ONCE', size)
    problem = SparseProblem(337)
    module = problem.bound(**settings)
    module.update_full_grads(OverwrittenBatches(problem.features, problem.targets, 10))
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(337)))
    assert merged == expected


def other_size_of_batch(problem):
    """The data are bound in batches of 20, and not of 10."""
    return problem.bound(batch_size=20), problem.iterator()


def other_dtype(problem):
    data = mx.nd.array(problem.features, dtype='float64')
    return problem.bound(), mx.io.NDArrayIter(data, problem.targets, 10, label_name='label')


def mean_over_the_batch(problem):
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'), normalization='batch')
    return problem.bound(), problem.iterator()


def with_a_layer_over_the_rows(problem):
    """A layer that is not known to compute each row by itself."""
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(scores * 1, mx.sym.Variable('label'))
    return problem.bound(), problem.iterator()


@pytest.mark.parametrize('make, units', [
    (other_size_of_batch, 20), (other_dtype, 10), (mean_over_the_batch, 1),
    (with_a_layer_over_the_rows, 10),
    (lambda problem: (problem.bound(context=TWO_DEVICES), problem.iterator()), 10),
    (lambda problem: (problem.bound(), ShortBatches(problem)), 10)])
def test_batches_are_not_computed_as_one_where_results_would_differ(merged, make, units):
    problem = Problem('softmax', rows=330)
    module, train_data = make(problem)
    module.update_full_grads(train_data)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(330),
                                                       units))
    assert not merged


def test_rows_as_weights_are_not_merged(merged):
    """Each row of the product has all rows of the batch in it."""
    data = mx.sym.Variable('data')
    problem = Problem('softmax', rows=320)
    product = mx.sym.FullyConnected(data, weight=data, no_bias=True, num_hidden=10)
    scores = mx.sym.FullyConnected(product, num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'))
    problem.weights['fc_weight'] = 0.1 * np.random.RandomState(0).normal(size=(3, 10))
    module = problem.bound()
    module.update_full_grads(problem.iterator())
    blocks = problem.features.reshape(-1, 10, 4)
    problem.features = (blocks @ blocks.transpose(0, 2, 1)).reshape(-1, 10)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(320)))
    assert not merged


def with_loss_of_weights_alone():
    """Its second term counts once for each batch, whatever its rows are."""
    problem = Problem(rows=320)
    weight = mx.sym.Variable('fc_weight', shape=(1, 4))
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), weight=weight, num_hidden=1, name='fc')
    pull = mx.sym.LinearRegressionOutput(weight, mx.sym.Variable('zero', shape=(1, 4)),
                                         grad_scale=20)
    problem.symbol = mx.sym.Group([
        mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')), pull])
    network = problem.network

    def with_pull(weights, features, targets):
        gradients = network(weights, features, targets)
        # MXNet divides a regression's gradient by the outputs of a row.
        batches = len(features) / 10
        return {**gradients, 'fc_weight': gradients['fc_weight'] + batches * 20 / 4
                * weights['fc_weight']}

    problem.network = with_pull
    return problem


def test_batches_are_not_merged_where_a_loss_has_no_rows(merged):
    problem = with_loss_of_weights_alone()
    module = problem.module(fixed_param_names=['zero'])
    iterator = problem.iterator()
    module.bind(iterator.provide_data, iterator.provide_label)
    module.init_params(arg_params={**problem.arg_params(), 'zero': mx.nd.zeros((1, 4))})
    module.update_full_grads(iterator)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(320)))
    assert not merged

"""Small batches of a pass are computed as one."""

import json

import mxnet as mx
import numpy as np
import pytest

from full_gradients import ShortBatches, assert_pass, full_gradient, randomize
from pairs import in_pairs
from problems import TWO_DEVICES, CsrIter, Problem, SparseProblem
from svrg_optimization.module import executors
from svrg_optimization.module.executors import Executors
from svrg_optimization.module.loss_reduction import is_row_wise


@pytest.fixture
def merged(monkeypatch):
    """List how many batches each run of several has."""
    counts, run = [], Executors.run

    def counted(executors, module, batch, *others):
        if getattr(batch, 'number', 1) > 1:
            counts.append(batch.number)
        return run(executors, module, batch, *others)

    monkeypatch.setattr(Executors, 'run', counted)
    return counts


@in_pairs({
    'grad_req': ['write', 'add'],
    'kind': ['linear', 'softmax', 'perceptron'],
    'rows, runs': [(19, []), (25, [2]), (160, [16]), (175, [17]), (973, 2 * [48])]})
def test_small_batches_are_computed_as_one(merged, kind, rows, runs, grad_req):
    problem = Problem(kind, rows=rows)
    module = problem.bound(grad_req=grad_req)
    for seed in range(2):
        assert_pass(problem, module, weights=randomize(module, problem, seed))
        full = module._snapshot.full_gradient
        assert (full.rows, full.batches) == (rows, -(-rows // 10))
    assert merged == 2 * runs


def test_the_number_of_batches_computed_as_one_may_change(merged, capfd):
    problem = Problem('softmax', rows=130)
    module = problem.bound(context=mx.cpu(1))  # the data are on another device
    for batches, runs in ((3, [3]), (None, [13]), (5, [5]), (1, []), (None, [13])):
        module.full_grad_batches = batches
        assert_pass(problem, module, rows=batches and 10 * batches)
        assert merged == runs
        merged.clear()
    assert 'Need to re-allocate' not in capfd.readouterr().err  # as MXNet would print


def test_batches_of_eight_mebibytes_are_computed_as_one(merged):
    """With 8000 features a row has 32 kB, beside which its few hidden units are nothing."""
    problem = Problem('perceptron', rows=1030, features=8000)
    problem.weights['hidden_weight'] /= 50  # or all hidden units are saturated
    module = problem.bound(30)
    for batch_size, expected in ((30, [8] * 4), (15, [17] * 4), (150, [])):
        train_data = problem.iterator(batch_size)
        module.bind(train_data.provide_data, train_data.provide_label, force_rebind=True)
        assert_pass(problem, module, train_data, units=batch_size)
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


def overwritten(problem):
    return OverwrittenBatches(problem.features, problem.targets, 10)


def of_an_ndarray_iter(problem):
    return mx.io.NDArrayIter({'data': mx.nd.array(problem.features).tostype('csr')},
                             {'label': problem.targets}, 10, last_batch_handle='discard')


@pytest.mark.parametrize('rows, make, size, expected', [
    (337, overwritten, 1 << 21, [16, 16]), (337, overwritten, 1 << 11, [3] * 11),
    (330, of_an_ndarray_iter, 1 << 21, [33])])
def test_csr_batches_are_computed_as_one(merged, monkeypatch, rows, make, size, expected):
    monkeypatch.setattr(executors, '_BYTES_AT_ONCE', size)
    problem = SparseProblem(rows)
    assert_pass(problem, problem.bound(), make(problem))
    assert merged == expected


def mean_over_the_batch(scores, label):
    return mx.sym.SoftmaxOutput(scores, label, normalization='batch')


def with_a_layer_that_is_not_known_to_be_row_wise(scores, label):
    return mx.sym.SoftmaxOutput(scores * 1, label)


def in_float64(problem):
    return mx.io.NDArrayIter(mx.nd.array(problem.features, dtype='float64'), problem.targets, 10,
                             label_name='label')


@pytest.mark.parametrize('loss, bound, make, units', [
    (mx.sym.SoftmaxOutput, {'batch_size': 20}, Problem.iterator, 20),
    (mx.sym.SoftmaxOutput, {'context': TWO_DEVICES}, Problem.iterator, 10),
    (mx.sym.SoftmaxOutput, {}, ShortBatches, 10), (mx.sym.SoftmaxOutput, {}, in_float64, 10),
    (mean_over_the_batch, {}, Problem.iterator, 1),
    (with_a_layer_that_is_not_known_to_be_row_wise, {}, Problem.iterator, 10)])
def test_batches_are_not_computed_as_one_where_results_would_differ(merged, loss, bound, make,
                                                                    units):
    """Among them batches of other rows than are bound, and of another dtype."""
    problem = Problem('softmax', rows=330)
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    problem.symbol = loss(scores, mx.sym.Variable('label'))
    assert_pass(problem, problem.bound(**bound), make(problem), units=units)
    assert not merged


@pytest.mark.parametrize('loss', [
    mx.sym.SoftmaxOutput, mx.sym.LinearRegressionOutput, mx.sym.SVMOutput,
    mx.sym.LogisticRegressionOutput, mx.sym.MAERegressionOutput])
def test_rows_of_which_no_layer_mixes_two_are_known(merged, loss):
    layer = mx.sym.Flatten(mx.sym.Activation(mx.sym.Variable('data'), act_type='relu'))
    outputs = 2 if loss in (mx.sym.SoftmaxOutput, mx.sym.SVMOutput) else 1
    output = mx.sym.FullyConnected(layer, num_hidden=outputs, name='fc')
    problem = Problem('linear' if outputs == 1 else 'softmax', rows=320, classes=outputs)
    problem.targets = problem.targets > 0
    problem.symbol = loss(output, mx.sym.Variable('label'))
    problem.bound().update_full_grads(problem.iterator())
    assert merged == [32]


def test_rows_as_weights_and_labels_that_are_parameters_are_not_row_wise():
    data, inputs = mx.sym.Variable('data'), {'data': (8, 4), 'label': (8,)}
    for weight, given, expected in ((None, inputs, True), (data, inputs, False),
                                    (None, {'data': (8, 4)}, False)):
        scores = mx.sym.FullyConnected(data, weight=weight, no_bias=True, num_hidden=8)
        symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'))
        assert is_row_wise(json.loads(symbol.tojson())['nodes'], given) == expected


def test_batches_are_not_merged_where_a_loss_has_no_rows(merged):
    """Its second term counts once for each batch, whatever its rows are."""
    problem = Problem(rows=320)
    weight = mx.sym.Variable('fc_weight', shape=(1, 4))
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), weight=weight, num_hidden=1, name='fc')
    problem.symbol = mx.sym.Group([
        mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')),
        mx.sym.LinearRegressionOutput(weight, mx.sym.Variable('zero', shape=(1, 4)),
                                      grad_scale=20)])
    module = problem.module(fixed_param_names=['zero'])
    iterator = problem.iterator()
    module.bind(iterator.provide_data, iterator.provide_label)
    module.init_params(arg_params={**problem.arg_params(), 'zero': mx.nd.zeros((1, 4))})
    module.update_full_grads(iterator)
    expected = full_gradient(problem, problem.weights, np.arange(320))
    # MXNet divides a regression's gradient by the outputs of a row.
    expected['fc_weight'] = expected['fc_weight'] + 20 / 4 * problem.weights['fc_weight']
    problem.assert_full_gradient(module, expected)
    assert not merged

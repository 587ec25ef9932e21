"""Small batches of a pass are computed as one."""

import functools

import mxnet as mx
import numpy as np
import pytest

from full_gradients import assert_pass, full_gradient, randomize, short_batches
from pairs import in_pairs
from problems import TWO_DEVICES, CsrIter, Problem, SparseProblem, prepared
from svrg_optimization.module.executors import Executors


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


def test_a_pass_does_not_copy_batches(monkeypatch):
    problem = Problem(rows=40)
    module, train_data = problem.bound(), problem.iterator()
    monkeypatch.delattr(mx.io.NDArrayIter, 'getdata')
    module.update_full_grads(train_data)


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


def test_csr_batches_are_computed_as_one(merged):
    problem = SparseProblem(337)
    assert_pass(problem, problem.bound(), OverwrittenBatches(problem.features, problem.targets, 10))
    assert merged == [16, 16]


def in_float64(problem):
    return mx.io.NDArrayIter(mx.nd.array(problem.features, dtype='float64'), problem.targets, 10,
                             label_name='label')


@pytest.mark.parametrize('loss, bound, make, units', [
    (mx.sym.SoftmaxOutput, {'batch_size': 20}, Problem.iterator, 20),
    (mx.sym.SoftmaxOutput, {'context': TWO_DEVICES}, Problem.iterator, 10),
    (mx.sym.SoftmaxOutput, {}, short_batches, 10), (mx.sym.SoftmaxOutput, {}, in_float64, 10),
    (functools.partial(mx.sym.SoftmaxOutput, normalization='batch'), {}, Problem.iterator, 1),
    # A layer that is not known to be row-wise:
    (lambda scores, label: mx.sym.SoftmaxOutput(scores * 1, label), {}, Problem.iterator, 10)])
def test_batches_are_not_computed_as_one_where_results_would_differ(merged, loss, bound, make,
                                                                    units):
    """Among them batches of other rows than are bound, and of another dtype."""
    problem = Problem('softmax', rows=330)
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    problem.symbol = loss(scores, mx.sym.Variable('label'))
    assert_pass(problem, problem.bound(**bound), make(problem), units=units)
    assert not merged


def test_batches_are_not_merged_where_rows_meet_rows(merged):
    problem = Problem('softmax', rows=320, classes=10)
    scores = problem.symbol.get_internals()['fc_output']
    problem.symbol = mx.sym.SoftmaxOutput(mx.sym.dot(scores, scores, transpose_b=True),
                                          mx.sym.Variable('label'))
    problem.bound().update_full_grads(problem.iterator())
    assert not merged


def test_batches_are_not_merged_where_a_loss_has_no_rows(merged):
    """Its second term counts once for each batch, whatever its rows are."""
    problem = Problem(rows=320)
    weight = mx.sym.Variable('fc_weight', shape=(1, 4))
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), weight=weight, num_hidden=1, name='fc')
    problem.symbol = mx.sym.Group([
        mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')),
        mx.sym.LinearRegressionOutput(weight, mx.sym.Variable('zero', shape=(1, 4)),
                                      grad_scale=20)])
    module = prepared(problem.module(fixed_param_names=['zero']), problem.iterator(),
                      {**problem.arg_params(), 'zero': mx.nd.zeros((1, 4))})
    module.update_full_grads(problem.iterator())
    expected = full_gradient(problem, problem.weights, np.arange(320))
    # MXNet divides a regression's gradient by the outputs of a row.
    expected['fc_weight'] = expected['fc_weight'] + 20 / 4 * problem.weights['fc_weight']
    problem.assert_full_gradient(module, expected)
    assert not merged

"""The variance of plain and of SVRG gradients, against float64."""

import logging
import re

import mxnet as mx
import numpy as np
import pytest

import oracle
from pairs import in_pairs
from problems import Problem, SparseProblem
from svrg_optimization import LinearDecay
from svrg_optimization.diagnostics import VarianceCallback, gradient_variance

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5}


def expected_variance(problem, svrg, alpha=1.0, batch_size=10):
    """Return the trace of the covariance over batches by parameter, plain and of SVRG."""
    gradients = {}
    for rows in oracle.batches_of(len(problem.features), batch_size):
        now = svrg.gradients(svrg.weights, rows)
        then = svrg.gradients(svrg.snapshot, rows)
        for name in now:
            reduced = now[name] - alpha * (then[name] - svrg.full_gradient[name])
            gradients.setdefault(name, []).append((now[name], reduced))
    return {name: [np.var([pair[kind] for pair in pairs], axis=0).sum() for kind in (0, 1)]
            for name, pairs in gradients.items()}


def expected_best_alpha(problem, svrg):
    """Return Cov(gradient now, gradient at the snapshot) / Var(gradient at the snapshot)."""
    now, then = (
        np.array([np.concatenate([value.ravel() for _, value in sorted(
            svrg.gradients(weights, rows).items())])
            for rows in oracle.batches_of(len(problem.features), 10)])
        for weights in (svrg.weights, svrg.snapshot))
    now, then = now - now.mean(axis=0), then - then.mean(axis=0)
    return (now * then).sum() / (then * then).sum()


def assert_variance(found, expected):
    assert set(found.by_parameter) == set(expected)
    for name, (plain, svrg) in expected.items():
        np.testing.assert_allclose(found.by_parameter[name].plain, plain, rtol=1e-5)
        np.testing.assert_allclose(found.by_parameter[name].svrg, svrg, rtol=1e-5, atol=1e-10)
    np.testing.assert_allclose(found.plain, sum(pair[0] for pair in expected.values()), rtol=1e-5)
    np.testing.assert_allclose(found.svrg, sum(pair[1] for pair in expected.values()), rtol=1e-5,
                               atol=1e-10)


def trained(problem, **kwargs):
    """Return a module between two snapshots, and its twin in float64."""
    module = problem.fit(problem.module(2, **kwargs), 3, optimizer_params=SETTINGS)
    svrg = problem.svrg(**SETTINGS)
    svrg.fit(3, 2)
    return module, svrg


@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'],
    'rows': [40, 37],
    'context': [mx.cpu(), TWO_DEVICES],
    'alpha, value': [(1, 1), (0.4, 0.4), (0, 0), (LinearDecay(1, 24), 0.5), (lambda _: 0.0, 0)]})
def test_it_is_the_variance_over_batches(kind, rows, context, alpha, value):
    problem = Problem(kind, rows=rows)
    module, svrg = trained(problem, context=context)
    module.alpha = alpha
    found = gradient_variance(module, problem.iterator())
    assert_variance(found, expected_variance(problem, svrg, value))
    if alpha == 0:  # nothing is computed at the snapshot
        assert np.isnan(found.best_alpha) and found.svrg == found.plain
    else:
        np.testing.assert_allclose(found.best_alpha, expected_best_alpha(problem, svrg), rtol=1e-5)


class BatchesOf:
    """An iterator over batches of the sizes that are given."""

    def __init__(self, problem, sizes):
        self.problem, self.sizes = problem, sizes

    def reset(self):
        pass

    def __iter__(self):
        begin = 0
        for size in self.sizes:
            rows = np.arange(begin, begin + size)
            begin += size
            yield mx.io.DataBatch([mx.nd.array(self.problem.features[rows])],
                                  [mx.nd.array(self.problem.targets[rows])], pad=0)


def test_best_alpha_counts_the_rows_of_batches_of_several_sizes():
    """The full gradient that `alpha` multiplies is in the units of each batch's rows."""
    problem = Problem('softmax', rows=40)
    module, svrg = trained(problem)
    sizes = [10, 7, 10, 10, 3]
    now, corrections, begin = [], [], 0
    for size in sizes:
        rows = np.arange(begin, begin + size)
        begin += size
        gradients = svrg.gradients(svrg.weights, rows)
        then = svrg.gradients(svrg.snapshot, rows)
        now.append(np.concatenate([gradients[name].ravel() for name in sorted(gradients)]))
        corrections.append(np.concatenate([
            (then[name] - size / 10 * svrg.full_gradient[name]).ravel() for name in sorted(then)]))
    now, corrections = np.array(now), np.array(corrections)
    corrections -= corrections.mean(axis=0)
    expected = ((now - now.mean(axis=0)) * corrections).sum() / (corrections ** 2).sum()
    found = gradient_variance(module, BatchesOf(problem, sizes))
    np.testing.assert_allclose(found.best_alpha, expected, rtol=1e-5)


def test_a_batch_alone_has_no_best_alpha():
    problem = Problem(rows=40)
    assert np.isnan(gradient_variance(trained(problem)[0], BatchesOf(problem, [10])).best_alpha)


def test_nothing_varies_at_the_snapshot_with_svrg():
    problem = Problem('softmax', rows=40)
    module = problem.bound(sgd={})
    module.update_full_grads(problem.iterator())
    found = gradient_variance(module, problem.iterator())
    assert found.svrg < 1e-10
    assert found.plain > 0.1
    np.testing.assert_allclose(found.best_alpha, 1, rtol=1e-6)


def test_best_alpha_is_that_of_the_rows_of_a_batch_with_sparse_full_grad():
    problem = SparseProblem(rows=40)
    module = problem.module(2, sparse_full_grad=True)
    problem.fit(module, 3, kvstore=None, optimizer_params={'learning_rate': 0.05})
    best = gradient_variance(module, problem.iterator()).best_alpha

    def variance(alpha):
        module.alpha = alpha
        return gradient_variance(module, problem.iterator()).svrg

    at_zero, at_half, at_one = (variance(alpha) for alpha in (lambda _: 0.0, 0.5, 1.0))
    curvature = 2 * (at_one - 2 * at_half + at_zero)  # of the parabola through the three
    np.testing.assert_allclose(best, (curvature - (at_one - at_zero)) / (2 * curvature), rtol=1e-4)


def normalized():
    layer = mx.sym.BatchNorm(mx.sym.Variable('data'), fix_gamma=False, name='bn')
    return mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(layer, num_hidden=1, name='fc'),
                                         mx.sym.Variable('label'))


@pytest.mark.parametrize('batch_size', [10, 7])
@pytest.mark.parametrize('grad_req', ['write', 'add'])
def test_a_measurement_leaves_training_as_it_is(batch_size, grad_req):
    """A measurement between two steps changes no bit of what follows, whatever the batches."""
    problem = Problem(rows=40)
    problem.symbol = normalized()

    def train(measures):
        mx.random.seed(0)
        module = problem.module(1)
        train_data = problem.iterator()
        module.bind(train_data.provide_data, train_data.provide_label, grad_req=grad_req)
        module.init_params(mx.init.Normal(0.5))
        module.init_optimizer(optimizer_params={'learning_rate': 0.01})
        for _ in range(2):
            module.update_full_grads(train_data)
            train_data.reset()
            for batch in train_data:
                module.forward_backward(batch)
                module.update()
                mx.nd.waitall()
                if measures:
                    gradient_variance(module, problem.iterator(batch_size))
        return [value.asnumpy().tobytes() for values in module.get_params()
                for _, value in sorted(values.items())]

    assert train(True) == train(False)


def test_a_callback_measures_between_epochs_on_the_data_of_the_training(caplog):
    problem = Problem('softmax', rows=37)
    module, plain = problem.module(2), problem.module(2)
    train_data = problem.iterator()
    callback = VarianceCallback(module, train_data)
    with caplog.at_level(logging.INFO):
        module.fit(train_data, eval_metric='acc', num_epoch=4, arg_params=problem.arg_params(),
                   optimizer_params=SETTINGS, epoch_end_callback=callback)
    plain.fit(problem.iterator(), eval_metric='acc', num_epoch=4,
              arg_params=problem.arg_params(), optimizer_params=SETTINGS)
    for name, value in plain.get_params()[0].items():
        assert (value.asnumpy() == module.get_params()[0][name].asnumpy()).all()
    svrg = problem.svrg(**SETTINGS)
    for epoch, variance in callback.history:
        svrg.fit(epoch + 1, 2, begin_epoch=epoch)
        assert_variance(variance, expected_variance(problem, svrg))
    assert [epoch for epoch, _ in callback.history] == [0, 1, 2, 3]
    logged = re.findall(r'Epoch\[(\d+)\] (SVRG-gradient|Gradient)-variance=(\S+)', caplog.text)
    assert [(int(epoch), name) for epoch, name, _ in logged] == [
        (epoch, name) for epoch in range(4) for name in ('Gradient', 'SVRG-gradient')]
    for (_, _, value), (_, variance) in zip(logged[::2], callback.history):
        assert float(value) == pytest.approx(variance.plain, rel=1e-5)


def test_a_module_that_is_not_bound_is_refused():
    problem = Problem(rows=40)
    with pytest.raises(RuntimeError, match='mod must be bound'):
        gradient_variance(problem.module(1), problem.iterator())


@pytest.mark.parametrize('alpha', [1, 0])
def test_a_step_under_way_is_not_lost(alpha):
    problem = Problem('perceptron', rows=40)
    module = problem.bound(alpha=alpha, sgd=SETTINGS)
    module.update_full_grads(problem.iterator())
    train_data = problem.iterator()
    next(train_data)
    module.forward(next(train_data))
    gradient_variance(module, problem.iterator())
    module.backward()
    gradient_variance(module, problem.iterator())
    module.update()
    svrg = problem.svrg(**SETTINGS)
    if alpha:
        svrg.take_snapshot()
    svrg.step(np.arange(10, 20))
    problem.assert_weights(module, svrg.weights)


def test_sparse_weights_of_a_kvstore_are_all_there():
    """In the middle of an epoch the module has only the rows of its batch."""
    problem = SparseProblem(rows=40)
    module = problem.bound()
    module.init_optimizer(kvstore=mx.kv.create('local'), optimizer_params={'learning_rate': 0.1})
    module.update_full_grads(problem.iterator())
    svrg = problem.svrg(learning_rate=0.1)
    svrg.take_snapshot()
    train_data = problem.iterator()
    for number in range(3):
        batch = next(train_data)
        module.prepare(batch, sparse_row_id_fn=lambda batch: {'w': batch.data[0].indices})
        if number:  # the rows of this batch are there, and no others
            assert_variance(gradient_variance(module, problem.iterator()),
                            expected_variance(problem, svrg))
        module.forward_backward(batch)
        module.update()
        svrg.step(np.arange(10 * number, 10 * number + 10))
    problem.assert_weights(module, svrg.weights)

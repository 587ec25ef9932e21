"""The variance of plain and of SVRG gradients, against float64."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from bad_input import Data
from blocks import Blocks
from problems import TWO_DEVICES, Problem, SparseProblem, rows_of_batch
from svrg_optimization import LinearDecay
from svrg_optimization.diagnostics import gradient_variance

SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5}


def assert_variance(found, problem, svrg, alpha=1.0, batches=None, units=1):
    """Check the trace of the covariance over batches, plain and of SVRG, and the best alpha.

    That is Cov(gradient now, correction) / Var(correction). A gradient is in so many `units`.
    """
    batches, now, correction = batches or oracle.batches_of(len(problem.features), 10), {}, {}
    for rows in batches:
        then = svrg.gradients(svrg.snapshot, rows)
        for name, value in svrg.gradients(svrg.weights, rows).items():
            now.setdefault(name, []).append(value.ravel() / units)
            correction.setdefault(name, []).append(
                (then[name] - len(rows) / 10 * svrg.full_gradient[name]).ravel() / units)
    now, correction = (np.hstack([values[name] for name in sorted(values)])
                       for values in (now, correction))
    for value, vectors in ((found.plain, now), (found.svrg, now - alpha * correction)):
        np.testing.assert_allclose(value, np.var(vectors, axis=0).sum(), rtol=1e-5, atol=1e-10)
    if len(batches) == 1:
        assert np.isnan(found.best_alpha)
        return
    correction = correction - correction.mean(axis=0)
    np.testing.assert_allclose(found.best_alpha, (now * correction).sum() / (
        correction ** 2).sum(), rtol=1e-5)


def trained(problem, **kwargs):
    """Return a module between two snapshots, and its twin in float64."""
    module = problem.fit(problem.module(2, **kwargs), 3, optimizer_params=SETTINGS)
    svrg = problem.svrg(**SETTINGS)
    svrg.fit(3, 2)
    return module, svrg


@pytest.mark.parametrize('kind, rows, context', [
    ('linear', 37, mx.cpu()), ('perceptron', 37, TWO_DEVICES)])
def test_it_is_the_variance_over_batches(kind, rows, context):
    problem = Problem(kind, rows=rows)
    module, svrg = trained(problem, context=context)
    for alpha, value in ((1, 1), (0.4, 0.4), (LinearDecay(1, 24), 0.5), (lambda _: 0.0, 0), (0, 0)):
        module.alpha = alpha
        assert_variance(gradient_variance(module, problem.iterator()), problem, svrg, value)


@pytest.mark.parametrize('kind, context, grad_req', [
    ('softmax', mx.cpu(), 'add'), ('perceptron', TWO_DEVICES, 'write')])
def test_gluons_is_that_of_the_mean_over_a_batch(kind, context, grad_req):
    problem, svrg = Blocks(kind, rows=40), Problem(kind, rows=40).svrg(**SETTINGS)
    svrg.fit(3, 2)
    net, loader = problem.net(context), problem.loader(dtype='float64')
    net.cast('float64')
    net.collect_params().setattr('grad_req', grad_req)
    trainer = problem.trainer(net, settings=SETTINGS)
    for epoch in range(3):
        if epoch % 2 == 0:
            trainer.update_full_grads(loader)
        for batch in trainer.training_batches(loader):
            net.collect_params().zero_grad()
            trainer.backward(*batch)
            trainer.step(10)
    params = net.collect_params().values()
    gradients = [param.list_grad()[0].asnumpy() for param in params]
    for alpha in (1, 0.4, 0):
        trainer.alpha = alpha
        assert_variance(gradient_variance(trainer, loader), problem, svrg, alpha, units=10)
    for before, param in zip(gradients, params):
        np.testing.assert_array_equal(param.list_grad()[0].asnumpy(), before)


@pytest.mark.parametrize('sizes', [[10, 7, 10, 10, 3], [10]])
def test_best_alpha_counts_the_rows_of_batches_of_several_sizes(sizes):
    """The full gradient that `alpha` multiplies is in the units of each; one alone has none."""
    problem = Problem('softmax', rows=40)
    module, svrg = trained(problem)
    batches = [np.arange(end - size, end) for size, end in zip(sizes, np.cumsum(sizes))]
    data = Data(*(problem.batch(rows, pad=0) for rows in batches))
    assert_variance(gradient_variance(module, data), problem, svrg, batches=batches)


@pytest.mark.parametrize('batch_size, grad_req', [(10, 'write'), (7, 'add')])
def test_a_measurement_leaves_training_as_it_is(batch_size, grad_req):
    """A measurement between two calls changes no bit of what follows, whatever the batches."""
    problem, found = Problem(rows=40), []
    layer = mx.sym.BatchNorm(mx.sym.Variable('data'), fix_gamma=False, name='bn')
    problem.symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(layer, num_hidden=1, name='fc'), mx.sym.Variable('label'))
    problem.weights.update(bn_gamma=np.ones(4), bn_beta=np.zeros(4))
    for measures in (False, True):
        module = problem.bound(grad_req=grad_req, sgd={'learning_rate': 0.01})
        for _ in range(2):
            module.update_full_grads(problem.iterator())
            for batch in problem.iterator():
                for call in lambda: module.forward(batch), module.backward, module.update:  # noqa: B023
                    call()
                    mx.nd.waitall()
                    if measures:
                        gradient_variance(module, problem.iterator(batch_size))
        found.append([value.asnumpy().tobytes() for values in module.get_params()
                      for _, value in sorted(values.items())])
    assert found[0] == found[1]


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
        module.prepare(batch, sparse_row_id_fn=rows_of_batch)
        if number:  # the rows of this batch are there, and no others
            assert_variance(gradient_variance(module, problem.iterator()), problem, svrg)
        module.forward_backward(batch)
        module.update()
        svrg.step(np.arange(10 * number, 10 * number + 10))
    problem.assert_weights(module, svrg.weights)

"""Proximal SVRG: against float64, against scikit-learn, and what it refuses."""

import json
import math
import warnings

import mxnet as mx
import numpy as np
import pytest
from sklearn.linear_model import Lasso, LogisticRegression

import oracle
from checkpoints import write_with_checksum
from cluster import run_workers
from oracle import train_on_union
from own_operators import Cap, WholeCap
from problems import Problem, SparseProblem, assert_close
from sequences import Sequences
from svrg_optimization import BarzilaiBorwein, SVRGModule
from svrg_optimization.kvstore.kinds import size_split_on_servers
from svrg_optimization.mxnet_bridge.executor_group import parameters
from svrg_optimization.proximal import (
    L1,
    Box,
    ElasticNet,
    GroupLasso,
    NonNegative,
    ProximalOperator,
    ProximalOperators,
    ProximalStep,
)
from svrg_optimization.svrg_optimizer import _SVRGOptimizer

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
PLACES = [(mx.cpu(), None, '1'), (mx.cpu(), 'object', '1'), (TWO_DEVICES, 'local', '1'),
          (TWO_DEVICES, 'device', '1'), (TWO_DEVICES, 'device', '0')]


def fit(problem, module, kvstore='local', begin=0, end=5, **params):
    module.fit(problem.iterator(), eval_metric=[], begin_epoch=begin, num_epoch=end,
               kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore,
               arg_params=problem.arg_params(), optimizer_params={'learning_rate': 0.1, **params})
    return module


def assert_zeros(module, name, expected):
    actual = module.get_params()[0][name].asnumpy()
    np.testing.assert_array_equal(actual == 0, expected == 0)
    assert 0 < (expected == 0).sum() < expected.size


# Operators


def box(low, high):
    return lambda value, _: np.clip(value, low, high)


def elastic_net(l1, l2):
    return lambda value, rate: oracle.soft_threshold(l1)(value, rate) / (1 + rate * l2)


OPERATORS = [
    (L1(0.3), oracle.soft_threshold(0.3), lambda w: 0.3 * np.abs(w).sum()),
    (ElasticNet(0.3, 2), elastic_net(0.3, 2),
     lambda w: 0.3 * np.abs(w).sum() + (w ** 2).sum()),
    (GroupLasso(0.7, axis=0), oracle.block_threshold(0.7, 0),
     lambda w: 0.7 * np.linalg.norm(w, axis=1).sum()),
    (GroupLasso(0.7, axis=1), oracle.block_threshold(0.7, 1),
     lambda w: 0.7 * np.linalg.norm(w, axis=0).sum()),
    (GroupLasso(0.7, axis=-1), oracle.block_threshold(0.7, 1),
     lambda w: 0.7 * np.linalg.norm(w, axis=0).sum()),
    (Box(-0.1, 0.2), box(-0.1, 0.2), lambda w: math.inf),
    (Box(-math.inf, 0.2), box(-math.inf, 0.2), lambda w: math.inf),
    (NonNegative(), box(0, math.inf), lambda w: math.inf),
]


@pytest.mark.parametrize('dtype, tolerance', [('float32', 1e-6), ('float64', 1e-7)])
@pytest.mark.parametrize('columns', [7, 7000])
@pytest.mark.parametrize('operator, expected, value', OPERATORS)
def test_operators(operator, expected, value, columns, dtype, tolerance):
    given = np.random.RandomState(0).normal(size=(5, columns)) * np.logspace(0, -3, 5)[:, None]
    given[2] = 0
    weight = mx.nd.array(given, dtype=dtype)
    given = weight.asnumpy().astype(float)
    np.testing.assert_allclose(operator.value(weight), value(given), rtol=tolerance)
    operator.prox(weight, 0.4)
    result = expected(given, 0.4)
    np.testing.assert_allclose(weight.asnumpy(), result, rtol=tolerance, atol=tolerance)
    assert ((weight.asnumpy() == 0) == (result == 0)).all()
    after = value(weight.asnumpy().astype(float))
    np.testing.assert_allclose(operator.value(weight), after if math.isfinite(after) else 0,
                               rtol=tolerance)
    operator.prox(weight, 0.)
    np.testing.assert_allclose(weight.asnumpy(), result, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize('operator, expected', [
    (L1(0.1), 10000.1 * 0.1), (GroupLasso(0.1, axis=0), 10000.1 * 0.1)], ids=repr)
def test_value_is_summed_in_float64(operator, expected):
    weight = mx.nd.full((10001, 1), 1)
    weight[0] = 0.1
    assert abs(operator.value(weight) - expected) < 1e-8


def test_bounds_may_be_equal():
    weight = mx.nd.array([0, 2])
    Box(1, 1).prox(weight, 0.1)
    assert weight.asnumpy().tolist() == [1, 1]


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_what_an_operator_gets(dtype):
    """Servers have weights flat; an operator that is not elementwise gets the parameter's shape."""
    class Noting(ProximalOperator):
        def prox(self, weight, step_size):
            got.append((weight.shape, np.dtype(weight.dtype).name, step_size))
            weight *= 0.5

        def value(self, weight):
            return 0.

    got, flat = [], mx.nd.ones(6, dtype=dtype)
    operator = Noting()
    ProximalStep(operator, (2, 3))(flat, None, 0.25)
    operator.is_elementwise = True
    ProximalStep(operator, (2, 3))(flat, None, 0.25)
    exact = 'float32' if dtype == 'float16' else dtype
    assert got == [((2, 3), exact, 0.25), ((6,), exact, 0.25)]
    assert flat.asnumpy().tolist() == [0.25] * 6 and flat.dtype == np.dtype(dtype)


@pytest.mark.parametrize('operator', [given[0] for given in OPERATORS], ids=repr)
def test_nan_is_not_hidden(operator):
    for rows in (2, 20000):
        weight = mx.nd.ones((rows, 2))
        weight[0, 1] = np.nan
        operator.prox(weight, 0.1)
        assert np.isnan(weight.asnumpy()[0, 1])
        assert not math.isfinite(operator.value(weight))


@pytest.mark.parametrize('axis, other, threshold', [
    (0, (1, 2, 3), 4), (1, (0, 2, 3), 4.5), (-1, (0, 1, 2), 5.5)])
def test_groups_of_a_convolution(axis, other, threshold):
    given = np.random.RandomState(0).normal(size=(4, 3, 2, 2))
    weight = mx.nd.array(given)
    GroupLasso(threshold, axis).prox(weight, 1)
    norms = np.sqrt((given ** 2).sum(axis=other, keepdims=True))
    assert 0 < (norms < threshold).sum() < norms.size
    np.testing.assert_allclose(weight.asnumpy(), given * np.maximum(0, 1 - threshold / norms),
                               rtol=1e-5)


@pytest.mark.parametrize('rows, operations', [(3, 1), (20000, 3)])
def test_operations_of_l1(monkeypatch, rows, operations):
    """Each costs some microseconds of Python, which large weights do not feel."""
    weight, calls = mx.nd.ones((rows, 4)), []
    invoke = mx.ndarray.register._imperative_invoke
    monkeypatch.setattr(mx.ndarray.register, '_imperative_invoke',
                        lambda *args: (calls.append(args), invoke(*args))[1])
    L1(0.5).prox(weight, 1.)
    assert len(calls) == operations
    assert weight.asnumpy().tolist() == [[0.5] * 4] * rows


# Trainings against float64


@pytest.mark.parametrize('kind', ['linear', 'softmax', 'perceptron'])
@pytest.mark.parametrize('context, kvstore, update_on_kvstore', PLACES)
@pytest.mark.parametrize('update_freq', [1, 2])
def test_trajectory(monkeypatch, kind, context, kvstore, update_on_kvstore, update_freq):
    """L1 on all weights, and not on biases, beside weight decay."""
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem(kind, rows=37, features=8)
    module = fit(problem, problem.module(update_freq, context=context, proximal=L1(0.3)), kvstore,
                 wd=0.05)
    twin = problem.svrg(wd=0.05, proximal={name: oracle.soft_threshold(0.3)
                                           for name in ('fc_weight', 'hidden_weight')})
    twin.fit(5, update_freq)
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'fc_weight', twin.weights['fc_weight'])
    for copies in parameters(module).values():
        assert len({copy.asnumpy().tobytes() for copy in copies}) == 1


@pytest.mark.parametrize('context, kvstore, update_on_kvstore', PLACES)
def test_operator_of_each_parameter(monkeypatch, context, kvstore, update_on_kvstore):
    """With a schedule of the rate and a multiplier of each parameter."""
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem('perceptron', rows=40, features=6, weight={
        'name': 'fc_weight', 'lr_mult': 0.5})
    proximal = {'hidden_weight': GroupLasso(0.15, axis=1), 'fc_weight': L1(0.1),
                'hidden_bias': NonNegative()}
    module = fit(problem, problem.module(2, context=context, proximal=proximal), kvstore,
                 learning_rate=0.4, lr_scheduler=mx.lr_scheduler.FactorScheduler(3, 0.9))
    twin = problem.svrg(
        learning_rate=lambda update: 0.4 * 0.9 ** ((update - 1) // 3), lr_mult={'fc_weight': 0.5},
        proximal={'hidden_weight': oracle.block_threshold(0.15, 1), 'hidden_bias': box(0, math.inf),
                  'fc_weight': oracle.soft_threshold(0.1)})
    twin.fit(5, 2)
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'hidden_weight', twin.weights['hidden_weight'])
    assert_zeros(module, 'hidden_bias', twin.weights['hidden_bias'])


@pytest.mark.parametrize('alpha', [0, 0.5])
def test_alpha(alpha):
    problem = Problem('softmax', rows=37, features=8)
    module = fit(problem, problem.module(2, alpha=alpha, proximal=L1(0.1)))
    twin = problem.svrg(proximal={'fc_weight': oracle.soft_threshold(0.1)})
    twin.alpha = lambda _: alpha
    twin.fit(5, 2)
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'fc_weight', twin.weights['fc_weight'])


def test_before_the_first_snapshot():
    problem = Problem('softmax', rows=40, features=8)
    module = problem.bound(proximal=L1(0.1))
    module.init_optimizer(optimizer_params={'learning_rate': 0.2})
    twin = problem.svrg(learning_rate=0.2, proximal={'fc_weight': oracle.soft_threshold(0.1)})
    for rows, batch in zip(oracle.batches_of(40, 10), problem.iterator()):
        module.forward_backward(batch)
        module.update()
        twin.step(rows)
    problem.assert_weights(module, twin.weights)


def test_stored_gradients():
    problem = Problem('softmax', rows=40, features=8)
    module = problem.module(2, store_snapshot_grads=True, proximal=L1(0.1))
    steps = []
    module.fit(problem.iterator(), eval_metric=[], num_epoch=5, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.1}, batch_end_callback=lambda param: (
                   steps.append(param.locals['data_batch'].data[0].asnumpy())))
    twin = problem.svrg(proximal={'fc_weight': oracle.soft_threshold(0.1)})
    for number, batch in enumerate(steps):
        if number % 8 == 0:
            twin.take_snapshot()
        twin.step(np.array([np.abs(problem.features - row).sum(axis=1).argmin() for row in batch]))
    assert len(steps) == 20
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'fc_weight', twin.weights['fc_weight'])


@pytest.mark.parametrize('context, kvstore', [
    (mx.cpu(), None), (mx.cpu(), 'object'), (TWO_DEVICES, 'local'), (TWO_DEVICES, 'device')])
@pytest.mark.parametrize('alpha', [0, 1])
def test_row_sparse_weights(context, kvstore, alpha):
    """A step goes over the whole table, also where the gradient has only some rows."""
    problem = SparseProblem(rows=37)
    module = problem.module(2, context=context, alpha=alpha, proximal={'w': L1(0.5)})
    module.fit(problem.iterator(), eval_metric=[], num_epoch=4, arg_params=problem.arg_params(),
               kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore,
               optimizer_params={'learning_rate': 0.1},
               sparse_row_id_fn=kvstore and (lambda batch: {'w': batch.data[0].indices}))
    twin = problem.svrg(proximal={'w': oracle.soft_threshold(0.5)})
    twin.alpha = lambda _: alpha
    twin.fit(4, 2)
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'w', twin.weights['w'])
    assert np.abs(twin.weights['w'][-2:] - problem.weights['w'][-2:]).min() > 0.1


def test_weights_named_by_their_weight_decay():
    """A wd_mult of the symbol has the last word; gammas and fixed weights have no operator."""
    def variable(name, **attributes):
        return mx.sym.Variable(name, **attributes)

    data = mx.sym.BatchNorm(variable('data'), name='norm', fix_gamma=False)
    data = mx.sym.FullyConnected(data, num_hidden=4, name='one')
    for name, weight in (('two', variable('two_weight', wd_mult=0.)),
                         ('three', variable('w', wd_mult=2., init=mx.init.One()))):
        data = mx.sym.FullyConnected(data, weight, num_hidden=4, name=name)
    data = mx.sym.FullyConnected(data, num_hidden=1, name='four')
    module = SVRGModule(mx.sym.LinearRegressionOutput(data, variable('label')), update_freq=1,
                        label_names=('label',), fixed_param_names=['four_weight'],
                        proximal=Box(-0.01, 0.01))
    module.bind([('data', (4, 3))], [('label', (4,))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={'learning_rate': 1e-9})
    module.forward_backward(mx.io.DataBatch([mx.nd.ones((4, 3))], [mx.nd.ones((4,))]))
    module.update()
    bounded = {name for name, value in module.get_params()[0].items()
               if np.abs(value.asnumpy()).max() < 0.1 and not name.endswith(('bias', 'beta'))}
    assert bounded == {'one_weight', 'w'}


@pytest.mark.parametrize('multi_precision', [False, True])
@pytest.mark.parametrize('as_list', [False, True])
@pytest.mark.filterwarnings('ignore:Accumulating with float16')
def test_float16(multi_precision, as_list):
    """With multi_precision steps that float16 would lose add up, and the two copies agree."""
    problem = Problem(rows=40)
    module = problem.bound(proximal=GroupLasso(2 ** -13, axis=0))
    steps = module._proximal.steps(module._arg_params, {0: 'fc_weight'})
    optimizer = _SVRGOptimizer('sgd', learning_rate=0.5, multi_precision=multi_precision,
                               proximal=steps)
    weight = mx.nd.full((1, 4), 0.5, dtype='float16')
    weight[:] = mx.nd.array([[0.5, -0.5, 0.5, 0.5]])
    state = optimizer.create_state_multi_precision(0, weight)
    gradient = mx.nd.zeros((1, 4), dtype='float16')
    for _ in range(8):
        optimizer.update_multi_precision(*(([given] if as_list else given)
                                           for given in (0, weight, gradient, state)))
    if multi_precision:
        expected = (1 - 8 * 2 ** -14) * np.array([[0.5, -0.5, 0.5, 0.5]])
        np.testing.assert_allclose(state[1].asnumpy(), expected, rtol=1e-6)
        assert (weight.asnumpy() == state[1].asnumpy().astype(np.float16)).all()
        assert weight.asnumpy()[0, 0] < 0.5
    assert weight.dtype == np.float16


def test_float64():
    problem = Problem('softmax', rows=40, features=8)
    data = mx.sym.Variable('data', dtype='float64')
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3, name='fc'),
                                  mx.sym.Variable('label', dtype='float64'))
    module = SVRGModule(symbol, label_names=('label',), update_freq=2, proximal=L1(0.125))
    iterator = mx.io.NDArrayIter(mx.nd.array(problem.features, dtype='float64'),
                                 mx.nd.array(problem.targets, dtype='float64'), 10,
                                 label_name='label')
    module.fit(iterator, eval_metric=[], num_epoch=5, optimizer_params={'learning_rate': 0.5},
               arg_params={name: mx.nd.array(value, dtype='float64')
                           for name, value in problem.weights.items()})
    twin = problem.svrg(learning_rate=0.5, proximal={'fc_weight': oracle.soft_threshold(0.125)})
    twin.fit(5, 2)
    weight = module.get_params()[0]['fc_weight']
    assert weight.dtype == np.float64
    problem.assert_weights(module, twin.weights, 1e-7)


class Counting(mx.optimizer.SGD):
    """A subclass that steps as sgd does."""

    def create_state(self, index, weight):
        return super().create_state(index, weight)


@pytest.mark.parametrize('optimizer', [
    mx.optimizer.SGD, Counting, mx.optimizer.ccSGD,
    lambda **kwargs: mx.optimizer.SGD(param_idx2name={5: 'theirs'}, **kwargs)])
@pytest.mark.parametrize('kvstore', [None, 'object'])
@pytest.mark.filterwarnings('ignore:Optimizer created manually')
def test_optimizers_of_the_user(optimizer, kvstore):
    """Their rescale_grad scales the loss and not R, and their names of parameters do not matter."""
    problem = Problem('softmax', rows=40, features=8)
    module = problem.module(2, proximal=L1(0.03))
    module.fit(problem.iterator(), eval_metric=[], num_epoch=4, arg_params=problem.arg_params(),
               kvstore=mx.kv.create('local') if kvstore else None,
               optimizer=optimizer(learning_rate=0.5, rescale_grad=0.02, clip_gradient=100.))
    twin = problem.svrg(proximal={'fc_weight': oracle.soft_threshold(0.03)}, learning_rate=0.5)
    twin.optimizer.rescale = 0.02
    twin.fit(4, 2)
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'fc_weight', twin.weights['fc_weight'])


def test_own_operator():
    problem = Problem(rows=40)
    module = fit(problem, problem.module(2, proximal=Cap(0.25)))
    twin = problem.svrg(proximal={'fc_weight': box(-np.inf, 0.25)})
    twin.fit(5, 2)
    problem.assert_weights(module, twin.weights)
    assert twin.weights['fc_weight'].max() == 0.25


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('update_on_kvstore', ['0', '1'])
def test_buckets(monkeypatch, context, update_on_kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Sequences()
    module = problem.module(2, context=context, proximal=L1(0.47))
    module.fit(problem.iterator(), eval_metric=[], num_epoch=5, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.02})
    twin = problem.expect(5, 2, learning_rate=0.02,
                          proximal={'fc_weight': oracle.soft_threshold(0.47)})
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'fc_weight', twin.weights['fc_weight'])


def test_barzilai_borwein():
    problem = lasso_problem()
    rule = BarzilaiBorwein()
    weight, bias = train(problem, L1(0.2), 120, lr_scheduler=rule, learning_rate=0.01)
    assert rule.rate is not None
    expected = Lasso(0.2, tol=1e-12, max_iter=100000).fit(problem.features, problem.targets)
    assert_same_solution(problem, half_squares, weight, bias, expected.coef_, expected.intercept_,
                         lambda w: 0.2 * np.abs(w).sum())


# Solutions of scikit-learn, and of a float64 proximal gradient


def lasso_problem():
    rng = np.random.RandomState(0)
    problem = Problem(rows=200, features=30)
    truth = np.array([2, -1.5, 1, -1, 1.5, -2] + [0] * 24)
    problem.features = rng.normal(size=(200, 30))
    problem.targets = problem.features @ truth + 0.5 + 0.3 * rng.normal(size=200)
    return problem


def logistic_problem():
    problem = lasso_problem()
    rng = np.random.RandomState(1)
    problem.targets = (problem.targets + rng.logistic(size=200) > 0.5).astype(float)
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    problem.symbol = mx.sym.LogisticRegressionOutput(output, mx.sym.Variable('label'))
    return problem


def half_squares(scores, targets):
    return 0.5 * ((scores - targets) ** 2).mean()


def logistic(scores, targets):
    return (np.logaddexp(0, scores) - targets * scores).mean()


def train(problem, proximal, num_epoch, **params):
    module = problem.module(2, proximal=proximal)
    module.fit(problem.iterator(20), eval_metric=[], num_epoch=num_epoch,
               initializer=mx.init.Zero(), optimizer_params={'learning_rate': 0.1, **params})
    arg_params, _ = module.get_params()
    return tuple(arg_params[name].asnumpy().astype(float).ravel()
                 for name in ('fc_weight', 'fc_bias'))


def assert_same_solution(problem, loss, weight, bias, expected_weight, expected_bias, regularizer):
    def objective(weight, bias):
        return loss(problem.features @ weight + bias, problem.targets) + regularizer(weight)

    expected = objective(expected_weight, expected_bias)
    assert abs(objective(weight, bias) - expected) < 1e-6 * expected
    np.testing.assert_array_equal(weight == 0, expected_weight == 0)


def test_lasso():
    problem = lasso_problem()
    strength = 0.25
    expected = Lasso(strength, tol=1e-12, max_iter=100000).fit(problem.features, problem.targets)
    assert (expected.coef_ != 0).sum() == 6  # a fifth
    weight, bias = train(problem, L1(strength), 60)
    assert_same_solution(problem, half_squares, weight, bias, expected.coef_, expected.intercept_,
                         lambda w: strength * np.abs(w).sum())


@pytest.mark.parametrize('l1_ratio, strength', [(1, 0.075), (0.7, 0.1)])
@pytest.mark.parametrize('as_wd', [False, True])
@pytest.mark.filterwarnings('ignore:.*penalty.*:FutureWarning')
def test_logistic_regression(l1_ratio, strength, as_wd):
    problem = logistic_problem()
    l1, l2 = l1_ratio * strength, (1 - l1_ratio) * strength
    expected = LogisticRegression(
        penalty='elasticnet', solver='saga', C=1 / (strength * 200), l1_ratio=l1_ratio, tol=1e-12,
        max_iter=100000).fit(problem.features, problem.targets)
    coefficients = expected.coef_[0]
    assert (coefficients != 0).sum() == 6  # a fifth
    weight, bias = train(problem, L1(l1) if as_wd else ElasticNet(l1, l2), 150, learning_rate=0.4,
                         wd=l2 if as_wd else 0)
    assert_same_solution(problem, logistic, weight, bias, coefficients, expected.intercept_,
                         lambda w: l1 * np.abs(w).sum() + l2 / 2 * (w ** 2).sum())


def minimum(problem, prox, rate, steps=5000):
    """Minimize a mean loss and what `prox` belongs to by accelerated proximal gradient steps."""
    weights = {name: np.zeros_like(value) for name, value in problem.weights.items()}
    ahead, momentum = dict(weights), 1
    for _ in range(steps):
        gradients = problem.network(ahead, problem.features, problem.targets)
        stepped = {name: ahead[name] - rate / len(problem.features) * gradient
                   for name, gradient in gradients.items()}
        stepped['fc_weight'] = prox(stepped['fc_weight'], rate)
        after = (1 + math.sqrt(1 + 4 * momentum ** 2)) / 2
        ahead = {name: stepped[name] + (momentum - 1) / after * (stepped[name] - weights[name])
                 for name in stepped}
        weights, momentum = stepped, after
    return weights


def cross_entropy(problem, weights):
    probabilities = oracle.softmax(problem.features @ weights['fc_weight'].T + weights['fc_bias'])
    return -np.log(probabilities[np.arange(len(problem.targets)),
                                 problem.targets.astype(int)]).mean()


def test_group_lasso():
    problem = Problem('softmax', rows=200, features=20, classes=3)
    truth = np.random.RandomState(2).normal(size=(3, 20)) * (np.arange(20) < 4)
    noise = np.random.RandomState(3).gumbel(size=(200, 3))
    problem.targets = (problem.features @ truth.T + noise).argmax(axis=1).astype(float)
    expected = minimum(problem, oracle.block_threshold(0.07, 1), 0.5)
    assert (expected['fc_weight'] != 0).sum() == 12  # four features of 20
    module = problem.module(2, proximal=GroupLasso(0.07, axis=1))
    module.fit(problem.iterator(20), eval_metric=[], num_epoch=100, initializer=mx.init.Zero(),
               optimizer_params={'learning_rate': 0.3})
    found = {name: array.asnumpy().astype(float)
             for name, array in module.get_params()[0].items()}

    def objective(weights):
        scores = problem.features @ weights['fc_weight'].T + weights['fc_bias']
        chosen = oracle.softmax(scores)[np.arange(200), problem.targets.astype(int)]
        return -np.log(chosen).mean() + 0.07 * np.linalg.norm(weights['fc_weight'], axis=0).sum()

    assert abs(objective(found) - objective(expected)) < 1e-6 * objective(expected)
    np.testing.assert_array_equal(found['fc_weight'] == 0, expected['fc_weight'] == 0)


@pytest.mark.parametrize('operator, prox', [
    (Box(-1, 1.2), box(-1, 1.2)), (NonNegative(), box(0, np.inf))])
def test_bounds(operator, prox):
    problem = lasso_problem()
    problem.weights = {'fc_weight': np.zeros((1, 30)), 'fc_bias': np.zeros(1)}
    expected = minimum(problem, prox, 0.3)
    weight, bias = train(problem, operator, 60)
    assert_same_solution(problem, half_squares, weight, bias, expected['fc_weight'][0],
                         expected['fc_bias'], lambda w: operator.value(mx.nd.array(w)))
    bounded = expected['fc_weight'] != minimum(problem, box(-np.inf, np.inf), 0.3)['fc_weight']
    at_bounds = np.isin(expected['fc_weight'], [-1, 1.2, 0])[0]
    assert 0 < at_bounds.sum() < 30 and bounded.any()
    np.testing.assert_allclose(weight[at_bounds], expected['fc_weight'][0][at_bounds], rtol=1e-7)


def test_reaches_the_optimum_where_proximal_sgd_stalls():
    problem = logistic_problem()
    operator = L1(0.075)

    def excess(alpha, num_epoch):
        module = problem.module(2, alpha=alpha, proximal=operator)
        train_data = mx.io.NDArrayIter(problem.features, problem.targets, 10, shuffle=True,
                                       label_name='label')
        module.fit(train_data, eval_metric=[], num_epoch=num_epoch, initializer=mx.init.Zero(),
                   optimizer_params={'learning_rate': 0.3})
        weight, bias = (module.get_params()[0][name].asnumpy().astype(float).ravel()
                        for name in ('fc_weight', 'fc_bias'))
        return objective(weight, bias[0]) - objective(expected['fc_weight'][0],
                                                      expected['fc_bias'][0])

    def objective(weight, bias):
        return (logistic(problem.features @ weight + bias, problem.targets)
                + 0.075 * np.abs(weight).sum())

    def gradient(weights, features, targets):
        scores = features @ weights['fc_weight'][0] + weights['fc_bias'][0]
        error = 1 / (1 + np.exp(-scores)) - targets
        return {'fc_weight': (error @ features)[None], 'fc_bias': np.array([error.sum()])}

    problem.network = gradient
    np.random.seed(0)
    expected = minimum(problem, oracle.soft_threshold(0.075), 0.1)
    assert abs(excess(1, 60)) < 1e-6
    assert excess(0, 150) > 1e-3


# Checkpoints


@pytest.mark.parametrize('proximal', [
    L1(0.2), {'fc_weight': GroupLasso(0.3, 1), 'hidden_weight': ElasticNet(0.1, 0.2)},
    {'fc_weight': Box(-math.inf, 0.1), 'hidden_bias': NonNegative()}], ids=str)
@pytest.mark.parametrize('stop', [2, 3])
def test_same_bits_after_a_stop(tmp_path, proximal, stop):
    problem = Problem('perceptron', rows=37)
    prefix = str(tmp_path / 'model')
    unbroken = fit(problem, problem.module(2, proximal=proximal))
    module = fit(problem, problem.module(2, proximal=proximal), end=stop)
    module.save_checkpoint(prefix, stop, save_optimizer_states=True)
    resumed = SVRGModule.load(prefix, stop, load_optimizer_states=True, label_names=('label',))
    fit(problem, resumed, begin=stop)
    plain = SVRGModule.load(prefix, stop, label_names=('label',), proximal=None)
    fit(problem, plain, begin=stop)
    unlike = 0
    for name, value in unbroken.get_params()[0].items():
        assert (value.asnumpy() == resumed.get_params()[0][name].asnumpy()).all()
        unlike += (value.asnumpy() != plain.get_params()[0][name].asnumpy()).sum()
    assert unlike


@pytest.mark.parametrize('proximal', [Cap(0.5), {'fc_weight': L1(0.1), 'fc_bias': Cap(0.5)}])
def test_own_operators_are_not_saved(tmp_path, proximal):
    prefix = str(tmp_path / 'model')
    Problem().bound(proximal=proximal).save_checkpoint(prefix, 1)
    with pytest.warns(UserWarning, match='give one with proximal='):
        assert not SVRGModule.load(prefix, 1, label_names=('label',))._proximal.by_name
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        for given in (L1(0.2), None):
            SVRGModule.load(prefix, 1, label_names=('label',), proximal=given)


def test_checkpoint_of_the_first_version(tmp_path):
    """It has no operators."""
    module = Problem().bound(proximal=L1(0.1))
    module.save_checkpoint(str(tmp_path / 'model'), 1)
    name = str(tmp_path / 'model-0001.svrg')
    with np.load(name) as file:
        arrays = dict(file)
    facts = json.loads(str(arrays['facts']))
    assert facts.pop('proximal') == ['L1', {'strength': 0.1}]
    write_with_checksum(name, **{**arrays, 'facts': np.array(json.dumps(facts))})
    loaded = SVRGModule.load(str(tmp_path / 'model'), 1, label_names=('label',))
    assert not loaded._proximal.by_name


def test_bucketing_checkpoint(tmp_path):
    problem = Sequences()
    module = problem.module(2, proximal=L1(0.47))
    settings = {'eval_metric': [], 'arg_params': problem.arg_params(),
                'optimizer_params': {'learning_rate': 0.02}}
    module.fit(problem.iterator(), num_epoch=3, **settings)
    module.save_checkpoint(str(tmp_path / 'model'), 3)
    loaded = type(module).load(str(tmp_path / 'model'), 3, problem.sym_gen, 8)
    for trained in (module, loaded):
        trained.fit(problem.iterator(), begin_epoch=3, num_epoch=5, **settings)
    for name, value in module.get_params()[0].items():
        assert (value.asnumpy() == loaded.get_params()[0][name].asnumpy()).all()
    assert_zeros(loaded, 'fc_weight', module.get_params()[0]['fc_weight'].asnumpy())


# What is refused


class NoValue:
    def prox(self, weight, step_size):
        """Do nothing."""


@pytest.mark.parametrize('make, error, message', [
    (lambda: L1('1'), TypeError, "strength must be a number of 0 or more, not '1'"),
    (lambda: L1(-1), ValueError, 'strength must be a number of 0 or more, not -1'),
    (lambda: L1(True), TypeError, 'strength must be'),
    (lambda: L1(math.inf), ValueError, 'strength must be'),
    (lambda: ElasticNet(0, -1), ValueError, 'l2 must be'),
    (lambda: ElasticNet(None, 1), TypeError, 'l1 must be'),
    (lambda: GroupLasso(math.nan, 1), ValueError, 'strength must be'),
    (lambda: GroupLasso(1, 1.), TypeError, 'axis must be an int, not 1.0'),
    (lambda: GroupLasso(1, True), TypeError, 'axis must be an int, not True'),
    (lambda: Box(1, 0), ValueError, 'low must be at most high, and they are 1 and 0'),
    (lambda: Box(math.nan, 0), ValueError, 'low must be at most high'),
    (lambda: Box(None, 0), TypeError, 'low and high must be numbers, not None and 0')])
def test_bad_numbers(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_numbers_of_numpy_become_pythons():
    operators = L1(np.float32(0.5)), ElasticNet(np.array(1), np.int64(2)), GroupLasso(
        np.float64(1), np.int8(1)), Box(np.float32(0), np.float16(1))
    for operator in operators:
        assert {type(value) for value in vars(operator).values()} <= {int, float}
    assert repr(operators[2]) == 'GroupLasso(strength=1.0, axis=1)'


@pytest.mark.parametrize('module_of', [lambda **kwargs: Problem().module(**kwargs),
                                       lambda **kwargs: Sequences().module(**kwargs)])
@pytest.mark.parametrize('arguments, error, message', [
    ({'proximal': 0.1}, TypeError, 'proximal must be None, an operator with the methods prox and '
                                   'value, or a dict .*, not 0.1'),
    ({'proximal': 0}, TypeError, 'or a dict .*, not 0'),
    ({'proximal': L1}, TypeError, 'proximal must be None, an operator'),
    ({'proximal': NoValue()}, TypeError, 'with the methods prox and value'),
    ({'proximal': {'fc_weight': None}}, TypeError, 'proximal must be .* not None'),
    ({'proximal': {'weight': L1(1)}}, ValueError,
     r"proximal must be for trained parameters \(.*fc_weight.*\), not for 'weight'"),
    ({'proximal': {'fc_bias': L1(1)}, 'fixed_param_names': ['fc_bias']}, ValueError,
     r"trained parameters \(fc_weight\), not for 'fc_bias'"),
    ({'proximal': L1(1), 'fixed_param_names': ['fc_weight']}, ValueError,
     'proximal must be a dict from parameter name to operator .*: fc_bias'),
    ({'proximal': L1(1), 'sparse_full_grad': True}, ValueError,
     'sparse_full_grad must be False for proximal')])
def test_bad_arguments(module_of, arguments, error, message):
    with pytest.raises(error, match=message):
        module_of(**arguments)


@pytest.mark.parametrize('proximal', [None, {}])
def test_none(proximal):
    problem = Problem('softmax')
    module = fit(problem, problem.module(2, proximal=proximal))
    problem.assert_weights(module, problem.svrg().fit(5, 2))


class Jumping(mx.optimizer.SGD):
    """A subclass that steps otherwise."""

    def update(self, index, weight, grad, state):
        """Do nothing."""


@pytest.mark.parametrize('optimizer, params, named', [
    ('adam', {}, 'adam'), ('nag', {}, 'nag'), ('sgld', {}, 'sgld'), ('no such', {}, 'no such'),
    ('sgd', {'momentum': 0.9}, 'sgd with momentum 0.9'),
    (mx.optimizer.SGD(momentum=0.5), {}, 'sgd with momentum 0.5'), (Jumping(), {}, 'jumping'),
    (_SVRGOptimizer('sgd', momentum=0.5), {}, 'sgd with momentum 0.5')])
def test_other_optimizers(optimizer, params, named):
    module = Problem().bound(proximal=L1(0.1))
    with pytest.raises(ValueError, match='^optimizer must be sgd without momentum for proximal, '
                                         'not %s:' % named):
        module.init_optimizer(optimizer=optimizer, optimizer_params=params)
    assert not module.optimizer_initialized and module._kvstore is None
    module.init_optimizer(optimizer_params={'momentum': 0})


def test_axis_that_a_parameter_lacks():
    module = Problem().bound(proximal={'fc_bias': GroupLasso(0.1, axis=1)})
    with pytest.raises(ValueError, match=r'axis must be an axis of fc_bias.* \(1,\), not 1'):
        module.init_optimizer()
    assert not module.optimizer_initialized


@pytest.mark.parametrize('own, lent', [(L1(1), None), (None, L1(1)), (L1(1), L1(2))])
def test_borrowed_optimizers(own, lent):
    lender = Problem().bound(proximal=lent)
    lender.init_optimizer()
    module = Problem().bound(proximal=own)
    with pytest.raises(ValueError, match='proximal must be that of shared_module'):
        module.borrow_optimizer(lender)
    assert not module.optimizer_initialized
    if lent is not None:
        module = Problem().bound(proximal=lent)
        module.borrow_optimizer(lender)
        module.forward_backward(next(Problem().iterator()))
        module.update()


def test_borrowed_from_a_plain_module():
    problem = Problem()
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    plain.bind(problem.iterator().provide_data, problem.iterator().provide_label)
    plain.init_params()
    plain.init_optimizer()
    problem.bound().borrow_optimizer(plain)
    with pytest.raises(ValueError, match='proximal must be that of shared_module'):
        problem.bound(proximal=L1(0.2)).borrow_optimizer(plain)


def test_parameters_with_other_numbers(monkeypatch):
    """Of a bucket without the first parameter, for instance."""
    problem, operator = Problem(), L1(1)
    fewer = Problem()
    fewer.symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(mx.sym.Variable('data'), mx.sym.Variable('fc_weight'), no_bias=True,
                              num_hidden=1), mx.sym.Variable('label'))
    for update_on_kvstore, kvstore in (('0', 'local'), ('1', 'object')):
        monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
        lender = problem.bound(proximal=operator)
        lender.init_optimizer(mx.kv.create('local') if kvstore == 'object' else kvstore)
        module = fewer.module(proximal=operator)
        module.bind(problem.iterator().provide_data, problem.iterator().provide_label)
        module.init_params()
        if update_on_kvstore == '1':
            module.borrow_optimizer(lender)
            continue
        with pytest.raises(ValueError, match='proximal needs a kvstore that updates the weights'):
            module.borrow_optimizer(lender)


# Clusters


@pytest.mark.parametrize('kind, servers, bound, expected', [
    ('dist_sync', '1', '7', math.inf), ('dist_sync', '2', '7', 7), ('dist_async', '2', None, 10**6),
    ('p3store_dist', '1', None, 40000)])
def test_size_that_is_split(monkeypatch, kind, servers, bound, expected):
    monkeypatch.setenv('DMLC_NUM_SERVER', servers)
    if bound:
        monkeypatch.setenv('MXNET_KVSTORE_BIGARRAY_BOUND', bound)
    assert size_split_on_servers(kind) == expected


SIZES = [20, 20]
HERE = {'rows': 40, 'features': 8, 'kind': 'softmax'}


@pytest.mark.parametrize('environment, servers, operator, prox', [
    ({}, 1, L1(0.05), oracle.soft_threshold(0.05)),
    ({'MXNET_KVSTORE_BIGARRAY_BOUND': '5'}, 2, L1(0.05), oracle.soft_threshold(0.05)),
    ({}, 2, GroupLasso(0.3, axis=1), oracle.block_threshold(0.3, 1)),
    ({'MXNET_UPDATE_ON_KVSTORE': '0'}, 1, GroupLasso(0.3, axis=1), oracle.block_threshold(0.3, 1)),
    ({}, 1, WholeCap(0.1, (3, 8)), box(-np.inf, 0.1))])
def test_workers_agree_with_one_process(tmp_path, environment, servers, operator, prox):
    """With the operators on the servers, which store weights flat and may split them."""
    settings = {'learning_rate': 0.2, 'wd': 0.01}
    results = run_workers('fit', tmp_path, 2, servers, environment, problem=HERE, sizes=SIZES,
                          batch_size=5, num_epoch=4, update_freq=2, devices=2, optimizer=settings,
                          proximal=operator)
    expected = train_on_union(Problem(**HERE), SIZES, 5, 4, 2, **settings,
                              proximal={'fc_weight': prox})
    for result in results:
        assert_close(result['weights'], expected)
        np.testing.assert_array_equal(result['weights']['fc_weight'] == 0,
                                      expected['fc_weight'] == 0)
    if not isinstance(operator, WholeCap):
        assert 0 < (expected['fc_weight'] == 0).sum() < 24


def test_row_sparse_weights_on_servers(tmp_path):
    settings = {'learning_rate': 0.1}
    results = run_workers('fit', tmp_path, 2, 2, problem={'sparse': True}, sizes=[19, 21],
                          batch_size=6, num_epoch=4, optimizer=settings, proximal={'w': L1(0.3)})
    expected = train_on_union(SparseProblem(), [19, 21], 6, 4, 1, **settings,
                              proximal={'w': oracle.soft_threshold(0.3)})
    for result in results:
        assert_close(result['weights'], expected)
        assert 0 < (expected['w'] == 0).sum() < 12
        np.testing.assert_array_equal(result['weights']['w'] == 0, expected['w'] == 0)


def test_asynchronous_training_converges(tmp_path):
    given = {'rows': 60, 'features': 5}
    problem = Problem(**given)
    results = run_workers('fit', tmp_path, 2, 1, kind='dist_async', problem=given, sizes=[30, 30],
                          batch_size=5, num_epoch=60, optimizer={'learning_rate': 0.05},
                          proximal=L1(0.5))
    expected = Lasso(0.5, tol=1e-12, max_iter=100000).fit(problem.features, problem.targets)
    assert 0 < (expected.coef_ == 0).sum() < 5
    for result in results:
        assert_close(result['weights'], {'fc_weight': expected.coef_[None],
                                         'fc_bias': np.array([expected.intercept_])})


@pytest.mark.parametrize('environment', [{}, {'MXNET_UPDATE_ON_KVSTORE': '0'}], ids=str)
def test_operators_that_servers_cannot_have(tmp_path, environment):
    """No key is created then, and workers that update need none of it."""
    environment['MXNET_KVSTORE_BIGARRAY_BOUND'] = '20'
    for messages in run_workers('init_with_operators', tmp_path, 2, 2, environment, problem=HERE):
        if 'MXNET_UPDATE_ON_KVSTORE' in environment:
            assert messages == [None] * 3
            continue
        main, unpicklable, split = messages
        assert 'of a class that servers can import, not of __main__' in main
        assert 'can be pickled for the servers, not <' in unpicklable
        assert unpicklable.endswith('(not this one)')
        assert 'is_elementwise for w2_weight, whose 24 elements' in split


def test_a_bucket_without_the_parameter():
    operators = ProximalOperators({'a_weight': L1(1)}, mx.sym.Variable('a_weight'), ['a_weight'])
    with pytest.raises(ValueError, match='parameters of the bucket.*a_weight is not one'):
        operators.check_optimizer('sgd', {}, {'b_weight': (2,)})


def test_borrowed_operators_may_be_equal():
    one, other = [ProximalOperators(L1(0.1), mx.sym.Variable('a_weight'), ['a_weight'])
                  for _ in range(2)]
    one.check_borrowed(other, has_same_keys=True)
    with pytest.raises(ValueError, match='proximal must be that of shared_module'):
        one.check_borrowed(ProximalOperators(L1(0.2), mx.sym.Variable('a_weight'), ['a_weight']),
                           has_same_keys=True)

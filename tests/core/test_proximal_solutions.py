"""Proximal SVRG against scikit-learn and a float64 proximal gradient."""

import math

import mxnet as mx
import numpy as np
import pytest
from sklearn.linear_model import Lasso, LogisticRegression

import oracle
from oracle import box
from problems import Problem
from svrg_optimization import BarzilaiBorwein
from svrg_optimization.proximal import (
    L1,
    Box,
    GroupLasso,
)


@pytest.mark.slow
def test_barzilai_borwein_reaches_the_lasso_of_scikit_learn():
    problem = lasso_problem()
    rule = BarzilaiBorwein()
    weight, bias = train(problem, L1(0.2), 120, lr_scheduler=rule, learning_rate=0.01)
    assert rule.rate is not None
    expected = Lasso(0.2, tol=1e-12, max_iter=100000).fit(problem.features, problem.targets)
    assert_same_solution(problem, half_squares, weight, bias, expected.coef_, expected.intercept_,
                         lambda w: 0.2 * np.abs(w).sum())


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


def test_l1_reaches_the_lasso_of_scikit_learn():
    problem = lasso_problem()
    strength = 0.25
    expected = Lasso(strength, tol=1e-12, max_iter=100000).fit(problem.features, problem.targets)
    assert (expected.coef_ != 0).sum() == 6  # a fifth
    weight, bias = train(problem, L1(strength), 60)
    assert_same_solution(problem, half_squares, weight, bias, expected.coef_, expected.intercept_,
                         lambda w: strength * np.abs(w).sum())


def test_l1_with_bounds_reaches_the_non_negative_lasso_of_scikit_learn():
    problem = lasso_problem()
    expected = Lasso(0.25, positive=True, tol=1e-12, max_iter=100000).fit(problem.features,
                                                                          problem.targets)
    assert 0 < (expected.coef_ != 0).sum() < 6  # the positive ones
    weight, bias = train(problem, L1(0.25, low=0), 60)
    assert_same_solution(problem, half_squares, weight, bias, expected.coef_, expected.intercept_,
                         lambda w: 0.25 * np.abs(w).sum())


@pytest.mark.slow
@pytest.mark.parametrize('l1_ratio, strength', [(1, 0.075), (0.7, 0.1)])
@pytest.mark.filterwarnings('ignore:.*penalty.*:FutureWarning')
def test_elastic_net_reaches_the_logistic_regression_of_scikit_learn(l1_ratio, strength):
    problem = logistic_problem()
    l1, l2 = l1_ratio * strength, (1 - l1_ratio) * strength
    expected = LogisticRegression(
        penalty='elasticnet', solver='saga', C=1 / (strength * 200), l1_ratio=l1_ratio, tol=1e-12,
        max_iter=100000).fit(problem.features, problem.targets)
    coefficients = expected.coef_[0]
    assert (coefficients != 0).sum() == 6  # a fifth
    weight, bias = train(problem, L1(l1), 150, learning_rate=0.4, wd=l2)
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


@pytest.mark.slow
def test_group_lasso_reaches_the_minimum():
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


@pytest.mark.slow
@pytest.mark.parametrize('operator, prox', [
    (Box(-1, 1.2), box(-1, 1.2)), (Box(0), box(0, np.inf))])
def test_bounds_reach_the_minimum(operator, prox):
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


@pytest.mark.slow
def test_svrg_reaches_the_optimum_where_proximal_sgd_stalls():
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

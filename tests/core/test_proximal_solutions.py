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
from svrg_optimization.proximal import L1, Box, GroupLasso


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


def train(problem, proximal, num_epoch, train_data=None, alpha=1, **params):
    """Return weights and biases in float64."""
    module = problem.module(2, proximal=proximal, alpha=alpha)
    module.fit(train_data or problem.iterator(20), eval_metric=[], num_epoch=num_epoch,
               initializer=mx.init.Zero(), optimizer_params={'learning_rate': 0.1, **params})
    return tuple(module.get_params()[0][name].asnumpy().astype(float)
                 for name in ('fc_weight', 'fc_bias'))


def assert_same_solution(problem, loss, found, expected, regularizer):
    def objective(weight, bias):
        return loss(problem.features @ weight.ravel() + bias, problem.targets) + regularizer(weight)

    least = objective(*expected)
    assert abs(objective(*found) - least) < 1e-6 * least
    np.testing.assert_array_equal(found[0].ravel() == 0, expected[0].ravel() == 0)


@pytest.mark.parametrize('strength, low, nonzero, epochs, make', [
    (0.25, -math.inf, 6, 60, dict), (0.25, 0, 4, 60, dict),  # without bounds a fifth
    pytest.param(0.2, -math.inf, 6, 120, lambda: {
        'lr_scheduler': BarzilaiBorwein(), 'learning_rate': 0.01}, marks=pytest.mark.slow)])
def test_l1_reaches_the_lasso_of_scikit_learn(strength, low, nonzero, epochs, make):
    problem, params = lasso_problem(), make()
    expected = Lasso(strength, positive=low == 0, tol=1e-12, max_iter=100000).fit(
        problem.features, problem.targets)
    assert (expected.coef_ != 0).sum() == nonzero
    found = train(problem, L1(strength, low=low), epochs, **params)
    assert_same_solution(problem, half_squares, found, (expected.coef_, expected.intercept_),
                         lambda w: strength * np.abs(w).sum())
    assert not params or params['lr_scheduler'].rate is not None


@pytest.mark.slow
@pytest.mark.parametrize('l1_ratio, strength', [(1, 0.075), (0.7, 0.1)])
@pytest.mark.filterwarnings('ignore:.*penalty.*:FutureWarning')
def test_elastic_net_reaches_the_logistic_regression_of_scikit_learn(l1_ratio, strength):
    problem = logistic_problem()
    l1, l2 = l1_ratio * strength, (1 - l1_ratio) * strength
    expected = LogisticRegression(
        penalty='elasticnet', solver='saga', C=1 / (strength * 200), l1_ratio=l1_ratio, tol=1e-12,
        max_iter=100000).fit(problem.features, problem.targets)
    assert (expected.coef_ != 0).sum() == 6  # a fifth
    found = train(problem, L1(l1), 150, learning_rate=0.4, wd=l2)
    assert_same_solution(problem, logistic, found, (expected.coef_, expected.intercept_),
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
    return weights['fc_weight'], weights['fc_bias']


@pytest.mark.slow
def test_group_lasso_reaches_the_minimum():
    problem = Problem('softmax', rows=200, features=20, classes=3)
    truth = np.random.RandomState(2).normal(size=(3, 20)) * (np.arange(20) < 4)
    noise = np.random.RandomState(3).gumbel(size=(200, 3))
    problem.targets = (problem.features @ truth.T + noise).argmax(axis=1).astype(float)
    expected = minimum(problem, oracle.block_threshold(0.07, 1), 0.5)
    assert (expected[0] != 0).sum() == 12  # four features of 20
    found = train(problem, GroupLasso(0.07, axis=1), 100, learning_rate=0.3)

    def objective(weight, bias):
        chosen = oracle.softmax(problem.features @ weight.T + bias)[
            np.arange(200), problem.targets.astype(int)]
        return -np.log(chosen).mean() + 0.07 * np.linalg.norm(weight, axis=0).sum()

    assert abs(objective(*found) - objective(*expected)) < 1e-6 * objective(*expected)
    np.testing.assert_array_equal(found[0] == 0, expected[0] == 0)


@pytest.mark.slow
@pytest.mark.parametrize('low, high', [(-1, 1.2), (0, np.inf)])
def test_bounds_reach_the_minimum(low, high):
    problem = lasso_problem()
    expected = minimum(problem, box(low, high), 0.3)
    found = train(problem, Box(low, high), 60)
    assert_same_solution(problem, half_squares, found, expected,
                         lambda w: Box(low, high).value(mx.nd.array(w)))
    assert (expected[0] != minimum(problem, box(-np.inf, np.inf), 0.3)[0]).any()
    at_bounds = np.isin(expected[0], [low, high])
    assert 0 < at_bounds.sum() < 30
    np.testing.assert_allclose(found[0][at_bounds], expected[0][at_bounds], rtol=1e-7)


@pytest.mark.slow
def test_svrg_reaches_the_optimum_where_proximal_sgd_stalls():
    problem = logistic_problem()

    def objective(weight, bias):
        return (logistic(problem.features @ weight.ravel() + bias, problem.targets)
                + 0.075 * np.abs(weight).sum())

    def gradient(weights, features, targets):
        scores = features @ weights['fc_weight'][0] + weights['fc_bias'][0]
        error = 1 / (1 + np.exp(-scores)) - targets
        return {'fc_weight': (error @ features)[None], 'fc_bias': np.array([error.sum()])}

    problem.network = gradient
    np.random.seed(0)
    least = objective(*minimum(problem, oracle.soft_threshold(0.075), 0.1))
    for alpha, epochs in ((1, 60), (0, 150)):
        excess = objective(*train(problem, L1(0.075), epochs, problem.iterator(10, shuffle=True),
                                  alpha, learning_rate=0.3)) - least
        assert abs(excess) < 1e-6 if alpha else excess > 1e-3

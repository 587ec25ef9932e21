"""Proximal SVRG against scikit-learn."""

import math

import mxnet as mx
import numpy as np
import pytest
from sklearn.linear_model import Lasso, LogisticRegression

from problems import Problem
from svrg_optimization.proximal import L1


def lasso_problem():
    rng = np.random.RandomState(0)
    problem = Problem(rows=200, features=30)
    truth = np.array([2, -1.5, 1, -1, 1.5, -2] + [0] * 24)
    problem.features = rng.normal(size=(200, 30))
    problem.targets = problem.features @ truth + 0.5 + 0.3 * rng.normal(size=200)
    return problem


def train(problem, proximal, num_epoch, train_data=None, alpha=1, optimizer='sgd', **params):
    """Return weights and biases in float64."""
    module = problem.module(2, proximal=proximal, alpha=alpha)
    module.fit(train_data or problem.iterator(20), eval_metric=[], num_epoch=num_epoch,
               initializer=mx.init.Zero(), optimizer=optimizer, optimizer_params={
                   **({'learning_rate': 0.1} if optimizer == 'sgd' else {}), **params})
    return tuple(module.get_params()[0][name].asnumpy().astype(float)
                 for name in ('fc_weight', 'fc_bias'))


def assert_same_solution(objective, found, expected):
    assert objective(*found) == pytest.approx(objective(*expected), rel=1e-6)
    np.testing.assert_array_equal(found[0].ravel() == 0, expected[0].ravel() == 0)


@pytest.mark.parametrize('strength, low, nonzero, epochs, optimizer', [
    (0.25, -math.inf, 6, 60, 'sgd'), (0.25, 0, 4, 60, 'sgd'),  # without bounds a fifth
    (0.2, -math.inf, 6, 120, 'svrg_lbfgs')])
def test_l1_reaches_the_lasso_of_scikit_learn(strength, low, nonzero, epochs, optimizer):
    problem = lasso_problem()
    expected = Lasso(strength, positive=low == 0, tol=1e-12, max_iter=100000).fit(
        problem.features, problem.targets)
    assert (expected.coef_ != 0).sum() == nonzero

    def objective(weight, bias):
        errors = problem.features @ weight.ravel() + bias - problem.targets
        return (errors ** 2).mean() / 2 + strength * np.abs(weight).sum()

    found = train(problem, L1(strength, low=low), epochs, optimizer=optimizer)
    assert_same_solution(objective, found, (expected.coef_, expected.intercept_))


@pytest.mark.slow
@pytest.mark.parametrize('l1_ratio, strength', [(1, 0.075), (0.7, 0.1)])
@pytest.mark.filterwarnings('ignore:.*penalty.*:FutureWarning')
def test_elastic_net_reaches_the_logistic_regression_of_scikit_learn(l1_ratio, strength):
    """Where proximal SGD stalls."""
    problem = lasso_problem()
    noise = np.random.RandomState(1).logistic(size=200)
    problem.targets = (problem.targets + noise > 0.5).astype(float)
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    problem.symbol = mx.sym.LogisticRegressionOutput(output, mx.sym.Variable('label'))
    l1, l2 = l1_ratio * strength, (1 - l1_ratio) * strength
    expected = LogisticRegression(
        penalty='elasticnet', solver='saga', C=1 / (strength * 200), l1_ratio=l1_ratio, tol=1e-12,
        max_iter=100000).fit(problem.features, problem.targets)
    assert (expected.coef_ != 0).sum() == 6  # a fifth

    def objective(weight, bias):
        scores = problem.features @ weight.ravel() + bias
        return (np.logaddexp(0, scores) - problem.targets * scores).mean() + (
            l1 * np.abs(weight).sum() + l2 / 2 * (weight ** 2).sum())

    assert_same_solution(objective, train(problem, L1(l1), 150, learning_rate=0.4, wd=l2),
                         (expected.coef_, expected.intercept_))
    np.random.seed(0)
    stalled = train(problem, L1(l1), 150, problem.iterator(10, shuffle=True), 0,
                    learning_rate=0.3, wd=l2)
    assert objective(*stalled) > objective(expected.coef_, expected.intercept_) + 1e-3

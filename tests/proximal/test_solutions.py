"""Proximal SVRG against solutions in float64, on raw and standardised columns."""

import mxnet as mx
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import Lasso

from linear_models import Problem, by_gluon, by_module
from oracle import block_threshold, box, proximal_minimum, soft_threshold, softmax_regression
from pairs import in_pairs
from svrg_optimization.proximal import L1, Box, GroupLasso, ProximalOperator

ROWS, COLUMNS, OUTPUTS, BATCH = 120, 8, 2, 20
RNG = np.random.RandomState(0)
STANDARD = RNG.normal(size=(ROWS, COLUMNS)) * (RNG.uniform(size=(ROWS, COLUMNS)) < 0.7)
FEATURES = {'standardised': STANDARD, 'raw': STANDARD * np.logspace(-1, 2, COLUMNS)}
TRUTH = np.array([[2, -1, 0.5, 0, 0, 0, 0, -0.5], [1.5, 1, 0, 0, 0, -0.1, 0, -1]])
TARGETS = STANDARD @ TRUTH.T + 0.5 + 0.3 * RNG.normal(size=(ROWS, OUTPUTS))


class OwnOperator(ProximalOperator):
    """L1 that wants a float for the step size."""

    def prox(self, weight, step_size):
        assert isinstance(step_size, float)
        L1(0.2).prox(weight, step_size)

    def value(self, weight):
        return L1(0.2).value(weight)


# By the axis that counts the columns the operator; weight decay; the proximal operator in float64.
TABLE = {
    'L1': (lambda axis: L1(0.2), 0, soft_threshold(0.2)),
    'elastic net': (lambda axis: L1(0.1), 0.1, soft_threshold(0.1)),
    'L1 of 0': (lambda axis: L1(0.), 0, soft_threshold(0.)),
    'non-negative lasso': (lambda axis: L1(0.1, low=0), 0, lambda values, step: soft_threshold(0.1)(
        np.maximum(values, 0), step)),
    'bounds': (lambda axis: Box(-0.3, 0.4), 0, box(-0.3, 0.4)),
    'group lasso': (lambda axis: GroupLasso(0.3, axis), 0, block_threshold(0.3, 1)),
    'non-negative groups': (lambda axis: GroupLasso(0.3, axis, low=0), 0.01, lambda values, step:
                            block_threshold(0.3, 1)(np.maximum(values, 0), step)),
    'groups of outputs': (lambda axis: GroupLasso(0.75, 1 - axis), 0.01, lambda values, step:
                          block_threshold(0.75, 0)(values, step[0])),
    'own': (lambda axis: OwnOperator(), 0, soft_threshold(0.2))}


def optimum(kind, wd, prox):
    """Return the weights at the optimum, found in columns of one scale."""
    rows = FEATURES[kind]
    rows, targets = rows - rows.mean(axis=0), TARGETS - TARGETS.mean(axis=0)  # with the best bias
    hessian = rows.T @ rows / ROWS / OUTPUTS + wd * np.eye(COLUMNS)  # the loss is a mean of both
    slope, length = targets.T @ rows / ROWS / OUTPUTS, np.ones(COLUMNS)
    if kind == 'raw':
        length = np.sqrt(np.diag(hessian))
    step = 1 / length ** 2 / np.linalg.eigvalsh(hessian / np.outer(length, length))[-1]
    return proximal_minimum(lambda weight: weight @ hessian - slope, prox,
                            np.zeros((OUTPUTS, COLUMNS)), step)


@in_pairs({'front_end': [by_module, by_gluon], 'stype': ['default', 'csr'],
           'kind': list(FEATURES), 'name': list(TABLE)})
def test_solutions_are_those_of_float64(front_end, stype, kind, name):
    operator, wd, prox = TABLE[name]
    kind = 'standardised' if name in ('own', 'groups of outputs') else kind  # M is a number
    expected, is_dot = optimum(kind, wd, prox), stype == 'csr' and front_end is by_module
    problem = Problem('squares', FEATURES[kind], TARGETS, wd, 'float64', BATCH, stype=stype,
                      dot=is_dot)
    found = front_end(problem, 100, 1e-7, proximal=operator(0 if is_dot else 1),
                      initializer=mx.init.Zero())
    assert found.by.has_converged
    scale = np.sqrt((FEATURES[kind] ** 2).mean(axis=0))
    np.testing.assert_allclose(found.weight * scale, expected * scale, atol=1e-6)
    np.testing.assert_array_equal(found.weight == 0, expected == 0)
    assert (name == 'L1 of 0') != bool((expected == 0).any() or (expected == 0.4).any())


def lasso():
    """Few rows with many columns that are correlated."""
    rng = np.random.RandomState(0)
    factors = rng.normal(size=(72, 10))
    rows = factors @ rng.normal(size=(10, 300)) + rng.normal(size=(72, 300))
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    targets = rows[:, ::30] @ rng.normal(size=10) + rng.normal(size=72)
    return rows, (targets - targets.mean()) / targets.std()


def digits():
    rows, labels = load_digits(return_X_y=True)
    return rows / 16, labels


@pytest.mark.filterwarnings('ignore:training did not converge')  # digits: without a bound
@pytest.mark.parametrize('data, loss, strength, tol', [
    (lasso, 'squares', 0.2, 1e-5), (digits, 'softmax', 1 / 1797, 1e-4)])
def test_l1_finds_its_support(data, loss, strength, tol):
    rows, labels = data()
    problem = Problem(loss, rows, labels, batch=64 if loss == 'softmax' else 8, shuffle=True)
    found = by_module(problem, 150, tol, proximal=L1(strength), initializer=mx.init.Zero())
    assert found.by.result.reason != 'epochs used up' and found.by.result.passes < 400
    if loss == 'squares':
        expected = Lasso(strength, tol=1e-12, max_iter=10 ** 6).fit(rows, labels).coef_
        np.testing.assert_array_equal(found.weight[0] != 0, expected != 0)
        np.testing.assert_allclose(found.weight[0], expected, atol=1e-5)
        assert found.by.has_converged and 5 < (expected != 0).sum() < 30
        return
    network = softmax_regression({'fc_weight': found.weight, 'fc_bias': found.bias}, rows, labels)
    slope, bias = network['fc_weight'] / len(rows), network['fc_bias'] / len(rows)
    held = found.weight == 0
    assert 0.5 < held.mean() < 0.9 and np.abs(bias).max() < 1e-6
    assert (abs(slope[held]) < strength + 1e-6).all()
    np.testing.assert_allclose(slope[~held], -strength * np.sign(found.weight[~held]), atol=1e-6)

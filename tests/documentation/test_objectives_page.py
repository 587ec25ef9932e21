"""The rows of the table of docs/objectives.md, against scikit-learn."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from linear_models import Problem, by_gluon, by_module
from svrg_optimization.proximal import L1

ROWS, STRENGTH = 57, 0.4
RNG = np.random.RandomState(0)
FEATURES = RNG.normal(size=(ROWS, 3)).astype('float32')
SCORES = FEATURES.dot([[1, -1, 0], [0, 2, 1], [1, 1, -2]]) + RNG.normal(size=(ROWS, 3))
KINDS = {  # the loss, labels, weight decay over the strength
    'linear': ('squares', SCORES[:, 0] + 2, 1),
    'linear 2': ('squares', SCORES[:, :2] - 1, 1),
    'linear, made': ('made squares', SCORES[:, 0] + 2, 1),
    'logistic': ('logistic', SCORES[:, 0] > 0, 1),
    'softmax 2': ('softmax', SCORES[:, 0] > 0, 2),
    'softmax 3': ('softmax', SCORES.argmax(axis=1), 1)}
LABELS = {kind: labels.astype('float32') for kind, (_, labels, _) in KINDS.items()}


def objective_of_scikit_learn(kind, l1, weight, bias):
    """Mean loss of a row and the regularizer of its documentation over C n, or 2 n, in float64."""
    weight, bias = weight.astype('float64'), bias.astype('float64')
    if kind == 'softmax 2':  # its one output
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    scores, labels = FEATURES.astype('float64').dot(weight.T) + bias, LABELS[kind]
    size = np.abs(weight).sum() / 4 if l1 else (weight ** 2).sum() / 2
    if kind.startswith('linear'):
        errors = scores - labels.reshape(scores.shape)
        return (errors ** 2).mean() / 2 + STRENGTH * size
    if kind != 'softmax 3':
        scores = np.concatenate([np.zeros((ROWS, 1)), scores], axis=1)
    log_sums = np.log(np.exp(scores).sum(axis=1))
    return (log_sums - scores[np.arange(ROWS), labels.astype(int)]).mean() + STRENGTH * size


def least(kind, l1):
    """Return the least value of the objective, which scikit-learn finds."""
    if kind.startswith('linear'):
        found = Ridge(alpha=STRENGTH * ROWS * LABELS[kind][0].size).fit(
            FEATURES.astype('float64'), LABELS[kind].astype('float64'))
        weight, bias = np.atleast_2d(found.coef_), np.atleast_1d(found.intercept_)
    else:
        own = {'solver': 'saga', 'max_iter': 100000, 'penalty': 'l1'} if l1 else {'max_iter': 1000}
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', "'penalty' was deprecated")
            warnings.filterwarnings('ignore', 'Inconsistent values: penalty')
            found = LogisticRegression(C=(4 if l1 else 1) / (STRENGTH * ROWS), tol=1e-9, **own).fit(
                FEATURES.astype('float64'), LABELS[kind])
        weight, bias = found.coef_, found.intercept_
    if kind == 'softmax 2':
        weight, bias = np.concatenate([-weight, weight]) / 2, np.r_[-bias, bias] / 2
    return objective_of_scikit_learn(kind, l1, weight, bias)


def assert_least(kind, weight, bias, l1=False):
    expected = least(kind, l1)
    assert objective_of_scikit_learn(kind, l1, weight, bias) == pytest.approx(expected, rel=1e-6)
    shifted = objective_of_scikit_learn(kind, l1, weight * 1.1, bias)
    assert shifted > expected * (1 + 1e-4)  # the comparison can fail


@pytest.mark.parametrize('front_end, kind, l1', [
    *((front_end, kind, False) for front_end in (by_module, by_gluon) for kind in KINDS),
    *((front_end, 'logistic', True) for front_end in (by_module, by_gluon)),
    (by_module, 'softmax 2', True)])
def test_the_objective_of_the_table_is_minimised(front_end, kind, l1):
    loss, _, wd = KINDS[kind]
    found = front_end(Problem(loss, FEATURES, LABELS[kind], 0 if l1 else wd * STRENGTH, batch=10),
                      300, 1e-5, 1, proximal=L1(STRENGTH / 4) if l1 else None)
    assert found.by.has_converged and found.by.gradient_norm <= 1e-5
    assert_least(kind, found.weight, found.bias, l1)

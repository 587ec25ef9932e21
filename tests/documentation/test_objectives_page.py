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


def scores_of_scikit_learn(kind, l1):
    rows, labels = FEATURES.astype('float64'), LABELS[kind].astype('float64')
    if kind.startswith('linear'):
        return Ridge(alpha=STRENGTH * ROWS * labels[0].size).fit(rows, labels).predict(rows)
    own = {'solver': 'saga', 'max_iter': 100000, 'penalty': 'l1'} if l1 else {'max_iter': 1000}
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', "'penalty' was deprecated")
        warnings.filterwarnings('ignore', 'Inconsistent values: penalty')
        return LogisticRegression(C=(4 if l1 else 1) / (STRENGTH * ROWS), tol=1e-9, **own).fit(
            rows, labels).decision_function(rows)


@pytest.mark.parametrize('front_end, kind, l1', [
    *((front_end, kind, False) for front_end in (by_module, by_gluon) for kind in KINDS),
    *((front_end, 'logistic', True) for front_end in (by_module, by_gluon)),
    (by_module, 'softmax 2', True)])
def test_the_objective_of_the_table_is_minimised(front_end, kind, l1):
    loss, _, wd = KINDS[kind]
    found = front_end(Problem(loss, FEATURES, LABELS[kind], 0 if l1 else wd * STRENGTH, batch=10),
                      300, 1e-5, 1, proximal=L1(STRENGTH / 4) if l1 else None)
    assert found.by.has_converged and found.by.gradient_norm <= 1e-5
    scores, expected = FEATURES @ found.weight.T + found.bias, scores_of_scikit_learn(kind, l1)
    if kind == 'softmax 2':
        scores = np.diff(scores)
    elif kind == 'softmax 3':  # which does not see what all outputs have in common
        scores, expected = (each - each.mean(axis=1, keepdims=True) for each in (scores, expected))
    np.testing.assert_allclose(scores, expected.reshape(scores.shape), atol=1e-4)

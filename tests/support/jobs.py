"""What a job of the example train.py leaves behind: its weights."""

import mxnet as mx
import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from cluster import ROOT

TRAIN = ROOT / 'examples' / 'distributed' / 'train.py'


def weights(prefix, epoch):
    saved = mx.nd.load('%s-%04d.params' % (prefix, epoch))
    return {name: value.asnumpy() for name, value in saved.items()}


def last_checkpoint(prefix):
    """Return the number of a job's last checkpoint."""
    return max(int(path.stem[-4:]) for path in prefix.parent.glob(prefix.name + '-*.svrg'))


def assert_same_weights(actual, expected):
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def assert_optimal(found, features, labels, l2):
    """Compare weights and biases with those that are optimal, computed in float64."""
    rows, classes = len(features), labels.max() + 1
    design = np.column_stack([features, np.ones(rows)])
    penalty = np.array([l2] * features.shape[1] + [0])

    def loss_and_gradient(flat):
        parameters = flat.reshape(classes, -1)
        log_probabilities = log_softmax(design @ parameters.T, axis=1)
        error = np.exp(log_probabilities)
        error[np.arange(rows), labels] -= 1
        loss = -log_probabilities[np.arange(rows), labels].mean()
        return (loss + (penalty * parameters ** 2).sum() / 2,
                (error.T @ design / rows + penalty * parameters).ravel())

    optimum = minimize(loss_and_gradient, np.zeros(classes * design.shape[1]), jac=True,
                       method='L-BFGS-B', options={'ftol': 0, 'gtol': 1e-11, 'maxiter': 10000}
                       ).x.reshape(classes, -1)
    np.testing.assert_allclose(found['arg:fc_weight'], optimum[:, :-1], atol=1e-5)
    np.testing.assert_allclose(found['arg:fc_bias'] - found['arg:fc_bias'].mean(),
                               optimum[:, -1] - optimum[:, -1].mean(), atol=1e-5)

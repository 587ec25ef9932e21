"""Generalized linear models in float64: their optimum by Newton's method on scaled columns."""

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.linear_model import Lasso

from oracle import softmax


def sigmoid(scores):
    return np.exp(-np.logaddexp(0, -scores))


# Loss of a row, its slope and its curvature in the output.
ROWS = {
    'squares': lambda z, y: ((z - y) ** 2 / 2, z - y, np.ones_like(z)),
    'logistic': lambda z, y: (np.logaddexp(0, z) - y * z, sigmoid(z) - y,
                              sigmoid(z) * sigmoid(-z)),
    'poisson': lambda z, y: (np.exp(z) - y * z, np.exp(z) - y, np.exp(z)),
    'gamma': lambda z, y: (z + y * np.exp(-z), 1 - y * np.exp(-z), y * np.exp(-z)),
    'huber': lambda z, y: (np.where(abs(z - y) < 1, (z - y) ** 2 / 2, abs(z - y) - 0.5),
                           np.clip(z - y, -1, 1), (abs(z - y) < 1) * 1.),
    **{name: lambda z, y, loss=loss: (loss(z, y), None, None) for name, loss in {  # with kinks
        'absolute': lambda z, y: abs(z - y),
        'quantile': lambda z, y: np.maximum(0.8 * (y - z), 0.2 * (z - y)),
        'hinge': lambda z, y: np.maximum(1 - z * (2 * y - 1), 0),
        'squared hinge': lambda z, y: np.maximum(1 - z * (2 * y - 1), 0) ** 2}.items()}}


def mean_loss(loss, scores, targets):
    if loss == 'softmax':
        return -log_softmax(scores, axis=1)[np.arange(len(scores)), targets.astype(int)].mean()
    return ROWS[loss](scores[:, 0], targets)[0].mean()


def outputs_at_optimum(loss, rows, targets, decay, bias=True):
    """Return the outputs at the optimum of the mean loss, with a decay of all but the bias."""
    moved = rows - rows.mean(axis=0) * bias
    deviation = np.sqrt((moved ** 2).mean(axis=0))
    deviation = np.where(deviation > 0, deviation, 1.)
    inputs = np.column_stack([moved / deviation, np.full(len(rows), float(bias))])
    decays = np.append(decay / deviation ** 2, 0)
    outputs = int(targets.max()) + 1 if loss == 'softmax' else 1
    weights = np.zeros((outputs, inputs.shape[1]))
    weights[:, -1] = {'poisson': np.log(max(targets.mean(), 1e-9)),
                      'huber': np.median(targets)}.get(loss, 0.)
    mean = len(rows)

    def value(weights):
        return mean_loss(loss, inputs @ weights.T, targets) + (decays * weights ** 2).sum() / 2

    for _ in range(200):
        scores = inputs @ weights.T
        if loss == 'softmax':
            parts = softmax(scores)
            errors = parts - np.eye(outputs)[targets.astype(int)]
            curvature = np.block([[
                (inputs * (parts[:, [i]] * ((i == j) - parts[:, [j]]))).T @ inputs / mean
                for j in range(outputs)] for i in range(outputs)])
        else:
            _, slopes, bends = ROWS[loss](scores[:, 0], targets)
            errors = slopes[:, np.newaxis]
            curvature = (inputs * np.maximum(bends, 1e-9)[:, np.newaxis]).T @ inputs / mean
        gradient = errors.T @ inputs / mean + decays * weights
        curvature += np.diag(np.tile(decays, outputs)) + 1e-13 * np.eye(len(curvature))
        if len(curvature) > 1000:  # with a decay
            step = np.linalg.solve(curvature, gradient.ravel())
        else:
            step = np.linalg.lstsq(curvature, gradient.ravel(), rcond=1e-12)[0]
        step, length = step.reshape(weights.shape), 1.
        while value(weights - length * step) > value(weights) and length > 1e-9:
            length /= 2
        weights = weights - length * step
        if np.abs(step).max() < 1e-12 * (1 + np.abs(weights).max()):
            break
    return inputs @ weights.T


def outputs_with_l1(loss, rows, targets, strength, bias=True):
    """Return the outputs at the optimum of the mean loss of one output and the L1 norm."""
    if loss == 'squares':
        unit = targets.std() or 1.
        return unit * Lasso(strength / unit, fit_intercept=bias, tol=1e-14, max_iter=10 ** 5).fit(
            rows, targets / unit).predict(rows)[:, None]
    signed = np.column_stack([rows, -rows, np.ones(len(rows))])  # weights of both signs, a bias
    strengths = np.append(np.full(2 * rows.shape[1], strength), 0.)

    def value(weights):
        losses, slopes, _ = ROWS[loss](signed @ weights, targets)
        return losses.mean() + strengths @ weights, signed.T @ slopes / len(rows) + strengths

    return (signed @ minimize(
        value, np.zeros(len(strengths)), jac=True, method='L-BFGS-B',
        bounds=[(0, None)] * (len(strengths) - 1) + [(None, None)],
        options={'ftol': 0, 'gtol': 1e-10, 'maxiter': 100_000, 'maxfun': 100_000}).x)[:, None]

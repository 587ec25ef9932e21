"""Objectives in NumPy: half the mean of squared errors, times the weights of rows; and others."""

import contextlib
from types import SimpleNamespace

import numpy as np

from svrg_optimization.core.front_end import Layer
from svrg_optimization.core.optimality import Point
from svrg_optimization.rate.moments import Moments


class Quadratic:
    """A linear model w of rows and targets, with a weight decay, in batches of some rows."""

    noise_sources, leaves_out_rows, moves, units, train_data = (), False, True, 1., 'these'
    names_of_layers = frozenset(['w'])

    def __init__(self, rows, targets, decay=0., batch=10, of_rows=1., tol=1e-6):
        self.rows, self.targets, self.decay, self.batch = rows, targets, decay, batch
        self.of_rows, self.tol = of_rows * np.ones(len(rows)), tol
        self.now = self.at = np.zeros(rows.shape[1])
        self.weights, self.number, self.passes = {'w': self.now[None]}, 0, 0
        self.batches, self._drawn, self._is_active = -(-len(rows) // batch), slice(0, batch), False
        self.mean_gradient = SimpleNamespace(
            multipliers={'w': 1.}, decays={'w': decay}, proximal={})

    def agree(self, *numbers):
        return numbers if len(numbers) > 1 else numbers[0]

    def warn_once(self, message):
        raise AssertionError(message)

    def slope(self, at, rows=slice(None)):
        error = self.of_rows[rows] * self.slopes(self.rows[rows] @ at - self.targets[rows])
        return self.rows[rows].T @ error / len(error)

    def value(self, at):
        losses = self.of_rows * self.losses(self.rows @ at - self.targets)
        return losses.mean() + self.decay * at @ at / 2

    def losses(self, errors):
        return np.square(errors) / 2

    def slopes(self, errors):
        return errors

    def hessian(self):
        """Return the Hessian, if the loss is of squares."""
        return (self.rows.T * self.of_rows) @ self.rows / len(self.rows) + (
            self.decay * np.eye(len(self.now)))

    def optimum(self):
        return np.linalg.solve(self.hessian(), self.rows.T @ (
            self.of_rows * self.targets) / len(self.rows))

    # What an Objective does

    @contextlib.contextmanager
    def stale_on_error(self, forget):
        yield

    def rewind(self):
        return True

    def take_snapshot(self, reads_inputs, may_be_undone):
        self.at, self._is_active = self.now, True
        self.number, self.passes = self.number + 1, self.passes + 1
        spread = self.rows.T @ self.rows / len(self.rows)
        return {Layer('w', None, 1): Moments(0 * self.now, spread)} if reads_inputs else {}

    def kept(self):
        return SimpleNamespace(weights=self.at) if self._is_active else None

    def go_back(self, kept):
        self.now = self.at = kept.weights

    def go_to(self, metric, weights):
        self.now = weights
        return not np.array_equal(weights, self.at)

    def point(self, metric, kept=None, rows=slice(None), move=None):
        at = self.at if kept is None else kept.weights
        at = at if move is None else at + metric.push(move)
        slope = self.slope(at, rows)
        return Point(at, slope + self.decay * at, slope, 0 * slope, self.value(at),
                     0., 1., len(self.rows))

    def point_at(self, metric, move=None):
        self.passes += 1
        return self.point(metric, move=move)

    def point_of_batch(self, metric, move=None):
        return self.point(metric, rows=self._drawn, move=move)


class LogCosh(Quadratic):
    """A loss that is straight far from its targets, where a quadratic model goes too far."""

    def losses(self, errors):
        return np.logaddexp(errors, -errors) - np.log(2)

    def slopes(self, errors):
        return np.tanh(errors)

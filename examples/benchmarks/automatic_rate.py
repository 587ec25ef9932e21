"""Does fit with tol and svrg_lbfgs end by itself, at the optimum, and how soon?

Problems of several kinds: badly scaled, correlated and offset columns, rows of
unit length, sparse rows, handwritten digits, L1. Each is trained without a
learning rate, with tol=1e-4 and with the tol that brings the objective within
1e-6 (relative) of scikit-learn's at its tightest tolerance. Both are checked in
float64. Passes and time stand beside those of the best constant rate of a grid,
with the same optimizer and tol. All are timed in interleaved rounds, and the
fastest counts.
"""

import contextlib
import math
import time
import warnings

import common
import mxnet as mx
import numpy as np
from scipy.special import expit, log_softmax, softmax
from sklearn.datasets import load_digits, load_svmlight_file
from sklearn.linear_model import Lasso, LogisticRegression, Ridge

from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1

TOL, NEAR, ROUNDING = 1e-4, 1e-6, 1.01
GRID = 3.0 ** np.arange(3, -6, -1)  # over the curvature
ROWS, FEATURES = 2000, 20
# Each loss: its layer, outputs and losses of rows from scores, a bound on its curvature.
LOSSES = {
    'squares': (mx.sym.LinearRegressionOutput, lambda scores: scores,
                lambda scores, targets: (scores - targets) ** 2 / 2, 1),
    'logistic': (mx.sym.LogisticRegressionOutput, expit,
                 lambda scores, targets: np.logaddexp(0, scores) - targets * scores, 1 / 4),
    'softmax': (mx.sym.SoftmaxOutput, lambda scores: softmax(scores, axis=1),
                lambda scores, targets: -log_softmax(scores, axis=1) * targets, 1 / 2)}


class Problem:
    """Rows, a linear model with a bias for them, its objective in float64, how to train it."""

    def __init__(self, loss, features, labels, batch_size, optimizer, tol, l2=1e-3, l1=0.):
        self.loss, self.batch_size, self.optimizer, self.tol = loss, batch_size, optimizer, tol
        self.l2, self.l1, self.momentum = (0, l1, 0) if l1 else (l2, 0, 0.9)
        self.features, self.labels = features.astype(np.float32), np.asarray(labels, np.float32)
        self._exact = self.features.astype(float)
        self._targets = (np.eye(labels.max() + 1)[labels] if loss == 'softmax'
                         else self.labels.astype(float)[:, None])
        self._layer, self._outputs, self._losses, curvature = LOSSES[loss]
        design = np.column_stack([self._exact, np.ones(len(features))])
        self.curvature = curvature * np.linalg.norm(design, 2) ** 2 / len(design) + self.l2

    def symbol(self):
        scores = mx.sym.FullyConnected(mx.sym.Variable('data'), name='fc',
                                       num_hidden=self._targets.shape[1])
        return self._layer(scores, mx.sym.Variable('label'), name='loss')

    def objective(self, weight, bias):
        losses = self._losses(self._exact @ weight.T + bias, self._targets)
        return (losses.sum() / len(losses) + self.l2 / 2 * (weight ** 2).sum()
                + self.l1 * np.abs(weight).sum())

    def gradient_norm(self, weight, bias, rate):
        """Return the largest component of the gradient, or of the gradient mapping with L1."""
        error = self._outputs(self._exact @ weight.T + bias) - self._targets
        gradient = error.T @ self._exact / len(error) + self.l2 * weight
        stepped = weight - rate * gradient
        stepped = np.sign(stepped) * np.maximum(np.abs(stepped) - rate * self.l1, 0)
        return max(np.abs((weight - stepped) / rate).max(), np.abs(error.mean(axis=0)).max())

    def optimum(self):
        """Return the objective of scikit-learn's solution at its tightest tolerance."""
        rows = len(self.labels)
        if self.loss == 'squares':
            model = Lasso(self.l1, tol=1e-14, max_iter=10 ** 6) if self.l1 else Ridge(
                rows * self.l2, solver='svd')
        elif self.l1:
            model = LogisticRegression(C=1 / (rows * self.l1), penalty='elasticnet', l1_ratio=1,
                                       solver='saga', tol=1e-10, max_iter=10 ** 5, random_state=0)
        else:
            model = LogisticRegression(C=1 / (rows * self.l2), tol=1e-10, max_iter=10 ** 5)
        model.fit(self._exact, self.labels)
        return self.objective(np.atleast_2d(model.coef_), model.intercept_)


def problems(data=None):
    """Return the problems by name, and one more for a LIBSVM file with two labels."""
    rng = np.random.RandomState(0)
    plain = rng.normal(size=(ROWS, FEATURES))
    mixed = 2 * rng.normal(size=(ROWS, 1)) + 0.5 * plain
    scaled = plain * np.logspace(0, 1.5, FEATURES)
    sparse = np.zeros((2 * ROWS, 123))  # one of each of 14 groups: some often, others hardly ever
    for columns in np.array_split(np.arange(123), 14):
        share = rng.dirichlet(np.full(len(columns), 0.5))
        sparse[np.arange(len(sparse)), rng.choice(columns, len(sparse), p=share)] = 1

    def numbers(rows):
        scores = rows @ rng.normal(size=rows.shape[1])
        return scores / scores.std() + rng.normal(size=len(rows))

    def classes(rows, count=2):
        scores = rows @ rng.normal(size=(rows.shape[1], count))
        return (2 * scores / scores.std() + rng.gumbel(size=scores.shape)).argmax(axis=1)

    unit = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    digits, digit = load_digits(return_X_y=True)
    made = {
        'least squares, scaled': Problem('squares', scaled, numbers(scaled), 64, 'nag', 1e-4),
        'least squares, offset': Problem('squares', plain + 1, numbers(plain), 128, 'sgd', 1e-4),
        'least squares, correlated': Problem('squares', mixed, numbers(plain), 32, 'nag', 1e-4),
        'least squares, L1': Problem('squares', mixed, numbers(plain), 64, 'sgd', 1e-4, l1=0.01),
        'logistic, scaled': Problem('logistic', scaled, classes(scaled), 64, 'nag', 1e-4),
        'logistic, offset': Problem('logistic', plain + 1, classes(plain), 64, 'sgd', 1e-4),
        'logistic, correlated': Problem('logistic', mixed, classes(plain), 256, 'nag', 1e-5),
        'logistic, unit rows': Problem('logistic', unit, classes(unit), 64, 'nag', 1e-5),
        'logistic, sparse rows': Problem('logistic', sparse, classes(sparse), 128, 'nag', 1e-5),
        'logistic, sparse rows, L1': Problem('logistic', sparse, classes(sparse), 128, 'sgd', 3e-6,
                                             l1=1e-3),
        'softmax, scaled': Problem('softmax', scaled, classes(scaled, 5), 128, 'nag', 1e-4),
        'softmax, unit rows': Problem('softmax', unit, classes(unit, 5), 32, 'sgd', 1e-5),
        'softmax, digits': Problem('softmax', digits / 16, digit, 64, 'nag', 3e-6),
    }
    if data:
        features, labels = load_svmlight_file(data)
        made[data] = Problem('logistic', features.toarray(), np.unique(
            labels, return_inverse=True)[1], 128, 'nag', 1e-5)
    return made


def train(problem, tol, epochs, rate=None):
    """Train; return the module, and the gradient norm, passes and time of each snapshot."""
    np.random.seed(0)
    mx.random.seed(0)
    train_data = mx.io.NDArrayIter(problem.features, problem.labels, problem.batch_size,
                                   shuffle=True, label_name='label')
    module = SVRGModule(problem.symbol(), label_names=('label',), update_freq=2, tol=tol,
                        proximal={'fc_weight': L1(problem.l1)} if problem.l1 else None)
    params = {'momentum': problem.momentum, 'wd': problem.l2,
              **({'learning_rate': rate} if rate else {})}
    curve, tic = [], time.perf_counter()

    def record():
        passes = 5 * len(curve) + 1
        if rate is None:  # the first pair
            passes += 2 * problem.batch_size / len(problem.labels)
        curve.append((module.gradient_norm, passes, time.perf_counter() - tic))
        if rate and not curve[-1][0] < curve[0][0] * (100 if len(curve) < 9 else 1):
            raise StopIteration  # a rate of the grid that does not converge

    with contextlib.suppress(StopIteration):
        module.fit(train_data, eval_metric=[],
                   optimizer=problem.optimizer if rate else 'svrg_lbfgs',
                   optimizer_params=params, initializer=mx.init.Zero(), num_epoch=epochs,
                   batch_end_callback=lambda now: now.epoch % 2 or now.nbatch or record())
        record()
    return module, curve


def cost(curve, tol):
    """Return the passes and the seconds until the gradient norm was at most `tol`."""
    return min(((passes, seconds) for norm, passes, seconds in curve if norm <= tol),
               default=(math.inf, math.inf))


def curves_of_grid(problem, tol, passes):
    """Return the curve of each rate, the largest first, until a smaller one is slower."""
    curves = {}
    for rate in GRID / problem.curvature:
        _, curves[rate] = train(problem, tol, 2 * math.ceil(passes / 5), rate)
        found, _ = cost(curves[rate], tol)
        if found > passes and len(curves) > 1 and any(
                cost(curve, tol)[0] <= passes for curve in curves.values()):
            break
        passes = min(passes, found)
    return curves


def rows_of(name, problem, args):
    """Return the rows of the table for a problem, and check what they promise."""
    rows, optimum = [], problem.optimum()
    tolerances = sorted({TOL, problem.tol}, reverse=True)
    for tol in tolerances:
        module, curve = train(problem, tol, args.epochs)
        weight, bias = (module.get_params()[0]['fc_' + key].asnumpy().astype(float)
                        for key in ('weight', 'bias'))
        norm = problem.gradient_norm(weight, bias, module._optimizer.learning_rate)
        excess = abs(problem.objective(weight, bias) / optimum - 1)
        assert module.gradient_norm <= tol and norm <= ROUNDING * tol, (name, tol, norm)
        assert tol > problem.tol or excess <= NEAR, (name, tol, excess)
        rows.append([name, '%d × %d' % problem.features.shape, '%s, %d' % (
            problem.optimizer, problem.batch_size), '%g' % tol, '%.1e' % norm, '%.0e' % excess])
    passes, _ = cost(curve, tol)
    curves = curves_of_grid(problem, tol, 3 * passes)
    best = [min(curves, key=lambda rate: cost(curves[rate], tol)) for tol in tolerances]
    timed = {rate: [] for rate in (None, *best)}
    for _ in range(args.rounds):
        for rate, runs in timed.items():
            epochs = 2 * len(curves[rate]) if rate else args.epochs
            runs.append(train(problem, problem.tol, epochs, rate)[1])
    for row, tol, rate in zip(rows, tolerances, best):
        (passes, seconds), (least, fastest) = (
            min(cost(curve, tol) for curve in timed[each]) for each in (None, rate))
        row += ['%.0f' % passes, '%.0f' % least, '%.2f s' % seconds, '%.2f s' % fastest,
                '%.1f' % (seconds / fastest)]
    return rows


def main():
    parser = common.parser(__doc__, rounds=2)
    parser.add_argument('--data', metavar='FILE', help='a LIBSVM file with two labels, too')
    parser.add_argument('--problems', nargs='+', metavar='NAME', help='only these')
    parser.add_argument('--epochs', type=int, default=1000, help='at most, of each training')
    args = parser.parse_args()
    common.quiet()
    warnings.simplefilter('ignore')  # rates of the grid that diverge
    rows = []
    for name, problem in problems(args.data).items():
        if not args.problems or name in args.problems:
            rows += rows_of(name, problem, args)
    setting = (
        'SVRGModule with update_freq=2 and L2 of 0.001, or with L1 (0.01 for least squares, 0.001 '
        'for logistic), from weights of 0. sgd and nag have a momentum of 0.9, and of 0 with L1. '
        'gradient: the largest component at the end, in float64; with L1, of the gradient mapping. '
        'objective: relative difference from scikit-learn. The best of %d constant rates, factors '
        'of 3 apart, is the one with the fewest passes. The fastest of %d rounds.'
        % (len(GRID), args.rounds))
    common.write(args.output, 'automatic_rate', setting, [
        'problem', 'rows × features', 'optimizer, batch', 'tol', 'gradient', 'objective', 'passes',
        'passes, best rate', 'time', 'time, best rate', 'times as long'], rows)


if __name__ == '__main__':
    main()

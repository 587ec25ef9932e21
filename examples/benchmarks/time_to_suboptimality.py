"""How long does each method take to come within 1e-2, 1e-4 and 1e-6 of the optimum?

L2-regularized logistic regression: multinomial on generated dense rows with a
decaying spectrum (784 features, 10 classes), or on real rows that --data names,
scikit-learn's handwritten digits or a LIBSVM file. Compares SVRG, with and
without stored snapshot gradients and Nesterov momentum, at the best rate of a
grid and at the rate that svrg_lbfgs finds, mxnet.contrib's SVRG, plain
Module with SGD at the best constant and the best decaying rate of the grid, and
scikit-learn's SAGA and L-BFGS. The optimum is SciPy's L-BFGS in float64. A
method's clock stops while its loss is computed. All run in interleaved rounds,
and the fastest counts.
"""

import contextlib
import time
import warnings

import common
import mxnet as mx
import numpy as np
from common import pyplot
from mxnet.contrib.svrg_optimization.svrg_module import SVRGModule as ContribModule
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.datasets import load_digits, load_svmlight_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from svrg_optimization import SVRGModule

LEVELS = (1e-2, 1e-4, 1e-6)
COLORS = {'SVRG, stored': common.COLORS['SVRG, stored'], 'SVRG': common.COLORS['SVRG'],
          'SVRG, stored, momentum': common.COLORS['SVRG, stored'],
          'SVRG, stored, svrg_lbfgs': common.COLORS['SVRG, stored'],
          'SVRG, svrg_lbfgs': common.COLORS['SVRG'],
          'contrib SVRG': common.COLORS['contrib SVRG'],
          'Module, constant rate': common.COLORS['SGD'],
          'Module, decaying rate': common.COLORS['SGD, decaying rate'],
          'scikit-learn, SAGA': common.COLORS['SAGA'],
          'scikit-learn, L-BFGS': common.COLORS['L-BFGS']}
STYLES = {'svrg_lbfgs': ':', 'momentum': '--'}
ITERATIONS = (2, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64, 85, 113, 150, 200, 400)
SOLVERS = {'scikit-learn, SAGA': 'saga', 'scikit-learn, L-BFGS': 'lbfgs'}


class Problem:
    """The data, the loss in float64, and its optimum."""

    def __init__(self, features, labels, l2):
        self.features, self.labels, self.l2 = features, labels, l2
        self.classes = int(labels.max()) + 1
        design = np.column_stack([features, np.ones(len(features))]).astype(np.float64)
        found = minimize(self._loss_and_gradient, np.zeros(self.classes * design.shape[1]),
                         (design,), jac=True, method='L-BFGS-B',
                         options={'maxiter': 5000, 'maxfun': 10000, 'maxcor': 30, 'ftol': 0,
                                  'gtol': 1e-9})
        self.optimum = found.fun
        self._design = design

    def _loss_and_gradient(self, flat, design):
        weights = flat.reshape(self.classes, -1)
        log_probabilities = log_softmax(design @ weights.T, axis=1)
        rows = np.arange(len(self.labels))
        loss = (-log_probabilities[rows, self.labels].mean()
                + self.l2 / 2 * (weights[:, :-1] ** 2).sum())
        error = np.exp(log_probabilities)
        error[rows, self.labels] -= 1
        gradient = error.T @ design / len(rows)
        gradient[:, :-1] += self.l2 * weights[:, :-1]
        return loss, gradient.ravel()

    def suboptimality(self, weight, bias):
        """Return the loss of a solution minus the optimum."""
        flat = np.column_stack([weight, bias]).astype(np.float64).ravel()
        return self._loss_and_gradient(flat, self._design)[0] - self.optimum

    @classmethod
    def generated(cls, rows, l2, seed=0):
        rng = np.random.RandomState(seed)
        features = rng.normal(size=(rows, 784)) / np.sqrt(np.arange(1, 785))
        scores = features @ rng.normal(size=(784, 10))
        labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
        return cls(features.astype(np.float32), labels, l2)

    @classmethod
    def real(cls, name, l2):
        """Return the problem of the digits, or of a file."""
        if name == 'digits':
            features, labels = load_digits(return_X_y=True)
            return cls(normalize(features).astype(np.float32), labels, l2)
        features, labels = load_svmlight_file(name)
        features = features.toarray()
        features /= np.maximum(np.linalg.norm(features, axis=1), 1e-12).mean()
        return cls(features.astype(np.float32), np.unique(labels, return_inverse=True)[1], l2)


class Decay(mx.lr_scheduler.LRScheduler):
    """Divide the rate by 1 + updates / period."""

    def __init__(self, period, **kwargs):
        super().__init__(**kwargs)
        self.period = period

    def __call__(self, num_update):
        return self.base_lr / (1 + num_update / self.period)


class Clock:
    """Seconds between calls of `start` and `stop`."""

    def __init__(self):
        self.seconds = 0.0

    def start(self):
        self._tic = time.perf_counter()

    def stop(self):
        mx.nd.waitall()
        self.seconds += time.perf_counter() - self._tic


def passes_until_end_of(epoch, module):
    """Return the number of gradients of each row."""
    if type(module) is mx.mod.Module:
        return epoch + 1
    of_snapshots = epoch // 2 + 1
    if not isinstance(module, SVRGModule):
        return 2 * (epoch + 1) + of_snapshots
    of_an_epoch = 1 if module._svrg.store.batches else 2
    return of_an_epoch * (epoch + 1) + of_snapshots


def train(problem, method, rate, batch_size, epochs, seconds):
    """Train by a method; return the time, the passes and the suboptimality after each epoch."""
    symbol, _ = common.softmax(problem.features.shape[1], problem.classes)
    optimizer, params = 'sgd', {'wd': problem.l2, **({'learning_rate': rate} if rate else {})}
    if method.startswith('Module'):
        module = mx.mod.Module(symbol)
        if 'decaying' in method:
            params['lr_scheduler'] = Decay(2 * len(problem.labels) // batch_size, base_lr=rate)
    elif method.startswith('contrib'):
        module = ContribModule(symbol, update_freq=2)
    else:
        module = SVRGModule(symbol, update_freq=2, store_snapshot_grads='stored' in method)
        if 'momentum' in method:
            optimizer, params['momentum'] = 'nag', 0.9
        if 'svrg_lbfgs' in method:
            optimizer = 'svrg_lbfgs'
    return curve_of_fit(problem, module, batch_size, epochs, seconds, optimizer=optimizer,
                        optimizer_params=params,
                        passes=lambda epoch: passes_until_end_of(epoch, module))


def curve_of_fit(problem, module, batch_size, epochs, seconds, least=LEVELS[-1] / 2, *,
                 passes=lambda epoch: epoch + 1, **given):
    """Train a module until the loss is below the least, or for at most so many seconds.

    Returns
    -------
    list of tuple
        The time, the passes and the suboptimality after each epoch.
    """
    np.random.seed(0)
    mx.random.seed(0)
    train_data = mx.io.NDArrayIter(problem.features, problem.labels, batch_size, shuffle=True)
    clock, curve = Clock(), []

    def record(epoch, _, weights, __):
        clock.stop()
        found = problem.suboptimality(weights['fc_weight'].asnumpy(), weights['fc_bias'].asnumpy())
        curve.append((clock.seconds, passes(epoch), found))
        if not found < 1e3 or found < least or clock.seconds > seconds:
            raise StopIteration
        clock.start()

    clock.start()
    with contextlib.suppress(StopIteration):
        module.fit(train_data, eval_metric=[], num_epoch=epochs, initializer=mx.init.Zero(),
                   epoch_end_callback=record, **given)
    return curve


def train_sklearn(problem, solver, seconds, least=LEVELS[-1] / 2, counts=ITERATIONS):
    """Fit scikit-learn's model to more and more iterations, until it stalls; return the same."""
    curve = []
    l2 = problem.l2 * len(problem.labels)
    if problem.classes == 2:
        l2 /= 2  # one column w for what is here -w/2 and w/2, with half its penalty
    for iterations in counts:
        model = LogisticRegression(C=1 / l2, solver=solver, max_iter=iterations, tol=1e-12,
                                   random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            tic = time.perf_counter()
            model.fit(problem.features, problem.labels)
            clock = time.perf_counter() - tic
        weight, bias = model.coef_, model.intercept_
        if len(weight) == 1:
            weight, bias = np.vstack([-weight / 2, weight / 2]), np.append(-bias, bias) / 2
        found = problem.suboptimality(weight, bias)
        has_stalled = len(curve) > 4 and found > 0.9 * curve[-1][2]
        curve.append((clock, iterations, found))
        if found < least or clock > seconds or has_stalled:
            break
    return curve


def reached(curve, level):
    """Return the time and the passes after which a curve is below a level for the first time."""
    for clock, passes, found in curve:
        if found < level:
            return clock, passes
    return np.inf, np.inf


def quality(curve):
    """Return numbers to compare curves by, the least for the best one."""
    return [reached(curve, level)[0] for level in reversed(LEVELS)] + [
        np.nanmin([np.inf] + [found for _, _, found in curve])]


def curve_of(problem, method, rate, args):
    if method in SOLVERS:
        return train_sklearn(problem, SOLVERS[method], args.seconds)
    return train(problem, method, rate, args.batch_size, args.epochs, args.seconds)


def best_rate(problem, method, args):
    """Return the learning rate at which a method does best."""
    if method in SOLVERS or 'svrg_lbfgs' in method:
        return None
    return min(args.rates, key=lambda rate: quality(curve_of(problem, method, rate, args)))


def main():
    parser = common.parser(__doc__, rounds=3)
    parser.add_argument('--data', metavar='FILE',
                        help="'digits' or a LIBSVM file; else rows are generated")
    parser.add_argument('--rows', type=int, default=12800)
    parser.add_argument('--l2', type=float, default=1e-3)
    parser.add_argument('--batch-size', type=int, default=64)
    parser.add_argument('--epochs', type=int, default=60)
    parser.add_argument('--seconds', type=float, default=12, help='at most, of each training')
    parser.add_argument('--rates', type=float, nargs='+', default=[0.5, 1.0, 2.0, 4.0])
    args = parser.parse_args()
    common.quiet()
    problem = (Problem.real(args.data, args.l2) if args.data
               else Problem.generated(args.rows, args.l2))
    rates = {method: best_rate(problem, method, args) for method in COLORS}
    curves = {}
    for _ in range(args.rounds):
        for method, rate in rates.items():
            curves.setdefault(method, []).append(curve_of(problem, method, rate, args))
    curves = {method: min(found, key=quality) for method, found in curves.items()}
    rows = []
    for method, curve in curves.items():
        row = [method, '' if method in SOLVERS else
               'found' if 'svrg_lbfgs' in method else '%g' % rates[method]]
        for level in LEVELS:
            clock, passes = reached(curve, level)
            row.append('%.2f s, %g passes' % (clock, passes) if clock < np.inf else 'not reached')
        rows.append(row)
    name = 'time_to_suboptimality'
    setting = ('%s: %d rows, %d features, %d classes, λ = %g. Batches of %d, update_freq=2, the '
               'best of the rates %s, at most %d epochs or %g s each, the fastest of %d rounds. '
               'Momentum is nag of 0.9. A pass of scikit-learn is an iteration.' % (
                   args.data or 'Generated data', *problem.features.shape, problem.classes,
                   args.l2, args.batch_size, args.rates, args.epochs, args.seconds, args.rounds))
    common.write(args.output, name, setting,
                 ['method', 'rate'] + ['to %g' % level for level in LEVELS], rows)
    figure, axes = pyplot.subplots(figsize=(9, 4))
    begin = 0, 0, problem.suboptimality(np.zeros((problem.classes, problem.features.shape[1])),
                                        np.zeros(problem.classes))
    for method, curve in curves.items():
        clocks, _, found = zip(begin, *curve)
        axes.semilogy(clocks, np.maximum(found, 1e-12), color=COLORS[method],
                      linestyle=STYLES.get(method.split(', ')[-1], '-'), label=method)
    ends = [reached(curve, LEVELS[-1])[0] for curve in curves.values()]
    axes.set(xlabel='seconds', ylabel='loss minus optimum', ylim=(LEVELS[-1] / 2, 3),
             xlim=(0, 1.1 * max([end for end in ends if end < np.inf], default=args.seconds)))
    axes.set_title('Logistic regression, %d %s rows of %d features' % (
        len(problem.labels), 'real' if args.data else 'generated', problem.features.shape[1]),
        **common.TITLE)
    axes.legend(fontsize=8, loc='upper left', bbox_to_anchor=(1, 1))
    common.save_picture(args.output, name, figure)


if __name__ == '__main__':
    main()

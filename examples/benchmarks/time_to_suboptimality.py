"""How long does each method take to come within 1e-2, 1e-4 and 1e-6 of the optimum?

The problems are L2-regularized logistic regressions on dense rows, binary or multinomial:
those of `PROBLEMS`, or one on a LIBSVM file. The methods are newton_cg; SVRG,
mxnet.contrib's SVRG and Module with SGD at the best constant rate of a grid; Module with
SGD at the best decaying rate; and solvers of scikit-learn and of Cyanure, which begin anew
for each number of iterations. Raw columns they get through a StandardScaler, as their users
do, and its time counts. newton_cg begins anew for each `tol`. A grid grows until its best rate
is not at its edge. SciPy's L-BFGS finds the optimum in float64. The clock of a method stops while
its loss is computed. All run in interleaved rounds.
"""

import contextlib
import importlib.util
import time
import warnings

import common
import mxnet as mx
import numpy as np
from mxnet.contrib.svrg_optimization.svrg_module import SVRGModule as ContribModule
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.datasets import load_digits, load_svmlight_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler, normalize

from svrg_optimization import SVRGModule

LEVELS = (1e-2, 1e-4, 1e-6)
LEAST = LEVELS[-1] / 2
ITERATIONS = (1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64, 85, 113, 150, 200, 400)
TOLS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5, 1e-5)
SOLVERS = {'scikit-learn saga': 'saga', 'scikit-learn lbfgs': 'lbfgs',
           'scikit-learn newton-cg': 'newton-cg',
           'scikit-learn newton-cholesky': 'newton-cholesky', 'Cyanure': None}
OURS = 'newton_cg'
OF_GRID = ('SVRG', 'contrib SVRG', 'Module, constant rate', 'Module, decaying rate')
METHODS = (OURS, *OF_GRID, *SOLVERS)


class Problem:
    """The data, the loss in float64, and its optimum."""

    def __init__(self, features, labels, l2, batch_size, methods=METHODS, is_raw=False):
        self.features, self.labels, self.l2 = features.astype(np.float32), labels, l2
        self.batch_size, self.methods, self.is_raw = batch_size, methods, is_raw
        self.classes = int(labels.max()) + 1
        self._design = np.column_stack([self.features, np.ones(len(features))]).astype(np.float64)
        scales = np.sqrt((self._design ** 2).mean(axis=0)).clip(1e-9)
        self._design /= scales
        self._scales, self._decay = scales, np.append(l2 / scales[:-1] ** 2, 0)
        self.optimum = minimize(self._loss_and_gradient, np.zeros(self.classes * len(scales)),
                                jac=True, method='L-BFGS-B', options={
                                    'maxiter': 5000, 'maxfun': 10000, 'maxcor': 30, 'ftol': 0,
                                    'gtol': 1e-8}).fun

    def _loss_and_gradient(self, flat):
        weights = flat.reshape(self.classes, -1)
        log_probabilities = log_softmax(self._design @ weights.T, axis=1)
        rows = np.arange(len(self.labels))
        loss = (-log_probabilities[rows, self.labels].mean()
                + (self._decay * weights ** 2).sum() / 2)
        error = np.exp(log_probabilities)
        error[rows, self.labels] -= 1
        return loss, (error.T @ self._design / len(rows) + self._decay * weights).ravel()

    def suboptimality(self, weight, bias):
        """Return the loss of a solution minus the optimum."""
        weights = np.column_stack([weight, bias]).astype(np.float64) * self._scales
        return self._loss_and_gradient(weights.ravel())[0] - self.optimum


def generated(rows, columns, classes, batch_size, l2=1e-3, decades=0, methods=METHODS):
    """Return rows with a decaying spectrum, and the scales of columns over some decades."""
    rng = np.random.RandomState(0)
    features = rng.normal(size=(rows, columns)) / np.sqrt(np.arange(1, columns + 1))
    scores = features @ rng.normal(size=(columns, classes))
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    features *= 10 ** rng.uniform(0, decades, columns)
    return Problem(features, labels, l2, batch_size, methods, is_raw=decades > 0)


def digits():
    features, labels = load_digits(return_X_y=True)
    return Problem(normalize(features), labels, 1e-3, 128)


def without(*names):
    return tuple(name for name in METHODS if name not in names)


# newton-cholesky solves with a matrix of all weights, too large for 7,850.
PROBLEMS = {
    'digits, 1,797 × 64, 10 classes': digits,
    '12,800 × 784, 10 classes': lambda: generated(
        12800, 784, 10, 64, methods=without('scikit-learn newton-cholesky', 'contrib SVRG')),
    '60,000 × 784, 10 classes': lambda: generated(
        60000, 784, 10, 256, methods=without('scikit-learn newton-cholesky', *OF_GRID)),
    '60,000 × 100, 2 classes, raw columns': lambda: generated(
        60000, 100, 2, 256, 1e-6, 4, methods=without(*OF_GRID))}


def of_file(name):
    """Return the problem of a LIBSVM file."""
    features, labels = load_svmlight_file(name)
    return Problem(features.toarray(), np.unique(labels, return_inverse=True)[1], 1e-3, 64)


class Decay(mx.lr_scheduler.LRScheduler):
    """Divide the rate by 1 + updates / period."""

    def __init__(self, period, **kwargs):
        super().__init__(**kwargs)
        self.period = period

    def __call__(self, num_update):
        return self.base_lr / (1 + num_update / self.period)


def train(problem, method, rate, args):
    """Train until the loss is low, stalls or the time is over; return a curve.

    Returns
    -------
    list of tuple
        The time, the number and the suboptimality after each epoch.
    """
    symbol, _ = common.softmax(problem.features.shape[1], problem.classes)
    params = {'wd': problem.l2, 'learning_rate': rate}
    if method.startswith('Module'):
        module = mx.mod.Module(symbol)
        if 'decaying' in method:
            period = 2 * len(problem.labels) // problem.batch_size
            params['lr_scheduler'] = Decay(period, base_lr=rate)
    elif method.startswith('contrib'):
        module = ContribModule(symbol, update_freq=2)
    else:
        module = SVRGModule(symbol, update_freq=2)
    train_data = iterator_of(problem)
    curve, clock, tic = [], 0, time.perf_counter()

    def record(epoch, _, weights, __):
        nonlocal clock, tic
        mx.nd.waitall()
        clock += time.perf_counter() - tic
        found = problem.suboptimality(weights['fc_weight'].asnumpy(), weights['fc_bias'].asnumpy())
        curve.append((clock, epoch + 1, found))
        has_stalled = len(curve) > 10 and found > 0.9 * curve[-11][2]
        if not found < 1e3 or found < LEAST or clock > args.seconds or has_stalled:
            raise StopIteration
        tic = time.perf_counter()

    with contextlib.suppress(StopIteration):
        module.fit(train_data, eval_metric=[], num_epoch=1000, initializer=mx.init.Zero(),
                   epoch_end_callback=record, optimizer_params=params)
    return curve


def train_to(problem, tol):
    """Train with newton_cg; return the time, the weights and the biases."""
    symbol, _ = common.softmax(problem.features.shape[1], problem.classes)
    module, train_data = SVRGModule(symbol, tol=tol), iterator_of(problem)
    tic = time.perf_counter()
    module.fit(train_data, eval_metric=[], num_epoch=100, initializer=mx.init.Zero(),
               optimizer='newton_cg', optimizer_params={'wd': problem.l2})
    weights, _ = module.get_params()
    clock = time.perf_counter() - tic
    return clock, weights['fc_weight'].asnumpy(), weights['fc_bias'].asnumpy()


def iterator_of(problem):
    """Return the rows, shuffled alike for all."""
    np.random.seed(0)
    mx.random.seed(0)
    return mx.io.NDArrayIter(problem.features, problem.labels, problem.batch_size, shuffle=True)


def model_of(problem, method, iterations):
    l2 = problem.l2
    if problem.classes == 2:
        l2 /= 2  # one column w for what is here -w/2 and w/2, with half its penalty
    if method == 'Cyanure':
        from cyanure.estimators import Classifier  # noqa: PLC0415
        return Classifier(loss='logistic' if problem.classes == 2 else 'multiclass-logistic',
                          penalty='l2', lambda_1=l2, max_iter=iterations, tol=1e-12,
                          duality_gap_interval=10 ** 6, verbose=False)
    return LogisticRegression(C=1 / (l2 * len(problem.labels)), solver=SOLVERS[method],
                              max_iter=iterations, tol=1e-12, random_state=0)


def solve(problem, method, iterations):
    """Fit a model of scikit-learn or Cyanure; return the time, the weights and the biases."""
    model, scaler = model_of(problem, method, iterations), StandardScaler()
    tic = time.perf_counter()
    model.fit(scaler.fit_transform(problem.features) if problem.is_raw else problem.features,
              problem.labels)
    clock = time.perf_counter() - tic
    weight, bias = model.coef_, np.ravel(model.intercept_)
    if problem.classes == 2:
        weight, bias = np.ravel(weight), bias[0]
        weight, bias = np.array([-weight / 2, weight / 2]), np.array([-bias / 2, bias / 2])
    elif method == 'Cyanure':
        weight = weight.T
    if problem.is_raw:
        weight = weight / scaler.scale_
        bias = bias - weight @ scaler.mean_
    return clock, weight, bias


def begin_anew(problem, method, counts, args):
    """Train to each `tol`, or number of iterations, until one is near or stalls; return a curve."""
    curve = []
    for count in counts:
        clock, weight, bias = (train_to(problem, count) if method == OURS
                               else solve(problem, method, count))
        found = problem.suboptimality(weight, bias)
        has_stalled = len(curve) > 4 and found > 0.9 * curve[-1][2]
        curve.append((clock, count, found))
        if found < LEAST or clock > args.seconds or has_stalled:
            break
    return curve


def reached(curve, level):
    """Return the time and the number with which a curve is below a level for the first time."""
    return next(((clock, count) for clock, count, found in curve if found < level),
                (np.inf, np.inf))


def quality(curve):
    """Return numbers to compare curves by, the least for the best one."""
    return [reached(curve, level)[1] for level in reversed(LEVELS)] + [
        min([np.inf, *(found for _, _, found in curve if np.isfinite(found))])]


def best_rate(problem, method, args):
    """Return the learning rate with which a method does best, with a worse one on each side."""
    curves = {}
    rates = sorted(args.rates)
    while rates:
        curves.update({rate: quality(train(problem, method, rate, args)) for rate in rates})
        best = min(curves, key=curves.get)
        rates = [rate for rate in (best / 2, 2 * best) if rate not in curves]
    return best


def rows_of(problem, methods, args):
    """Return the rows of the table of a problem."""
    rates = {method: best_rate(problem, method, args) for method in methods if method in OF_GRID}
    curves = {method: [] for method in methods}
    for _ in range(args.rounds):
        for method, found in curves.items():
            if method in rates:
                found.append(train(problem, method, rates[method], args))
                continue
            needed = {reached(curve, level)[1] for curve in found[:1] for level in LEVELS}
            found.append(begin_anew(problem, method, [
                count for count in (TOLS if method == OURS else ITERATIONS)
                if count in needed or not found], args))
    for method, found in curves.items():
        _, count = reached(found[0], LEVELS[-1])
        cells = common.times([[reached(curve, level)[0] for curve in found] for level in LEVELS])
        rate = '%g' % rates[method] if method in rates else ''
        last = '' if count == np.inf else '`tol=%g`' % count if method == OURS else count
        yield [method, rate, last, *cells]


def main():
    parser = common.parser(__doc__)
    parser.add_argument('--data', metavar='FILE', help='a LIBSVM file in place of the problems')
    parser.add_argument('--problems', nargs='+', choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument('--methods', nargs='+', choices=METHODS, default=METHODS)
    parser.add_argument('--seconds', type=float, default=8, help='at most, of each training')
    parser.add_argument('--rates', type=float, nargs='+', default=[1.0, 2.0],
                        help='of the grid to begin with (default: 1 2)')
    args = parser.parse_args()
    common.quiet()
    warnings.simplefilter('ignore')  # of solvers that are stopped
    problems = ({args.data: lambda: of_file(args.data)} if args.data else
                {name: PROBLEMS[name] for name in args.problems})
    for name, made in problems.items():
        problem = made()
        methods = [method for method in args.methods if method in problem.methods
                   and (method != 'Cyanure' or importlib.util.find_spec('cyanure'))]
        rows = []
        for row in rows_of(problem, methods, args):
            rows.append(row)
            print(*row, sep=' | ', flush=True)
        setting = ('%s, λ = %g. Batches of %d, update_freq=2. Seconds: the median of %d runs, and '
                   'the range of the last level. A run ends with the first epoch, `tol` or '
                   'number of iterations after %g s.%s' % (
                       name, problem.l2, problem.batch_size, args.rounds, args.seconds,
                       ' The solvers get scaled columns.' if problem.is_raw else ''))
        common.write(args.output, 'time_to_suboptimality', setting,
                     ['method', 'rate', 'epochs, iterations or `tol` to %g' % LEVELS[-1],
                      *('s to %g' % level for level in LEVELS), 'lowest', 'highest'], rows,
                     new=name == next(iter(problems)))


if __name__ == '__main__':
    main()

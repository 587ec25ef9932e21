"""How long does each method take to the optimum at the size of MNIST, and an epoch beside NumPy?

L2-regularized softmax regression on 12,800, 60,000 and 200,000 generated rows of 784
features, in 10 classes, as in time_to_suboptimality.py. Compares SVRG at a constant
rate, with Nesterov momentum and with stored gradients, SVRG with the rate that
svrg_lbfgs finds, and scikit-learn's SAGA and L-BFGS, which does not come to 1e-9
in float32: the time to 1e-3, 1e-6 and 1e-9 above the optimum. All run in interleaved
rounds, and the least time counts. scikit-learn's solvers begin anew for each number of
iterations. The last column compares the fastest epoch with a snapshot with that of a
plain loop in NumPy, which shuffles the rows and computes the gradients of the same batches.
"""

import copy
import time

import common
import numpy as np
from time_to_suboptimality import ITERATIONS, Problem, curve_of_fit, reached, train_sklearn

from svrg_optimization import SVRGModule

LEVELS = (1e-3, 1e-6, 1e-9)
LEAST = LEVELS[-1] / 2
SOLVERS = {'scikit-learn, SAGA': ('saga', np.float32),
           'scikit-learn, L-BFGS': ('lbfgs', np.float32),
           'scikit-learn, L-BFGS in float64': ('lbfgs', np.float64)}
METHODS = ('SVRG', 'SVRG, stored', 'SVRG, momentum', 'SVRG, stored, momentum',
           'SVRG, svrg_lbfgs', *SOLVERS)
NUMPY_LOOP, EPOCHS_OF_A_TURN = 'NumPy, an epoch', 3


def train(problem, method, args):
    """Train a module; return its curve."""
    symbol, _ = common.softmax(problem.features.shape[1], problem.classes)
    module = SVRGModule(symbol, update_freq=1, store_snapshot_grads='stored' in method)
    optimizer, params = 'svrg_lbfgs', {'wd': problem.l2}
    if optimizer not in method:
        has_momentum = 'momentum' in method
        optimizer = 'nag' if has_momentum else 'sgd'
        params.update({'momentum': 0.9, 'learning_rate': args.momentum_rate} if has_momentum
                      else {'learning_rate': args.rate})
    return curve_of_fit(problem, module, args.batch_size, args.epochs, args.seconds, LEAST,
                        optimizer=optimizer, optimizer_params=params)


def refined(curve):
    """Return the iterations to time again: those that reached a level, and estimates below."""
    counts = set()
    for level in LEVELS:
        passed = [i for i, (_, _, found) in enumerate(curve) if found < level]
        if passed:
            _, above, of_above = curve[max(passed[0] - 1, 0)]
            _, below, of_below = curve[passed[0]]
            counts.add(below)
            if of_above > level > of_below > 0:
                part = np.log(of_above / level) / np.log(of_above / of_below)
                counts.add(int(np.ceil(above + part * (below - above))))
    return sorted(counts)


def softmax_gradient(weight, bias, data, labels):
    """Return the gradient of the loss of a batch, a sum over its rows."""
    error = data @ weight.T + bias
    error -= error.max(axis=1, keepdims=True)
    np.exp(error, out=error)
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    return error.T @ data, error.sum(axis=0)


class NumPyLoop:
    """SVRG in plain NumPy, with a snapshot in each epoch.

    Parameters
    ----------
    problem : Problem
        The data.
    batch_size : int
        Rows of a batch; rows that are left over are left out.
    rate : float
        Learning rate.
    """

    def __init__(self, problem, batch_size, rate):
        self._problem, self._batch_size, self._rate = problem, batch_size, rate
        self._order = np.arange(len(problem.labels))
        self.weight = np.zeros((problem.classes, problem.features.shape[1]), np.float32)
        self.bias = np.zeros(problem.classes, np.float32)

    def train_epoch(self):
        problem, size = self._problem, self._batch_size
        np.random.shuffle(self._order)
        features, labels = problem.features[self._order], problem.labels[self._order]
        batches = [(features[i:i + size], labels[i:i + size])
                   for i in range(0, len(labels) - size + 1, size)]
        snapshot = self.weight.copy(), self.bias.copy()
        full_weight, full_bias = (sum(gradients) / len(batches) for gradients in zip(
            *(softmax_gradient(*snapshot, *batch) for batch in batches)))
        for batch in batches:
            of_weight, of_bias = softmax_gradient(self.weight, self.bias, *batch)
            then_weight, then_bias = softmax_gradient(*snapshot, *batch)
            self.weight -= self._rate * ((of_weight - then_weight + full_weight) / size
                                         + problem.l2 * self.weight)
            self.bias -= self._rate * (of_bias - then_bias + full_bias) / size


def measure(problem, methods, args):
    """Return the curves of each method, and the least seconds of an epoch of the NumPy loop."""
    curves = {method: [] for method in methods}
    least = np.inf
    for _ in range(args.rounds):
        for method, found in curves.items():
            if method in SOLVERS:
                solver, dtype = SOLVERS[method]
                cast = copy.copy(problem)
                cast.features = problem.features.astype(dtype, copy=False)
                counts = refined(found[0]) if found else ITERATIONS
                found.append(train_sklearn(cast, solver, args.seconds, LEAST, counts))
            else:
                found.append(train(problem, method, args))
        loop = NumPyLoop(problem, args.batch_size, args.rate)
        for _ in range(EPOCHS_OF_A_TURN):
            tic = time.perf_counter()
            loop.train_epoch()
            least = min(least, time.perf_counter() - tic)
    return curves, least


def row_of(method, curves, of_numpy):
    """Return the cells of a method: the time to each level, and that of an epoch over NumPy's."""
    cells = []
    for level in LEVELS:
        clock, count = min(reached(curve, level) for curve in curves)
        cells.append('not reached' if clock == np.inf else '%.2f s, %d %s' % (
            clock, count, 'iterations' if method in SOLVERS else 'epochs'))
    ends = [[0] + [clock for clock, _, _ in curve] for curve in curves]
    epoch = min(np.diff(clocks).min() for clocks in ends)
    return cells + ['–' if method in SOLVERS else '%.2f' % (epoch / of_numpy)]


def main():
    parser = common.parser(__doc__, rounds=3)
    parser.add_argument('--rows', type=int, nargs='+', default=[12800, 60000, 200000])
    parser.add_argument('--methods', nargs='+', choices=METHODS, default=list(METHODS))
    parser.add_argument('--l2', type=float, default=1e-3)
    parser.add_argument('--batch-size', type=int, default=256)
    parser.add_argument('--rate', type=float, default=8.0, help='without momentum')
    parser.add_argument('--momentum-rate', type=float, default=2.0, help='with momentum of 0.9')
    parser.add_argument('--epochs', type=int, default=100)
    parser.add_argument('--seconds', type=float, default=60, help='at most, of each training')
    args = parser.parse_args()
    common.quiet()
    rows = []
    for count in args.rows:
        problem = Problem.generated(count, args.l2)
        curves, of_numpy = measure(problem, args.methods, args)
        for method in args.methods:
            rows.append([method, count, *row_of(method, curves[method], of_numpy)])
            print(*rows[-1], sep=' | ', flush=True)
        rows.append([NUMPY_LOOP, count, *['–'] * len(LEVELS), '%.3f s' % of_numpy])
    common.write(args.output, 'mnist_size',
                 'Generated rows of %d features in %d classes, λ = %g. SVRG: batches of %d, '
                 'update_freq=1, the rate %g, with momentum nag of 0.9 and the rate %g; '
                 'svrg_lbfgs finds its own. At most %d epochs or %g s each, the least of %d '
                 "rounds. The last column is the fastest epoch over a NumPy loop's." % (
                     problem.features.shape[1], problem.classes, args.l2, args.batch_size,
                     args.rate, args.momentum_rate, args.epochs, args.seconds, args.rounds),
                 ['method', 'rows'] + ['to %g' % level for level in LEVELS] + ['epoch over NumPy'],
                 rows)


if __name__ == '__main__':
    main()

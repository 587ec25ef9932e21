"""SVRG against SGD on handwritten digits: how close does each come to the optimum?

The model is multinomial logistic regression with L2 on the digits that ship with
scikit-learn, each image scaled to unit length. SVRG has a constant rate, and SGD a
constant and a decaying one, each the best of a grid. The optimizer newton_cg has no rate and
makes no steps of SVRG: an epoch is an iteration of Newton's method, and it ends by itself. All
methods get the same number of gradient passes over the data. In a pass each row is read once
with its gradient. An epoch of SVRG takes two, and a snapshot one more.

The script prints a table and draws the training loss minus the optimum, which SciPy's
L-BFGS finds in float64. The table ends with two solvers of scikit-learn. They have all
rows in memory. Their epochs are iterations, which are several passes for Newton's method.
"""

import argparse
import logging

import matplotlib
import mxnet as mx
import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn import linear_model
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from svrg_optimization import SVRGModule

matplotlib.use('Agg')
from matplotlib import pyplot  # noqa: E402

# The methods, each with the color that it has in all pictures of the documentation.
METHODS = {'SVRG, constant rate': '#0072b2', 'newton_cg': '#009e73',
           'SGD, decaying rate': '#e69f00', 'SGD, constant rate': '#d55e00'}
SOLVERS = 'saga', 'newton-cg'


class LogisticRegression:
    """The problem: its loss in float64, its optimum, and its network."""

    def __init__(self, features, labels, l2):
        self.features, self.labels, self.l2 = features, labels, l2
        self.classes = int(labels.max()) + 1
        start = np.zeros(self.classes * (features.shape[1] + 1))
        found = minimize(self._loss_and_gradient, start, jac=True, method='L-BFGS-B',
                         options={'maxiter': 10000, 'maxfun': 20000, 'maxcor': 50,
                                  'ftol': 0, 'gtol': 1e-9})
        self.optimum = found.fun
        self.suboptimality_at_start = self._loss_and_gradient(start)[0] - found.fun

    def _loss_and_gradient(self, flat):
        parameters = flat.reshape(self.classes, -1)
        weight, bias = parameters[:, :-1], parameters[:, -1]
        log_probabilities = log_softmax(self.features @ weight.T + bias, axis=1)
        rows = np.arange(len(self.labels))
        loss = -log_probabilities[rows, self.labels].mean() + self.l2 / 2 * (weight ** 2).sum()
        error = np.exp(log_probabilities)
        error[rows, self.labels] -= 1
        error /= len(rows)
        gradient = np.column_stack([error.T @ self.features + self.l2 * weight, error.sum(axis=0)])
        return loss, gradient.ravel()

    def suboptimality(self, weight, bias):
        """Return the training loss of a solution minus the optimum."""
        parameters = np.column_stack([weight, bias])
        return self._loss_and_gradient(parameters.astype(np.float64).ravel())[0] - self.optimum

    def symbol(self):
        scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=self.classes, name='fc')
        return mx.sym.SoftmaxOutput(scores, name='softmax')


def train(problem, method, rate, args):
    """Train once; return epochs, gradient passes and suboptimality over time."""
    np.random.seed(args.seed)
    mx.random.seed(args.seed)
    train_data = mx.io.NDArrayIter(problem.features, problem.labels, args.batch_size, shuffle=True)
    is_sgd = method.startswith('SGD')
    if is_sgd:
        module = mx.mod.Module(problem.symbol())
    else:
        module = SVRGModule(problem.symbol(), update_freq=args.update_freq,
                            tol=None if rate else args.tol)
    epochs = args.passes if is_sgd else args.passes // 2
    optimizer, optimizer_params = 'newton_cg', {'wd': problem.l2}
    if rate is not None:
        optimizer, optimizer_params['learning_rate'] = 'sgd', rate
    if 'decaying' in method:
        steps = epochs * -(-len(problem.labels) // args.batch_size)
        optimizer_params['lr_scheduler'] = mx.lr_scheduler.PolyScheduler(steps, rate, pwr=1)
    points = []

    def record(epoch, symbol, arg_params, aux_params):
        taken = epoch + 1
        if not is_sgd:  # those of the epochs since the snapshot, of which each has two
            taken = module.result.passes + 2 * (epoch + 1 - module.result.epochs)
        if taken <= args.passes:
            points.append((epoch + 1, taken, problem.suboptimality(
                arg_params['fc_weight'].asnumpy(), arg_params['fc_bias'].asnumpy())))

    # A linear model begins at 0: random weights times a large column are a bad start.
    module.fit(train_data, eval_metric=[], optimizer=optimizer, optimizer_params=optimizer_params,
               initializer=mx.init.Zero(), num_epoch=epochs, epoch_end_callback=record)
    return zip(*points)


def solve(problem, solver):
    """Return the iterations of a solver of scikit-learn, and the suboptimality."""
    model = linear_model.LogisticRegression(
        C=1 / (problem.l2 * len(problem.labels)), solver=solver, tol=1e-7, max_iter=1000,
        random_state=0)
    model.fit(problem.features, problem.labels)
    return model.n_iter_[0], problem.suboptimality(model.coef_, model.intercept_)


def text_of(rate):
    return '' if rate is None else '%g' % rate


def draw(curves, at_start, rows, args):
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for (method, rate, _, passes, excesses), style in zip(curves, ('-.', '-', '--', ':')):
        axes.semilogy([0, *passes], np.maximum([at_start, *excesses], 1e-15), style,
                      color=METHODS[method], linewidth=2,
                      label=method if rate is None else '%s (%g)' % (method, rate))
    axes.set_xlabel('gradient passes over the data')
    axes.set_ylabel('training loss minus optimum')
    axes.set_title('Logistic regression on %d handwritten digits, batch %d, L2 %g'
                   % (rows, args.batch_size, args.l2), fontsize=11)
    axes.grid(True, which='major', alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(args.output, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--passes', type=int, default=90, help='gradient passes of each method')
    parser.add_argument('--rates', type=float, nargs='+', default=[0.5, 1, 2, 4, 8, 16],
                        help='learning rates to choose from')
    parser.add_argument('--tol', type=float, default=1e-5, help='where newton_cg ends')
    parser.add_argument('--update-freq', type=int, default=2, help='epochs between snapshots')
    parser.add_argument('--batch-size', type=int, default=128, help='rows of a batch')
    parser.add_argument('--l2', type=float, default=1e-3, help='L2 regularization')
    parser.add_argument('--seed', type=int, default=0, help='seed of the order of the rows')
    parser.add_argument('--output', default='svrg_vs_sgd.png', help='file of the picture')
    args = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)

    digits = load_digits()
    problem = LogisticRegression(normalize(digits.data), digits.target, args.l2)
    print('%d digits of %d pixels, optimum of the training loss %.6f'
          % (*problem.features.shape, problem.optimum))
    curves = []
    for method in METHODS:
        runs = []
        for rate in [None] if method == 'newton_cg' else args.rates:
            runs.append((method, rate, *train(problem, method, rate, args)))
            print('  %-23s rate %-5s ends %.1e above the optimum'
                  % (method, text_of(rate), runs[-1][4][-1]), flush=True)
        curves.append(min(runs, key=lambda run: run[4][-1]))

    print('\n%-23s  %5s  %6s  %6s  %18s'
          % ('method', 'rate', 'epochs', 'passes', 'loss minus optimum'))
    for method, rate, epochs, passes, excesses in curves:
        print('%-23s  %5s  %6d  %6d  %18.1e'
              % (method, text_of(rate), epochs[-1], passes[-1], excesses[-1]))
    for solver in SOLVERS:
        iterations, excess = solve(problem, solver)
        passes = iterations if solver == 'saga' else ''
        print('%-23s  %5s  %6d  %6s  %18.1e'
              % ('scikit-learn ' + solver, '', iterations, passes, excess))
    draw(curves, problem.suboptimality_at_start, len(problem.labels), args)
    print('\nThe picture is in %s.' % args.output)


if __name__ == '__main__':
    main()

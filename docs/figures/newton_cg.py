"""newton_cg beside SVRG at constant rates: objective and gradient over passes.

The digits, and sparse rows as in benchmarks of classifiers: 123 columns of 0 and
1, of which each row has one of each of 14 groups.
"""

import logging

import mxnet as mx
import numpy as np
from common import L2, NEUTRAL, NEWTON, SVRG, arguments, passes_of, pyplot, save
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_digits

from svrg_optimization import SVRGModule

BATCH_SIZE, MOMENTUM = 64, 0.9
GRID = 3.0 ** np.arange(1, -6, -1)


class Classes:
    """Softmax regression with L2: its objective, gradient and optimum in float64."""

    def __init__(self, features, labels):
        self.features, self.labels = features, labels
        self.one_hot = np.eye(int(labels.max()) + 1)[labels]
        shape = self.one_hot.shape[1], features.shape[1] + 1

        def flat(vector):
            weight, bias = np.split(vector.reshape(shape), [shape[1] - 1], axis=1)
            return (self.objective(weight, bias[:, 0]),
                    np.column_stack(self.gradient(weight, bias[:, 0])).ravel())

        self.optimum = minimize(flat, np.zeros(shape[0] * shape[1]), jac=True, method='L-BFGS-B',
                                options={'maxiter': 10 ** 4, 'maxfun': 10 ** 5, 'ftol': 0,
                                         'gtol': 1e-9, 'maxcor': 50}).fun

    def objective(self, weight, bias):
        losses = -(log_softmax(self.features @ weight.T + bias, axis=1) * self.one_hot).sum(axis=1)
        return losses.mean() + L2 / 2 * (weight ** 2).sum()

    def gradient(self, weight, bias):
        error = softmax(self.features @ weight.T + bias, axis=1) - self.one_hot
        return error.T @ self.features / len(error) + L2 * weight, error.mean(axis=0)

    def train(self, rate, passes):
        """Train at a constant rate, or by newton_cg if it is None; return three curves.

        They are the passes, the objective minus the optimum, and the largest
        component of the gradient, at the start and after each epoch.
        """
        np.random.seed(0)
        train_data = mx.io.NDArrayIter(self.features, self.labels, BATCH_SIZE, shuffle=True)
        scores = mx.sym.FullyConnected(mx.sym.Variable('data'), name='fc',
                                       num_hidden=self.one_hot.shape[1])
        module = SVRGModule(mx.sym.SoftmaxOutput(scores, name='softmax'), update_freq=2)
        points = []

        def record(passes):
            weight, bias = (module.get_params()[0]['fc_' + name].asnumpy().astype(float)
                            for name in ('weight', 'bias'))
            points.append((passes,
                           self.objective(weight, bias) - self.optimum,
                           max(np.abs(part).max() for part in self.gradient(weight, bias))))

        params = {'momentum': MOMENTUM, 'learning_rate': rate} if rate else {}
        module.bind(train_data.provide_data, train_data.provide_label)
        module.init_params(mx.init.Zero())
        record(0)
        module.fit(train_data, eval_metric=[], optimizer='nag' if rate else 'newton_cg',
                   optimizer_params={'wd': L2, **params}, num_epoch=2 * (passes // 5),
                   epoch_end_callback=lambda epoch, *_: record(passes_of(module, epoch)))
        return np.array(points).T


def problems():
    rng = np.random.RandomState(0)
    digits, digit = load_digits(return_X_y=True)
    sparse = np.zeros((4000, 123))
    for columns in np.array_split(np.arange(123), 14):
        share = rng.dirichlet(np.full(len(columns), 0.5))
        sparse[np.arange(len(sparse)), rng.choice(columns, len(sparse), p=share)] = 1
    scores = sparse @ rng.normal(size=(123, 2))
    kind = (2 * scores / scores.std() + rng.gumbel(size=scores.shape)).argmax(axis=1)
    return {'1797 digits': Classes(digits / 16, digit),
            '4000 sparse rows': Classes(sparse, kind)}


def label_ends(axes, ends, passes):
    """Write each rate beside the end of its curve, and above the rate below it."""
    lowest = 0
    for rate, end in sorted(ends.items(), key=lambda item: item[1]):
        place = max(end, lowest)
        axes.annotate('%.2g' % rate, (passes, place), (3, 0), fontsize=7, color=NEUTRAL,
                      textcoords='offset points', va='center', annotation_clip=True)
        lowest = 3 * place


def main():
    args = arguments(__file__, passes=100)
    logging.disable(logging.WARNING)
    figure, panels = pyplot.subplots(2, 2, figsize=(9, 6.5), sharex=True)
    for (title, problem), (above, below) in zip(problems().items(), panels.T):
        curves = {rate: problem.train(rate, args.passes) for rate in GRID}
        best = min(curves, key=lambda rate: np.nan_to_num(curves[rate][2], nan=np.inf)[-1])
        for rate, curve in curves.items():
            style = ({'color': SVRG, 'linestyle': '--', 'linewidth': 2, 'zorder': 2,
                      'label': 'SVRG, best constant rate'} if rate == best else
                     {'color': NEUTRAL, 'linewidth': 0.8, 'alpha': 0.6, 'zorder': 1,
                      'label': 'other rates of the grid' if rate == GRID[0] else None})
            for axes, values in zip((above, below), curve[1:]):
                axes.semilogy(curve[0], values, **style)
        for axes, number in ((above, 1), (below, 2)):
            label_ends(axes, {rate: curve[number][-1] for rate, curve in curves.items()},
                       curves[best][0][-1])
        passes, *automatic = problem.train(None, args.passes)
        for axes, values in zip((above, below), automatic):
            axes.semilogy(passes, values, color=NEWTON, linewidth=2.5, label='newton_cg')
            axes.grid(True, which='major', alpha=0.3)
        above.set_title('%s, best constant rate %.2g' % (title, best), fontsize=10)
        above.set_ylim(1e-8, 10)
        below.set_ylim(1e-7, 1)
        below.set_xlabel('gradient passes over the data')
        below.set_xlim(-5, 114)
    panels[0][0].legend(fontsize=8, loc='lower left')
    panels[0][0].set_ylabel('objective minus optimum')
    panels[1][0].set_ylabel('largest component of the gradient')
    figure.suptitle('Softmax regression: newton_cg, and SVRG by nag of 0.9 at a grid of rates',
                    fontsize=11, y=0.98)
    save(figure, args.output)


if __name__ == '__main__':
    main()

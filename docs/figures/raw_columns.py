"""Logistic regression on columns of very different scales, by newton_cg and at one rate."""

import logging

import mxnet as mx
import numpy as np
from common import (
    NEUTRAL,
    NEWTON,
    SVRG,
    arguments,
    axes_of_excess,
    passes_of,
    save,
    weight_of,
)
from scipy.optimize import minimize
from scipy.special import expit

from svrg_optimization import SVRGModule

ROWS, FEATURES, BATCH_SIZE = 4000, 20, 50
RATE = 1e-6


class Raw:
    """The rows, whose columns have scales from 0.001 to 1000, the loss and its optimum."""

    def __init__(self):
        rng = np.random.RandomState(0)
        self.scales = 10 ** np.linspace(-3, 3, FEATURES)
        self.standard = rng.normal(size=(ROWS, FEATURES)) + 0.3
        self.labels = (rng.uniform(size=ROWS) < expit(self.standard @ rng.normal(size=FEATURES)))
        self.rows = self.standard * self.scales

        def both(weight):
            error = expit(self.standard @ weight) - self.labels
            return self.objective(weight, self.standard), self.standard.T @ error / ROWS

        self.optimum = minimize(both, np.zeros(FEATURES), jac=True, method='L-BFGS-B', options={
            'maxiter': 10000, 'maxfun': 20000, 'ftol': 0, 'gtol': 1e-11}).fun  # of both kinds

    def objective(self, weight, rows):
        scores = rows @ weight
        return (np.logaddexp(0, scores) - self.labels * scores).mean()

    def train(self, rows, rate, most):
        """Return passes, and the objective minus the optimum at the start and after epochs."""
        np.random.seed(0)
        score = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True,
                                      name='fc')
        module = SVRGModule(mx.sym.LogisticRegressionOutput(score, mx.sym.Variable('label')),
                            label_names=('label',), update_freq=2)
        passes, values = [0], [self.objective(np.zeros(FEATURES), rows) - self.optimum]

        def record(epoch, *_):
            if passes_of(module, epoch) <= most:
                passes.append(passes_of(module, epoch))
                values.append(self.objective(weight_of(module), rows) - self.optimum)

        data = mx.io.NDArrayIter(rows.astype('float32'), self.labels.astype('float32'),
                                 BATCH_SIZE, shuffle=True, label_name='label')
        module.fit(data, eval_metric=[], initializer=mx.init.Zero(), num_epoch=most // 2,
                   epoch_end_callback=record, optimizer='nag' if rate else 'newton_cg',
                   optimizer_params={'momentum': 0.9, 'learning_rate': rate} if rate else {})
        return passes, values


def main():
    args = arguments(__file__, passes=60)
    logging.disable(logging.WARNING)
    problem = Raw()
    figure, (axes,) = axes_of_excess('Logistic regression, columns of scales from 0.001 to 1000')
    for rows, rate, color, style, label in (
            (problem.rows, RATE, SVRG, '-', 'raw columns, SVRG by nag at the rate %g' % RATE),
            (problem.rows, None, NEWTON, '-', 'raw columns, newton_cg'),
            (problem.standard, None, NEUTRAL, '--', 'scaled columns, newton_cg')):
        axes.plot(*problem.train(rows, rate, args.passes), color=color, linestyle=style,
                  linewidth=2, label=label)
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

"""Loss over gradient passes: exact full gradients, growing samples and fixed samples.

Logistic regression with L2 on generated rows, whose features have a decaying scale.
"""

import contextlib
import logging

import mxnet as mx
import numpy as np
from common import FIXED_SAMPLES, GROWING_SAMPLES, SVRG, arguments, axes_of_excess, save
from scipy.optimize import minimize
from scipy.special import expit

from svrg_optimization import SVRGModule

ROWS, FEATURES, BATCH_SIZE = 12800, 784, 16
L2, RATE = 1e-2, 2.0
UPDATES, SAMPLE = 100, 200  # between snapshots, and batches of a sample


class EnoughPassesError(Exception):
    """Ends a run."""


# The label of each method, its color and its `full_grad_batches`.
METHODS = {'exact: all %d batches' % (ROWS // BATCH_SIZE): (SVRG, None),
           'growing: %d batches, then twice as many' % SAMPLE: (
               GROWING_SAMPLES, lambda number: SAMPLE * 2 ** number),
           'fixed: %d batches' % SAMPLE: (FIXED_SAMPLES, SAMPLE)}


class Problem:
    """The rows, their loss in float64, and its optimum."""

    def __init__(self):
        rng = np.random.RandomState(0)
        self.features = rng.normal(size=(ROWS, FEATURES)) / np.arange(1, FEATURES + 1)
        scores = self.features @ (2 * rng.normal(size=FEATURES))
        self.labels = (rng.uniform(size=ROWS) < expit(scores)).astype(float)
        found = minimize(self.loss, np.zeros(FEATURES), jac=self.gradient, method='L-BFGS-B',
                         options={'maxiter': 10000, 'maxfun': 20000, 'ftol': 0, 'gtol': 1e-10})
        self.optimum = found.fun

    def loss(self, weight):
        scores = self.features @ weight
        return ((np.logaddexp(0, scores) - self.labels * scores).mean()
                + L2 / 2 * weight @ weight)

    def gradient(self, weight):
        return (self.features.T @ (expit(self.features @ weight) - self.labels) / ROWS
                + L2 * weight)

    def iterator(self):
        return mx.io.NDArrayIter(self.features, self.labels, BATCH_SIZE, shuffle=True,
                                 label_name='label')


def train(problem, batches, passes):
    """Train for some gradient passes, or to 1e-10; return passes and excesses over time."""
    np.random.seed(0)
    rows, curve = 0, [(0, problem.loss(np.zeros(FEATURES)) - problem.optimum)]
    snapshots, data_of_passes = 0, problem.iterator()

    def after_batch(_):
        nonlocal rows, snapshots
        if module._snapshot.num_taken > snapshots:
            snapshots += 1
            rows += module._snapshot.full_gradient.rows
            curve.append((rows / ROWS, curve[-1][1]))
        rows += 2 * BATCH_SIZE
        if module._snapshot.num_update % 10 == 5:  # never right after a snapshot
            weight = module.get_params()[0]['fc_weight'].asnumpy().ravel().astype(np.float64)
            excess = problem.loss(weight) - problem.optimum
            curve.append((rows / ROWS, excess))
            if rows >= passes * ROWS or not 1e-10 < excess < 10:
                raise EnoughPassesError
        if module._snapshot.num_update % UPDATES == 0:
            module.update_full_grads(data_of_passes)

    score = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True, name='fc')
    module = SVRGModule(
        mx.sym.LogisticRegressionOutput(score, mx.sym.Variable('label')), label_names=('label',),
        full_grad_batches=batches, update_freq=10 ** 6)
    with contextlib.suppress(EnoughPassesError):
        module.fit(problem.iterator(), eval_metric=[], optimizer='sgd', num_epoch=10 ** 6,
                   initializer=mx.init.Zero(), batch_end_callback=after_batch,
                   optimizer_params={'learning_rate': RATE, 'wd': L2})
    return [np.array(values) for values in zip(*curve)]


def main():
    args = arguments(__file__, passes=15)
    logging.getLogger().setLevel(logging.WARNING)
    figure, (axes,) = axes_of_excess('Logistic regression, %d × %d, L2 %g, rate %g, a snapshot '
                                     'every %d updates' % (ROWS, FEATURES, L2, RATE, UPDATES))
    problem = Problem()
    for name, (color, batches) in METHODS.items():
        axes.plot(*train(problem, batches, args.passes), color=color, linewidth=1.8, label=name)
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

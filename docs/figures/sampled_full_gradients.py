"""Loss over gradient passes: exact full gradients, growing samples and fixed samples.

Logistic regression with L2 on generated rows, whose features have a decaying
scale. For each setting the script prints the gradient passes to some levels above
the optimum, means of several orders of the rows. The picture shows the first
setting and the first order.
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
# L2, learning rate, updates between snapshots, and batches of a sample.
SETTINGS = [(1e-2, 2.0, 100, 200), (1e-2, 2.0, 200, 200), (1e-2, 4.0, 100, 200),
            (1e-2, 4.0, 200, 200), (1e-3, 5.0, 100, 100), (1e-3, 5.0, 250, 100),
            (1e-3, 4.0, 400, 100)]
LEVELS = (1e-3, 1e-8)
SEEDS = 4


class EnoughPassesError(Exception):
    """Ends a run."""


def methods(sample):
    """Map the label of each method to its color and its `full_grad_batches`."""
    return {'exact: all %d batches' % (ROWS // BATCH_SIZE): (SVRG, None),
            'growing: %d batches, then twice as many' % sample: (
                GROWING_SAMPLES, lambda number: sample * 2 ** number),
            'fixed: %d batches' % sample: (FIXED_SAMPLES, sample)}


class Problem:
    """The rows, their loss in float64, and its optimum."""

    def __init__(self, l2):
        self.l2 = l2
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
                + self.l2 / 2 * weight @ weight)

    def gradient(self, weight):
        return (self.features.T @ (expit(self.features @ weight) - self.labels) / ROWS
                + self.l2 * weight)

    def iterator(self):
        return mx.io.NDArrayIter(self.features, self.labels, BATCH_SIZE, shuffle=True,
                                 label_name='label')


def train(problem, batches, rate, updates, passes, seed):
    """Train for some gradient passes, or to 1e-10; return passes and excesses over time."""
    np.random.seed(seed)
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
        if module._snapshot.num_update % updates == 0:
            module.update_full_grads(data_of_passes)

    score = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True, name='fc')
    module = SVRGModule(
        mx.sym.LogisticRegressionOutput(score, mx.sym.Variable('label')), label_names=('label',),
        full_grad_batches=batches, update_freq=10 ** 6)
    with contextlib.suppress(EnoughPassesError):
        module.fit(problem.iterator(), eval_metric=[], optimizer='sgd', num_epoch=10 ** 6,
                   initializer=mx.init.Zero(), batch_end_callback=after_batch,
                   optimizer_params={'learning_rate': rate, 'wd': problem.l2})
    return [np.array(values) for values in zip(*curve)]


def passes_to(level, passes, excesses):
    """Return the gradient passes after which an excess is first at most a level."""
    reached = np.flatnonzero(excesses <= level)
    return passes[reached[0]] if len(reached) else np.inf


def main():
    args = arguments(__file__, passes=15)
    logging.getLogger().setLevel(logging.WARNING)
    figure, (axes,) = axes_of_excess('Logistic regression, %d × %d, L2 %g, rate %g, a snapshot '
                                     'every %d updates' % (ROWS, FEATURES, *SETTINGS[0][:3]))
    for l2, rate, updates, sample in SETTINGS:
        problem = Problem(l2)
        for name, (color, batches) in methods(sample).items():
            curves = [train(problem, batches, rate, updates, args.passes, seed)
                      for seed in range(SEEDS)]
            print('L2 %g, rate %g, %d updates, %s' % (l2, rate, updates, name))
            for level in LEVELS:
                passes = [passes_to(level, *curve) for curve in curves]
                print('    to %g: %.2f passes (%s)' % (
                    level, np.mean(passes), ', '.join('%.2f' % each for each in passes)))
            if (l2, rate, updates, sample) == SETTINGS[0]:
                axes.plot(*curves[0], color=color, linewidth=1.8, label=name)
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

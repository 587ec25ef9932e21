"""Loss over gradient passes: exact full gradients, growing samples and fixed samples.

Logistic regression with L2 on generated rows, whose features have a decaying
scale. The rate and the updates between snapshots are those of a grid with which
exact SVRG comes to 1e-3 above the optimum first; all three methods use them.
"""

import contextlib
import logging

import mxnet as mx
import numpy as np
from common import FIXED_SAMPLES, GROWING_SAMPLES, SVRG, arguments, axes_of_excess, save
from scipy.optimize import minimize
from scipy.special import expit

from svrg_optimization import Growing, SVRGModule

ROWS, FEATURES, BATCH_SIZE, L2 = 12800, 784, 16, 1e-3
RATES, UPDATES = (2.0, 4.0, 8.0, 16.0), (50, 100, 200, 400)
LEVELS = (1e-3, 1e-8)
SAMPLE = 100


class EnoughPassesError(Exception):
    """Ends a run."""


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
        return (np.logaddexp(0, scores) - self.labels * scores).mean() + L2 / 2 * weight @ weight

    def gradient(self, weight):
        return (self.features.T @ (expit(self.features @ weight) - self.labels) / ROWS
                + L2 * weight)

    def iterator(self):
        return mx.io.NDArrayIter(self.features, self.labels, BATCH_SIZE, shuffle=True,
                                 label_name='label')


def train(problem, full_grad_batches, rate, updates, passes, level=0.0, seed=0):
    """Train for some gradient passes, or to a level; return passes and excesses over time."""
    np.random.seed(seed)
    rows, curve = 0, [(0, problem.loss(np.zeros(FEATURES)) - problem.optimum)]

    def after_batch_of_snapshot(_):
        nonlocal rows
        rows += BATCH_SIZE
        curve.append((rows / ROWS, curve[-1][1]))

    def after_batch(_):
        nonlocal rows
        rows += 2 * BATCH_SIZE
        if module._snapshot.num_update % 10 == 5:  # never right after a snapshot
            weight = module.get_params()[0]['fc_weight'].asnumpy().ravel().astype(np.float64)
            excess = problem.loss(weight) - problem.optimum
            curve.append((rows / ROWS, excess))
            if rows >= passes * ROWS or not level < excess < 10:
                raise EnoughPassesError

    score = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True, name='fc')
    module = SVRGModule(
        mx.sym.LogisticRegressionOutput(score, mx.sym.Variable('label')), label_names=('label',),
        full_grad_batches=full_grad_batches, updates_per_snapshot=updates,
        full_grad_data=problem.iterator(), full_grad_callback=after_batch_of_snapshot)
    with contextlib.suppress(EnoughPassesError):
        module.fit(problem.iterator(), eval_metric=[], optimizer='sgd', num_epoch=10 ** 6,
                   initializer=mx.init.Zero(), batch_end_callback=after_batch,
                   optimizer_params={'learning_rate': rate, 'wd': L2})
    return [np.array(values) for values in zip(*curve)]


def passes_to(level, passes, excesses):
    """Return the gradient passes after which an excess is first at most a level."""
    reached = np.flatnonzero(excesses <= level)
    return passes[reached[0]] if len(reached) else np.inf


def main():
    args = arguments(__file__, passes=14)
    logging.getLogger().setLevel(logging.WARNING)
    problem = Problem()
    _, rate, updates = min(
        (passes_to(LEVELS[0], *train(problem, None, rate, updates, min(6, args.passes), LEVELS[0])),
         rate, updates) for rate in RATES for updates in UPDATES)
    print('rate %g, %d updates between snapshots' % (rate, updates))
    figure, (axes,) = axes_of_excess(
        'Logistic regression, %d × %d, a snapshot every %d updates' % (ROWS, FEATURES, updates))
    whole = ROWS // BATCH_SIZE
    for name, color, batches in (
            ('exact: all %d batches' % whole, SVRG, None),
            ('growing: %d batches, then twice as many' % SAMPLE, GROWING_SAMPLES, Growing(SAMPLE)),
            ('fixed: %d batches' % SAMPLE, FIXED_SAMPLES, SAMPLE)):
        passes, excesses = train(problem, batches, rate, updates, args.passes)
        axes.plot(passes, np.maximum(excesses, 1e-12), color=color, linewidth=1.8, label=name)
        print('%-42s %s' % (name, '  '.join('%.2f passes to %g' % (
            passes_to(level, passes, excesses), level) for level in LEVELS)))
    axes.set_xlim(0, args.passes)
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

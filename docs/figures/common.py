"""What the figures share: a small convex problem, its training, and how they are drawn.

The problem is logistic regression with L2: is a handwritten digit odd? The
1797 digits ship with scikit-learn, and each image is scaled to unit length.
Gradients of single rows and the optimum are computed in float64.
"""

import argparse
import logging
from pathlib import Path

import matplotlib
import mxnet as mx
import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from svrg_optimization import SVRGModule

matplotlib.use('Agg')
from matplotlib import colors, pyplot  # noqa: E402

IMAGES = Path(__file__).resolve().parent.parent / 'images'
# One color for each method in all pictures: examples/benchmarks/common.py has the same.
SVRG, SGD, NEWTON, NEUTRAL = '#0072b2', '#d55e00', '#009e73', '#7a7a7a'
GROWING_SAMPLES, FIXED_SAMPLES = '#882255', '#ddcc77'
STYLES = (':', '-.', '--', (0, (6, 1, 1, 1, 1, 1)))
L2 = 1e-3


class OddDigits:
    """The problem. It has a weight for each pixel, and no bias."""

    def __init__(self):
        digits = load_digits()
        self.features = normalize(digits.data)
        self.labels = (digits.target % 2).astype(float)
        found = minimize(self.loss, np.zeros(self.features.shape[1]), jac=self.gradient,
                         method='L-BFGS-B', options={'maxiter': 10000, 'maxfun': 20000,
                                                     'ftol': 0, 'gtol': 1e-10})
        self.optimum = found.fun
        # L_max: the second derivative of the logistic loss is at most 1/4.
        self.smoothness = (self.features ** 2).sum(axis=1).max() / 4

    def loss(self, weight):
        scores = self.features @ weight
        return (np.logaddexp(0, scores) - self.labels * scores).mean() + L2 / 2 * weight @ weight

    def gradients_of_rows(self, weight):
        """Return each row's gradient without L2, which has no variance."""
        return (expit(self.features @ weight) - self.labels)[:, None] * self.features

    def gradient(self, weight):
        return self.gradients_of_rows(weight).mean(axis=0) + L2 * weight

    @staticmethod
    def symbol():
        score = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True,
                                      name='fc')
        return mx.sym.LogisticRegressionOutput(score, mx.sym.Variable('label'), name='loss')


def settings_of(method, count, best):
    """Return the styles of curves of one method: the best one is strong, in the method's color."""
    color = np.array(colors.to_rgb(method))
    settings = [{'color': tuple(1 - part * (1 - color)), 'linestyle': style, 'linewidth': 1.6}
                for part, style in zip(np.linspace(0.4, 0.7, count), STYLES[-count:])]
    settings[best].update(color=method, linestyle='-', linewidth=2.8)
    return settings


def weight_of(module):
    """Return a module's weight in float64."""
    return module.get_params()[0]['fc_weight'].asnumpy().ravel().astype(np.float64)


def train(problem, rate, passes, update_freq=None, batch_size=16, after_batch=None):
    """Train with SVRG, or with SGD if there is no `update_freq`.

    Parameters
    ----------
    problem : OddDigits
    rate : float
        The learning rate of sgd, constant.
    passes : int
        Gradient passes over the data that the run may take.
    update_freq : int, optional
        As in SVRGModule.
    batch_size : int
        Rows of a batch.
    after_batch : callable, optional
        Takes the module, the epoch and the number of the batch, after its step.

    Returns
    -------
    list of int
        Gradient passes at the start and after each epoch.
    list of float
        The loss minus the optimum there.
    """
    np.random.seed(0)
    train_data = mx.io.NDArrayIter(problem.features, problem.labels, batch_size, shuffle=True,
                                   label_name='label')
    if update_freq is None:
        module = mx.mod.Module(problem.symbol(), label_names=('label',))
    else:
        module = SVRGModule(problem.symbol(), label_names=('label',), update_freq=update_freq)
    passes_after = [0]
    excesses = [problem.loss(np.zeros(problem.features.shape[1])) - problem.optimum]

    def record(taken):
        if taken <= passes:
            passes_after.append(taken)
            excesses.append(problem.loss(weight_of(module)) - problem.optimum)

    def after_epoch(epoch, symbol, arg_params, aux_params):
        record(epoch + 1 if update_freq is None else passes_of(module, epoch))

    def call_after_batch(param):
        if after_batch is not None:
            after_batch(module, param.epoch, param.nbatch)

    logging.getLogger().setLevel(logging.WARNING)
    module.fit(train_data, eval_metric=[],
               optimizer_params={'learning_rate': rate, 'wd': L2}, initializer=mx.init.Zero(),
               num_epoch=passes if update_freq is None else passes // 2,
               batch_end_callback=call_after_batch, epoch_end_callback=after_epoch)
    return passes_after, excesses


def passes_of(trained, epoch):
    """Return how many gradients a row has cost at the end of an epoch.

    An epoch of steps has two, which the result counts at the next snapshot.
    """
    return trained.result.passes + 2 * (epoch + 1 - trained.result.epochs)


def arguments(script, passes, **options):
    """Parse the command line of a script that draws a picture of its own name.

    Further options are numbers with these defaults.
    """
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--passes', type=int, default=passes,
                        help='gradient passes of each run')
    parser.add_argument('--output', type=Path, default=IMAGES / (Path(script).stem + '.png'),
                        help='file of the picture')
    for name, default in options.items():
        parser.add_argument('--' + name, type=float, default=default)
    return parser.parse_args()


def axes_of_excess(title, columns=1):
    """Return a figure, and axes for the loss minus the optimum over gradient passes."""
    figure, axes = pyplot.subplots(1, columns, figsize=(7 if columns == 1 else 9, 4.2),
                                   sharey=True, squeeze=False)
    for one in axes[0]:
        one.set_yscale('log')
        one.set_xlabel('gradient passes over the data')
        one.grid(True, which='major', alpha=0.3)
    axes[0][0].set_ylabel('training loss minus optimum')
    if columns == 1:
        axes[0][0].set_title(title, fontsize=11)
    else:
        figure.suptitle(title, fontsize=11, y=0.95)
    return figure, axes[0]


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    print(path)

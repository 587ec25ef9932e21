"""Proximal SVRG and proximal SGD at one constant rate: the objective, and the weights left."""

import mxnet as mx
import numpy as np
from common import L2, SGD, SVRG, OddDigits, arguments, axes_of_excess, save, weight_of
from scipy.optimize import minimize

from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1

STRENGTH, RATE, BATCH_SIZE = 3e-3, 4., 16


def objective(problem, weight):
    return problem.loss(weight) + STRENGTH * np.abs(weight).sum()


def optimum_of(problem):
    """Minimize over the positive and the negative part of each weight."""
    def of_parts(parts):
        positive, negative = np.split(parts, 2)
        gradient = problem.gradient(positive - negative)
        return (problem.loss(positive - negative) + STRENGTH * parts.sum(),
                STRENGTH + np.concatenate([gradient, -gradient]))

    parts = minimize(of_parts, np.zeros(2 * problem.features.shape[1]), jac=True,
                     method='L-BFGS-B', bounds=[(0, None)] * (2 * problem.features.shape[1]),
                     options={'maxiter': 10000, 'maxfun': 20000, 'ftol': 0, 'gtol': 1e-10}).x
    positive, negative = np.split(parts, 2)
    return positive - negative


def train(problem, alpha, passes):
    """Return the weights at the start and after each epoch, and the passes that it had taken."""
    np.random.seed(0)
    train_data = mx.io.NDArrayIter(problem.features, problem.labels, BATCH_SIZE, shuffle=True,
                                   label_name='label')
    module = SVRGModule(problem.symbol(), label_names=('label',), update_freq=2, alpha=alpha,
                        proximal=L1(STRENGTH))
    cost = [1 if alpha == 0 else 2 + (epoch % 2 == 0) for epoch in range(passes)]
    passes_after = [total for total in np.cumsum(cost).tolist() if total <= passes]
    weights = [np.zeros(problem.features.shape[1])]
    module.fit(train_data, eval_metric=[], initializer=mx.init.Zero(),
               optimizer_params={'learning_rate': RATE, 'wd': L2}, num_epoch=len(passes_after),
               epoch_end_callback=lambda *_: weights.append(weight_of(module)))
    return [0, *passes_after], weights


def main():
    args = arguments(__file__, passes=90)
    problem = OddDigits()
    optimum = optimum_of(problem)
    figure, (left, right) = axes_of_excess(
        'Logistic regression with L1 on 1797 handwritten digits, rate %g' % RATE, columns=2)
    right.remove()
    right = figure.add_subplot(1, 2, 2)
    for alpha, method, color in ((0, 'proximal SGD', SGD), (1, 'proximal SVRG', SVRG)):
        passes, weights = train(problem, alpha, args.passes)
        left.plot(passes, [objective(problem, weight) - objective(problem, optimum)
                           for weight in weights], color=color, linewidth=1.8, label=method)
        right.plot(passes, [np.count_nonzero(weight) for weight in weights], color=color,
                   linewidth=1.8, label=method)
    left.set_ylabel('objective minus optimum')
    left.legend()
    right.axhline(np.count_nonzero(optimum), color='black', linewidth=1, linestyle=':',
                  label='optimum')
    right.set_xlabel('gradient passes over the data')
    right.set_ylabel('weights that are not zero')
    right.grid(True, alpha=0.3)
    right.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

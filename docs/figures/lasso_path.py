"""Weights of a lasso over the strength of L1: proximal SVRG, and scikit-learn's lasso_path."""

import mxnet as mx
import numpy as np
from common import NEUTRAL, SVRG, arguments, pyplot, save
from sklearn.datasets import load_diabetes
from sklearn.linear_model import lasso_path
from sklearn.preprocessing import scale

from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1

BATCH_SIZE, RATE, POINTS = 34, 0.1, 15


def main():
    args = arguments(__file__, passes=150)
    features, targets = load_diabetes(return_X_y=True)
    features, targets = scale(features), scale(targets)
    largest = np.abs(features.T @ targets).max() / len(targets)  # all weights are 0 from there on
    strengths = largest * np.logspace(0, -2, 200)
    _, exact, _ = lasso_path(features, targets, alphas=strengths, tol=1e-10, max_iter=100000)

    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True, name='fc')
    symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('target'))
    arg_params, found = None, []
    chosen = largest * np.logspace(0, -2, POINTS)
    for strength in chosen:  # each run begins where the one before it ended
        train_data = mx.io.NDArrayIter(features, targets, BATCH_SIZE, label_name='target')
        module = SVRGModule(symbol, label_names=('target',), update_freq=2,
                            proximal=L1(strength))
        module.fit(train_data, eval_metric=[], num_epoch=int(args.passes / 2.5),
                   initializer=mx.init.Zero(), arg_params=arg_params,
                   optimizer_params={'learning_rate': RATE})
        arg_params, _ = module.get_params()
        found.append(arg_params['fc_weight'].asnumpy()[0])

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    lines = axes.semilogx(strengths, exact.T, color=NEUTRAL, linewidth=1)
    for weights in np.transpose(found):
        dots, = axes.semilogx(chosen, weights, 'o', color=SVRG, markersize=3.5)
    axes.legend([dots, lines[0]], ['proximal SVRG', 'scikit-learn’s lasso_path'],
                loc='lower right')
    axes.set_xlabel('strength of L1')
    axes.set_ylabel('weight')
    axes.grid(True, which='major', alpha=0.3)
    axes.set_title('Lasso on the diabetes data, 442 rows and 10 features', fontsize=11)
    save(figure, args.output)


if __name__ == '__main__':
    main()

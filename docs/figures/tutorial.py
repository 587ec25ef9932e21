"""The tutorial's training: objective minus optimum over passes, with Module, Gluon and SGD."""

import logging

import mxnet as mx
import numpy as np
from common import NEUTRAL, NEWTON, SGD, arguments, passes_of, pyplot, save
from mxnet import gluon
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from svrg_optimization import SVRGModule, SVRGTrainer

BATCH_SIZE = 32


def main():
    args = arguments(__file__, passes=90)
    logging.disable(logging.WARNING)
    rows, labels = load_breast_cancer(return_X_y=True)
    rows, _, labels, _ = train_test_split(rows, labels, test_size=0.25, random_state=0)
    rows = ((rows - rows.mean(axis=0)) / rows.std(axis=0)).astype('float32')
    labels, wd = labels.astype('float32'), 1 / len(rows)
    best = LogisticRegression(C=1.0, tol=1e-10, max_iter=10000).fit(rows, labels)

    def objective(weight, bias):
        margins = (2 * labels - 1) * (rows.astype('float64') @ weight.ravel() + bias)
        return np.logaddexp(0, -margins).mean() + wd / 2 * (weight ** 2).sum()

    optimum = objective(best.coef_, best.intercept_[0])

    def above(weight, bias):
        return objective(weight.asnumpy().astype('float64'), float(bias.asscalar())) - optimum

    def module(made, optimizer, **params):
        np.random.seed(0)
        score = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
        trained, points = made(mx.sym.LogisticRegressionOutput(
            score, mx.sym.Variable('softmax_label'))), []
        is_svrg = made is not mx.mod.Module

        def record(epoch, *_):
            weights, _ = trained.get_params()
            points.append((passes_of(trained, epoch) if is_svrg else epoch + 1,
                           above(weights['fc_weight'], weights['fc_bias'])))

        data = mx.io.NDArrayIter(rows, labels, BATCH_SIZE, shuffle=True)
        trained.fit(data, eval_metric=[], initializer=mx.init.Zero(), num_epoch=args.passes,
                    optimizer_params={'wd': wd, **params}, optimizer=optimizer,
                    epoch_end_callback=record)
        return np.array(points).T

    def block():
        np.random.seed(0)
        mx.random.seed(0)
        net, loss, points = gluon.nn.Dense(1, in_units=30), gluon.loss.SigmoidBCELoss(), []
        net.initialize()
        net.bias.wd_mult = 0
        batches = gluon.data.DataLoader(
            gluon.data.ArrayDataset(rows, labels.reshape(-1, 1)), BATCH_SIZE, shuffle=True)
        trainer = SVRGTrainer(net.collect_params(), 'newton_cg', {'wd': wd}, tol=1e-5,
            objective=lambda data, label: loss(net(data), label))
        for epoch, _ in enumerate(trainer.epochs(batches, args.passes)):
            points.append((passes_of(trainer, epoch), above(net.weight.data(), net.bias.data())))
        return np.array(points).T

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for points, style in (
            (module(lambda symbol: SVRGModule(symbol, tol=1e-5), 'newton_cg'),
             {'color': NEWTON, 'linewidth': 2.5, 'label': 'newton_cg, SVRGModule'}),
            (block(), {'color': NEUTRAL, 'linestyle': '--', 'label': 'newton_cg, SVRGTrainer'})):
        axes.semilogy(*points, **style)
    rates = 3.0 ** np.arange(-6, 2)
    curves = {rate: module(mx.mod.Module, 'nag', learning_rate=rate, momentum=0.9)
              for rate in rates}
    best = min(rates, key=lambda rate: np.mean(curves[rate][1][-10:]))
    axes.semilogy(*curves[best], color=SGD,
                  label='SGD, the best of %d rates: %.2g' % (len(rates), best))
    axes.set_ylim(1e-9, 1)
    axes.set_xlim(0, args.passes)
    axes.set_xlabel('gradient passes over the data')
    axes.set_ylabel('objective minus optimum')
    axes.grid(True, which='major', alpha=0.3)
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

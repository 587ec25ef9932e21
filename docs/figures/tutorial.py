"""The tutorial's training: objective minus optimum over epochs, with Module, Gluon and SGD."""

import logging

import mxnet as mx
import numpy as np
from common import NEUTRAL, SGD, SVRG, arguments, pyplot, save
from mxnet import gluon
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from svrg_optimization import BarzilaiBorwein, SVRGModule, SVRGTrainer

BATCH_SIZE = 32


def main():
    args = arguments(__file__, passes=60)
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

    def module(made, **params):
        np.random.seed(0)
        score = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
        trained, values = made(mx.sym.LogisticRegressionOutput(
            score, mx.sym.Variable('softmax_label'))), []
        trained.fit(mx.io.NDArrayIter(rows, labels, BATCH_SIZE, shuffle=True), eval_metric=[],
                    initializer=mx.init.Zero(), num_epoch=args.passes,
                    optimizer_params={'wd': wd, **params},
                    optimizer='nag' if 'momentum' in params else 'sgd',
                    epoch_end_callback=lambda _, __, weights, ___: values.append(
                        above(weights['fc_weight'], weights['fc_bias'])))
        return values

    def block():
        np.random.seed(0)
        mx.random.seed(0)
        net, loss, values = gluon.nn.Dense(1, in_units=30), gluon.loss.SigmoidBCELoss(), []
        net.initialize()
        net.bias.wd_mult = 0
        batches = gluon.data.DataLoader(
            gluon.data.ArrayDataset(rows, labels.reshape(-1, 1)), BATCH_SIZE, shuffle=True)
        trainer = SVRGTrainer(net.collect_params(), 'nag', {
            'momentum': 0.9, 'wd': wd, 'lr_scheduler': BarzilaiBorwein()},
            objective=lambda data, label: loss(net(data), label))
        for epoch in range(args.passes):
            if epoch % 2 == 0:
                trainer.update_full_grads(batches)
            for data, label in batches:
                trainer.backward(data, label)
                trainer.step(len(data))
            values.append(above(net.weight.data(), net.bias.data()))
        return values

    figure, axes = pyplot.subplots(figsize=(7, 4))
    epochs = np.arange(1, args.passes + 1)
    axes.semilogy(epochs, module(lambda symbol: SVRGModule(symbol, update_freq=2), momentum=0.9,
                                 lr_scheduler=BarzilaiBorwein()),
                  color=SVRG, linewidth=2.5, label='SVRGModule')
    axes.semilogy(epochs, block(), color=NEUTRAL, linestyle='--', label='SVRGTrainer')
    axes.semilogy(epochs, module(mx.mod.Module, learning_rate=0.5), color=SGD,
                  label='SGD, rate 0.5')
    axes.set_ylim(1e-9, 1)
    axes.set_xlabel('epochs')
    axes.set_ylabel('objective minus optimum')
    axes.grid(True, which='major', alpha=0.3)
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

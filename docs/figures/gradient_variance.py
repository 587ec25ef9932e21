"""Variance of the batch gradient, plain and of SVRG, as VarianceCallback measures it."""

import mxnet as mx
import numpy as np
from common import SGD, SVRG, arguments, pyplot, save
from sklearn.datasets import load_digits

from svrg_optimization import SVRGModule
from svrg_optimization.diagnostics import VarianceCallback

BATCH_SIZE, UPDATE_FREQ = 64, 4


def main():
    args = arguments(__file__, passes=40)
    digits = load_digits()
    train_data = mx.io.NDArrayIter(digits.data.astype(np.float32) / 16, digits.target, BATCH_SIZE)
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=10, name='fc')
    module = SVRGModule(mx.sym.SoftmaxOutput(scores, name='softmax'), update_freq=UPDATE_FREQ)
    callback = VarianceCallback(module, train_data)
    module.fit(train_data, num_epoch=args.passes, epoch_end_callback=callback,
               initializer=mx.init.Zero(),
               optimizer_params={'learning_rate': 0.5, 'wd': 1e-2})

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    epochs = [epoch + 1 for epoch, _ in callback.history]
    for name, label, color in (('plain', 'SGD (plain)', SGD), ('svrg', 'SVRG', SVRG)):
        axes.semilogy(epochs, [getattr(variance, name) for _, variance in callback.history],
                      'o-', color=color, linewidth=1.8, markersize=4, label=label)
    axes.set_xlabel('epoch (a snapshot every %d)' % UPDATE_FREQ)
    axes.set_ylabel('variance of a batch’s gradient')
    axes.set_xlim(0, args.passes + 1)
    axes.grid(True, which='major', alpha=0.3)
    axes.set_title('Multinomial logistic regression on digits, constant learning rate 0.5',
                   fontsize=11)
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

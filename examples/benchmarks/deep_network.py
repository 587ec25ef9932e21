"""Does SVRG help a deep network? Where SGD, SVRG and α-SVRG end on real images.

A small convolutional network learns scikit-learn's handwritten digits (1437
rows, 360 held out). Each method has the best rate of a grid, that with the least
mean training loss. Each is trained from several seeds for the same number of
epochs. With update_freq=2 an epoch of SVRG takes 2.5 gradient passes. The script
takes some three minutes.
"""

import common
import mxnet as mx
import numpy as np
from common import pyplot
from sklearn.datasets import load_digits

from svrg_optimization import LinearDecay, SVRGModule
from svrg_optimization.diagnostics import gradient_variance

BATCH_SIZE = 64
HELD_OUT = 360
# name, alpha (from the number of all updates), passes an epoch, color, style
METHODS = {
    'SGD': (lambda updates: 0, 1, common.COLORS['SGD'], '-'),
    'SVRG': (lambda updates: 1, 2.5, common.COLORS['SVRG'], '-'),
    'α-SVRG, α = 0.5': (lambda updates: 0.5, 2.5, common.COLORS['α-SVRG'], '-'),
    'α-SVRG, α from 0.75 to 0': (lambda updates: LinearDecay(0.75, updates), 2.5,
                                 common.COLORS['α-SVRG'], '--'),
}


def network():
    layer = mx.sym.Variable('data')
    for i, filters in enumerate((16, 32)):
        layer = mx.sym.Convolution(layer, kernel=(3, 3), pad=(1, 1), num_filter=filters,
                                   name='conv%d' % i)
        layer = mx.sym.Activation(layer, act_type='relu')
        layer = mx.sym.Pooling(layer, pool_type='max', kernel=(2, 2), stride=(2, 2))
    layer = mx.sym.FullyConnected(mx.sym.flatten(layer), num_hidden=64, name='hidden')
    scores = mx.sym.FullyConnected(mx.sym.Activation(layer, act_type='relu'), num_hidden=10,
                                   name='fc')
    return mx.sym.SoftmaxOutput(scores, name='softmax')


def images(seed):
    """Return the rows for training and those held out, another split for each seed."""
    digits = load_digits()
    rows = np.random.RandomState(seed).permutation(len(digits.target))
    data = digits.images[rows, None].astype(np.float32) / 16
    target = digits.target[rows].astype(np.float32)
    return (data[HELD_OUT:], target[HELD_OUT:]), (data[:HELD_OUT], target[:HELD_OUT])


def train(method, rate, epochs, seed):
    """Return the losses before and after each epoch, the accuracy held out, and the variances."""
    train_rows, held_out = images(seed)
    np.random.seed(seed)
    mx.random.seed(seed)
    train_data = mx.io.NDArrayIter(*train_rows, BATCH_SIZE, shuffle=True)
    in_order = mx.io.NDArrayIter(*train_rows, BATCH_SIZE)
    alpha = METHODS[method][0](epochs * -(-len(train_rows[0]) // BATCH_SIZE))
    module = SVRGModule(network(), update_freq=2, alpha=alpha)
    variances = []

    def loss():
        return dict(module.score(in_order, 'ce'))['cross-entropy']

    def record(epoch, *_):
        losses.append(loss())
        if epoch % 2 == 0 and method != 'SGD':  # an epoch after the snapshot
            variance = gradient_variance(module, in_order)
            variances.append(variance.svrg / variance.plain)

    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(mx.init.Xavier())
    losses = [loss()]
    module.fit(train_data, num_epoch=epochs, optimizer_params={'learning_rate': rate},
               epoch_end_callback=record)
    accuracy = dict(module.score(mx.io.NDArrayIter(*held_out, HELD_OUT), 'acc'))['accuracy']
    return np.array(losses), accuracy, np.array(variances)


def main():
    parser = common.parser(__doc__, rounds=None)
    parser.add_argument('--seeds', type=int, default=3, help='(default: 3)')
    parser.add_argument('--epochs', type=int, default=40, help='(default: 40)')
    parser.add_argument('--rates', type=float, nargs='+', default=[0.2, 0.4, 0.8],
                        help='grid of learning rates (default: 0.2 0.4 0.8)')
    args = parser.parse_args()
    common.quiet()
    rows = []
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4))
    for method, (_, passes, color, style) in METHODS.items():
        runs = {rate: [train(method, rate, args.epochs, seed) for seed in range(args.seeds)]
                for rate in args.rates}
        rate = min(runs, key=lambda rate: np.mean([losses[-1] for losses, _, _ in runs[rate]]))
        losses, accuracies, ratios = (np.array(each) for each in zip(*runs[rate]))
        rows.append([method, '%g' % rate, '%g' % (passes * args.epochs),
                     '%.1e' % losses[:, -1].mean(), '%.0e' % losses[:, -1].std(),
                     '%.1f' % (100 * accuracies.mean()), '%.1f' % (100 * accuracies.std())])
        print(' '.join(rows[-1]), flush=True)
        left.semilogy(passes * np.arange(args.epochs + 1), losses.mean(axis=0), style,
                      color=color, label=method)
        if ratios.size:
            right.semilogy(np.arange(0, args.epochs, 2), ratios.mean(axis=0), style, color=color)
    common.write(args.output, 'deep_network',
                 'Convolutional network on digits, %d epochs with batches of %d, update_freq=2, '
                 'the best of the rates %s; mean and standard deviation of %d seeds.'
                 % (args.epochs, BATCH_SIZE, args.rates, args.seeds),
                 ['method', 'rate', 'gradient passes', 'training loss', 'its deviation',
                  'accuracy held out, %', 'its deviation'], rows)
    figure.suptitle('Convolutional network on digits, mean of %d seeds' % args.seeds,
                    y=0.95, **common.TITLE)
    left.set(xlabel='gradient passes', ylabel='training loss')
    left.legend(fontsize=8)
    right.axhline(1, color='black', linewidth=0.8)
    right.set(xlabel='epoch', ylabel='variance, SVRG / plain')
    common.save_picture(args.output, 'deep_network', figure)


if __name__ == '__main__':
    main()

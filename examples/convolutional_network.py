"""A small convolutional network trained with SVRG on handwritten digits.

Two convolutions and a dense layer on the 8x8 images that ship with scikit-learn.
Expect an accuracy of about 98 % on held-out digits. A network is no convex
problem: SVRG trains it, but nothing proves that it is faster here, and an epoch
takes two to three times as long as one of SGD (docs/performance.md).
"""

import argparse
import logging

import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from svrg_optimization import SVRGModule


def network():
    layer = mx.sym.Variable('data')
    for i, filters in enumerate((16, 32)):
        layer = mx.sym.Convolution(layer, kernel=(3, 3), pad=(1, 1), num_filter=filters,
                                   name='conv%d' % i)
        layer = mx.sym.Activation(layer, act_type='relu')
        layer = mx.sym.Pooling(layer, pool_type='max', kernel=(2, 2), stride=(2, 2))
    scores = mx.sym.FullyConnected(mx.sym.flatten(layer), num_hidden=10, name='fc')
    return mx.sym.SoftmaxOutput(scores, name='softmax')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--epochs', type=int, default=20, help='epochs of training')
    parser.add_argument('--update-freq', type=int, default=2, help='epochs between snapshots')
    parser.add_argument('--batch-size', type=int, default=32, help='images of a batch')
    parser.add_argument('--learning-rate', type=float, default=0.1, help='constant learning rate')
    parser.add_argument('--seed', type=int, default=0, help='seed of split, weights and batches')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    np.random.seed(args.seed)
    mx.random.seed(args.seed)

    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        digits.images[:, None] / 16, digits.target, test_size=0.2, random_state=args.seed)
    train_data = mx.io.NDArrayIter(train_x, train_y, args.batch_size, shuffle=True)
    # Batches without padding, which score would count.
    test_data = mx.io.NDArrayIter(test_x, test_y, batch_size=60)

    module = SVRGModule(network(), update_freq=args.update_freq)
    module.fit(train_data, test_data, optimizer='sgd',
               optimizer_params={'learning_rate': args.learning_rate},
               initializer=mx.init.Xavier(), num_epoch=args.epochs)
    print('accuracy on %d held-out digits: %.3f'
          % (len(test_y), module.score(test_data, 'acc')[0][1]))


if __name__ == '__main__':
    main()

"""SVRG in a loop of your own: bind, update_full_grads, forward_backward, update.

This is the least squares problem of high_level_api.py in Module's intermediate-level
API. Every `update_freq` epochs the loop calls `update_full_grads`; all else is the
loop of a plain Module. The training error falls to the variance of the noise, 0.01,
and the weights are those of the least squares solution.
"""

import argparse
import logging
import time

import mxnet as mx
import numpy as np

from svrg_optimization import SVRGModule

TRUE_WEIGHTS = [1.0, -2.0, 3.0, -4.0, 5.0]


def network():
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True, name='fc')
    return mx.sym.LinearRegressionOutput(output, mx.sym.Variable('target'), name='loss')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--epochs', type=int, default=20, help='epochs of training')
    parser.add_argument('--update-freq', type=int, default=2, help='epochs between snapshots')
    parser.add_argument('--batch-size', type=int, default=32, help='rows of a batch')
    parser.add_argument('--learning-rate', type=float, default=0.1, help='constant learning rate')
    parser.add_argument('--seed', type=int, default=0, help='seed of data and batches')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    np.random.seed(args.seed)
    mx.random.seed(args.seed)

    features = np.random.normal(size=(1000, len(TRUE_WEIGHTS)))
    targets = features @ TRUE_WEIGHTS + np.random.normal(scale=0.1, size=len(features))
    train_data = mx.io.NDArrayIter(features, targets, args.batch_size, shuffle=True,
                                   label_name='target')

    module = SVRGModule(network(), label_names=('target',), update_freq=args.update_freq)
    module.bind(train_data.provide_data, train_data.provide_label)
    # A linear model begins at 0: random weights times a large column are a bad start.
    module.init_params(mx.init.Zero())
    module.init_optimizer(optimizer='sgd', optimizer_params={'learning_rate': args.learning_rate})
    metric = mx.metric.create('mse')

    for epoch in range(args.epochs):
        tic = time.time()
        if epoch % module.update_freq == 0:
            module.update_full_grads(train_data)
        metric.reset()
        train_data.reset()
        for batch in train_data:
            module.forward_backward(batch)
            module.update()
            module.update_metric(metric, batch.label)
        logging.info('Epoch[%d] Train-mse=%f', epoch, metric.get()[1])
        logging.info('Epoch[%d] Time cost=%.3f', epoch, time.time() - tic)

    weights = module.get_params()[0]['fc_weight'].asnumpy()[0]
    least_squares = np.linalg.lstsq(features, targets, rcond=None)[0]
    print('weights       %s' % ' '.join('%.6f' % weight for weight in weights))
    print('least squares %s' % ' '.join('%.6f' % weight for weight in least_squares))


if __name__ == '__main__':
    main()

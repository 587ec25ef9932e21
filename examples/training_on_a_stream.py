"""SVRG on a file that is read in parts: least squares on rows that need not fit into memory.

The script writes a CSV file, chunk by chunk. `train_data` reads it batch by
batch. The first snapshot is cheap, since its full gradient is that of a few batches.
Each later one takes twice as many, up to all batches. For each snapshot the log shows
`Full gradient batches`. At the end the loss agrees with that of least squares to some
six decimals.
"""

import argparse
import logging
import tempfile
from pathlib import Path

import mxnet as mx
import numpy as np

from svrg_optimization import SVRGModule

FEATURES, CHUNK = 20, 5000


def write_rows(directory, rows):
    """Write features and targets; return what least squares needs to know of them."""
    true_weights = np.random.normal(size=FEATURES)
    squares, products = np.zeros((FEATURES, FEATURES)), np.zeros(FEATURES)
    with open(directory / 'data.csv', 'w') as data, open(directory / 'target.csv', 'w') as target:
        for begin in range(0, rows, CHUNK):
            features = np.random.normal(size=(min(CHUNK, rows - begin), FEATURES)).round(3)
            targets = (features @ true_weights + np.random.normal(size=len(features))).round(3)
            np.savetxt(data, features, fmt='%.3f', delimiter=',')
            np.savetxt(target, targets, fmt='%.3f')
            squares += features.T @ features / rows
            products += features.T @ targets / rows
    return squares, products


def reader(directory, batch_size):
    # A delimiter in the path: without it MXNet's threads share one string, and can crash.
    return mx.io.CSVIter(data_csv='%s/data.csv?delimiter=,' % directory, data_shape=(FEATURES,),
                         label_csv='%s/target.csv?delimiter=,' % directory, label_shape=(1,),
                         label_name='target', batch_size=batch_size, round_batch=False)


def network():
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True, name='fc')
    return mx.sym.LinearRegressionOutput(output, mx.sym.Variable('target'), name='loss')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--rows', type=int, default=50000, help='rows of the file')
    parser.add_argument('--epochs', type=int, default=10, help='epochs of training')
    parser.add_argument('--first-batches', type=int, default=5,
                        help='batches of the first snapshot; the next has twice as many')
    parser.add_argument('--batch-size', type=int, default=100, help='rows of a batch')
    parser.add_argument('--learning-rate', type=float, default=0.1, help='constant learning rate')
    parser.add_argument('--seed', type=int, default=0, help='seed of the rows')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    np.random.seed(args.seed)
    mx.random.seed(args.seed)

    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        squares, products = write_rows(directory, args.rows)
        module = SVRGModule(network(), label_names=('target',), update_freq=1,
                            full_grad_batches=lambda number: args.first_batches * 2 ** number)
        # A linear model begins at 0: random weights times a large column are a bad start.
        module.fit(reader(directory, args.batch_size), eval_metric='mse', optimizer='sgd',
                   optimizer_params={'learning_rate': args.learning_rate},
                   initializer=mx.init.Zero(), num_epoch=args.epochs)

    weights = module.get_params()[0]['fc_weight'].asnumpy()[0].astype(np.float64)
    error = weights - np.linalg.solve(squares, products)
    print('mean squared error above that of least squares: %.1e' % (error @ squares @ error))


if __name__ == '__main__':
    main()

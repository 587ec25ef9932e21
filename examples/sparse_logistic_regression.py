"""Binary logistic regression with L1, the penalty of the lasso, by proximal SVRG.

Most weights end at exactly zero. The rows stay compressed (csr) from a LIBSVM
file with two labels to the gradient. Without --data the script generates a problem
in which 20 of 200 features matter.
"""

import argparse
import logging
from pathlib import Path

import mxnet as mx
import numpy as np
from logistic_regression_csr import CSRIter, accuracy, generate, load, network
from sklearn.model_selection import train_test_split

from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--data', type=Path, metavar='PATH',
                        help='a LIBSVM file with two labels; without it, a problem is generated')
    parser.add_argument('--epochs', type=int, default=20, help='epochs of training')
    parser.add_argument('--update-freq', type=int, default=2, help='epochs between snapshots')
    parser.add_argument('--batch-size', type=int, default=50, help='rows of a batch')
    parser.add_argument('--learning-rate', type=float, default=1.0, help='constant learning rate')
    parser.add_argument('--l1', type=float, default=2e-3, metavar='STRENGTH',
                        help='strength of L1, in units of the mean loss of a row')
    parser.add_argument('--seed', type=int, default=0, help='seed of data, split and batches')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    np.random.seed(args.seed)
    mx.random.seed(args.seed)

    try:
        features, labels = load(args.data) if args.data else generate(informative=20)
    except (OSError, EOFError, ValueError) as error:
        parser.error('argument --data: %s: %s' % (args.data, error))
    train_x, test_x, train_y, test_y = train_test_split(features, labels, test_size=0.2,
                                                        random_state=args.seed)
    train_data = CSRIter(train_x, train_y, args.batch_size, shuffle=True)
    test_data = CSRIter(test_x, test_y, args.batch_size)

    module = SVRGModule(network(features.shape[1]), label_names=('label',),
                        update_freq=args.update_freq, proximal={'fc_weight': L1(args.l1)})
    # A linear model begins at 0: random weights times a large column are a bad start.
    module.fit(train_data, test_data, eval_metric=mx.metric.np(accuracy), optimizer='sgd',
               optimizer_params={'learning_rate': args.learning_rate},
               initializer=mx.init.Zero(), num_epoch=args.epochs)

    weight = module.get_params()[0]['fc_weight'].asnumpy()
    print('weights that are exactly zero: %d of %d' % ((weight == 0).sum(), weight.size))
    # Unlike score, predict leaves the padding of the last batch out.
    probabilities = module.predict(test_data).asnumpy()[:, 0]
    print('accuracy on %d held-out rows: %.3f' % (len(test_y), accuracy(test_y, probabilities)))


if __name__ == '__main__':
    main()

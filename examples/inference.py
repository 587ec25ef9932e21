"""Train with checkpoints, load one for inference, and resume the training.

Softmax regression on the digits that ship with scikit-learn. `fit` writes a
checkpoint after each epoch. Plain mx.mod.Module loads the last one, which is enough
for inference. SVRGModule loads one from the middle and resumes the training there.
Expect an accuracy of about 94 % on held-out digits. The resumed training ends with
the weights of the undisturbed one, to the last bit.
"""

import argparse
import logging
from pathlib import Path

import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from svrg_optimization import SVRGModule


def network():
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=10, name='fc')
    return mx.sym.SoftmaxOutput(scores, name='softmax')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--prefix', type=Path, default=Path('checkpoints/digits'),
                        help='what the names of the checkpoints begin with')
    parser.add_argument('--epochs', type=int, default=10, help='epochs of the whole training')
    parser.add_argument('--resume-from', type=int, metavar='EPOCH', default=5,
                        help='checkpoint from which to train once more to the end')
    parser.add_argument('--update-freq', type=int, default=2, help='epochs between snapshots')
    parser.add_argument('--batch-size', type=int, default=32, help='rows of a batch')
    parser.add_argument('--learning-rate', type=float, default=0.1, help='constant learning rate')
    parser.add_argument('--seed', type=int, default=0, help='seed of the split')
    args = parser.parse_args()
    if not 1 <= args.resume_from < args.epochs:
        parser.error('argument --resume-from: must be at least 1 and below --epochs, %d, not %d'
                     % (args.epochs, args.resume_from))
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    np.random.seed(args.seed)
    mx.random.seed(args.seed)
    args.prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix = str(args.prefix)

    digits, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(digits / 16, labels, test_size=0.2,
                                                        random_state=args.seed)
    # In one order in all epochs: a resumed training can only repeat steps on the same batches.
    train_data = mx.io.NDArrayIter(train_x, train_y, args.batch_size)
    # Batches without padding, which score would count.
    test_data = mx.io.NDArrayIter(test_x, test_y, batch_size=60)
    # A linear model begins at 0: random weights times a large column are a bad start.
    training = {'initializer': mx.init.Zero(), 'optimizer': 'sgd', 'num_epoch': args.epochs,
                'optimizer_params': {'learning_rate': args.learning_rate, 'momentum': 0.5}}

    module = SVRGModule(network(), update_freq=args.update_freq)
    module.fit(train_data, **training, epoch_end_callback=mx.callback.module_checkpoint(
        module, prefix, save_optimizer_states=True))

    trained = mx.mod.Module.load(prefix, args.epochs)
    trained.bind(test_data.provide_data, test_data.provide_label, for_training=False)
    accuracy = trained.score(test_data, 'acc')[0][1]
    probabilities = trained.predict(test_data).asnumpy()
    print('accuracy on %d held-out digits: %.3f' % (len(test_y), accuracy))
    for label, row in list(zip(test_y, probabilities))[:3]:
        print('a %d is taken for a %d with probability %.2f' % (label, row.argmax(), row.max()))

    # The checkpoint has update_freq, the snapshot and its full gradient.
    resumed = SVRGModule.load(prefix, args.resume_from, load_optimizer_states=True)
    resumed.fit(train_data, **training, begin_epoch=args.resume_from)
    equal = all(np.array_equal(value.asnumpy(), resumed.get_params()[0][name].asnumpy())
                for name, value in module.get_params()[0].items())
    print('resumed from epoch %d: the weights are %s those of the undisturbed training'
          % (args.resume_from, 'exactly' if equal else 'not'))


if __name__ == '__main__':
    main()

"""Train logistic regression with SVRG on several workers; start it by mpirun or horovodrun.

    mpirun -np 4 --host localhost:4 --bind-to none --tag-output \\
        python -m svrg_optimization.launch.role -s 1 train.py --prefix run/digits
    horovodrun -np 2 python train.py --kv-store horovod --prefix run/digits

Each worker trains on its share of the rows. The worker of rank 0 saves a
checkpoint after each epoch. The same command with --resume goes on from the
last checkpoint of that prefix, so give each job a prefix of its own. Without
a launcher the script trains alone.
"""

import argparse
import logging
import os
import re
from pathlib import Path

import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits, load_svmlight_file

from svrg_optimization import SVRGModule


def load(path):
    """Return features and labels, the labels counted from 0: of a LIBSVM file, or the digits."""
    if path is None:
        features, labels = load_digits(return_X_y=True)
        return features / 16, labels
    features, labels = load_svmlight_file(path)
    return features.toarray(), np.unique(labels, return_inverse=True)[1]


def shard_of(features, labels, rank, workers, seed):
    """Return the rows of one worker, as many as every other worker has.

    Workers that step together (dist_sync, horovod) need equal numbers of batches. The
    order of the rows is that of the seed alone, so that a resumed training
    takes the steps of an undisturbed one.
    """
    order = np.random.RandomState(seed).permutation(len(labels))
    rows = order[rank::workers][:len(labels) // workers]
    return features[rows], labels[rows]


def join(kind):
    """Return the KVStore for `fit`, the rank of this worker and the number of workers."""
    if kind == 'horovod':
        import horovod.mxnet as hvd  # noqa: PLC0415
        hvd.init()
        return kind, hvd.rank(), hvd.size()
    if 'dist' in kind:
        kvstore = mx.kv.create(kind)
        return kvstore, kvstore.rank, kvstore.num_workers
    return kind, 0, 1


def network(classes):
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=classes, name='fc')
    return mx.sym.SoftmaxOutput(scores, name='softmax')


def last_checkpoint(prefix):
    """Return the number of the last whole checkpoint, None if there is none."""
    names = '%s-([0-9]{4,}).svrg' % re.escape(prefix.name)
    found = [re.fullmatch(names, path.name) for path in prefix.parent.glob('*.svrg')]
    return max((int(match.group(1)) for match in found if match), default=None)


def module_and_epoch(args, classes):
    """Return a new module, or that of the last checkpoint, and the epoch to begin with."""
    epoch = last_checkpoint(args.prefix) if args.resume else None
    if epoch is None:
        return SVRGModule(network(classes), update_freq=args.update_freq), 0
    return SVRGModule.load(args.prefix, epoch, load_optimizer_states=True), epoch


def train(args):
    kvstore, rank, workers = join(args.kv_store)
    features, labels = load(args.data)
    classes = int(labels.max()) + 1
    train_data = mx.io.NDArrayIter(*shard_of(features, labels, rank, workers, args.seed),
                                   args.batch_size)
    progress = mx.callback.Speedometer(args.batch_size, args.log_every) if args.log_every else None
    module, begin_epoch = module_and_epoch(args, classes)
    logging.info('rank %d of %d: %d rows, from epoch %d on', rank, workers,
                 train_data.num_data, begin_epoch)

    def save(epoch, *_):
        if rank == 0:
            module.save_checkpoint(args.prefix, epoch + 1, save_optimizer_states=True)

    module.fit(train_data, kvstore=kvstore, num_epoch=args.epochs, begin_epoch=begin_epoch,
               optimizer_params={'learning_rate': args.learning_rate, 'momentum': args.momentum,
                                 'wd': args.l2},
               initializer=mx.init.Zero(), eval_metric=['acc', 'ce'],
               batch_end_callback=progress, epoch_end_callback=save)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--prefix', type=Path, default=Path('svrg'),
                        help='what the names of the checkpoints begin with; on a file system '
                             'that all workers see')
    parser.add_argument('--resume', action='store_true',
                        help='go on from the last checkpoint, if there is one')
    parser.add_argument('--kv-store', default='dist_sync' if 'DMLC_ROLE' in os.environ else 'local',
                        help='dist_sync (default below a launcher), dist_device_sync, dist_async, '
                             'horovod or local (default else)')
    parser.add_argument('--data', metavar='FILE', help='a LIBSVM file; by default the digits')
    parser.add_argument('--epochs', type=int, default=20)
    parser.add_argument('--batch-size', type=int, default=50, help='of each worker')
    parser.add_argument('--update-freq', type=int, default=2)
    parser.add_argument('--learning-rate', type=float, default=0.2)
    parser.add_argument('--momentum', type=float, default=0.0)
    parser.add_argument('--l2', type=float, default=1e-4)
    parser.add_argument('--log-every', type=int, metavar='BATCHES', help='log the speed too')
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    args.prefix.parent.mkdir(parents=True, exist_ok=True)
    train(args)


if __name__ == '__main__':
    main()

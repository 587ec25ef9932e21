"""Linear regression with SVRG on YearPredictionMSD: the year of a song from its sound.

The data are 463,715 songs with 90 features of their timbre. The script downloads the
training file of the LIBSVM data page, some 200 MB, into the working directory if it is
not there yet. With --data it reads another LIBSVM file instead. Features and years are
standardized. The last lines have the root mean squared errors, in years, of SVRG and
of the least squares solution. They should be close to each other. Reading the file
takes about as long as the training, half a minute in all.
"""

import argparse
import logging
import urllib.request
from pathlib import Path

import mxnet as mx
import numpy as np
from sklearn.datasets import load_svmlight_file
from sklearn.preprocessing import StandardScaler

from svrg_optimization import SVRGModule

URL = ('https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/regression/'
       'YearPredictionMSD.bz2')
ROWS = 463715


def download(url, path):
    """Download a file; give it its name only when all of it is there."""
    logging.info('downloading %s', url)
    partial = path.with_name(path.name + '.part')
    try:
        # Raises ContentTooShortError where the file is shorter than the server said.
        urllib.request.urlretrieve(url, partial)
        partial.replace(path)
    finally:
        if partial.exists():
            partial.unlink()


def load(path, rows):
    """Return features and targets of a LIBSVM file, which may be compressed."""
    logging.info('reading %s', path)
    features, targets = load_svmlight_file(str(path), dtype=np.float32)
    if len(targets) != rows:
        raise ValueError('it has %d rows, and --rows says %d' % (len(targets), rows))
    return features.toarray(), targets


def network():
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    return mx.sym.LinearRegressionOutput(output, mx.sym.Variable('target'), name='loss')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--data', type=Path, metavar='PATH',
                        help='a LIBSVM file; without it, YearPredictionMSD.bz2 of the working '
                             'directory, downloaded if it is not there')
    parser.add_argument('--url', default=URL, help='what to download')
    parser.add_argument('--rows', type=int, default=ROWS, help='rows that the file must have')
    parser.add_argument('--epochs', type=int, default=10, help='epochs of training')
    parser.add_argument('--update-freq', type=int, default=2, help='epochs between snapshots')
    parser.add_argument('--batch-size', type=int, default=128, help='rows of a batch')
    parser.add_argument('--learning-rate', type=float, default=0.05, help='constant learning rate')
    parser.add_argument('--seed', type=int, default=0, help='seed of the batches')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    np.random.seed(args.seed)
    mx.random.seed(args.seed)

    path = args.data or Path('YearPredictionMSD.bz2')
    if args.data is None and not path.exists():
        try:
            download(args.url, path)
        except (OSError, ValueError) as error:
            parser.error('argument --url: %s: %s' % (args.url, error))
    try:
        features, years = load(path, args.rows)
    except (OSError, EOFError, ValueError) as error:
        parser.error('argument --data: %s: %s' % (path, error))

    features = StandardScaler(copy=False).fit_transform(features)
    year_scaler = StandardScaler()
    targets = year_scaler.fit_transform(years.reshape(-1, 1)).ravel().astype(np.float32)
    train_data = mx.io.NDArrayIter(features, targets, args.batch_size, shuffle=True,
                                   label_name='target')

    module = SVRGModule(network(), label_names=('target',), update_freq=args.update_freq)
    # A linear model begins at 0: random weights times a large column are a bad start.
    module.fit(train_data, eval_metric='rmse', optimizer='sgd',
               optimizer_params={'learning_rate': args.learning_rate},
               initializer=mx.init.Zero(), num_epoch=args.epochs)

    def rmse_in_years(predictions):
        return np.sqrt(np.mean((predictions - targets) ** 2)) * year_scaler.scale_[0]

    parameters = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    predictions = features @ parameters['fc_weight'][0] + parameters['fc_bias']
    solution = np.linalg.lstsq(features.T @ features, features.T @ targets, rcond=None)[0]
    print('RMSE of SVRG:          %.4f years' % rmse_in_years(predictions))
    print('RMSE of least squares: %.4f years' % rmse_in_years(features @ solution))


if __name__ == '__main__':
    main()

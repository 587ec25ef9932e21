"""What a job of the example train.py leaves behind: its weights."""

import mxnet as mx
import numpy as np

from cluster import ROOT

TRAIN = ROOT / 'examples' / 'distributed' / 'train.py'
EPOCHS = 5


def training(prefix, *options):
    """Return the command that trains on the digits, in batches that are small and so many."""
    return [*map(str, (TRAIN, '--prefix', prefix, '--epochs', EPOCHS, '--batch-size', 5,
                       '--learning-rate', 0.02, *options))]


def weights(prefix, epoch):
    saved = mx.nd.load('%s-%04d.params' % (prefix, epoch))
    return {name: value.asnumpy() for name, value in saved.items()}


def last_checkpoint(prefix):
    """Return the number of a job's last checkpoint."""
    return max(int(path.stem[-4:]) for path in prefix.parent.glob(prefix.name + '-*.svrg'))


def assert_same_weights(actual, expected):
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-5, err_msg=name)

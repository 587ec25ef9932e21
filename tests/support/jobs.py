"""Jobs of the example train.py: what they leave behind, and how they go on."""

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


def assert_same_weights(actual, expected, tolerance=1e-5):
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, tolerance, tolerance, err_msg=name)


def run_to_end(running):
    """Wait for the success of a job; return what it printed."""
    with running:
        assert running.exit_status() == 0 and 'Traceback' not in running.output, running.output
    return running.output


def assert_resumes(start, prefix, expected, epochs=EPOCHS, tolerance=1e-5):
    """Check that a job that has ended early goes on from its last checkpoint to certain weights."""
    last = max(int(path.stem[-4:]) for path in prefix.parent.glob(prefix.name + '-*.svrg'))
    assert 2 <= last < epochs
    output = run_to_end(start('--resume'))
    assert 'from epoch %d on' % last in output, output
    assert_same_weights(weights(prefix, epochs), expected, tolerance)
    return output

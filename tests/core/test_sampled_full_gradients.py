"""Full gradients over some batches, against float64."""

import logging

import mxnet as mx
import numpy as np
import pytest

from checkpoints import bits
from pairs import in_pairs
from problems import Problem
from samples import SETTINGS, first_rows, fit, train


class Endless(mx.io.DataIter):
    """Random batches of a linear problem, without an end."""

    provide_data, provide_label = [('data', (10, 4))], [('label', (10,))]

    def __init__(self):
        super().__init__(10)
        self.rng, self.yielded = np.random.RandomState(0), 0

    def next(self):
        self.yielded += 1
        features = self.rng.normal(size=(10, 4))
        return mx.io.DataBatch([mx.nd.array(features)], [mx.nd.array(features[:, 0])], pad=0)


def test_a_function_of_the_number_of_snapshots_gives_the_batches(caplog):
    problem, seen = Problem('softmax', rows=37), []
    module = problem.module(2, full_grad_batches=lambda number: seen.append(number) or 2 ** number)
    with caplog.at_level(logging.INFO):
        fit(problem, module, 8)
    samples = (first_rows(37, batches) for batches in (1, 2, 4, 4))
    problem.assert_weights(module, train(problem.svrg(**SETTINGS), 8, samples, 2).weights)
    assert seen == [0, 1, 2, 3]
    assert [record.getMessage() for record in caplog.records
            if 'batches' in record.getMessage()] == [
        'Epoch[%d] Full gradient batches=%d' % line for line in ((0, 1), (2, 2), (4, 4), (6, 4))]


@in_pairs({
    'shuffle': [False, True],
    'handle': ['pad', 'discard', 'roll_over'],
    'batches': [4, lambda _: 100]})
def test_whole_data_as_a_sample_give_the_same_bits(shuffle, handle, batches):
    problem, found = Problem('perceptron', rows=37), []
    for count in (None, batches):
        np.random.seed(3)
        module = problem.module(2, full_grad_batches=count)
        found.append(bits(fit(problem, module, 5, problem.iterator(shuffle=shuffle,
                                                                   last_batch_handle=handle))))
    assert found[0] == found[1]


@pytest.mark.parametrize('epochs', [2, 3])
def test_an_endless_stream_trains_by_epochs_of_so_many_batches(epochs):
    """A ResizeIter that does not reset it; each pass and each epoch goes on where it stands."""
    problem, stream = Problem(rows=40), Endless()
    module = problem.module(full_grad_batches=2)
    fit(problem, module, epochs, mx.io.ResizeIter(stream, 3, reset_internal=False))
    svrg, rng = problem.svrg(**SETTINGS), np.random.RandomState(0)
    svrg.features = rng.normal(size=(50 * epochs, 4))
    svrg.targets = svrg.features[:, 0]
    for begin in range(0, 50 * epochs, 50):
        svrg.take_snapshot(begin + np.arange(20))
        for step in range(3):
            svrg.step(begin + 20 + 10 * step + np.arange(10))
    problem.assert_weights(module, svrg.weights)
    assert stream.yielded == 5 * epochs

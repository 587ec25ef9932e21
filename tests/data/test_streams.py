"""Data without an end, and passes that go on where the last one stopped."""

import gc

import mxnet as mx
import numpy as np
import psutil
import pytest

import bad_input
import oracle
from problems import Problem
from samples import SETTINGS, Endless, fit, stream_of
from svrg_optimization import Sampling, SVRGModule
from svrg_optimization.module.passes import Pass, Stream
from trainings import CountedResets


class EnoughError(Exception):
    """Raised by a callback to end the training."""


@pytest.mark.slow
def test_an_endless_stream_trains_and_memory_stays_flat():
    """If the batches after the 300th were kept, they would take 216 MB."""
    width, resident = 6000, []
    train_data, full_grad_data = Endless(0, width), Endless(1, width)
    symbol = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(
        mx.sym.Variable('data'), num_hidden=1, name='fc'), mx.sym.Variable('label'))
    module = SVRGModule(symbol, label_names=('label',), sampling=Sampling(3, 6, full_grad_data))

    def watch(param):
        if param.nbatch % 300 == 299:
            gc.collect()
            mx.nd.waitall()
            resident.append(psutil.Process().memory_info().rss)
        if param.nbatch == 899:
            raise EnoughError

    with pytest.raises(EnoughError):
        module.fit(train_data, eval_metric='mse', num_epoch=1, batch_end_callback=watch,
                   optimizer_params={'learning_rate': 1e-4}, initializer=mx.init.Zero())
    assert (train_data.yielded, full_grad_data.yielded) == (901, 450)
    assert module._snapshot.num_taken == 150
    assert module._snapshot.full_gradient.rows == 30
    assert resident[2] - resident[0] < 60e6
    assert module.get_params()[0]['fc_weight'].asnumpy()[0, 0] > 0.05


def test_training_on_an_endless_stream_is_svrg():
    problem, stream = Problem(rows=40), Endless()
    module = problem.module(sampling=Sampling(2, 3, stream))
    fit(problem, module, 2)
    svrg, rng = problem.svrg(**SETTINGS), np.random.RandomState(0)
    drawn = np.concatenate([rng.normal(size=(10, 4)) for _ in range(6)])
    svrg.features = np.concatenate([svrg.features, drawn])
    svrg.targets = np.concatenate([svrg.targets, drawn[:, 0]])
    for number, rows in enumerate(oracle.batches_of(40, 10) * 2):
        if number % 3 == 0:
            svrg.take_snapshot(np.arange(20) + 40 + 20 * (number // 3))
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('counts', [
    [None, None], [2, 2, 2, 2], [3, 3, 3, 3, 3], [1, None, 2, None], [9, 4, 9], [4, 4]])
def test_each_pass_goes_on_where_the_last_one_stopped(counts):
    """Each goes on where the last one stopped, and yields no batch twice."""
    stream, rows = Stream(Problem(rows=37).iterator()), stream_of(37, counts)
    targets = Problem(rows=37).targets
    for count in counts:
        stream.count = count
        passed = np.concatenate([batch.label[0].asnumpy()[:10 - batch.pad] for batch in stream])
        np.testing.assert_allclose(passed, targets[next(rows)], rtol=1e-6)


@pytest.mark.parametrize('handle, rows, kind', [
    ('pad', 37, mx.io.NDArrayIter), ('discard', 47, mx.io.NDArrayIter),
    ('pad', 37, CountedResets)])
def test_a_pass_over_all_shuffled_data_has_each_row_once(handle, rows, kind):
    """Of another iterator than NDArrayIter the length is known after the first round."""
    problem = Problem(rows=rows)
    stream = Stream(kind(problem.features, problem.targets, 10, shuffle=True,
                         last_batch_handle=handle))
    known = kind is mx.io.NDArrayIter
    for count in (1, 2, 4, 4, 1, 3, 8, None, 1, 4):
        stream.count = count
        passed = [batch.label[0].asnumpy()[:10 - batch.pad] for batch in stream]
        assert len(passed) == min(count or 4, 4)
        if len(passed) == 4 and known:
            found = np.concatenate(passed)
            assert len(set(found)) == len(found) == (37 if rows == 37 else 40)
        known = known or count == 4


@pytest.mark.parametrize('read', [0, 1, 3])
def test_the_first_pass_over_an_iterator_that_stands_somewhere_ends_with_its_data(read):
    """Of those that do not tell where, the first pass ends at the end of the data."""
    class Other(bad_input.Data):
        def __iter__(self):
            self.left = self.left or list(self.batches)
            while self.left:
                yield self.left.pop(0)

    data = Other(*range(5))
    data.left = list(range(read, 5))
    stream, found = Stream(data), []
    for count in (4, 4, 9, 4, 4):
        stream.count = count
        found.append(list(stream))
    assert found == {
        0: [[0, 1, 2, 3], [4], [0, 1, 2, 3, 4], [0, 1, 2, 3], [4, 0, 1, 2]],
        1: [[1, 2, 3, 4], [0, 1, 2, 3], [4, 0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1]],
        3: [[3, 4], [0, 1, 2, 3], [4, 0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1]]}[read]


def test_a_stream_that_stands_at_its_end_begins_again():
    train_data = Problem(rows=37).iterator()
    assert len(list(train_data)) == 4
    stream = Stream(train_data)
    assert [len(list(stream)), len(list(stream))] == [4, 4]


def test_a_stream_of_nothing_ends():
    assert list(Stream(bad_input.Data())) == []


def test_each_pass_asks_an_iterator_for_its_beginning_once():
    """Each pass asks an iterator for its beginning once."""
    class Counted(mx.io.NDArrayIter):
        begun = 0

        def __iter__(self):
            self.begun += 1
            return self

    problem = Problem(rows=40)
    for make in (Pass, lambda data, *_: Stream(data), lambda data: Pass(data, 2)):
        data = Counted(problem.features, problem.targets, 10)
        list(make(data))
        assert data.begun == 1

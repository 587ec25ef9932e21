"""Which batches an epoch and a pass read, and when iterators are reset."""

import itertools

import mxnet as mx
import numpy as np
import pytest

from bad_input import Data
from full_gradients import full_gradient
from held_batches import rows_of
from pairs import in_pairs
from problems import Problem
from svrg_optimization import SVRGModule


class OtherIter(mx.io.NDArrayIter):
    """An iterator whose place the package does not know."""


def test_a_stream_that_can_be_read_once_is_refused():
    problem = Problem(rows=40)
    stream = Data(like=problem.iterator())
    stream.batches = iter(problem.iterator())
    with pytest.raises(ValueError, match='at least one batch .*Data.* yielded none in epoch 0, '
                                         'maybe since a snapshot reads them'):
        problem.fit(problem.module(), 1, stream)


@in_pairs({
    'settings': [{}, {'update_freq': 2}, {'alpha': 0.5}, {'alpha': 0.}, {'alpha': lambda _: 0.},
                 {'full_grad_batches': 1}, {'full_grad_batches': 3},
                 {'full_grad_batches': lambda number: 2 ** number}],
    'shuffle': [False, True],
    'handle': ['pad', 'discard', 'roll_over']})
def test_batches_of_each_epoch_are_those_of_module(handle, shuffle, settings):
    problem, found = Problem(rows=37), []
    for module in (mx.mod.Module(problem.symbol, label_names=('label',)),
                   problem.module(**settings)):
        np.random.seed(3)
        labels = []  # of each batch, with its epoch
        problem.fit(module, 5, problem.iterator(shuffle=shuffle, last_batch_handle=handle),
                    batch_end_callback=lambda param, seen=labels: seen.append(
                        [param.epoch, *param.locals['data_batch'].label[0].asnumpy()]))
        found.append(labels)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize('batches', [None, 2])
@pytest.mark.parametrize('cls, handle', [
    (mx.io.NDArrayIter, 'pad'), (mx.io.NDArrayIter, 'roll_over'), (OtherIter, 'pad')])
def test_a_pass_is_over_the_rows_that_the_epoch_begins_with(cls, batches, handle):
    """Also where somebody has read the data before fit, and in each epoch before the next."""
    problem, rows, found = Problem(rows=38), [[], [], []], []
    train_data = problem.iterator(cls=cls, shuffle=cls is mx.io.NDArrayIter,
                                  last_batch_handle=handle)
    next(train_data)
    module = problem.module(full_grad_batches=batches)

    def look(param):
        batch = param.locals['data_batch']
        real = slice(batch.pad, None) if handle == 'roll_over' else slice(10 - batch.pad)
        rows[param.epoch].extend(rows_of(problem, batch)[real])
        if param.nbatch == (batches or 1) - 1:
            found.append((module._param_dict[0]['fc_bias'].asnumpy(), len(rows[param.epoch])))

    problem.fit(module, 3, train_data, batch_end_callback=look,
                optimizer_params={'learning_rate': 1e-30},
                epoch_end_callback=lambda *_: handle == 'pad' and train_data.reset())
    for epoch, (full, count) in zip(rows, found):
        passed = epoch[:count] if batches else epoch
        np.testing.assert_allclose(
            full, full_gradient(problem, problem.weights, passed)['fc_bias'], rtol=1e-5)
    assert len(found) == 3


@pytest.mark.parametrize('reads', [0, 1, 9])
@pytest.mark.parametrize('cls', [mx.io.NDArrayIter, OtherIter])
def test_an_override_gets_the_data_of_fit_and_may_read_them(cls, reads):
    class Reading(SVRGModule):
        def update_full_grads(self, data):
            seen.append(data)
            list(itertools.islice(data, reads))
            super().update_full_grads(data)

    problem, seen = Problem(rows=40), []
    train_data = problem.iterator(cls=cls)
    module = Reading(problem.symbol, label_names=('label',), update_freq=1)
    problem.fit(module, 3, train_data, optimizer_params={'learning_rate': 0.1})
    assert len(seen) == 3 and all(data is train_data for data in seen)
    problem.assert_weights(module, problem.svrg().fit(3, 1))


def test_a_pass_that_a_callback_asks_for_begins_at_the_beginning():
    """Within fit too: only the iterator that fit has set to its beginning is not reset."""
    problem, rows = Problem(rows=40), []
    module, other = problem.module(), problem.iterator()

    def callback(_):
        other.reset()
        next(other)
        module.update_full_grads(other)
        rows.append(module._snapshot.full_gradient.rows)

    problem.fit(module, 2, batch_end_callback=callback)
    assert rows == [40] * 8


def test_fit_resets_data_that_an_interruption_left_at_their_end():
    problem, sgd = Problem(rows=40), {'learning_rate': 0.1}
    module, train_data = problem.module(5), problem.iterator()

    def interrupt(param):
        if param.epoch == 1 and param.nbatch == 2:
            raise KeyboardInterrupt  # the last batch has been asked for

    with pytest.raises(KeyboardInterrupt):
        problem.fit(module, 2, train_data, optimizer_params=sgd, batch_end_callback=interrupt)
    problem.fit(module, 2, train_data, optimizer_params=sgd, begin_epoch=1)
    svrg = problem.svrg()
    svrg.take_snapshot()
    for begin in (0, 10, 20, 30, 0, 10, 20, 0, 10, 20, 30):
        svrg.step(np.arange(begin, begin + 10))
    problem.assert_weights(module, svrg.weights)

"""Which batches an epoch and a pass read, and when iterators are reset."""

import itertools

import mxnet as mx
import numpy as np
import pytest

import oracle
from full_gradients import full_gradient
from held_batches import rows_of
from pairs import in_pairs
from problems import Problem
from svrg_optimization import SVRGModule
from trainings import CountedResets, labels_of_epochs


def assert_batches_are_those_of_module(shuffle, handle, *args, **kwargs):
    """Check the labels of each epoch against those that Module sees."""
    problem = Problem(rows=37)
    found = []
    for module in (mx.mod.Module(problem.symbol, label_names=('label',)),
                   problem.module(*args, **kwargs)):
        np.random.seed(3)
        train_data = problem.iterator(shuffle=shuffle, last_batch_handle=handle)
        found.append(labels_of_epochs(module, train_data, problem))
    assert [len(epoch) for epoch in found[1]] == [len(epoch) for epoch in found[0]]
    for expected, actual in zip(*found):
        np.testing.assert_array_equal(actual, expected)


class Once:
    """A stream that can be read once."""

    def __init__(self, problem):
        self._data = problem.iterator()
        self.provide_data, self.provide_label = self._data.provide_data, self._data.provide_label
        self.batch_size = 10

    def __iter__(self):
        return self._data

    def reset(self):
        """Do nothing."""


def test_a_stream_that_can_be_read_once_is_refused_unless_stored():
    problem = Problem(rows=40)
    with pytest.raises(ValueError, match=r'train_data must yield at least one batch .*Once.* in '
                                         r'epoch 0\. A snapshot reads the data before'):
        problem.module().fit(Once(problem), eval_metric='mse', num_epoch=1)
    module = problem.module(store_snapshot_grads=True)
    module.fit(Once(problem), eval_metric='mse', num_epoch=1, arg_params=problem.arg_params())
    assert module._snapshot.num_update == 4


def test_an_iterator_whose_second_pass_is_empty_is_refused():
    class Twice(mx.io.NDArrayIter):
        passes = 0

        def __iter__(self):
            self.passes += 1
            return super().__iter__() if self.passes < 2 else iter(())

    problem = Problem(rows=40)
    with pytest.raises(ValueError, match='yielded none in epoch 0'):
        problem.module().fit(Twice(problem.features, problem.targets, 10, label_name='label'),
                             eval_metric='mse', num_epoch=1)


@in_pairs({
    'alpha': [1.0, 0.5, 0.0, lambda _: 0.0],
    'update_freq': [1, 2],
    'shuffle': [False, True],
    'handle': ['pad', 'discard', 'roll_over']})
def test_batches_of_each_epoch_are_those_of_module(handle, shuffle, update_freq, alpha):
    assert_batches_are_those_of_module(shuffle, handle, update_freq, alpha=alpha)


@pytest.mark.parametrize('store, update_freq, expected', [
    (False, 1, 5), (False, 2, 5), (True, 1, 5), (True, 2, 3), (True, 5, 1)])
def test_an_ndarray_iter_is_reset_as_often_as_in_module(store, update_freq, expected, monkeypatch):
    """As many as in Module; with stored gradients one for each snapshot."""
    problem, resets = Problem(rows=37), []
    train_data = problem.iterator()
    reset = mx.io.NDArrayIter.reset
    monkeypatch.setattr(mx.io.NDArrayIter, 'reset', lambda self: (resets.append(self), reset(self)))
    labels_of_epochs(problem.module(update_freq, store_snapshot_grads=store), train_data, problem)
    assert len(resets) == expected


@pytest.mark.parametrize('update_freq, expected', [(1, 1 + 5 + 5), (2, 1 + 3 + 5)])
def test_another_iterator_is_reset_after_each_pass(update_freq, expected):
    """One before the first pass, one after each pass, and those of Module."""
    problem = Problem(rows=37)
    train_data = CountedResets(problem.features, problem.targets, 10, label_name='label')
    train_data.resets = 0
    labels_of_epochs(problem.module(update_freq), train_data, problem)
    assert train_data.resets == expected


@in_pairs({
    'shuffle': [False, True],
    'handle': ['pad', 'discard', 'roll_over'],
    'batches': [1, 3, lambda number: 2 ** number]})
def test_batches_of_each_epoch_are_those_of_module_with_samples(shuffle, handle, batches):
    assert_batches_are_those_of_module(shuffle, handle, full_grad_batches=batches)


def test_shuffled_data_of_a_custom_loop_are_the_same_whatever_alpha():
    problem, seen = Problem(rows=40), []
    for alpha in (0, 1):
        np.random.seed(0)
        train_data = problem.iterator(shuffle=True)
        module = problem.bound(alpha=alpha)
        for _ in range(2):
            module.update_full_grads(train_data)
            train_data.reset()
            seen.append(np.concatenate([batch.label[0].asnumpy() for batch in train_data]))
    np.testing.assert_array_equal(seen[:2], seen[2:])


def test_order_has_a_generator_of_its_own():
    def order(seed, draws):
        np.random.seed(seed)
        problem = Problem(rows=40)
        module = problem.module(1, store_snapshot_grads=True)
        drawn = []

        def draw(_):
            drawn.append(np.random.uniform(size=draws).sum())

        steps = []
        module.fit(problem.iterator(), num_epoch=3, eval_metric='mse', epoch_end_callback=[],
                   arg_params=problem.arg_params(), batch_end_callback=[draw, lambda param:
                   steps.append(tuple(rows_of(problem, param.locals['data_batch'])))])
        return steps

    assert order(1, 0) == order(1, 3) != order(2, 0)


class OtherIter(mx.io.NDArrayIter):
    """An iterator whose place the package does not know."""


@pytest.mark.parametrize('batches', [None, 2])
@pytest.mark.parametrize('cls, handle', [
    (mx.io.NDArrayIter, 'pad'), (mx.io.NDArrayIter, 'roll_over'), (OtherIter, 'pad')])
def test_a_pass_is_over_the_rows_that_the_epoch_begins_with(cls, batches, handle):
    """Also where somebody has read the data before fit, and in each epoch before the next."""
    problem, rows, found = Problem(rows=38), [[], [], []], []
    train_data = cls(problem.features, problem.targets, 10, label_name='label',
                     shuffle=cls is mx.io.NDArrayIter, last_batch_handle=handle)
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
@pytest.mark.parametrize('cls, updates', [
    (mx.io.NDArrayIter, None), (mx.io.NDArrayIter, 3), (OtherIter, None)])
def test_an_override_gets_the_data_of_fit_and_may_read_them(cls, reads, updates):
    class Reading(SVRGModule):
        def update_full_grads(self, data):
            seen.append(data)
            list(itertools.islice(data, reads))
            super().update_full_grads(data)

    problem, seen = Problem(rows=40), []
    train_data = cls(problem.features, problem.targets, 10, label_name='label')
    module = Reading(problem.symbol, label_names=('label',), update_freq=1,
                     updates_per_snapshot=updates)
    problem.fit(module, 3, train_data, optimizer_params={'learning_rate': 0.1})
    assert len(seen) == (4 if updates else 3) and all(data is train_data for data in seen)
    svrg = problem.svrg()
    for number, rows in enumerate(oracle.batches_of(40, 10) * 3):
        if number % (updates or 4) == 0:
            svrg.take_snapshot()
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


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

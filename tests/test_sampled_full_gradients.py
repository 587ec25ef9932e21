"""Full gradients over a part of the data, and snapshots that count updates, against float64."""

import functools
import gc
import itertools
import logging
import warnings

import mxnet as mx
import numpy as np
import psutil
import pytest

import bad_input
import oracle
from cluster import PROBLEM, run_workers
from problems import Problem, SparseProblem, assert_close
from sequences import Sequences
from svrg_optimization import BarzilaiBorwein, Growing, SVRGBucketingModule, SVRGModule
from svrg_optimization.data.passes import Pass, Stream
from trainings import CountedResets, HeadGradients, labels_of_epochs

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}


def bits(module):
    return {name: value.asnumpy().tobytes() for name, value in module.get_params()[0].items()}


def fit(problem, module, num_epoch, train_data=None, **kwargs):
    module.fit(train_data or problem.iterator(), eval_metric=[], num_epoch=num_epoch,
               arg_params=problem.arg_params(), optimizer_params=SETTINGS, **kwargs)
    return module


def first_rows(count, batches, batch_size=10):
    """Return the rows of the first batches of so many rows, without padding."""
    return np.arange(min(count, batches * batch_size))


def passes_over(batches, counts, tells_its_place=True):
    """Yield the rows of each pass over some batches; it is over so many, None for all.

    Of an iterator that does not tell its place the first pass to its end stops there.
    """
    place = 0
    for count in counts:
        taken = min(count or len(batches), len(batches))
        if place + taken >= len(batches) and not tells_its_place:
            taken, tells_its_place = len(batches) - place, place + taken > len(batches)
        elif taken == len(batches):
            place = 0
        yield np.concatenate([batches[(place + number) % len(batches)] for number in range(taken)])
        place = (place + taken) % len(batches)


def stream_of(rows, counts, batch_size=10, tells_its_place=True):
    """Yield the rows of each pass over the rows from 0 on, as `passes_over`."""
    return passes_over([np.arange(start, min(start + batch_size, rows))
                        for start in range(0, rows, batch_size)], counts, tells_its_place)


def train(svrg, num_epoch, samples, updates_per_snapshot=None, update_freq=1, begin_epoch=0):
    """Train in float64; each snapshot is over the rows of the next sample."""
    updates = 0
    for epoch in range(begin_epoch, num_epoch):
        for number, rows in enumerate(oracle.batches_of(len(svrg.features), svrg.batch_size)):
            if updates_per_snapshot is None:
                is_due = number == 0 and epoch % update_freq == 0
            else:
                is_due = updates % updates_per_snapshot == 0
            if is_due:
                svrg.take_snapshot(next(samples))
            svrg.step(rows)
            updates += 1
    return svrg


# One pass


@pytest.mark.parametrize('batches', [1, 2, np.int64(3), 4, 5, 10 ** 30])
@pytest.mark.parametrize('rows', [40, 37])
@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('stored', [False, True])
def test_mean_over_the_first_batches(batches, rows, context, stored):
    problem = Problem('perceptron', rows=rows)
    module, svrg = problem.bound(context=context, store_snapshot_grads=stored), problem.svrg()
    train_data = problem.iterator()
    for _ in range(3):
        module.update_full_grads(train_data, batches=batches)
        svrg.take_snapshot(first_rows(rows, batches))
        problem.assert_full_gradient(module, svrg.full_gradient)
        assert module._snapshot.full_gradient.rows == min(rows, batches * 10)


def test_more_batches_than_are_computed_at_once():
    problem = Problem(rows=400)
    module, svrg = problem.bound(), problem.svrg()
    for batches in (15, 16, 17, 33):
        module.update_full_grads(problem.iterator(), batches=batches)
        svrg.take_snapshot(first_rows(400, batches))
        problem.assert_full_gradient(module, svrg.full_gradient)


def test_iterator_stands_after_the_sample():
    problem = Problem(rows=40)
    for alpha in (1, 0):
        train_data = problem.iterator()
        problem.bound(alpha=alpha).update_full_grads(train_data, batches=3)
        np.testing.assert_allclose(next(train_data).data[0].asnumpy(), problem.features[30:],
                                   rtol=1e-6)


def test_callback_sees_the_batches_of_the_sample():
    problem, seen = Problem(rows=40), []
    train_data = problem.iterator()
    problem.bound().update_full_grads(train_data, seen.append, batches=2)
    assert [param.nbatch for param in seen] == [0, 1]
    assert all(param.locals['train_data'] is train_data for param in seen)


# fit, over the training data


@pytest.mark.parametrize('kind', ['linear', 'perceptron'])
@pytest.mark.parametrize('rows', [40, 37])
@pytest.mark.parametrize('batches, update_freq', [(1, 1), (3, 2), (4, 1), (9, 2)])
@pytest.mark.parametrize('context, kvstore', [(mx.cpu(), None), (TWO_DEVICES, 'local')])
def test_fit_on_samples(kind, rows, batches, update_freq, context, kvstore):
    problem = Problem(kind, rows=rows)
    module = problem.module(update_freq, context=context, full_grad_batches=batches)
    fit(problem, module, 5, kvstore=kvstore)
    samples = itertools.repeat(first_rows(rows, batches))
    problem.assert_weights(module, train(problem.svrg(**SETTINGS), 5, samples,
                                         update_freq=update_freq).weights)


def test_fit_on_growing_samples():
    problem = Problem('softmax', rows=37)
    module = fit(problem, problem.module(full_grad_batches=Growing(1)), 5)
    samples = (first_rows(37, 2 ** number) for number in itertools.count())
    svrg = train(problem.svrg(**SETTINGS), 5, samples)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)


def test_a_schedule_counts_snapshots():
    problem, seen = Problem(rows=40), []
    module = problem.module(2, full_grad_batches=lambda count: seen.append(count) or 2)
    fit(problem, module, 5)
    assert seen == [0, 1, 2]
    module.update_full_grads(problem.iterator())
    assert module._snapshot.num_taken == 4


@pytest.mark.parametrize('shuffle', [False, True])
@pytest.mark.parametrize('handle', ['pad', 'discard', 'roll_over'])
@pytest.mark.parametrize('stored', [False, True])
@pytest.mark.parametrize('batches', [4, 7, lambda _: 100])
def test_whole_data_as_a_sample_give_the_same_bits(shuffle, handle, stored, batches):
    problem, found = Problem('perceptron', rows=37), []
    for full_grad_batches in (None, batches):
        np.random.seed(3)
        module = problem.module(2, full_grad_batches=full_grad_batches,
                                store_snapshot_grads=stored)
        found.append(bits(fit(problem, module, 5, problem.iterator(shuffle=shuffle,
                                                                   last_batch_handle=handle))))
    assert found[0] == found[1]


@pytest.mark.parametrize('shuffle', [False, True])
@pytest.mark.parametrize('handle', ['pad', 'discard', 'roll_over'])
@pytest.mark.parametrize('batches', [1, 3, Growing(1)])
def test_batches_of_each_epoch_are_those_of_module(shuffle, handle, batches):
    problem, found = Problem(rows=37), []
    for module in (mx.mod.Module(problem.symbol, label_names=('label',)),
                   problem.module(full_grad_batches=batches)):
        np.random.seed(3)
        train_data = problem.iterator(shuffle=shuffle, last_batch_handle=handle)
        found.append(labels_of_epochs(module, train_data, problem))
    assert [len(epoch) for epoch in found[1]] == [len(epoch) for epoch in found[0]]
    for expected, actual in zip(*found):
        np.testing.assert_array_equal(actual, expected)


def test_sample_is_of_the_rows_that_the_epoch_begins_with():
    problem, passes = Problem(rows=40), []
    module = problem.module(full_grad_batches=2, full_grad_callback=lambda param: passes.append(
        param.locals['data_batch'].label[0].asnumpy()))
    epochs = labels_of_epochs(module, problem.iterator(shuffle=True), problem)
    np.testing.assert_array_equal(passes, np.concatenate([labels[:2] for labels in epochs]))


def test_settings_may_change_during_training():
    problem = Problem(rows=40)
    module = problem.module(full_grad_batches=1)

    def change(epoch, *_):
        module.full_grad_batches = [None, 3, Growing(1), 2][epoch]

    fit(problem, module, 4, epoch_end_callback=change)
    samples = (first_rows(40, batches) for batches in (1, 4, 3, 8))
    problem.assert_weights(module, train(problem.svrg(**SETTINGS), 4, samples).weights)


def test_log_lines(caplog):
    problem = Problem(rows=37)
    with caplog.at_level(logging.INFO):
        fit(problem, problem.module(2, full_grad_batches=Growing(3)), 3)
        fit(problem, problem.module(), 1)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split('=')[0] for line in lines if 'gradient time' in line] == [
        'Epoch[%d] Full gradient time' % epoch for epoch in (0, 2, 0)]
    assert [line for line in lines if 'gradient batches' in line] == [
        'Epoch[0] Full gradient batches=3', 'Epoch[2] Full gradient batches=4']


def test_iterators_over_files(tmp_path):
    """MXNet's must not be reset before their end, nor at their beginning."""
    problem = Problem(rows=400)
    np.savetxt(tmp_path / 'data', problem.features, delimiter=',', fmt='%.9g')
    np.savetxt(tmp_path / 'label', problem.targets, fmt='%.9g')

    def over_files():
        return mx.io.CSVIter(data_csv='%s?delimiter=,' % (tmp_path / 'data'), data_shape=(4,),
                             label_csv='%s?delimiter=,' % (tmp_path / 'label'),
                             label_shape=(1,), batch_size=10)

    def fitted(**kwargs):
        module = problem.module(**kwargs)
        module.bind([('data', (10, 4))], [('label', (10,))])
        return fit(problem, module, 3, over_files())

    samples = (first_rows(400, batches) for batches in (3, 9, 27))
    problem.assert_weights(fitted(full_grad_batches=Growing(3, 3)),
                           train(problem.svrg(**SETTINGS), 3, samples).weights)
    module = fitted(full_grad_batches=27, updates_per_snapshot=25, full_grad_data=over_files())
    problem.assert_weights(module, train(problem.svrg(**SETTINGS), 3, stream_of(
        400, itertools.repeat(27)), 25).weights)


# fit, over other data and after so many updates


@pytest.mark.parametrize('updates', [1, 3, 4, 5, 11])
@pytest.mark.parametrize('batches', [None, 1, 3, 9])
@pytest.mark.parametrize('rows', [40, 37])
@pytest.mark.parametrize('context, kvstore', [(mx.cpu(), None), (TWO_DEVICES, 'local')])
def test_snapshots_after_updates(updates, batches, rows, context, kvstore):
    problem = Problem('perceptron', rows=rows)
    module = problem.module(None, context=context, full_grad_batches=batches,
                            updates_per_snapshot=updates, full_grad_data=problem.iterator())
    assert module.update_freq == 1
    fit(problem, module, 4, kvstore=kvstore)
    svrg = train(problem.svrg(**SETTINGS), 4, stream_of(rows, itertools.repeat(batches)), updates)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert module._snapshot.num_taken == -(-16 // updates)


def test_growing_samples_after_updates():
    problem = Problem('softmax', rows=77)
    module = problem.module(full_grad_batches=Growing(1), updates_per_snapshot=3,
                            full_grad_data=problem.iterator())
    fit(problem, module, 3)
    samples = stream_of(77, (2 ** number for number in itertools.count()))
    problem.assert_weights(module, train(problem.svrg(**SETTINGS), 3, samples, 3).weights)


def test_other_data_at_epochs():
    """Those of a smaller batch size, whose passes go on over two calls of fit."""
    problem = Problem(rows=40)
    module = problem.module(2, full_grad_batches=3, full_grad_data=problem.iterator(8))
    fit(problem, module, 3)
    fit(problem, module, 5, begin_epoch=3)
    samples = stream_of(40, itertools.repeat(3), batch_size=8)
    problem.assert_weights(module, train(problem.svrg(**SETTINGS), 5, samples,
                                         update_freq=2).weights)


def test_same_data_in_another_iterator_give_the_same_bits():
    problem = Problem('perceptron', rows=37)
    modules = [problem.module(), problem.module(full_grad_data=problem.iterator()),
               problem.module(full_grad_data=problem.iterator(), updates_per_snapshot=4),
               problem.module(full_grad_data=problem.iterator(), full_grad_batches=4)]
    assert len({str(bits(fit(problem, module, 5))) for module in modules}) == 1


def test_training_data_are_read_as_in_module():
    problem, found = Problem(rows=37), []
    for module in (mx.mod.Module(problem.symbol, label_names=('label',)), problem.module(
            full_grad_data=problem.iterator(), full_grad_batches=2, updates_per_snapshot=3)):
        np.random.seed(3)
        found.append(labels_of_epochs(module, problem.iterator(shuffle=True), problem))
    np.testing.assert_array_equal(*found)


def test_row_sparse_parameters():
    problem = SparseProblem(rows=37)
    module = problem.module(full_grad_data=problem.iterator(), full_grad_batches=3,
                            updates_per_snapshot=3)
    module.fit(problem.iterator(), eval_metric='mse', num_epoch=3, arg_params=problem.arg_params(),
               kvstore=mx.kv.create('local'), optimizer_params={'learning_rate': 0.1},
               sparse_row_id_fn=lambda batch: {'w': batch.data[0].indices})
    problem.assert_weights(module, train(problem.svrg(learning_rate=0.1), 3, stream_of(
        37, itertools.repeat(3), tells_its_place=False), 3).weights)


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_what_callbacks_see_of_a_batch_before_a_snapshot(monkeypatch, context):
    """The next snapshot has been taken by then, in the memory of the activations."""
    monkeypatch.setattr('svrg_optimization.core.snapshot_module._WORTH_SHARING', -1)
    problem, runs = Problem('perceptron', rows=37), []
    for other in ({}, {'full_grad_data': problem.iterator(), 'updates_per_snapshot': 100}):
        module, seen = problem.module(context=context, update_freq=100, **other), []
        monitor = mx.monitor.Monitor(1, pattern='data|label|loss_output', sort=True)
        monitor.toc_print = lambda: seen.extend(monitor.toc())  # noqa: B023

        def callback(param):
            seen.append((param.epoch, param.nbatch, param.eval_metric.get()))  # noqa: B023
            seen.append(module.get_outputs()[0].asnumpy().tobytes())  # noqa: B023
            if other:  # noqa: B023
                module.updates_per_snapshot = 2  # noqa: B023

        module.fit(problem.iterator(), eval_metric='ce', num_epoch=1, batch_end_callback=callback,
                   arg_params=problem.arg_params(), monitor=monitor,
                   optimizer_params={'learning_rate': 1e-30})
        runs.append((module._snapshot.num_taken, [str(one) for one in seen]))
    assert module._svrg.snapshot_module.shares_pool
    assert [taken for taken, _ in runs] == [1, 2]
    assert runs[0][1] == runs[1][1]


def test_a_failed_pass_within_an_epoch_leaves_the_snapshot():
    class Failing(mx.io.NDArrayIter):
        batches = 0

        def next(self):
            self.batches += 1
            if self.batches == 7:
                raise OSError('disk')
            return super().next()

    problem = Problem(rows=40)
    data = Failing(problem.features, problem.targets, 10, label_name='label')
    module = problem.module(full_grad_data=data, full_grad_batches=4, updates_per_snapshot=2)
    with pytest.raises(OSError, match='disk'):
        fit(problem, module, 1)
    svrg = problem.svrg(**SETTINGS)
    svrg.take_snapshot()
    for rows in oracle.batches_of(40, 10)[:2]:
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert module._snapshot.is_active and module._snapshot.num_taken == 1


def test_alpha_0_takes_none():
    problem, data = Problem(rows=40), Endless(may_be_reset=True)
    module = problem.module(full_grad_data=data, full_grad_batches=2, updates_per_snapshot=1,
                            alpha=0)
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    assert bits(fit(problem, module, 2)) == bits(fit(problem, plain, 2))
    assert data.yielded == 0 and module._snapshot.num_taken == 0
    module.update_full_grads(data, batches=3)
    assert data.yielded == 3 and module._snapshot.num_taken == 0


def test_alpha_that_is_no_longer_0_within_an_epoch():
    problem = Problem(rows=40)
    module = problem.module(full_grad_data=problem.iterator(), updates_per_snapshot=100, alpha=0)

    def switch_on(param):
        if param.nbatch == 1:
            module.alpha = 1

    fit(problem, module, 1, batch_end_callback=switch_on)
    svrg = problem.svrg(**SETTINGS)
    for number, rows in enumerate(oracle.batches_of(40, 10)):
        if number == 3:  # the batch before it was fetched before the callback
            svrg.take_snapshot()
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


def test_symbol_without_a_loss():
    problem = Problem(rows=40)
    output = problem.symbol.get_internals()['fc_output']
    symbol = mx.sym.broadcast_sub(output, mx.sym.Variable('label'))
    train_data, full_grad_data = (mx.io.NDArrayIter(problem.features, problem.targets[:, None], 10,
                                                    label_name='label') for _ in range(2))
    module = HeadGradients(symbol, label_names=('label',), full_grad_data=full_grad_data,
                           updates_per_snapshot=1)
    with pytest.warns(UserWarning, match='no loss, .*: fit trains as plain Module') as caught:
        fit(problem, module, 2, train_data)
    assert sum('plain Module' in str(warning.message) for warning in caught) == 1
    assert module._snapshot.num_taken == 0


# Streams


class Endless:
    """Random batches of a linear problem, without an end."""

    provide_data, provide_label, batch_size = [('data', (10, 4))], [('label', (10,))], 10

    def __init__(self, seed=0, width=4, may_be_reset=False):
        self.may_be_reset = may_be_reset
        self.rng, self.yielded, self.width = np.random.RandomState(seed), 0, width
        self.provide_data = [('data', (10, width))]

    def __iter__(self):
        while True:
            self.yielded += 1
            features = self.rng.normal(size=(10, self.width))
            yield mx.io.DataBatch([mx.nd.array(features)], [mx.nd.array(features[:, 0])], pad=0)

    def reset(self):
        assert self.may_be_reset


class EnoughError(Exception):
    """Raised by a callback to end the training."""


def test_an_endless_stream_trains_and_memory_stays_flat():
    """If the batches after the 300th were kept, they would take 216 MB."""
    width, resident = 6000, []
    train_data, full_grad_data = Endless(0, width), Endless(1, width)
    symbol = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(
        mx.sym.Variable('data'), num_hidden=1, name='fc'), mx.sym.Variable('label'))
    module = SVRGModule(symbol, label_names=('label',), full_grad_data=full_grad_data,
                        full_grad_batches=3, updates_per_snapshot=6)

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
    assert (train_data.yielded, full_grad_data.yielded) == (901, 453)
    assert module._snapshot.num_taken == 151
    assert module._snapshot.full_gradient.rows == 30
    assert resident[2] - resident[0] < 60e6
    assert module.get_params()[0]['fc_weight'].asnumpy()[0, 0] > 0.05


def test_an_endless_stream_against_float64():
    problem, stream = Problem(rows=40), Endless()
    module = problem.module(full_grad_data=stream, full_grad_batches=2, updates_per_snapshot=3)
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
def test_passes_of_a_stream(counts):
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
def test_each_row_once_in_a_pass_over_all_shuffled_data(handle, rows, kind):
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
def test_an_iterator_that_stands_somewhere(read):
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


def test_iterators_whose_beginning_is_counted():
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


# Buckets


class Lengths(Sequences):
    """Sequences whose batches the float64 twin takes in the order of a plan."""

    def samples(self, counts, batch_size=4):
        return passes_over([rows[:batch_size - pad] for _, rows, pad in self.plan(batch_size)],
                           counts, tells_its_place=False)


@pytest.mark.parametrize('context, kvstore', [(mx.cpu(), 'local'), (TWO_DEVICES, 'device')])
@pytest.mark.parametrize('updates', [None, 3])
def test_buckets(context, kvstore, updates):
    problem = Lengths()
    steps = len(problem.plan(4))
    module = problem.module(None if updates else 1, context=context, full_grad_batches=Growing(2),
                            full_grad_data=problem.iterator(), updates_per_snapshot=updates)
    module.fit(problem.iterator(), eval_metric=[], num_epoch=3, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.02, 'momentum': 0.8}, kvstore=kvstore)
    svrg = problem.svrg(4, learning_rate=0.02, momentum=0.8)
    samples = problem.samples(2 ** number for number in itertools.count(1))
    for number, (_, rows, _) in enumerate(problem.plan(4) * 3):
        if number % (updates or steps) == 0:
            svrg.take_snapshot(next(samples))
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)
    with pytest.raises(ValueError, match='^full_grad_batches must be None for BarzilaiBorwein'):
        module.init_optimizer(optimizer_params={'lr_scheduler': BarzilaiBorwein()},
                              force_init=True)


def test_buckets_over_the_training_data():
    problem = Lengths()
    module = problem.module(full_grad_batches=2)
    module.fit(problem.iterator(), eval_metric=[], num_epoch=2, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.02})
    svrg = problem.svrg(4, learning_rate=0.02)
    for _ in range(2):
        svrg.take_snapshot(next(problem.samples([2])))
        for _, rows, _ in problem.plan(4):
            svrg.step(rows)
    problem.assert_weights(module, svrg.weights)
    module.update_full_grads(problem.iterator(), batches=3)
    assert module._snapshot.full_gradient.batches == 3


# Stored gradients


def test_stored_batches_are_trained_on_where_they_are_all():
    problem = Problem(rows=40)
    module = problem.module(full_grad_batches=Growing(1), store_snapshot_grads=True)
    epochs = labels_of_epochs(module, problem.iterator(), problem, num_epoch=4)
    in_order = problem.targets.reshape(4, 10).astype(np.float32)
    for number, labels in enumerate(epochs):
        assert np.array_equal(labels, in_order) == (number < 2)
        assert sorted(map(tuple, labels)) == sorted(map(tuple, in_order))
    assert len(module._svrg.stored.latest.batches) == 4


@pytest.mark.parametrize('batches', [3, 4])
def test_a_run_that_begins_between_snapshots_stores_nothing_again(tmp_path, batches):
    """Neither for a loaded module nor for another iterator than that of the stored batches."""
    problem = Problem(rows=40)
    prefix = str(tmp_path / 'model')
    module = problem.module(4, full_grad_batches=batches, store_snapshot_grads=True)
    fit(problem, module, 2).save_checkpoint(prefix, 2)
    loaded = SVRGModule.load(prefix, 2, label_names=('label',), store_snapshot_grads=True)
    assert (module._svrg.stored.latest is None) == (batches == 3)
    for goes_on in (loaded, module):
        seen = []
        goes_on.fit(problem.iterator(), eval_metric=[], begin_epoch=2, num_epoch=3,
                    batch_end_callback=lambda param: seen.append(  # noqa: B023
                        param.locals['data_batch'].label[0].asnumpy()))
        np.testing.assert_array_equal(seen, problem.targets.reshape(4, 10).astype(np.float32))
        assert goes_on._svrg.stored.latest is None


def test_training_batches_of_a_sample_are_the_data():
    problem = Problem(rows=40)
    module, train_data = problem.bound(store_snapshot_grads=True), problem.iterator()
    module.update_full_grads(train_data, batches=3)
    assert module.training_batches(train_data) is train_data
    module.update_full_grads(train_data, batches=4)
    assert len(module.training_batches(train_data)) == 4


# Checkpoints


def moved(train_data, batches):
    """Read so many batches of an iterator, which begins again at its end."""
    for _ in range(batches):
        try:
            next(train_data)
        except StopIteration:
            train_data.reset()
            next(train_data)
    return train_data


@pytest.mark.parametrize('stop', [1, 2, 3, 4])
@pytest.mark.parametrize('batches, updates, own_data, read', [
    (2, None, False, 0), (Growing(1), None, False, 0), (None, 3, True, None),
    (3, 5, True, lambda taken: 3 * taken), (3, None, True, lambda taken: 3 * taken)])
def test_same_bits_after_a_stop(tmp_path, stop, batches, updates, own_data, read):
    problem, prefix = Problem('perceptron', rows=37), str(tmp_path / 'model')

    def data(taken=0):
        if not own_data:
            return {}
        return {'full_grad_data': moved(problem.iterator(), read(taken) if read else 0)}

    def made():
        return problem.module(2, full_grad_batches=batches, updates_per_snapshot=updates, **data())

    unbroken = fit(problem, made(), 5)
    stopped = fit(problem, made(), stop)
    stopped.save_checkpoint(prefix, stop, save_optimizer_states=True)
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        loaded = SVRGModule.load(prefix, stop, load_optimizer_states=True, label_names=('label',),
                                 **data(stopped._snapshot.num_taken))
    assert loaded._snapshot.num_taken == stopped._snapshot.num_taken
    fit(problem, loaded, 5, begin_epoch=stop)
    assert bits(loaded) == bits(unbroken)
    assert loaded._snapshot.num_taken == unbroken._snapshot.num_taken


def test_buckets_after_a_stop(tmp_path):
    problem, prefix = Lengths(), str(tmp_path / 'model')

    def fitted(module, begin, end):
        module.fit(problem.iterator(), eval_metric=[], begin_epoch=begin, num_epoch=end,
                   arg_params=problem.arg_params(), optimizer_params={'learning_rate': 0.02})
        return module

    made = {'full_grad_batches': Growing(1), 'updates_per_snapshot': 25}
    unbroken = fitted(problem.module(full_grad_data=problem.iterator(), **made), 0, 4)
    stopped = fitted(problem.module(full_grad_data=problem.iterator(), **made), 0, 2)
    stopped.save_checkpoint(prefix, 2, True)
    loaded = SVRGBucketingModule.load(
        prefix, 2, problem.sym_gen, problem.iterator().default_bucket_key, True,
        full_grad_data=moved(problem.iterator(), stopped._snapshot.num_taken))
    assert (loaded.updates_per_snapshot, repr(loaded.full_grad_batches)) == (
        25, 'Growing(1, factor=2)')
    assert stopped._snapshot.num_taken == 1
    assert bits(fitted(loaded, 2, 4)) == bits(unbroken)


def test_what_a_checkpoint_keeps(tmp_path):
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')

    def saved(**kwargs):
        fit(problem, problem.module(3, **kwargs), 1).save_checkpoint(prefix, 1)

    def load(**kwargs):
        module = SVRGModule.load(prefix, 1, label_names=('label',), **kwargs)
        return module.update_freq, module.full_grad_batches, module.updates_per_snapshot

    data = problem.iterator()
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        saved(full_grad_batches=np.int64(2))
        assert load() == (3, 2, None)
        assert load(full_grad_batches=None) == (3, None, None)
        saved(full_grad_batches=Growing(2, np.float32(1.5)), updates_per_snapshot=7,
              full_grad_data=problem.iterator())
        freq, growing, updates = load(full_grad_data=data)
        assert (freq, repr(growing), updates) == (3, 'Growing(2, factor=1.5)', 7)
        assert load(full_grad_data=data, full_grad_batches=5, updates_per_snapshot=8) == (3, 5, 8)
        assert load(full_grad_data=None, full_grad_batches=5) == (3, 5, None)
    with pytest.warns(UserWarning, match='saved with full_grad_data, which it cannot hold'):
        load()
    saved(full_grad_batches=lambda _: 2)
    with pytest.warns(UserWarning, match='saved with a schedule of full_grad_batches'):
        assert load() == (3, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        assert load(full_grad_batches=4) == (3, 4, None)


@pytest.mark.parametrize('epochs, expected', [(1, 1), (0, 0)])
def test_older_checkpoints(tmp_path, monkeypatch, epochs, expected):
    """They lack the number of snapshots and the new arguments."""
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    module = problem.module(2) if epochs else problem.bound()
    if epochs:
        fit(problem, module, epochs)
    added = ('num_taken', 'full_grad_batches', 'updates_per_snapshot', 'full_grad_data')
    facts_and_arrays = module._facts_and_arrays

    def older(*args):
        facts, arrays = facts_and_arrays(*args)
        assert set(added) < set(facts)
        return {name: value for name, value in facts.items() if name not in added}, arrays

    monkeypatch.setattr(module, '_facts_and_arrays', older)
    module.save_checkpoint(prefix, 1)
    loaded = SVRGModule.load(prefix, 1, label_names=('label',))
    assert loaded._snapshot.num_taken == expected
    assert loaded.full_grad_batches is loaded.updates_per_snapshot is None


def test_checkpoint_of_plain_module(tmp_path):
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    fit(problem, plain, 1).save_checkpoint(prefix, 1)
    loaded = SVRGModule.load(prefix, 1, label_names=('label',))
    assert loaded._snapshot.num_taken == 0 and loaded.full_grad_batches is None


# The schedule


def test_growing():
    assert [Growing(3)(number) for number in range(5)] == [3, 6, 12, 24, 48]
    assert [Growing(10, 1.1)(number) for number in range(4)] == [10, 11, 13, 14]
    assert [Growing(5, 1)(number) for number in (0, 10 ** 9)] == [5, 5]
    assert Growing(1)(10 ** 9) == Growing(10 ** 300)(10 ** 9) == 2 ** 62
    assert type(Growing(np.int64(3), np.float32(1.5))(2)) is int
    assert repr(Growing(np.int64(3), np.int64(4))) == 'Growing(3, factor=4)'
    assert repr(Growing(3, np.float32(1.5))) == 'Growing(3, factor=1.5)'


# Bad input: rows as in test_bad_input


def given(**kwargs):
    return bad_input.made(**kwargs)


def fit_given(data, **kwargs):
    """Call fit of a new module with such data for the full gradient."""
    def call(_, problem):
        problem.module(full_grad_data=data, **kwargs).fit(
            problem.iterator(), eval_metric='mse', num_epoch=1)
    return call


def fit_on_itself(_, problem):
    data = problem.iterator()
    problem.module(full_grad_data=data).fit(data, eval_metric='mse', num_epoch=1)


def with_step_size(call):
    def install_and_call(_, problem):
        module = problem.bound()
        module.init_optimizer(optimizer_params={'lr_scheduler': BarzilaiBorwein()})
        call(module, problem)
    return install_and_call


DATA = bad_input.Data
GOOD = Problem(rows=40).iterator()
COUNT = 'must be None or an int of 1 or more'
ROWS = {
    'batches zero': (given(full_grad_batches=0), ValueError, '^full_grad_batches must be None, an '
                     'int of 1 or more or a callable that returns one, not 0'),
    'batches float': (given(full_grad_batches=1.5), TypeError, '^full_grad_batches .*not 1.5'),
    'batches bool': (given(full_grad_batches=True), TypeError, '^full_grad_batches .*not True'),
    'batches of a schedule': (
        lambda module, problem: problem.module(full_grad_batches=lambda _: 0).fit(
            problem.iterator(), eval_metric='mse', num_epoch=1), ValueError,
        r'^full_grad_batches must be a callable that returns an int of 1 or more \(here after 0 '
        r'snapshots\), not 0'),
    'batches of a schedule, float': (
        lambda module, problem: problem.module(full_grad_batches=lambda _: 2.0).fit(
            problem.iterator(), eval_metric='mse', num_epoch=1), TypeError, 'after 0 .* not 2.0'),
    'updates zero': (given(updates_per_snapshot=0, full_grad_data=GOOD), ValueError,
                     '^updates_per_snapshot %s, not 0' % COUNT),
    'updates schedule': (given(updates_per_snapshot=len, full_grad_data=GOOD), TypeError,
                         '^updates_per_snapshot %s' % COUNT),
    'updates alone': (given(updates_per_snapshot=5), ValueError,
                      '^full_grad_data must be a DataIter where updates_per_snapshot is given'),
    'data': (given(full_grad_data=3), TypeError, '^full_grad_data must be a DataIter, not 3'),
    'data stored': (given(full_grad_data=GOOD, store_snapshot_grads=True), ValueError,
                    '^full_grad_data must be None with store_snapshot_grads'),
    'update_freq': (given(update_freq=None, full_grad_data=GOOD), TypeError, '^update_freq must'),
    'buckets': (bad_input.bucketing(updates_per_snapshot=5), ValueError, '^full_grad_data'),
    'set batches': (bad_input.attribute('full_grad_batches', 0), ValueError, '^full_grad_b'),
    'set updates': (bad_input.attribute('updates_per_snapshot', 3), ValueError,
                    '^full_grad_data must be a DataIter where'),
    'set data': (bad_input.attribute('full_grad_data', []), TypeError, '^full_grad_data'),
    'fit itself': (fit_on_itself, ValueError, '^full_grad_data must be another iterator than'),
    'fit empty': (fit_given(DATA()), ValueError, '^full_grad_data must yield at least one row'),
    'fit width': (fit_given(DATA(bad_input.batch((10, 5)))), ValueError,
                  r'^full_grad_data must yield batches of the shapes .*\(10, 5\)'),
    'fit of none': (fit_given(DATA(None)), TypeError, '^full_grad_data must yield DataBatches'),
    'pass zero': (bad_input.full_grads(GOOD, batches=0), ValueError,
                  '^batches %s, not 0' % COUNT),
    'pass float': (bad_input.full_grads(GOOD, batches=1e3), TypeError, '^batches must be'),
    'pass step size': (with_step_size(bad_input.full_grads(GOOD, batches=2)), ValueError,
                       '^batches must be None with BarzilaiBorwein'),
    'step size': (lambda module, problem: problem.bound(full_grad_batches=2).init_optimizer(
        optimizer_params={'lr_scheduler': BarzilaiBorwein()}), ValueError,
        '^full_grad_batches must be None for BarzilaiBorwein'),
    'growing first': (lambda *_: Growing(0), ValueError, '^first must be an int of 1 or more'),
    'growing factor': (lambda *_: Growing(2, 0.5), ValueError, '^factor must be a number of 1 or'),
    'growing inf': (lambda *_: Growing(2, np.inf), ValueError, '^factor must be .* not inf'),
    'growing str': (lambda *_: Growing(2, '2'), TypeError, "^factor must be .* not '2'"),
}


@pytest.mark.parametrize('call, error, message', ROWS.values(), ids=list(ROWS))
def test_bad_input(trained, call, error, message):
    bad_input.assert_refused(trained, call, error, message)


def test_settings_are_checked_together():
    problem = Problem(rows=40)
    module = problem.module(full_grad_data=problem.iterator(), updates_per_snapshot=3)
    with pytest.raises(ValueError, match='^full_grad_data must be a DataIter where'):
        module.full_grad_data = None
    module.updates_per_snapshot = None
    module.full_grad_data = None
    with pytest.raises(ValueError, match='^full_grad_data must be a DataIter where'):
        module.updates_per_snapshot = 3
    stored = problem.module(store_snapshot_grads=True)
    with pytest.raises(ValueError, match='^full_grad_data must be None with store_snapshot'):
        stored.full_grad_data = problem.iterator()
    assert stored.full_grad_data is module.full_grad_data is None


# Clusters


@pytest.mark.parametrize('environment', [{}, {'MXNET_UPDATE_ON_KVSTORE': '0'}], ids=str)
def test_workers_with_samples_of_different_data(tmp_path, environment):
    """The mean is over the rows of all workers; they meet after the same number of updates."""
    sizes, sgd = [28, 29], {'learning_rate': 0.2, 'momentum': 0.9, 'wd': 0.01}
    full_sizes, batch_sizes = [37, 20], [8, 5]
    results = run_workers('fit_sampled', tmp_path, environment=environment, problem=PROBLEM,
                          sizes=sizes, full_sizes=full_sizes, full_batch_sizes=batch_sizes,
                          batches=3, updates=3, num_epoch=4, optimizer=sgd)
    problem = Problem(**PROBLEM)
    svrg = oracle.Svrg(problem.network, problem.weights, problem.features, problem.targets, 16,
                       oracle.Sgd(rescale=1 / 16, **sgd))
    shards = [begin + np.array(oracle.batches_of(size, 8)) for begin, size in zip([0, 28], sizes)]
    samples = zip(*(
        map(functools.partial(np.add, begin), stream_of(size, itertools.repeat(3), batch_size))
        for begin, size, batch_size in zip([0, 37], full_sizes, batch_sizes)))
    for number, batches in enumerate(list(zip(*shards)) * 4):
        if number % 3 == 0:
            svrg.take_snapshot(np.concatenate(next(samples)))
        svrg.step(np.concatenate(batches))
    for weights, taken in results:
        assert_close(weights, svrg.weights)
        assert taken == 6


@pytest.mark.parametrize('kind', ['dist_sync', 'dist_async'])
def test_workers_that_cannot_meet(tmp_path, kind):
    """All of them raise the same error, before the first step."""
    unlike = [{'batches': (2, 3)}, {'updates': (2, 3)}, {'own_data': (True, False)}]
    messages = ['full_grad_batches must be the same on all workers .*, [2, 3]',
                'updates_per_snapshot must be the same on all workers .*, [2, 3]',
                'full_grad_data must be given on all workers or on none .*, [1, 0]']
    if kind == 'dist_async':
        unlike.append({'updates': (3, 3)})
        messages.append("updates_per_snapshot must be None with the kvstore 'dist_async', ")
    found = run_workers('sampled_unlike', tmp_path, kind=kind, unlike=unlike)
    assert found[0] == found[1]
    for (message, steps), expected in zip(found[0], messages):
        for part in expected.split('.*'):
            assert part in message
        assert steps == 0


def test_a_sample_of_the_training_data_finds_unequal_shards(tmp_path):
    """Without a pass: that of the shorter shard has fewer batches than it should."""
    for message, steps in run_workers('sampled_shards', tmp_path, sizes=[17, 40], batches=4):
        assert message.endswith('in the order of ranks, [3, 4]') and steps == 0


def test_asynchronous_workers_with_samples(tmp_path):
    """At epochs all workers meet."""
    results = run_workers('fit_sampled', tmp_path, kind='dist_async', problem=PROBLEM,
                          sizes=[28, 29], full_sizes=[37, 20], full_batch_sizes=[8, 5], batches=3,
                          updates=None, num_epoch=2, optimizer={'learning_rate': 0.1})
    assert [taken for _, taken in results] == [2, 2]


@pytest.mark.parametrize('batches, expected', [
    (None, [0, 1, 2, 3] * 3), (3, [0, 1, 2, 0, 1, 2, 0, 1, 2])])
def test_others_may_read_the_data_of_the_pass(batches, expected):
    """Here an evaluation, which resets them and reads them to their end."""
    problem, seen = Problem(rows=40), []
    data = problem.iterator()
    rows = {tuple(batch.label[0].asnumpy()): number for number, batch in enumerate(data)}
    data.reset()
    module = problem.module(full_grad_batches=batches, full_grad_data=data,
                            full_grad_callback=lambda param: seen.append(
                                rows[tuple(param.locals['data_batch'].label[0].asnumpy())]))
    module.fit(problem.iterator(), eval_data=data, eval_metric='mse', num_epoch=3)
    assert seen == expected


def test_barzilai_borwein_names_the_argument_that_was_set():
    problem = Problem()
    module = problem.module()
    module.fit(problem.iterator(), eval_metric=[], num_epoch=1,
               optimizer_params={'lr_scheduler': BarzilaiBorwein()})
    module.full_grad_batches = 3
    with pytest.raises(ValueError, match='full_grad_batches must be None with BarzilaiBorwein'):
        module.fit(problem.iterator(), eval_metric=[], num_epoch=1)


@pytest.mark.parametrize('in_fit', [True, False])
def test_barzilai_borwein_with_buckets_names_the_argument_that_was_set(in_fit):
    problem = Lengths()
    module = problem.module()
    module.fit(problem.iterator(), eval_metric=[], num_epoch=1, arg_params=problem.arg_params(),
               optimizer_params={'lr_scheduler': BarzilaiBorwein()})
    with pytest.raises(ValueError, match='^%s must be None with BarzilaiBorwein'
                       % ('full_grad_batches' if in_fit else 'batches')):
        if in_fit:
            module.full_grad_batches = 3
            module.fit(problem.iterator(), eval_metric=[], num_epoch=1)
        else:
            module.update_full_grads(problem.iterator(), batches=3)

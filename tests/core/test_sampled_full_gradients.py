"""Full gradients over a part of the data, and snapshots that count updates, against float64."""

import itertools
import logging
from fractions import Fraction

import mxnet as mx
import numpy as np
import pytest

import oracle
from pairs import in_pairs
from problems import Problem, SparseProblem
from samples import SETTINGS, Endless, Lengths, bits, first_rows, fit, stream_of, train
from svrg_optimization import BarzilaiBorwein, Growing, Sampling
from trainings import HeadGradients, labels_of_epochs

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@in_pairs({
    'batches': [1, 2, np.int64(3), 4, 5, 10 ** 30],
    'rows': [40, 37],
    'context': [mx.cpu(), TWO_DEVICES],
    'stored': [False, True]})
def test_a_pass_is_the_mean_over_the_first_batches(batches, rows, context, stored):
    problem = Problem('perceptron', rows=rows)
    module, svrg = problem.bound(context=context, store_snapshot_grads=stored), problem.svrg()
    train_data = problem.iterator()
    for _ in range(3):
        module.update_full_grads(train_data, batches=batches)
        svrg.take_snapshot(first_rows(rows, batches))
        problem.assert_full_gradient(module, svrg.full_gradient)
        assert module._snapshot.full_gradient.rows == min(rows, batches * 10)


def test_a_sample_may_have_more_batches_than_are_computed_at_once():
    problem = Problem(rows=400)
    module, svrg = problem.bound(), problem.svrg()
    for batches in (15, 16, 17, 33):
        module.update_full_grads(problem.iterator(), batches=batches)
        svrg.take_snapshot(first_rows(400, batches))
        problem.assert_full_gradient(module, svrg.full_gradient)


def test_the_iterator_stands_after_the_sample():
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


@in_pairs({
    'kind': ['linear', 'perceptron'],
    'rows': [40, 37],
    'batches, update_freq': [(1, 1), (3, 2), (4, 1), (9, 2)],
    'context, kvstore': [(mx.cpu(), None), (TWO_DEVICES, 'local')]})
def test_training_on_samples_is_svrg(kind, rows, batches, update_freq, context, kvstore):
    problem = Problem(kind, rows=rows)
    module = problem.module(update_freq, context=context, sampling=Sampling(batches))
    fit(problem, module, 5, kvstore=kvstore)
    samples = itertools.repeat(first_rows(rows, batches))
    problem.assert_weights(module, train(problem.svrg(**SETTINGS), 5, samples,
                                         update_freq=update_freq).weights)


def test_samples_may_grow():
    problem = Problem('softmax', rows=37)
    module = fit(problem, problem.module(sampling=Sampling(Growing(1))), 5)
    samples = (first_rows(37, 2 ** number) for number in itertools.count())
    svrg = train(problem.svrg(**SETTINGS), 5, samples)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)


def test_a_schedule_counts_snapshots():
    problem, seen = Problem(rows=40), []
    module = problem.module(2, sampling=Sampling(lambda count: seen.append(count) or 2))
    fit(problem, module, 5)
    assert seen == [0, 1, 2]
    module.update_full_grads(problem.iterator())
    assert module._snapshot.num_taken == 4


@in_pairs({
    'shuffle': [False, True],
    'handle': ['pad', 'discard', 'roll_over'],
    'stored': [False, True],
    'batches': [4, 7, lambda _: 100]})
def test_whole_data_as_a_sample_give_the_same_bits(shuffle, handle, stored, batches):
    problem, found = Problem('perceptron', rows=37), []
    for count in (None, batches):
        np.random.seed(3)
        module = problem.module(2, sampling=Sampling(count),
                                store_snapshot_grads=stored)
        found.append(bits(fit(problem, module, 5, problem.iterator(shuffle=shuffle,
                                                                   last_batch_handle=handle))))
    assert found[0] == found[1]


def test_settings_may_change_during_training():
    problem = Problem(rows=40)
    module = problem.module(sampling=Sampling(1))

    def change(epoch, *_):
        module.sampling = Sampling([None, 3, Growing(1), 2][epoch])

    fit(problem, module, 4, epoch_end_callback=change)
    samples = (first_rows(40, batches) for batches in (1, 4, 3, 8))
    problem.assert_weights(module, train(problem.svrg(**SETTINGS), 4, samples).weights)


def test_log_lines_say_how_many_batches_a_sample_has(caplog):
    problem = Problem(rows=37)
    with caplog.at_level(logging.INFO):
        fit(problem, problem.module(2, sampling=Sampling(Growing(3))), 3)
        fit(problem, problem.module(), 1)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split('=')[0] for line in lines if 'gradient time' in line] == [
        'Epoch[%d] Full gradient time' % epoch for epoch in (0, 2, 0)]
    assert [line for line in lines if 'gradient batches' in line] == [
        'Epoch[0] Full gradient batches=3', 'Epoch[2] Full gradient batches=4']


@in_pairs({
    'updates': [1, 3, 4, 5, 11],
    'batches': [None, 1, 3, 9],
    'rows': [40, 37],
    'context, kvstore': [(mx.cpu(), None), (TWO_DEVICES, 'local')]})
def test_snapshots_may_count_updates(updates, batches, rows, context, kvstore):
    problem = Problem('perceptron', rows=rows)
    module = problem.module(None, context=context,
                            sampling=Sampling(batches, updates, problem.iterator()))
    assert module.update_freq == 1
    fit(problem, module, 4, kvstore=kvstore)
    svrg = train(problem.svrg(**SETTINGS), 4, stream_of(rows, itertools.repeat(batches)), updates)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert module._snapshot.num_taken == -(-16 // updates)


def test_samples_may_grow_after_updates():
    problem = Problem('softmax', rows=77)
    module = problem.module(sampling=Sampling(Growing(1), 3, problem.iterator()))
    fit(problem, module, 3)
    samples = stream_of(77, (2 ** number for number in itertools.count()))
    problem.assert_weights(module, train(problem.svrg(**SETTINGS), 3, samples, 3).weights)


def test_passes_over_other_data_go_on_over_two_calls_of_fit():
    """Those of a smaller batch size, whose passes go on over two calls of fit."""
    problem = Problem(rows=40)
    module = problem.module(2, sampling=Sampling(3, data=problem.iterator(8)))
    fit(problem, module, 3)
    fit(problem, module, 5, begin_epoch=3)
    samples = stream_of(40, itertools.repeat(3), batch_size=8)
    problem.assert_weights(module, train(problem.svrg(**SETTINGS), 5, samples,
                                         update_freq=2).weights)


def test_same_data_in_another_iterator_give_the_same_bits():
    problem = Problem('perceptron', rows=37)
    modules = [problem.module(), problem.module(sampling=Sampling(data=problem.iterator())),
               problem.module(sampling=Sampling(None, 4, problem.iterator())),
               problem.module(sampling=Sampling(4, data=problem.iterator()))]
    assert len({str(bits(fit(problem, module, 5))) for module in modules}) == 1


def test_row_sparse_parameters_train_on_samples():
    problem = SparseProblem(rows=37)
    module = problem.module(sampling=Sampling(3, 3, problem.iterator()))
    problem.fit(module, 3, kvstore=mx.kv.create('local'), optimizer_params={'learning_rate': 0.1},
                sparse_row_id_fn=lambda batch: {'w': batch.data[0].indices})
    problem.assert_weights(module, train(problem.svrg(learning_rate=0.1), 3, stream_of(
        37, itertools.repeat(3), tells_its_place=False), 3).weights)


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_callbacks_see_a_batch_before_a_snapshot_as_without_one(monkeypatch, context):
    """The next snapshot has been taken by then, in the memory of the activations."""
    monkeypatch.setattr('svrg_optimization.module.executors._WORTH_SHARING', -1)
    problem, runs = Problem('perceptron', rows=37), []
    for other in ({}, {'sampling': Sampling(None, 100, problem.iterator())}):
        module, seen = problem.module(context=context, update_freq=100, **other), []
        monitor = mx.monitor.Monitor(1, pattern='data|label|loss_output', sort=True)
        monitor.toc_print = lambda: seen.extend(monitor.toc())  # noqa: B023

        def callback(param):
            seen.append((param.epoch, param.nbatch, param.eval_metric.get()))  # noqa: B023
            seen.append(module.get_outputs()[0].asnumpy().tobytes())  # noqa: B023
            if other:  # noqa: B023
                module.sampling = Sampling(None, 2, module.sampling.data)  # noqa: B023

        module.fit(problem.iterator(), eval_metric='ce', num_epoch=1, batch_end_callback=callback,
                   arg_params=problem.arg_params(), monitor=monitor,
                   optimizer_params={'learning_rate': 1e-30})
        runs.append((module._snapshot.num_taken, [str(one) for one in seen]))
    assert module._svrg.reference.executors.shares_pool
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
    module = problem.module(sampling=Sampling(4, 2, data))
    with pytest.raises(OSError, match='disk'):
        fit(problem, module, 1)
    svrg = problem.svrg(**SETTINGS)
    svrg.take_snapshot()
    for rows in oracle.batches_of(40, 10)[:2]:
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert module._snapshot.is_active and module._snapshot.num_taken == 1


def test_alpha_0_takes_no_snapshot():
    problem, data = Problem(rows=40), Endless(may_be_reset=True)
    module = problem.module(sampling=Sampling(2, 1, data),
                            alpha=0)
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    assert bits(fit(problem, module, 2)) == bits(fit(problem, plain, 2))
    assert data.yielded == 0 and module._snapshot.num_taken == 0
    module.update_full_grads(data, batches=3)
    assert data.yielded == 3 and module._snapshot.num_taken == 0


def test_a_snapshot_is_taken_where_alpha_is_no_longer_0_within_an_epoch():
    problem = Problem(rows=40)
    module = problem.module(sampling=Sampling(None, 100, problem.iterator()), alpha=0)

    def switch_on(param):
        if param.nbatch == 1:
            module.alpha = 1

    fit(problem, module, 1, batch_end_callback=switch_on)
    svrg = problem.svrg(**SETTINGS)
    for number, rows in enumerate(oracle.batches_of(40, 10)):
        if number == 2:
            svrg.take_snapshot()
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


def test_a_symbol_without_a_loss_trains_as_module():
    problem = Problem(rows=40)
    output = problem.symbol.get_internals()['fc_output']
    symbol = mx.sym.broadcast_sub(output, mx.sym.Variable('label'))
    train_data, full_grad_data = (mx.io.NDArrayIter(problem.features, problem.targets[:, None], 10,
                                                    label_name='label') for _ in range(2))
    module = HeadGradients(symbol, label_names=('label',),
                           sampling=Sampling(None, 1, full_grad_data))
    with pytest.warns(UserWarning, match='no loss, .*: fit trains as plain Module') as caught:
        fit(problem, module, 2, train_data)
    assert sum('plain Module' in str(warning.message) for warning in caught) == 1
    assert module._snapshot.num_taken == 0


@pytest.mark.parametrize('context, kvstore', [(mx.cpu(), 'local'), (TWO_DEVICES, 'device')])
@pytest.mark.parametrize('updates', [None, 3])
def test_buckets_train_on_samples_of_other_data(context, kvstore, updates):
    problem = Lengths()
    steps = len(problem.plan(4))
    module = problem.module(None if updates else 1, context=context,
                            sampling=Sampling(Growing(2), updates, problem.iterator()))
    problem.fit(module, 3, optimizer_params={'learning_rate': 0.02, 'momentum': 0.8},
                kvstore=kvstore)
    svrg = problem.svrg(4, learning_rate=0.02, momentum=0.8)
    samples = problem.samples(2 ** number for number in itertools.count(1))
    for number, (_, rows, _) in enumerate(problem.plan(4) * 3):
        if number % (updates or steps) == 0:
            svrg.take_snapshot(next(samples))
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)
    with pytest.raises(ValueError, match='^sampling.batches must be None with BarzilaiBorwein'):
        module.init_optimizer(optimizer_params={'lr_scheduler': BarzilaiBorwein()},
                              force_init=True)


def test_buckets_train_on_samples_of_the_training_data():
    problem = Lengths()
    module = problem.module(sampling=Sampling(2))
    problem.fit(module, 2, optimizer_params={'learning_rate': 0.02})
    svrg = problem.svrg(4, learning_rate=0.02)
    for _ in range(2):
        svrg.take_snapshot(next(problem.samples([2])))
        for _, rows, _ in problem.plan(4):
            svrg.step(rows)
    problem.assert_weights(module, svrg.weights)
    module.update_full_grads(problem.iterator(), batches=3)
    assert module._snapshot.full_gradient.batches == 3


def test_stored_batches_are_trained_on_where_they_are_all():
    np.random.seed(0)  # one order of four batches in 24 is that of the data
    problem = Problem(rows=40)
    module = problem.module(sampling=Sampling(Growing(1)), store_snapshot_grads=True)
    epochs = labels_of_epochs(module, problem.iterator(), problem, num_epoch=4)
    in_order = problem.targets.reshape(4, 10).astype(np.float32)
    for number, labels in enumerate(epochs):
        assert np.array_equal(labels, in_order) == (number < 2)
        assert sorted(map(tuple, labels)) == sorted(map(tuple, in_order))
    assert len(module._svrg.store.batches) == 4


def test_training_batches_of_a_sample_are_the_data():
    problem = Problem(rows=40)
    module, train_data = problem.bound(store_snapshot_grads=True), problem.iterator()
    module.update_full_grads(train_data, batches=3)
    assert module.training_batches(train_data) is train_data
    module.update_full_grads(train_data, batches=4)
    assert len(module.training_batches(train_data)) == 4


def test_growing_grows_by_its_factor():
    assert [Growing(3)(number) for number in range(5)] == [3, 6, 12, 24, 48]
    assert [Growing(10, 1.1)(number) for number in range(4)] == [10, 11, 13, 14]
    assert [Growing(5, 1)(number) for number in (0, 10 ** 9)] == [5, 5]
    assert Growing(1, limit=None)(10 ** 9) == Growing(10 ** 300, limit=None)(10 ** 9) == 2 ** 62
    assert type(Growing(np.int64(3), np.float32(1.5))(2)) is int
    assert repr(Growing(np.int64(3), np.int64(4))) == 'Growing(3, factor=4, limit=10000)'
    for factor in (np.float32(1.5), np.longdouble(1.5), Fraction(3, 2)):
        assert repr(Growing(3, factor, None)) == 'Growing(3, factor=1.5, limit=None)'
        assert type(Growing(3, factor).factor) is float  # which JSON supports


def test_growing_grows_to_its_limit():
    assert [Growing(3, limit=10)(number) for number in range(4)] == [3, 6, 10, 10]
    assert [Growing(4000)(number) for number in (0, 1, 2, 10 ** 9)] == [4000, 8000, 10000, 10000]
    assert [Growing(3, limit=6).reaches_limit(number) for number in range(4)] == [
        False, True, False, False]
    for first, factor in (3, 2), (3, 1), (1, 2):
        growing = Growing(first, factor, limit=first)
        assert [growing.reaches_limit(number) for number in range(2)] == [True, False]
    assert not any(Growing(1, limit=None).reaches_limit(number) for number in range(100))


def test_samples_of_a_stream_without_an_end_stay_within_the_limit(caplog):
    problem, stream = Problem(rows=40), Endless()
    module = problem.module(sampling=Sampling(Growing(3, limit=7), data=stream))
    with caplog.at_level(logging.INFO):
        fit(problem, module, 5)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if 'batches' in line] == [
        'Epoch[0] Full gradient batches=3', 'Epoch[1] Full gradient batches=6',
        'Epoch[2] Full gradient: from here on over at most 7 batches, the limit of '
        'Growing(3, factor=2, limit=7)',
        *('Epoch[%d] Full gradient batches=7' % epoch for epoch in (2, 3, 4))]
    assert stream.yielded == 3 + 6 + 3 * 7

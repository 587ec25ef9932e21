"""Full gradients over some batches, and snapshots that count updates, against float64."""

import itertools
import logging

import mxnet as mx
import numpy as np
import pytest

import oracle
from checkpoints import bits
from pairs import in_pairs
from problems import Problem
from samples import SETTINGS, Endless, Lengths, first_rows, fit, train
from trainings import labels_of_epochs

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def test_the_iterator_stands_after_the_sample():
    problem = Problem(rows=40)
    train_data = problem.iterator()
    problem.bound(full_grad_batches=3).update_full_grads(train_data)
    np.testing.assert_allclose(next(train_data).data[0].asnumpy(), problem.features[30:], rtol=1e-6)


def assert_weights_after(module, problem, epochs, samples):
    """Check the weights; `samples` maps a step to the batches of the snapshot before it."""
    svrg = problem.svrg(**SETTINGS)
    rows = len(problem.features)
    for number, batch in enumerate(oracle.batches_of(rows, 10) * epochs):
        if number in samples:
            svrg.take_snapshot(first_rows(rows, samples[number]))
        svrg.step(batch)
    problem.assert_weights(module, svrg.weights)


def test_a_function_of_the_number_of_snapshots_gives_the_batches(caplog):
    problem, seen = Problem('softmax', rows=37), []
    module = problem.module(2, full_grad_batches=lambda number: seen.append(number) or 2 ** number)
    with caplog.at_level(logging.INFO):
        fit(problem, module, 8)
    assert_weights_after(module, problem, 8, {0: 1, 8: 2, 16: 4, 24: 4})
    assert seen == [0, 1, 2, 3]
    assert [record.getMessage() for record in caplog.records
            if 'batches' in record.getMessage()] == [
        'Epoch[%d] Full gradient batches=%d' % line for line in ((0, 1), (2, 2), (4, 4), (6, 4))]


@in_pairs({
    'shuffle': [False, True],
    'handle': ['pad', 'discard', 'roll_over'],
    'stored': [False, True],
    'batches': [4, lambda _: 100]})
def test_whole_data_as_a_sample_give_the_same_bits(shuffle, handle, stored, batches):
    problem, found = Problem('perceptron', rows=37), []
    for count in (None, batches):
        np.random.seed(3)
        module = problem.module(2, full_grad_batches=count, store_snapshot_grads=stored)
        found.append(bits(fit(problem, module, 5, problem.iterator(shuffle=shuffle,
                                                                   last_batch_handle=handle))))
    assert found[0] == found[1]


@in_pairs({
    'updates, update_freq, taken': [(1, 1, 16), (3, 1, 6), (4, 1, 4), (11, 1, 2), (None, 1, 4),
                                    (None, 2, 2)],
    'batches': [None, 1, np.int64(3), 10 ** 30],
    'rows': [40, 37],
    'context, kvstore': [(mx.cpu(), None), (TWO_DEVICES, 'local')]})
def test_training_on_samples_is_svrg(updates, update_freq, taken, batches, rows, context, kvstore):
    """Snapshots may count updates, or epochs."""
    problem = Problem('perceptron', rows=rows)
    module = problem.module(update_freq, context=context, full_grad_batches=batches,
                            updates_per_snapshot=updates)
    fit(problem, module, 4, kvstore=kvstore)
    samples = itertools.repeat(first_rows(rows, batches or 4))
    svrg = train(problem.svrg(**SETTINGS), 4, samples, updates, update_freq)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert module._snapshot.num_taken == taken
    assert module._snapshot.full_gradient.rows == min(rows, (batches or 4) * 10)


@pytest.mark.parametrize('handle', ['pad', 'discard', 'roll_over'])
@pytest.mark.parametrize('seen', [True, False])
def test_a_snapshot_within_an_epoch_leaves_the_data_at_their_place(handle, seen):
    """The batches of all epochs are those of plain Module, in a shuffled order."""
    problem, runs = Problem(rows=37), []
    for module in (mx.mod.Module(problem.symbol, label_names=('label',)),
                   problem.module(updates_per_snapshot=3)):
        np.random.seed(5)
        labels, train_data = [], problem.iterator(shuffle=True, last_batch_handle=handle)
        metric = mx.metric.np(lambda label, _: labels.append(label.tolist()) or 0.)  # noqa: B023
        fit(problem, module, 3, train_data, eval_metric=metric,
            **({'batch_end_callback': print} if seen else {}))
        runs.append(labels)
    assert runs[0] == runs[1] and len(runs[0]) >= 9
    assert module._snapshot.num_taken == -(-len(runs[0]) // 3)


def test_settings_may_change_during_training():
    problem = Problem(rows=40)
    module = problem.module(full_grad_batches=1)

    def change(epoch, *_):
        module.full_grad_batches = [None, 3, lambda number: number, 1][epoch]
        if epoch == 2:
            module.updates_per_snapshot = 2

    fit(problem, module, 4, epoch_end_callback=change)
    assert_weights_after(module, problem, 4, {0: 1, 4: 4, 8: 3, 12: 3, 14: 4})


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


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_callbacks_see_a_batch_before_a_snapshot_as_without_one(monkeypatch, context):
    """The next snapshot has been taken by then, in the memory of the activations."""
    monkeypatch.setattr('svrg_optimization.module.executors._WORTH_SHARING', -1)
    problem, runs = Problem('perceptron', rows=37), []
    for updates in (None, 100):
        module = problem.module(100, context=context, updates_per_snapshot=updates)
        monitor, seen = mx.monitor.Monitor(1, pattern='data|label|loss_output', sort=True), []
        monitor.toc_print = lambda: seen.extend(monitor.toc())  # noqa: B023

        def callback(param):
            seen.append((param.epoch, param.nbatch, param.eval_metric.get()))  # noqa: B023
            seen.append(module.get_outputs()[0].asnumpy().tobytes())  # noqa: B023
            if updates:  # noqa: B023
                module.updates_per_snapshot = 2  # noqa: B023

        problem.fit(module, 1, eval_metric='ce', batch_end_callback=callback, monitor=monitor,
                    optimizer_params={'learning_rate': 1e-30})
        runs.append((module._snapshot.num_taken, [str(one) for one in seen]))
    assert module._svrg.reference.executors.shares_pool
    assert [taken for taken, _ in runs] == [1, 2]
    assert runs[0][1] == runs[1][1]


def test_a_snapshot_is_taken_where_alpha_is_no_longer_0_within_an_epoch():
    problem = Problem(rows=40)
    module = problem.module(updates_per_snapshot=100, alpha=0)

    def switch_on(param):
        if param.nbatch == 1:
            module.alpha = 1

    fit(problem, module, 1, batch_end_callback=switch_on)
    assert_weights_after(module, problem, 1, {2: 4})


@pytest.mark.parametrize('context, kvstore', [(mx.cpu(), 'local'), (TWO_DEVICES, 'device')])
def test_buckets_train_on_samples(context, kvstore):
    problem = Lengths()
    module = problem.module(1, context=context, full_grad_batches=lambda number: 2 ** number)
    problem.fit(module, 3, optimizer_params={'learning_rate': 0.02, 'momentum': 0.8},
                kvstore=kvstore)
    svrg = problem.svrg(4, learning_rate=0.02, momentum=0.8)
    for number in range(3):
        svrg.take_snapshot(problem.first_rows(2 ** number))
        for _, rows, _ in problem.plan(4):
            svrg.step(rows)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)


def test_stored_batches_are_trained_on_where_they_are_all():
    np.random.seed(0)  # one order of four batches in 24 is that of the data
    problem = Problem(rows=40)
    module, train_data = problem.module(full_grad_batches=lambda number: 2 ** number,
                                        store_snapshot_grads=True), problem.iterator()
    epochs = labels_of_epochs(module, train_data, problem, num_epoch=4)
    in_order = problem.targets.reshape(4, 10).astype(np.float32)
    for number, labels in enumerate(epochs):
        assert np.array_equal(labels, in_order) == (number < 2)
        assert sorted(map(tuple, labels)) == sorted(map(tuple, in_order))
    assert len(module.training_batches(train_data)) == 4
    module.full_grad_batches = 3
    module.update_full_grads(train_data)
    assert module.training_batches(train_data) is train_data

"""SVRGTrainer within Gluon's Estimator, and by `epochs`, compared with the same loop by hand."""

import contextlib
import copy
import logging

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon.contrib.estimator import (
    CheckpointHandler,
    Estimator,
    GradientUpdateHandler,
)

from blocks import TWO_DEVICES, Blocks, assert_weights, weights_of
from svrg_optimization.gluon import SnapshotHandler, SVRGBatchProcessor, SVRGTrainer

SGD = {'learning_rate': 0.2, 'momentum': 0.5, 'wd': 0.01}
RULE = {'momentum': 0.9}
pytestmark = pytest.mark.nd_arrays  # Estimator's metrics take no others


def objective_of(net, loss):
    def objective(data, label):
        output = net(data)
        output.wait_to_read()  # statistics of BatchNorm race where nothing waits
        return loss(output, label), output
    return objective


class Training:
    """A network, its trainer, an estimator of both, and the plain loop that it stands for."""

    def __init__(self, contexts=mx.cpu(), extra=(), with_rule=False, rows=37,
                 objective=objective_of, processor=SVRGBatchProcessor, **kwargs):
        problem = Blocks('softmax', rows=rows)
        self.net, self.data, self.contexts = problem.net(contexts, {}, extra), problem.loader(), (
            contexts)
        self.loss, self.epochs = problem.loss(), 0
        self.trainer = SVRGTrainer(
            self.net.collect_params(), 'svrg_lbfgs' if with_rule else 'sgd',
            dict(RULE if with_rule else SGD),
            objective=objective(self.net, self.loss), **kwargs)
        self.estimator = Estimator(self.net, self.loss, trainer=self.trainer, context=contexts,
                                   batch_processor=processor())
        self.lines = []
        self.estimator.logger.handlers = [logging.Handler()]
        self.estimator.logger.handlers[0].emit = lambda record: self.lines.append(
            record.getMessage())

    def fit(self, epochs, update_freq=2, val_data=None, handlers=()):
        mx.random.seed(0)
        self.estimator.fit(self.data, epochs=epochs, val_data=val_data, event_handlers=[
            *handlers, SnapshotHandler(self.data, update_freq)])

    def by_epochs(self, epochs, update_freq=2):
        mx.random.seed(0)
        for batches in self.trainer.epochs(self.data, epochs, update_freq):
            self.train_on(batches)

    def by_hand(self, epochs, update_freq=2):
        mx.random.seed(0)
        for epoch in range(epochs):
            if epoch % update_freq == 0:
                self.trainer.update_full_grads(self.data)
            if self.trainer.has_converged:
                return
            self.train_on(self.trainer.training_batches(self.data))
        if self.trainer.tol is not None:
            self.trainer.update_full_grads(self.data)

    def train_on(self, batches):
        devices = self.contexts if isinstance(self.contexts, list) else [self.contexts]
        for batch in batches:
            losses, _ = self.trainer.backward(*(
                array if isinstance(array, list) else [array] for array in batch))
            assert [loss.ctx for loss in losses] == devices
            self.trainer.step(sum(map(len, losses)))
        self.epochs += 1


both = pytest.mark.parametrize('train', [Training.fit, Training.by_epochs])


def assert_same_bits(found, expected):
    expected = list(weights_of(expected).values())
    for value in weights_of(found).values():
        np.testing.assert_array_equal(value, expected.pop(0))


@both
@pytest.mark.parametrize('contexts', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('update_freq', [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.filterwarnings('ignore:batch_size of step')
@pytest.mark.usefixtures('without_jumps')
def test_training_ends_on_the_bits_of_a_loop_by_hand(train, contexts, update_freq):
    for extra, settings in (([gluon.nn.Dropout(0.5), gluon.nn.BatchNorm(in_channels=4)], {}),
                            ([], {'with_rule': True, 'tol': 1e-9})):
        trained, looped = (Training(contexts, copy.deepcopy(extra), **settings) for _ in range(2))
        with pytest.warns(UserWarning, match='did not converge') if settings else (
                contextlib.nullcontext()):
            train(trained, 3, update_freq)
        looped.by_hand(3, update_freq)
        assert_same_bits(trained.net, looped.net)
        assert trained.trainer.gradient_norm == looped.trainer.gradient_norm


@both
@pytest.mark.parametrize('contexts', [mx.cpu(), TWO_DEVICES])
def test_tol_ends_training_with_the_epoch_of_a_loop_by_hand(train, contexts):
    trained, looped = (Training(contexts, with_rule=True, tol=1e-4) for _ in range(2))
    train(trained, 200)
    looped.by_hand(200)
    assert trained.trainer.has_converged and 2 < looped.epochs < 200
    finished = sum('training' in line and 'Finished' in line for line in trained.lines)
    assert looped.epochs == trained.epochs + finished
    assert_same_bits(trained.net, looped.net)


def test_a_converged_training_stays_where_it_is_until_its_weights_are_moved():
    training = Training(extra=[gluon.nn.BatchNorm(in_channels=4)], with_rule=True, tol=1e-2)
    training.fit(200)
    before, taken = weights_of(training.net), training.trainer._svrg.snapshot.num_taken
    training.fit(200)
    assert_weights(training.net, before, 0)
    assert training.trainer.result.epochs == 0
    assert training.trainer._svrg.snapshot.num_taken == taken + 1
    training.net[1].bias.set_data(training.net[1].bias.data() + 1)
    training.fit(200)
    assert training.trainer.result.reason == 'converged'
    assert weights_of(training.net)['fc_bias'].tolist() != before['fc_bias'].tolist()


@pytest.mark.parametrize('contexts, epochs, settings', [
    (mx.cpu(), 3, {}), (TWO_DEVICES, 2, {'with_rule': True, 'tol': 1e-9})])
@pytest.mark.filterwarnings('ignore:training did not converge', 'ignore:You are replacing')
def test_a_run_resumed_by_checkpoint_handler_has_the_same_bits(
        tmp_path, contexts, epochs, settings):
    whole, first, second = (Training(contexts, **settings) for _ in range(3))
    whole.fit(5)
    first.fit(epochs, handlers=[CheckpointHandler(str(tmp_path))])
    second.fit(5, handlers=[CheckpointHandler(str(tmp_path), resume_from_checkpoint=True)])
    assert_same_bits(second.net, whole.net)


@pytest.mark.parametrize('train, last', [(Training.fit, 3), (Training.by_epochs, 2)])
def test_snapshots_and_the_rate_are_logged(train, last, caplog):
    caplog.set_level('INFO')
    training = Training(with_rule=True)
    assert np.isnan(training.trainer.learning_rate)
    train(training, 3)
    lines = training.lines or caplog.messages
    norms = [line for line in lines if 'Full gradient norm' in line]
    assert [line.split(' ')[0] for line in norms] == ['Epoch[0]', 'Epoch[2]', 'Epoch[%d]' % last]
    assert norms[-1].endswith('Full gradient norm=%.1e' % training.trainer.gradient_norm)
    begins = [line for line in training.lines if 'Begin, current' in line]
    assert len(begins) == (3 if training.lines else 0) and not any('nan' in line for line in begins)
    assert not training.lines or lines[0].endswith('current learning rate nan ')


def test_alpha_0_is_estimator_with_trainer_to_the_bit():
    training, plain = Training(alpha=0), Training()
    training.fit(3)
    Estimator(plain.net, plain.loss, trainer=gluon.Trainer(
        plain.net.collect_params(), 'sgd', SGD)).fit(plain.data, epochs=3)
    assert_same_bits(training.net, plain.net)


def test_without_a_snapshot_handler_fit_is_an_error():
    training = Training()
    for fits in (False, True):
        if fits:
            training.fit(1)
        with pytest.raises(RuntimeError, match=r'fit needs a SnapshotHandler\(train_data\) among'):
            training.estimator.fit(training.data, epochs=1)


def of_plain_trainer(training):
    training.estimator.trainer = gluon.Trainer(training.net.collect_params(), 'sgd')


def without_output(net, loss):
    return lambda data, label: loss(net(data), label)


@pytest.mark.parametrize('arguments, error, message', [
    ({'change': of_plain_trainer}, TypeError,
     'trainer must be an SVRGTrainer and .* not <mxnet.gluon.trainer.Trainer'),
    ({'processor': mx.gluon.contrib.estimator.BatchProcessor}, TypeError,
     'batch_processor an SVRGBatchProcessor for a SnapshotHandler, not'),
    ({'kvstore': 'dist_sync'}, ValueError, 'kvstore must be of one process in an Estimator'),
    ({'objective': without_output}, TypeError,
     'objective must return the loss and the output of the net')])
def test_what_fit_cannot_train_with_is_refused(arguments, error, message, monkeypatch):
    monkeypatch.setattr('svrg_optimization.gluon.trainer.open_distributed', lambda kind: kind)
    change = arguments.pop('change', lambda training: None)
    training = Training(**arguments)
    change(training)
    before = weights_of(training.net)
    with pytest.raises(error, match=message):
        training.fit(1)
    assert_weights(training.net, before, 0)


@pytest.mark.parametrize('arguments, error, message', [
    (([], 0), ValueError, 'update_freq must be an int of 1 or more, not 0'),
    ((iter([]),), TypeError, 'train_data must be a DataLoader')])
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        SnapshotHandler(*arguments)


def test_a_second_handler_that_steps_is_told_which_method_to_override():
    training = Training()
    with pytest.raises(RuntimeError, match='a step is made by SnapshotHandler, .* override '
                                           'batch_end of SnapshotHandler'):
        training.fit(2, handlers=[GradientUpdateHandler(-1000)])

    class Clipping(SnapshotHandler):
        def batch_end(self, estimator, *args, **kwargs):
            gluon.utils.clip_global_norm(
                [param.grad() for param in training.net.collect_params().values()], 1e-9)
            return super().batch_end(estimator, *args, **kwargs)

    clipped = Training()
    training, before = clipped, weights_of(clipped.net)
    clipped.trainer.set_learning_rate(1e-3)
    clipped.trainer._optimizer.wd = 0
    clipped.estimator.fit(clipped.data, epochs=2, event_handlers=[Clipping(clipped.data)])
    for name, value in weights_of(clipped.net).items():
        np.testing.assert_allclose(value, before[name], atol=1e-6)

"""SVRGTrainer within Gluon's Estimator, compared with the same training in a plain loop."""

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

    def __init__(self, contexts=mx.cpu(), extra=(), with_rule=False, rows=37, objective=None,
                 processor=SVRGBatchProcessor, **kwargs):
        problem = Blocks('softmax', rows=rows)
        self.net, self.data, self.contexts = problem.net(contexts, {}, extra), problem.loader(), (
            contexts)
        self.loss, self.epochs = problem.loss(), 0
        self.trainer = SVRGTrainer(
            self.net.collect_params(), 'svrg_lbfgs' if with_rule else 'sgd',
            dict(RULE if with_rule else SGD),
            objective=objective or objective_of(self.net, self.loss), **kwargs)
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

    def loop(self, epochs, update_freq=2):
        mx.random.seed(0)
        trainer = self.trainer
        devices = self.contexts if isinstance(self.contexts, list) else [self.contexts]
        for epoch in range(epochs):
            if epoch % update_freq == 0:
                trainer.update_full_grads(self.data)
            if trainer.has_converged:
                break
            for batch in self.data:
                losses, _ = trainer.backward(*(gluon.utils.split_and_load(
                    array, devices, even_split=False) for array in batch))
                assert [loss.ctx for loss in losses] == devices
                trainer.step(sum(map(len, losses)))
            self.epochs += 1
        else:
            if trainer._svrg.settings.tol is not None:
                trainer.update_full_grads(self.data)


def assert_same_bits(found, expected):
    expected = list(weights_of(expected).values())
    for value in weights_of(found).values():
        np.testing.assert_array_equal(value, expected.pop(0))


@pytest.mark.parametrize('contexts', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('update_freq', [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.filterwarnings('ignore:batch_size of step', 'ignore:training did not converge')
def test_fit_ends_on_the_bits_of_a_plain_loop(contexts, update_freq):
    for extra, settings in (([gluon.nn.Dropout(0.5), gluon.nn.BatchNorm(in_channels=4)], {}),
                            ([], {'with_rule': True, 'tol': 1e-9})):
        fitted, looped = (Training(contexts, copy.deepcopy(extra), **settings) for _ in range(2))
        fitted.fit(5, update_freq, fitted.data)
        looped.loop(5, update_freq)
        assert_same_bits(fitted.net, looped.net)
        assert fitted.trainer.gradient_norm == looped.trainer.gradient_norm


@pytest.mark.parametrize('contexts', [mx.cpu(), TWO_DEVICES])
def test_tol_ends_fit_with_the_epoch_of_the_plain_loop(contexts):
    fitted, looped = (Training(contexts, with_rule=True, tol=1e-4) for _ in range(2))
    fitted.fit(200)
    looped.loop(200)
    assert fitted.trainer.has_converged and 2 < looped.epochs < 200
    assert sum('training' in line and 'Finished' in line for line in fitted.lines) == looped.epochs
    assert_same_bits(fitted.net, looped.net)


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


def test_snapshots_and_the_rate_are_logged():
    training = Training(with_rule=True)
    assert np.isnan(training.trainer.learning_rate)
    training.fit(3)
    assert training.lines[0].endswith('current learning rate nan ')
    norms = [line for line in training.lines if 'Full gradient norm' in line]
    assert [line.split(' ')[0] for line in norms] == ['Epoch[0]', 'Epoch[2]', 'Epoch[3]']
    assert norms[-1] == 'Epoch[3] Full gradient norm=%.1e' % training.trainer.gradient_norm
    begins = [line for line in training.lines if 'Begin, current' in line]
    assert len(begins) == 3 and not any('nan' in line for line in begins)


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


@pytest.mark.parametrize('arguments, error, message', [
    ({'change': of_plain_trainer}, TypeError,
     'trainer must be an SVRGTrainer and .* not <mxnet.gluon.trainer.Trainer'),
    ({'processor': mx.gluon.contrib.estimator.BatchProcessor}, TypeError,
     'batch_processor an SVRGBatchProcessor for a SnapshotHandler, not'),
    ({'kvstore': 'dist_sync'}, ValueError, 'kvstore must be of one process in an Estimator')])
def test_what_fit_cannot_train_with_is_refused(arguments, error, message, monkeypatch):
    monkeypatch.setattr('svrg_optimization.gluon.trainer.open_distributed', lambda kind: kind)
    change = arguments.pop('change', lambda training: None)
    training = Training(**arguments)
    change(training)
    before = weights_of(training.net)
    with pytest.raises(error, match=message):
        training.fit(1)
    assert_weights(training.net, before, 0)


def test_an_objective_without_the_output_is_refused():
    training = Training(objective=lambda data, label: training.loss(training.net(data), label))
    with pytest.raises(TypeError, match='objective must return the loss and the output of the net'):
        training.fit(1)


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

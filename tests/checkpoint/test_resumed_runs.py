"""Checkpoints: whole files, the same bits after a stop, and errors that name the file."""

import copy
import os
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import oracle
from checkpoints import SETTINGS, bits, bound, load, train
from problems import TWO_DEVICES, Problem
from sequences import LENGTHS, Sequences
from svrg_optimization import SVRGBucketingModule
from svrg_optimization.proximal import L1

PROBLEM = Problem('softmax', rows=37)  # that of the fixture `saved`
PERCEPTRON = Problem('perceptron', rows=37)
DEVICES = [mx.cpu(i) for i in range(3)]


@pytest.mark.parametrize('problem, settings, params, update_on_kvstore', [
    (PERCEPTRON, {}, {'optimizer': 'adam', 'kvstore': mx.kv.create}, '1'),
    (PERCEPTRON, {'context': TWO_DEVICES}, {'kvstore': 'device'}, '1'),
    (PERCEPTRON, {'context': DEVICES}, {'optimizer': 'adam', 'kvstore': 'local'}, '0'),
    (PERCEPTRON, {'full_grad_batches': lambda number: 2 ** number}, {}, '1'),
    (Sequences(), {'fixed_param_names': ['fc_bias']}, {}, '1'),
    (PERCEPTRON, {'proximal': L1(0.2, high=0.1)}, {'momentum': 0.}, '1'),
    (Sequences(), {}, {'optimizer': 'adam', 'learning_rate': 0.02}, '1')])
def test_a_resumed_run_goes_on_with_its_bits(monkeypatch, prefix, problem, settings, params,
                                             update_on_kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)

    def fit(module, begin, end):
        given = copy.deepcopy(params)
        if given.get('kvstore') is mx.kv.create:
            given['kvstore'] = mx.kv.create('local')
        return train(problem, module, begin, end, **given)

    unbroken = fit(problem.module(2, **settings), 0, 5)
    own = {name: value for name, value in settings.items() if callable(value) or name == 'context'}
    for stop in (2, 3):  # a snapshot is due then, or not
        fit(problem.module(2, **settings), 0, stop).save_checkpoint(prefix, stop, True)
        resumed = SVRGBucketingModule.load(
            prefix, stop, problem.sym_gen, max(LENGTHS), True) if isinstance(
            problem, Sequences) else load(prefix, stop, **own)
        assert resumed.update_freq == 2
        assert bits(fit(resumed, stop, 5)) == bits(unbroken)
        assert resumed._optimizer.num_update == unbroken._optimizer.num_update


@pytest.mark.parametrize('update_on_kvstore', '01')
def test_a_resumed_run_may_go_on_without_momentum(monkeypatch, prefix, update_on_kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    train(PROBLEM, PROBLEM.module(2), 0, 2, prefix=prefix)
    resumed, without = (train(PROBLEM, load(prefix, 2, with_states), 2, 3, momentum=0.)
                        for with_states in (True, False))
    assert bits(resumed) == bits(without)


def test_plain_module_reads_the_files_of_a_checkpoint(saved):
    plain = mx.mod.Module.load(saved, 3, load_optimizer_states=True, label_names=('label',))
    plain.fit(PROBLEM.iterator(), eval_metric=[], begin_epoch=3, num_epoch=4,
              optimizer_params=SETTINGS['sgd'])
    assert sorted(os.listdir(os.path.dirname(saved))) == [
        *('model-%04d.%s' % (epoch, kind) for epoch in (1, 2, 3)
          for kind in ('params', 'states', 'svrg')), 'model-symbol.json']


@pytest.mark.parametrize('before, after, kvstores', [
    (mx.cpu(), TWO_DEVICES, '10'), (TWO_DEVICES, mx.cpu(), '01'), (TWO_DEVICES, DEVICES, '00'),
    (TWO_DEVICES, mx.cpu(), '11')])
@pytest.mark.parametrize('optimizer', ['sgd', 'adam'])
def test_devices_may_change_after_a_stop(monkeypatch, prefix, before, after, kvstores, optimizer):
    """Momentum and counts are restored, also if the KVStore updated and the module does now."""
    unbroken = train(PROBLEM, PROBLEM.module(3), 0, 5, optimizer)
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', kvstores[0])
    train(PROBLEM, PROBLEM.module(3, context=before), 0, 2, optimizer, prefix,
          mx.kv.create('local'))
    mx.nd.waitall()  # its threads read the environment
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', kvstores[1])
    resumed = load(prefix, 2, context=after)
    train(PROBLEM, resumed, 2, 5, optimizer, kvstore=mx.kv.create('local'))
    PROBLEM.assert_weights(resumed, {name: value.asnumpy()
                                     for name, value in unbroken.get_params()[0].items()})
    PROBLEM.assert_full_gradient(resumed, {
        name: value.asnumpy() for name, value in unbroken._param_dict[0].items()})


def test_the_batch_size_may_change_after_a_stop(prefix):
    problem = Problem('softmax', rows=40)
    train(problem, problem.module(3), 0, 1, prefix=prefix)
    module = load(prefix, 1, False)
    train_data = problem.iterator(20)
    module.bind(train_data.provide_data, train_data.provide_label)
    svrg = problem.svrg(20)
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)
    loss = oracle.loss(problem.network, problem.weights, problem.features, problem.targets)
    assert module.full_objective == pytest.approx(loss / 40, rel=1e-6)


@pytest.mark.filterwarnings('ignore:training did not converge')
def test_what_watches_another_optimizer_goes_on(prefix):
    """Its distance is that of pairs, which the file has."""
    module = train(PROBLEM, PROBLEM.module(1, tol=1e-9), 0, 4, learning_rate=1e-3)
    module.save_checkpoint(prefix, 4, save_optimizer_states=True)
    resumed = bound(load(prefix, 4), PROBLEM)
    resumed.init_optimizer(optimizer_params={**SETTINGS['sgd'], 'learning_rate': 1e-3})
    for each in module, resumed:  # without a step in between
        each.update_full_grads(PROBLEM.iterator())
    assert resumed.result.distance == pytest.approx(module.result.distance, rel=1e-6)


@pytest.mark.parametrize('loads, given, expected', [
    (True, {}, 13), (False, {}, 1), (True, {'begin_num_update': 100}, 101),
    (True, {'begin_num_update': 0}, 1),
    (True, mx.optimizer.SGD(momentum=0.9, rescale_grad=0.1), 13),
    (True, mx.optimizer.SGD(momentum=0.9, rescale_grad=0.1, begin_num_update=100), 101)])
def test_counts_of_updates_come_with_the_states_unless_given(saved, loads, given, expected):
    module = bound(load(saved, 3, loads), PROBLEM)
    module.init_optimizer(**({'optimizer_params': given} if isinstance(given, dict) else
                             {'optimizer': given}))
    module.forward_backward(PROBLEM.batch(10))
    module.update()
    assert module._optimizer.num_update == expected


def test_a_checkpoint_may_precede_the_first_snapshot(prefix):
    problem = Problem()
    problem.bound(update_freq=3).save_checkpoint(prefix, 0)
    module = load(prefix, 0, False)
    module.fit(problem.iterator(), eval_metric=[], begin_epoch=1, num_epoch=4,
               optimizer_params={'learning_rate': 0.1})
    problem.assert_weights(module, problem.svrg().fit(4, 3, begin_epoch=1))


@pytest.mark.parametrize('bind', [None, False, True])
def test_a_loaded_checkpoint_is_saved_again_unchanged(saved, bind):
    """Before it is bound, bound for inference, and bound for training."""
    module = load(saved, 3)
    if bind is not None:
        bound(module, PROBLEM, for_training=bind)
    module.save_checkpoint(Path(saved + '-again'), np.int64(3))
    expected = train(PROBLEM, load(saved, 3), 3, 6)
    assert bits(train(PROBLEM, load(Path(saved + '-again'), 3), 3, 6)) == bits(expected)


def test_a_parameter_that_was_fixed_when_saved_drops_the_snapshot(prefix):
    problem = Problem('softmax')
    train(problem, problem.module(4, fixed_param_names=['fc_bias']), 0, 2, prefix=prefix)
    with pytest.warns(UserWarning, match='no full gradient of fc_bias'):
        module = bound(load(prefix, 2, fixed_param_names=None), problem)
    assert not module._snapshot.is_active


def test_compression_goes_on(prefix):
    module = PROBLEM.bound(sgd={}, compression_params={'type': '2bit', 'threshold': 0.5})
    module.save_checkpoint(prefix, 1)
    assert load(prefix, 1, False)._compression_params == {'type': '2bit', 'threshold': 0.5}


@pytest.mark.parametrize('before, after', [('sgd', 'nag'), ('adam', 'ftrl')])
def test_states_of_another_optimizer_are_not_gone_on_without(prefix, before, after):
    """Though these would fit by their shapes."""
    train(PROBLEM, PROBLEM.module(3), 0, 3, before, prefix)
    resumed = bound(load(prefix, 3), PROBLEM)
    for _ in range(2):
        with pytest.raises(ValueError, match='(?i)optimizer must be %s, .*model-0003.svrg has, and '
                                             'not %s' % (before, after)):
            resumed.init_optimizer(optimizer=after)
        assert not resumed.optimizer_initialized
        assert resumed._optimizer is None and resumed._kvstore is None
    expected = train(PROBLEM, load(prefix, 3), 3, 6, before)
    assert bits(train(PROBLEM, resumed, 3, 6, before)) == bits(expected)
    bound(load(prefix, 3, False), PROBLEM).init_optimizer(optimizer=after)


@pytest.mark.parametrize('optimizer, before, after', [
    ('sgd', {}, {'momentum': 0.9}), ('rmsprop', {}, {'centered': True}),
    ('rmsprop', {'centered': True}, {})])
def test_states_of_other_arguments_are_not_gone_on_with(prefix, optimizer, before, after):
    module = PROBLEM.fit(PROBLEM.module(3), 3, optimizer=optimizer, optimizer_params=before)
    module.save_checkpoint(prefix, 3, save_optimizer_states=True)
    resumed = bound(load(prefix, 3), PROBLEM)
    with pytest.raises(ValueError, match='model-0003.svrg was saved with other arguments .* the '
                                         'state of fc_weight must have .*3, 4.*, and has '):
        resumed.init_optimizer(optimizer=optimizer, optimizer_params=after)
    assert not resumed.optimizer_initialized and resumed._optimizer is None


def test_states_that_were_not_saved_cannot_be_loaded(prefix):
    problem = Problem()
    train(problem, problem.module(2), 0, 1, prefix=prefix, states=False)
    with pytest.raises(ValueError, match='load_optimizer_states must be False: .*model-0001.svrg'):
        load(prefix, 1)
    assert bound(load(prefix, 1, False), problem)._snapshot.is_active

"""Checkpoints: whole files, the same bits after a stop, and errors that name the file."""

import logging
import os
import warnings
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from checkpoints import SETTINGS, bits, bound, load, train
from problems import Problem
from processes import in_a_process
from svrg_optimization import BarzilaiBorwein, SVRGModule
from svrg_optimization.module import executor_group
from svrg_optimization.module.optimizer_states import begin_anew

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
DEVICES = [(mx.cpu(), 'local'), (mx.cpu(), mx.kv.create), (TWO_DEVICES, 'local'),
           (TWO_DEVICES, 'device'), ([mx.cpu(i) for i in range(3)], 'local')]


# Each two of the four meet.
@pytest.mark.parametrize('stop, context, kvstore, optimizer, update_on_kvstore', [
    pytest.param(stop, *devices, ['sgd', 'adam'][(stop + number) % 2],
                 str((stop + number) // 2 % 2),
                 marks=[] if stop == number + 1 else pytest.mark.slow)
    for stop in (1, 2, 3, 4, 5) for number, devices in enumerate(DEVICES)])
def test_a_resumed_run_is_bit_identical(monkeypatch, prefix, stop, optimizer, context, kvstore,
                                        update_on_kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    make = kvstore if callable(kvstore) else lambda: kvstore
    problem = Problem('perceptron', rows=37)
    unbroken = train(problem, problem.module(3, context=context), 0, 6, optimizer, kvstore=make())
    train(problem, problem.module(3, context=context), 0, stop, optimizer, prefix, make())
    resumed = load(prefix, stop, context=context)
    train(problem, resumed, stop, 6, optimizer, kvstore=make())
    assert bits(resumed) == bits(unbroken)
    assert resumed._snapshot.num_update == unbroken._snapshot.num_update == 24
    assert resumed._optimizer.num_update == unbroken._optimizer.num_update == 24


def go_on(prefix, optimizer):
    problem = Problem('softmax', rows=37)
    train(problem, load(prefix, 2), 2, 5, optimizer, prefix)


@pytest.mark.process
@pytest.mark.parametrize('optimizer', [
    'sgd', pytest.param('adam', marks=pytest.mark.slow)])
def test_a_run_resumed_in_a_new_process_is_bit_identical(prefix, optimizer):
    problem = Problem('softmax', rows=37)
    unbroken = train(problem, problem.module(3), 0, 5, optimizer)
    train(problem, problem.module(3), 0, 2, optimizer, prefix)
    in_a_process(go_on, prefix, optimizer)
    assert bits(bound(load(prefix, 5), problem)) == bits(unbroken)


def test_plain_module_reads_the_files_of_a_checkpoint(saved):
    """Plain Module reads them, with the optimizer's states."""
    problem = Problem('softmax', rows=37)
    plain = mx.mod.Module.load(saved, 3, load_optimizer_states=True, label_names=('label',))
    train_data = problem.iterator()
    plain.fit(train_data, eval_metric=[], begin_epoch=3, num_epoch=4,
              optimizer_params=SETTINGS['sgd'])
    assert sorted(os.listdir(os.path.dirname(saved))) == ['model-%04d.%s' % (epoch, kind)
                                                          for epoch in (1, 2, 3) for kind in (
                                                              'params', 'states', 'svrg')] + [
        'model-symbol.json']


def test_a_checkpoint_of_plain_module_gets_a_snapshot_before_the_first_step(prefix):
    """It has no snapshot, and one is taken before the first step."""
    problem = Problem('softmax', rows=37)
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    problem.fit(plain, 2, optimizer_params={'learning_rate': 0.1})
    plain.save_checkpoint(prefix, 2, save_optimizer_states=True)
    arg_params, _ = plain.get_params()
    problem.weights = {name: value.asnumpy().astype(float) for name, value in arg_params.items()}
    with pytest.warns(UserWarning, match='model-0002.svrg is not there'):
        module = load(prefix, 2, update_freq=4)
    module.fit(problem.iterator(), eval_metric=[], begin_epoch=3, num_epoch=6,
               optimizer_params={'learning_rate': 0.1})
    problem.assert_weights(module, problem.svrg().fit(6, 4, begin_epoch=3))


def test_update_freq_is_the_checkpoints_unless_given(saved):
    assert load(saved, 3).update_freq == 2
    assert load(saved, 3, update_freq=5).update_freq == 5
    with pytest.raises(ValueError, match='update_freq'):
        load(saved, 3, update_freq=0)


def test_the_snapshot_is_active_after_loading(prefix):
    """Its full gradient and weights are those of the module that was saved."""
    problem = Problem('softmax', rows=37)
    svrg = problem.svrg()
    module = problem.fit(problem.module(4), 2, optimizer_params={'learning_rate': 0.1})
    svrg.fit(2, 4)
    module.save_checkpoint(prefix, 2)
    resumed = bound(load(prefix, 2, False), problem)
    problem.assert_full_gradient(resumed, svrg.full_gradient)
    resumed.fit(problem.iterator(), eval_metric=[], begin_epoch=2, num_epoch=4,
                optimizer_params={'learning_rate': 0.1})
    problem.assert_weights(resumed, svrg.fit(4, 4, begin_epoch=2))


@pytest.mark.parametrize('before, after', [
    (mx.cpu(), TWO_DEVICES), (TWO_DEVICES, mx.cpu()), (TWO_DEVICES, [mx.cpu(i) for i in range(3)])])
@pytest.mark.parametrize('kvstores', ['11', '10', '01', '00'])
@pytest.mark.parametrize('optimizer', ['sgd', 'adam'])
def test_devices_may_change_after_a_stop(monkeypatch, prefix, before, after, kvstores, optimizer):
    """Momentum and counts come along, whoever updates the weights then and now."""
    problem = Problem('softmax', rows=37)
    unbroken = train(problem, problem.module(3), 0, 5, optimizer)
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', kvstores[0])
    train(problem, problem.module(3, context=before), 0, 2, optimizer, prefix,
          mx.kv.create('local'))
    mx.nd.waitall()  # its threads read the environment
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', kvstores[1])
    resumed = load(prefix, 2, context=after)
    train(problem, resumed, 2, 5, optimizer, kvstore=mx.kv.create('local'))
    problem.assert_weights(resumed, {name: value.asnumpy()
                                     for name, value in unbroken.get_params()[0].items()})
    problem.assert_full_gradient(resumed, {
        name: value.asnumpy() for name, value in unbroken._param_dict[0].items()})


def test_the_batch_size_may_change_after_a_stop(prefix):
    """The full gradient is in the units of the batch that is bound."""
    problem = Problem('softmax', rows=40)
    train(problem, problem.module(3), 0, 1, prefix=prefix)
    module = load(prefix, 1, False)
    train_data = problem.iterator(20)
    module.bind(train_data.provide_data, train_data.provide_label)
    svrg = problem.svrg(20)
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)


def test_counts_of_updates_come_with_the_states_unless_given(saved):
    """They come with the states, unless the user gives others."""
    problem = Problem('softmax', rows=37)

    def num_update(load_optimizer_states, **params):
        module = bound(load(saved, 3, load_optimizer_states), problem)
        module.init_optimizer(optimizer_params=params)
        module.forward_backward(next(problem.iterator()))
        module.update()
        return module._optimizer.num_update

    assert num_update(True) == 13
    assert num_update(False) == 1
    assert num_update(True, begin_num_update=100) == 101
    assert num_update(True, begin_num_update=0) == 1
    for begins, expected in ((0, 13), (100, 101)):
        module = bound(load(saved, 3), problem)
        module.init_optimizer(optimizer=mx.optimizer.SGD(momentum=0.9, rescale_grad=0.1,
                                                         begin_num_update=begins))
        module.forward_backward(next(problem.iterator()))
        module.update()
        assert module._optimizer.num_update == expected


def test_states_of_momentum_may_be_loaded_after_it_is_switched_off(prefix):
    """The states that it had are no error, as in plain Module."""
    problem = Problem()
    trained = problem.module(alpha=0)
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    for module in (trained, plain):
        start(module, problem, momentum=0.9)
        step(module, problem)
        module.save_optimizer_states(prefix + '.states')
        module.init_optimizer(force_init=True)
        module.load_optimizer_states(prefix + '.states')
        step(module, problem)
    problem.assert_weights(trained, {name: value.asnumpy().astype('float64') for name, value
                                     in plain.get_params()[0].items()})


def start(module, problem, kvstore='local', **optimizer_params):
    data = problem.iterator()
    module.bind(data.provide_data, data.provide_label)
    module.init_params(arg_params=problem.arg_params())
    module.init_optimizer(kvstore, optimizer_params=optimizer_params)


def step(module, problem):
    module.forward_backward(next(problem.iterator()))
    module.update()


class History(mx.optimizer.Optimizer):
    """Keeps the last gradients, as L-BFGS does."""

    def create_state(self, index, weight):
        return []

    def update(self, index, weight, grad, state):
        state.append(grad.copy())
        weight[:] -= 0.1 * sum(state)


def test_states_that_have_grown_can_be_loaded(prefix):
    problem = Problem()
    module = problem.bound(alpha=0)
    module.init_optimizer(optimizer=History(rescale_grad=0.1))
    step(module, problem)
    module.save_optimizer_states(prefix + '.states')
    module.load_optimizer_states(prefix + '.states')
    assert [len(state) for state in module._updater.states.values()] == [1, 1]


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_states_that_begin_anew_are_not_warned_of(prefix, context):
    problem = Problem(rows=40)
    module = train(problem, problem.module(2, context=context), 0, 1,
                   kvstore=mx.kv.create('local'))
    begin_anew(module, executor_group.parameters(module))  # as where the rate was too large
    module.save_checkpoint(prefix, 1, True)
    with warnings.catch_warnings():
        warnings.filterwarnings('error', '.*holds no states', UserWarning)
        train(problem, load(prefix, 1, context=context), 1, 2, kvstore=mx.kv.create('local'))


def test_states_of_none_of_the_parameters_are_warned_of(prefix):
    """Those of a Module whose KVStore updated the weights have other keys: Module drops them."""
    problem = Problem()
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    start(plain, problem, mx.kv.create('local'), momentum=0.9)
    step(plain, problem)
    plain.save_optimizer_states(prefix + '.states')
    module = problem.bound(alpha=0, sgd={'momentum': 0.9})
    with pytest.warns(UserWarning, match='model.states holds no states of the parameters'):
        module.load_optimizer_states(prefix + '.states')
    step(module, problem)


def test_lr_scheduler_goes_on(prefix):
    problem = Problem()

    def scheduler():
        return mx.lr_scheduler.FactorScheduler(step=5, factor=0.7, base_lr=0.1)

    unbroken = train(problem, problem.module(2), 0, 5, lr_scheduler=scheduler())
    train(problem, problem.module(2), 0, 3, prefix=prefix, lr_scheduler=scheduler())
    resumed = train(problem, load(prefix, 3), 3, 5, lr_scheduler=scheduler())
    assert bits(resumed) == bits(unbroken)


def test_a_checkpoint_may_precede_the_first_snapshot(prefix):
    problem = Problem()
    problem.bound(update_freq=3).save_checkpoint(prefix, 0)
    module = load(prefix, 0, False)
    module.fit(problem.iterator(), eval_metric=[], begin_epoch=1, num_epoch=4,
               optimizer_params={'learning_rate': 0.1})
    problem.assert_weights(module, problem.svrg().fit(4, 3, begin_epoch=1))


def test_the_snapshot_outlasts_inference_after_loading(saved):
    problem = Problem('softmax', rows=37)
    reference = bound(load(saved, 3), problem)
    module = bound(load(saved, 3), problem, for_training=False)
    module.predict(problem.iterator())
    module.save_checkpoint(saved + '-again', 3)
    bound(module, problem, force_rebind=True)
    for name, value in reference._param_dict[0].items():
        np.testing.assert_array_equal(module._param_dict[0][name].asnumpy(), value.asnumpy())


@pytest.mark.parametrize('bind', [None, False, True])
def test_a_loaded_checkpoint_is_saved_again_unchanged(saved, bind):
    """Before it is bound, bound for inference, and bound for training."""
    problem = Problem('softmax', rows=37)
    module = load(saved, 3)
    if bind is not None:
        bound(module, problem, for_training=bind)
    module.save_checkpoint(Path(saved + '-again'), 3)
    expected = train(problem, load(saved, 3), 3, 6)
    assert bits(train(problem, load(saved + '-again', 3), 3, 6)) == bits(expected)


def test_a_module_bound_for_inference_saves_its_snapshot(prefix):
    """The snapshot of a training that is over for now goes into the file all the same."""
    problem = Problem('softmax', rows=37)
    unbroken = train(problem, problem.module(4), 0, 5)
    module = train(problem, problem.module(4), 0, 2)
    module.get_params()
    bound(module, problem, for_training=False, force_rebind=True)
    module.save_checkpoint(prefix, 2, save_optimizer_states=True)
    assert bits(train(problem, load(prefix, 2), 2, 5)) == bits(unbroken)


def test_forced_init_params_drops_the_loaded_snapshot(saved):
    problem = Problem('softmax', rows=37)
    module = bound(load(saved, 3), problem)
    module.init_params(force_init=True)
    assert not module._snapshot.is_active


def test_a_parameter_that_was_fixed_when_saved_drops_the_snapshot(prefix):
    problem = Problem('softmax')
    train(problem, problem.module(4, fixed_param_names=['fc_bias']), 0, 2, prefix=prefix)
    with pytest.warns(UserWarning, match='no full gradient of fc_bias'):
        module = bound(load(prefix, 2), problem)
    assert not module._snapshot.is_active


def test_subclass_loads_itself(saved):
    class Mine(SVRGModule):
        pass

    assert type(Mine.load(saved, 3, label_names=('label',))) is Mine


def test_loading_logs_nothing_and_saving_one_line(saved, caplog):
    problem = Problem('softmax', rows=37)
    with caplog.at_level('INFO'):
        bound(load(saved, 3), problem).save_checkpoint(saved, 7)
    assert caplog.messages == ['Saved checkpoint to "%s-0007.params"' % saved]


def test_a_prefix_may_be_a_path_and_an_epoch_an_integer_of_numpy(prefix):
    problem = Problem()
    module = problem.module(2)
    module.fit(problem.iterator(), eval_metric=[], begin_epoch=np.int64(0), num_epoch=np.int64(1))
    module.save_checkpoint(Path(prefix), np.int64(1))
    assert bound(load(Path(prefix), 1, False), problem)._snapshot.is_active


def test_states_of_another_optimizer_are_not_gone_on_without(saved):
    """No optimizer is installed after the error, and the next fit meets it again."""
    problem, resumed = Problem('softmax', rows=37), load(saved, 3)
    for _ in range(2):
        with pytest.raises(ValueError, match='model-0003.svrg holds states of other'):
            train(problem, resumed, 3, 4, 'adam')
        assert not resumed.optimizer_initialized
        assert resumed._optimizer is None and resumed._kvstore is None
    expected = train(problem, load(saved, 3), 3, 6)
    assert bits(train(problem, resumed, 3, 6)) == bits(expected)


def test_states_that_were_not_saved_cannot_be_loaded(prefix):
    problem = Problem()
    train(problem, problem.module(2), 0, 1, prefix=prefix, states=False)
    with pytest.raises(ValueError, match='load_optimizer_states must be False: .*model-0001.svrg'):
        load(prefix, 1)
    assert bound(load(prefix, 1, False), problem)._snapshot.is_active


def test_optimizer_stays_where_another_is_refused(saved):
    problem = Problem('softmax', rows=37)
    module = train(problem, problem.module(2), 0, 3)
    before, kvstore = module._optimizer, module._kvstore
    with pytest.raises(ValueError, match='learning_rate must be a finite number'):
        module.init_optimizer('local', 'sgd', {'learning_rate': float('nan')}, force_init=True)
    assert module._optimizer is before and module._kvstore is kvstore
    unbroken = train(problem, problem.module(2), 0, 5)
    train(problem, module, 3, 5)
    assert bits(module) == bits(unbroken)


def test_a_network_without_parameters_can_be_saved_and_loaded(tmp_path):
    symbol = mx.sym.MakeLoss(mx.sym.square(mx.sym.Variable('data')))
    module = SVRGModule(symbol, label_names=None, update_freq=1)
    module.bind([('data', (4, 2))])
    module.init_params()
    module.save_checkpoint(str(tmp_path / 'model'), 1)
    loaded = SVRGModule.load(str(tmp_path / 'model'), 1, label_names=None)
    loaded.bind([('data', (4, 2))], for_training=False)
    assert loaded.get_params() == ({}, {})


@pytest.mark.parametrize('bad', ['no', None, 1.0])
def test_a_bad_load_optimizer_states_is_refused(saved, bad):
    with pytest.raises(TypeError, match='load_optimizer_states must be True or False, not %r'
                       % bad):
        load(saved, 3, bad)
    assert bits(load(saved, 3, np.bool_(False))) == bits(load(saved, 3, 1))


@pytest.mark.filterwarnings('ignore:with kvstore=None each of the 2 devices')
def test_different_shares_are_saved_again_under_another_kvstore(prefix):
    """Without a KVStore each device has its own full gradient, and a load with one keeps it."""
    problem = Problem(rows=40)
    module = train(problem, problem.module(5, context=TWO_DEVICES), 0, 1, kvstore=None)
    shares = [share['fc_weight'].asnumpy() for share in module._param_dict]
    assert np.abs(shares[0] - shares[1]).max() > 0.1
    module.save_checkpoint(prefix, 1)
    for epoch in (2, 3):
        module = load(prefix, epoch - 1, False, context=TWO_DEVICES)
        train(problem, module, epoch - 1, epoch)
        module.save_checkpoint(prefix, epoch)
        for share, expected in zip(module._param_dict, shares):
            np.testing.assert_array_equal(share['fc_weight'].asnumpy(), expected)


def fit_with_a_rule(problem, module, begin, end, base_lr, prefix):
    module.fit(problem.iterator(), eval_metric=[], begin_epoch=begin, num_epoch=end,
               arg_params=problem.arg_params(), optimizer_params={
                   'lr_scheduler': BarzilaiBorwein(base_lr, bounded=False)},
               epoch_end_callback=mx.callback.module_checkpoint(module, prefix, 1, True))
    return module


@pytest.mark.filterwarnings('ignore:the learning rate was too large since the last snapshot',
                            'ignore:training did not converge')
@pytest.mark.parametrize('base_lr, goes_back', [(1e3, True), (0.05, False)])
def test_a_finished_run_that_is_resumed_ends_at_the_same_weights(prefix, caplog, base_lr,
                                                                 goes_back):
    """Its last snapshot, after the last checkpoint, may have set the weights back."""
    problem = Problem(rows=37)
    finished = fit_with_a_rule(problem, problem.module(2, tol=1e-5), 0, 2, base_lr, prefix)
    saved = load(prefix, 2)
    caplog.set_level(logging.INFO)
    resumed = fit_with_a_rule(problem, load(prefix, 2), 2, 2, base_lr, prefix)
    assert (bits(bound(saved, problem)) != bits(resumed)) is goes_back
    assert bits(resumed) == bits(finished)
    assert resumed.gradient_norm == finished.gradient_norm
    assert caplog.text.count('Epoch[1] Full gradient norm=') == 1
    fit_with_a_rule(problem, finished, 2, 2, base_lr, prefix)
    assert bits(resumed) == bits(finished)


def test_fit_over_no_epoch_takes_no_first_snapshot():
    problem = Problem()
    module = fit_with_a_rule(problem, problem.module(), 0, 0, 0.1, 'unused')
    assert not module._snapshot.is_active and module.learning_rate == 0.1

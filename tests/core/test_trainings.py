"""Whole trainings against float64 SVRG."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from held_batches import rows_of
from pairs import in_pairs
from problems import Problem
from trainings import fit

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'],
    'update_freq': [1, 2, 3],
    'rows': [40, 37, 31]})
def test_momentum_and_weight_decay_are_those_of_sgd(kind, update_freq, rows):
    problem = Problem(kind, rows=rows)
    settings = {'learning_rate': 0.05, 'momentum': 0.9, 'wd': 0.01}
    module = fit(problem, 8, update_freq, optimizer_params=settings)
    problem.assert_weights(module, problem.svrg(**settings).fit(8, update_freq))


@pytest.mark.parametrize('mult, expected', [
    ({'lr_mult': 3.0}, {'lr_mult': {'fc_bias': 3.0}}),
    ({'wd_mult': 1.0}, {'decayed': ('weight', 'bias')})])
def test_multipliers_of_the_symbol_count(mult, expected):
    problem, settings = Problem(bias={'name': 'fc_bias', **mult}), {
        'learning_rate': 0.05, 'wd': 0.1}
    module = fit(problem, optimizer_params=settings)
    problem.assert_weights(module, problem.svrg(**settings, **expected).fit(8, 1))


def halves_by_scheduler(_):
    return {'optimizer_params': {'learning_rate': 0.2, 'lr_scheduler': (
        mx.lr_scheduler.FactorScheduler(step=4, factor=0.5, base_lr=0.2))}}


def halves_by_callback(module):
    return {'optimizer_params': {'learning_rate': 0.2}, 'epoch_end_callback': (
        lambda epoch, *_: module._optimizer.set_learning_rate(0.2 * 0.5 ** (epoch + 1)))}


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('halves', [halves_by_scheduler, halves_by_callback])
def test_the_learning_rate_may_change(context, halves):
    problem = Problem()
    module = problem.module(2, context=context)
    fit(problem, module=module, **halves(module))
    expected = problem.svrg(learning_rate=lambda update: 0.2 * 0.5 ** ((update - 1) // 4)).fit(8, 2)
    problem.assert_weights(module, expected)


@in_pairs({
    'update_on_kvstore': ['1', '0'],
    'kvstore': ['local', 'device', 'local object', 'device object'],
    'devices, work_load_list': [
        (1, None), (2, None), (2, [1, 3]), (3, [2, 1, 1])]})
def test_devices_and_kvstores_give_the_same_weights(monkeypatch, update_on_kvstore, kvstore,
                                                    devices, work_load_list):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem('perceptron', rows=37)
    module = problem.module(2, context=[mx.cpu(i) for i in range(devices)],
                            work_load_list=work_load_list)
    kind, _, is_object = kvstore.partition(' ')
    settings = {'learning_rate': 0.05, 'momentum': 0.9, 'wd': 0.01}
    fit(problem, 4, module=module, optimizer_params=settings,
        kvstore=mx.kv.create(kind) if is_object else kind)
    expected = problem.svrg(**settings)
    problem.assert_weights(module, expected.fit(4, 2))
    problem.assert_full_gradient(module, expected.full_gradient)


@pytest.mark.parametrize('weight, bias', [
    ('fullyconnected0_weight', 'fullyconnected0_bias'), ('w_full', 'full'), ('w', 'w_full'),
    ('w_full_full', 'w')])
@pytest.mark.parametrize('kvstore', [None, 'local', 'object'])
def test_parameters_may_have_full_in_their_names(weight, bias, kvstore):
    problem = Problem(weight={'name': weight}, bias={'name': bias})
    module = fit(problem, kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore)
    problem.assert_weights(module, problem.svrg().fit(8, 1))


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_fixed_parameters_stay(context):
    # A fixed weight would not do: MXNet then gets the gradient of its layer's bias wrong.
    problem = Problem('perceptron')
    module = fit(problem, module=problem.module(fixed_param_names=['hidden_bias'], context=context))
    problem.assert_weights(module, problem.svrg(fixed=('hidden_bias',)).fit(8, 1))
    np.testing.assert_array_equal(module.get_params()[0]['hidden_bias'].asnumpy(),
                                  problem.weights['hidden_bias'].astype(np.float32))
    assert set(module._param_dict[0]) == {'hidden_weight', 'fc_weight', 'fc_bias'}


def test_update_freq_may_change_during_training():
    problem = Problem()
    module = problem.module(2)

    def snapshot_every_epoch_from_3(epoch, *_):
        if epoch == 3:
            module.update_freq = 1

    fit(problem, 6, module=module, epoch_end_callback=snapshot_every_epoch_from_3)
    expected = problem.svrg()
    expected.fit(4, 2)
    problem.assert_weights(module, expected.fit(6, 1, begin_epoch=4))


@pytest.mark.parametrize('first', [0, 3])
def test_fit_may_begin_between_two_snapshots(first):
    """It goes on with the snapshot that is there, or takes one."""
    problem = Problem()
    module = fit(problem, 3, update_freq=4, begin_epoch=first)
    fit(problem, 7, module=module, begin_epoch=3)
    problem.assert_weights(module, problem.svrg().fit(7, 4, begin_epoch=first))


def test_fit_with_force_init_takes_a_new_snapshot():
    problem, other = Problem(), Problem(seed=1)
    module = problem.module(4)
    module.fit(problem.iterator(), eval_metric=[], num_epoch=3, arg_params=other.arg_params())
    fit(problem, 7, module=module, begin_epoch=5, force_init=True)
    svrg = problem.svrg(learning_rate=0.01)  # of the optimizer that is there already
    problem.assert_weights(module, svrg.fit(7, 4, begin_epoch=5))


def test_gradient_compression_spares_the_full_gradient():
    problem = Problem()
    module = problem.bound(context=TWO_DEVICES,
                           compression_params={'type': '2bit', 'threshold': 0.5})
    module.init_optimizer(kvstore='device', optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg()
    svrg.take_snapshot()
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, svrg.full_gradient)
    for shares in zip(*(share.values() for share in module._param_dict)):
        np.testing.assert_array_equal(*(share.asnumpy() for share in shares))


def test_an_optimizer_may_be_an_instance():
    problem = Problem()
    sgd = mx.optimizer.SGD(learning_rate=0.05, momentum=0.9, rescale_grad=1 / 10)
    module = fit(problem, optimizer=sgd)
    assert module._optimizer.default_opt is sgd
    assert sgd.idx2name == {0: 'fc_weight', 1: 'fc_bias'}
    problem.assert_weights(module, problem.svrg(learning_rate=0.05, momentum=0.9).fit(8, 1))


@pytest.mark.parametrize('optimizer, context', [
    (name, TWO_DEVICES if number % 2 else mx.cpu()) for number, name in enumerate([
        'adam', 'rmsprop', 'adagrad', 'nag', 'adadelta', 'ftrl', 'lamb', 'signum', 'nadam',
        'adamax', 'ftml'])])
def test_any_registered_optimizer_steps_on_svrg_gradients(optimizer, context):
    """Each step is MXNet's own optimizer applied to the SVRG gradient."""
    problem = Problem('softmax')
    module = problem.bound(context=context)
    module.init_optimizer(optimizer=optimizer, optimizer_params={'learning_rate': 0.01, 'wd': 0.01})
    train_data = problem.iterator()
    reference = mx.optimizer.create(optimizer, learning_rate=0.01, wd=0.01, rescale_grad=0.1,
                                    param_idx2name={0: 'fc_weight', 1: 'fc_bias'})
    updater = mx.optimizer.get_updater(reference)
    svrg = problem.svrg()
    weights = [mx.nd.array(problem.weights[name]) for name in ('fc_weight', 'fc_bias')]
    module.update_full_grads(train_data)
    svrg.take_snapshot()
    train_data.reset()
    for batch in train_data:
        module.forward_backward(batch)
        module.update()
        current = {name: weight.asnumpy().astype(float)
                   for name, weight in zip(('fc_weight', 'fc_bias'), weights)}
        features, targets = batch.data[0].asnumpy(), batch.label[0].asnumpy()
        now = svrg.network(current, features, targets)
        then = svrg.network(svrg.snapshot, features, targets)
        for i, name in enumerate(current):
            updater(i, mx.nd.array(now[name] - then[name] + svrg.full_gradient[name]), weights[i])
        problem.assert_weights(module, {name: weight.asnumpy() for name, weight
                                        in zip(('fc_weight', 'fc_bias'), weights)})


def test_training_converges_to_the_solution_of_the_unpadded_data():
    problem = Problem(rows=33)
    module = fit(problem, 60, batch_size=8, optimizer_params={'learning_rate': 0.15})
    design = np.column_stack([problem.features, np.ones(33)])
    solution = np.linalg.lstsq(design, problem.targets, rcond=None)[0]
    problem.assert_weights(module, {'fc_weight': solution[None, :4], 'fc_bias': solution[4:]}, 1e-6)


@pytest.mark.parametrize('context', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
def test_batches_may_be_smaller_than_those_bound(context):
    """The full gradient is in the units of each batch, and the rate's scale that of the bound."""
    problem = Problem(rows=40)
    module = problem.bound(batch_size=20, update_freq=2, context=context)
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg(batch_size=20)
    for epoch in range(6):
        if epoch % 2 == 0:
            svrg.take_snapshot()
        for rows in oracle.batches_of(40, 4):
            svrg.step(rows)
    module.fit(problem.iterator(4), eval_metric='mse', num_epoch=6)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)


@pytest.mark.parametrize('stored', [False, True])
def test_a_second_fit_may_have_smaller_batches(stored):
    problem, steps = Problem(rows=60), []
    module = problem.module(2, store_snapshot_grads=stored)
    settings = {'eval_metric': 'mse', 'batch_end_callback': lambda param: steps.append((
        param.epoch % 2 == param.nbatch == 0, rows_of(problem, param.locals['data_batch'])))}
    module.fit(problem.iterator(20), num_epoch=2, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.2}, **settings)
    module.fit(problem.iterator(4), begin_epoch=2, num_epoch=6, **settings)
    svrg = problem.svrg(20, learning_rate=0.2)
    for begins_with_a_snapshot, rows in steps:
        if begins_with_a_snapshot:
            svrg.take_snapshot()
        svrg.step(rows)
    assert len(steps) == 2 * 3 + 4 * 15
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)

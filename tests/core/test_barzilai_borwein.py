"""Barzilai-Borwein steps, against float64."""

import logging
import re
import warnings

import mxnet as mx
import numpy as np
import pytest

import oracle
from pairs import in_pairs
from problems import Problem, SparseProblem
from svrg_bb import SvrgBB, fit
from svrg_optimization import BarzilaiBorwein, SVRGModule

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@pytest.mark.filterwarnings('ignore:.*since the last snapshot')
@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'],
    'wd': [0, 0.05],
    'bounded': [True, False],
    'rate': [0.05, None],
    'update_freq': [1, 2],
    'optimizer, momentum': [('sgd', 0), ('sgd', 0.5), ('nag', 0.9)],
    'context, kvstore, update_on_kvstore': [
        (mx.cpu(), None, '1'), (mx.cpu(), 'object', '1'), (TWO_DEVICES, 'local', '1'),
        (TWO_DEVICES, 'device', '0')]})
def test_training_is_svrg_bb(monkeypatch, kind, wd, bounded, rate, update_freq, optimizer, momentum,
                             context, kvstore, update_on_kvstore):
    """With a bound, or without a rate, differences of nearby gradients count: in float64."""
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    wd = 0 if optimizer == 'nag' else wd  # the decay in MXNet's momentum is that of later weights
    problem, rates = Problem(kind, rows=37), []
    rule = BarzilaiBorwein(rate, bounded=bounded)
    module = fit(problem, problem.module(update_freq, context=context), rule, wd=wd,
                 exactly=bounded or rate is None, optimizer=optimizer, momentum=momentum,
                 kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore,
                 batch_end_callback=lambda param: rates.append((param.epoch, rule(None))))
    twin = SvrgBB(problem, rate, wd, bounded, momentum=momentum, nesterov=optimizer == 'nag')
    twin.fit(0, 5, update_freq, oracle.batches_of(37, 10))
    used = [rate for (epoch, rate), after in zip(rates, [(-1, 0), *rates])
            if epoch != after[0] and epoch % update_freq == 0]
    np.testing.assert_allclose([*used, rule.rate], twin.rates, rtol=1e-5)
    assert len(set(used)) > 1 and rule.ways_back == twin.ways_back
    problem.assert_weights(module, twin.svrg.weights)


def badly_conditioned():
    rng = np.random.RandomState(0)
    problem = Problem(rows=20, features=8)
    problem.features *= np.logspace(0, -1, 8)
    problem.targets = problem.features @ rng.normal(size=8) + rng.normal(0.5, 0.3, 20)
    return problem


def test_the_bound_is_one_over_the_curvature():
    problem, rules = badly_conditioned(), [BarzilaiBorwein(bounded=flag) for flag in (True, False)]
    for rule in rules:
        fit(problem, problem.module(2), rule, end=4, exactly=True)
    assert rules[0].rate == 1.5 / rules[0].curvature / rules[0].slowdown
    assert abs(rules[1].rate - rules[0].rate) > 0.1 * rules[0].rate


@pytest.mark.slow
@pytest.mark.parametrize('rate', [1e-3, 1.0])
def test_the_first_rate_needs_no_tuning(rate):
    problem = badly_conditioned()
    module = fit(problem, problem.module(2), BarzilaiBorwein(rate), end=480)
    design = np.column_stack([problem.features, np.ones(20)])
    solution = np.linalg.lstsq(design, problem.targets, rcond=None)[0]

    def loss(weights):
        return 0.5 * ((design @ weights - problem.targets) ** 2).mean()

    arg_params, _ = module.get_params()
    found = np.append(arg_params['fc_weight'].asnumpy(), arg_params['fc_bias'].asnumpy())
    assert loss(found) - loss(solution) < 1e-5


def test_rescale_grad_of_the_user_does_not_change_the_rate():
    """The rate is that of the mean over the rows, whatever the gradients are multiplied by."""
    problem = Problem('softmax', rows=40)
    module, rule = problem.module(2), BarzilaiBorwein()
    optimizer = mx.optimizer.create('sgd', rescale_grad=0.01, lr_scheduler=rule)
    warnings.filterwarnings('ignore', 'Optimizer created manually')
    fit(problem, module, rule, end=3, exactly=True, optimizer=optimizer)
    twin = SvrgBB(problem)
    twin.fit(0, 3, 2, oracle.batches_of(40, 10))
    np.testing.assert_allclose(rule.rate, 10 * twin.rate, rtol=1e-5)
    problem.assert_weights(module, twin.svrg.weights)


def test_sparse_parameters_train_with_the_rate_of_dense_ones():
    problem = SparseProblem(rows=40)
    rule = BarzilaiBorwein(0.05, bounded=False)
    module = problem.module(1)
    fit(problem, module, rule, end=4, kvstore=None)
    twin = SvrgBB(problem, 0.05, bounded=False)
    twin.fit(0, 4, 1, oracle.batches_of(40, 10))
    np.testing.assert_allclose(rule.rate, twin.rate, rtol=1e-5)
    problem.assert_weights(module, twin.svrg.weights)


def test_the_rate_stays_where_nothing_is_learnt():
    problem = Problem(rows=40)
    module, rule = problem.bound(), BarzilaiBorwein()
    module.init_optimizer(optimizer_params={'learning_rate': 0.1, 'lr_scheduler': rule})
    train_data = problem.iterator()
    for _ in range(3):
        module.update_full_grads(train_data)
    assert rule.rate == rule(0) == 0.1 and not rule.ways_back


def test_the_rate_stays_where_the_loss_is_concave():
    """The gradient of -w²/2 falls where w grows."""
    data = mx.sym.Variable('data')
    weight = mx.sym.Variable('w', shape=(1,), init=mx.init.One())
    concave = -mx.sym.broadcast_mul(data, mx.sym.square(weight)) / 2
    symbol = mx.sym.MakeLoss(concave + 0 * mx.sym.Variable('label'))
    module, rule = SVRGModule(symbol, label_names=['label'], update_freq=1), BarzilaiBorwein()
    train_data = mx.io.NDArrayIter(np.ones((8, 1)), np.ones((8, 1)), 4, label_name='label')
    module.fit(train_data, eval_metric=mx.metric.Loss(), num_epoch=3,
               optimizer_params={'learning_rate': 0.1, 'lr_scheduler': rule})
    weight = module.get_params()[0]['w'].asscalar()
    assert weight > 1 and rule.rate == 0.1


def test_the_rate_of_each_epoch_is_logged(caplog):
    problem = Problem(rows=40)
    rule = BarzilaiBorwein()
    with caplog.at_level(logging.INFO):
        fit(problem, problem.module(2), rule, end=5)  # and a snapshot at the end
    logged = re.findall(r'Epoch\[(\d)\] Learning rate=(\S+)', caplog.text)
    assert [int(epoch) for epoch, _ in logged] == [0, 2, 4, 4]
    assert float(logged[-1][1]) == pytest.approx(rule.rate, rel=1e-5)


@pytest.mark.parametrize('stop', [1, 2, 3, 4])
def test_a_resumed_run_is_bit_identical(tmp_path, stop):
    problem = Problem('softmax', rows=37)
    unbroken = fit(problem, problem.module(2), BarzilaiBorwein())
    prefix = str(tmp_path / 'model')
    module = problem.module(2)
    fit(problem, module, BarzilaiBorwein(), epoch_end_callback=mx.callback.module_checkpoint(
        module, prefix, save_optimizer_states=True))
    loaded = SVRGModule.load(prefix, stop, load_optimizer_states=True, label_names=('label',))
    loaded.save_checkpoint(prefix, stop)  # before there is an optimizer again
    resumed = SVRGModule.load(prefix, stop, label_names=('label',))
    fit(problem, resumed, BarzilaiBorwein(), stop)
    for name, value in unbroken.get_params()[0].items():
        assert (value.asnumpy() == resumed.get_params()[0][name].asnumpy()).all()


@pytest.mark.parametrize('change', ['reshape', 'rebind'])
@pytest.mark.parametrize('batch_size', [5, 20])
def test_the_next_snapshot_may_have_another_batch_size(change, batch_size):
    """The optimizer's rescale_grad stays that of the first one: the rate is the inverse."""
    problem = Problem('softmax', rows=40)
    rule = BarzilaiBorwein(bounded=False)
    module = problem.bound(sgd={'learning_rate': 0.1, 'lr_scheduler': rule})
    twin = SvrgBB(problem, 0.1, bounded=False)
    train_data = problem.iterator()
    batches = oracle.batches_of(40, 10)
    twin.take_snapshot(batches)
    module.update_full_grads(train_data)
    train_data.reset()
    for rows, batch in zip(batches, train_data):
        module.forward_backward(batch)
        module.update()
        twin.step(rows)
    twin.take_snapshot(batches)
    train_data = problem.iterator(batch_size)
    if change == 'reshape':
        module.reshape(train_data.provide_data, train_data.provide_label)
    else:
        module.get_params()
        module.bind(train_data.provide_data, train_data.provide_label, force_rebind=True)
    module.update_full_grads(train_data)
    np.testing.assert_allclose(rule.rate, twin.rate * 10 / batch_size, rtol=1e-5)
    np.testing.assert_allclose(rule.curvature, twin.curvature * batch_size / 10, rtol=1e-5)


def test_a_new_training_begins_anew():
    problem = Problem(rows=40)
    rule = BarzilaiBorwein()
    module = fit(problem, problem.module(1), rule)
    assert rule.rate is not None and rule.curvature
    module.init_params(mx.init.Normal(), force_init=True)
    assert rule.rate is None and not rule.curvature and rule.best is None
    fit(problem, module, rule)
    assert rule.rate is not None
    problem.bound().init_optimizer(optimizer_params={'lr_scheduler': rule})
    assert rule.rate is None


@pytest.mark.parametrize('multipliers', [{'fc_weight': 3.}, {0: 3.}])
def test_weight_decay_may_be_by_number_and_by_name(multipliers):
    problem = Problem(rows=40)
    optimizer = mx.optimizer.create('sgd', learning_rate=0.05, wd=0.05, rescale_grad=0.1,
                                    lr_scheduler=BarzilaiBorwein(0.05, bounded=False))
    module = problem.bound()
    assert module._param_names[0] == 'fc_weight'
    module.init_optimizer(kvstore=None, optimizer=optimizer)
    optimizer.set_wd_mult(multipliers)
    if 0 in multipliers:
        optimizer.wd_mult = {0: 3., 1: 0.}
    train_data = problem.iterator()
    module.fit(train_data, eval_metric='mse', num_epoch=4)
    twin = SvrgBB(problem, 0.05, 0.15, bounded=False)
    problem.assert_weights(module, twin.fit(0, 4, 1, oracle.batches_of(40, 10)))


def test_parameters_that_are_not_stepped_say_nothing():
    problem = Problem('softmax', rows=40)
    rules = BarzilaiBorwein(0.05), BarzilaiBorwein(0.05)
    fixed = problem.module(1, fixed_param_names=['fc_bias'])
    fit(problem, fixed, rules[0])
    optimizer = mx.optimizer.create('sgd', learning_rate=0.05, rescale_grad=0.1,
                                    lr_scheduler=rules[1])
    optimizer.set_lr_mult({'fc_bias': 0.})
    problem.fit(problem.module(1), 5, optimizer=optimizer)
    np.testing.assert_allclose(rules[1].rate, rules[0].rate, rtol=1e-5)
    np.testing.assert_allclose(rules[1].curvature, rules[0].curvature, rtol=1e-5)


@pytest.mark.filterwarnings('ignore:.*since the last snapshot')
def test_float16_weights_train_with_multi_precision():
    """The optimum is within a step of float16 of these weights."""
    expected = np.array([[1, -2, 3, -4, 5]])
    features = np.random.RandomState(0).normal(size=(400, 5)).astype('float16')
    train_data = mx.io.NDArrayIter(mx.nd.array(features, dtype='float16'),
                                   mx.nd.array(features @ expected[0], dtype='float16'), 40,
                                   label_name='label')
    weight = mx.sym.Variable('weight', shape=(1, 5))  # no FullyConnected on CPUs in float16
    output = mx.sym.sum(mx.sym.broadcast_mul(mx.sym.Variable('data'), weight), axis=1)
    symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label'))
    module = SVRGModule(symbol, label_names=('label',), update_freq=1)
    module.fit(train_data, eval_metric=[], num_epoch=20, initializer=mx.init.Zero(),
               optimizer='nag', optimizer_params={
                   'multi_precision': True, 'lr_scheduler': BarzilaiBorwein(), 'momentum': 0.9})
    found = module.get_params()[0]['weight']
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-3)

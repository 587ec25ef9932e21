"""Whole trainings against float64 SVRG."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from held_batches import assert_svrg
from problems import TWO_DEVICES, Problem


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_settings_may_change_during_training(context):
    problem, samples = Problem(), [1, None, 3, lambda number: number, 1, 2]
    module, svrg = problem.module(2, context=context, full_grad_batches=1), problem.svrg(
        learning_rate=lambda update: 0.2 * 0.5 ** ((update - 1) // 4))

    def change(epoch, *_):
        assert module.learning_rate == np.float32(0.2 * 0.5 ** epoch)
        module.learning_rate = np.float32(0.2 * 0.5 ** (epoch + 1))
        module.update_freq = 1 if epoch > 1 else 2
        module.full_grad_batches = [*samples, None][epoch + 1]

    assert module.learning_rate is None
    problem.fit(module, 6, epoch_end_callback=change,
                optimizer_params={'learning_rate': np.float32(0.2)})
    for epoch, batches in enumerate([1, None, 3, 2, 1, 2]):
        if epoch != 1:
            svrg.take_snapshot(np.arange(10 * (batches or 4)))
        for rows in oracle.batches_of(40, 10):
            svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('optimizer, context', [
    (name, TWO_DEVICES if number % 2 else mx.cpu()) for number, name in enumerate([
        'adam', 'rmsprop', 'adagrad', 'nag', 'adadelta', 'ftrl', 'lamb', 'signum', 'nadam',
        'adamax', 'ftml'])])
def test_any_registered_optimizer_steps_on_svrg_gradients(optimizer, context):
    """Each step is MXNet's own optimizer applied to the SVRG gradient."""
    problem, params = Problem('softmax'), {'learning_rate': 0.01, 'wd': 0.01}
    module, svrg = problem.bound(context=context), problem.svrg()
    module.init_optimizer(optimizer=optimizer, optimizer_params=params)
    updater = mx.optimizer.get_updater(mx.optimizer.create(
        optimizer, **params, rescale_grad=0.1, param_idx2name={0: 'fc_weight', 1: 'fc_bias'}))

    def step(weights, gradients):
        for number, name in enumerate(('fc_weight', 'fc_bias')):
            weight = mx.nd.array(weights[name])
            updater(number, mx.nd.array(gradients[name]), weight)
            weights[name] = weight.asnumpy().astype(float)

    svrg.optimizer.step = step
    module.update_full_grads(problem.iterator())
    svrg.take_snapshot()
    problem.train_epoch(module, svrg)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('context, is_mean', [(mx.cpu(), False), (TWO_DEVICES, False),
                                              (mx.cpu(), True)])
def test_batches_may_be_smaller_than_those_bound(context, is_mean):
    """The full gradient is in the units of each batch, and the rate's scale that of the bound."""
    problem, sgd = Problem('softmax', rows=60), {'learning_rate': 0.2}
    svrg = problem.svrg(20, **sgd)
    if is_mean:
        problem.symbol = mx.sym.SoftmaxOutput(problem.symbol.get_internals()['fc_output'],
                                              mx.sym.Variable('label'), normalization='batch')
        sgd['rescale_grad'] = 1.
    module = problem.module(2, context=context)
    for batch_size, begin, end in ((20, 0, 2), (4, 2, 6)):
        svrg.optimizer.rescale = 1 / (batch_size if is_mean else 20)
        _, steps = assert_svrg(problem, module, end, 2, svrg, sgd, begin_epoch=begin,
                               train_data=problem.iterator(batch_size))
        assert all(len(rows) == 60 // batch_size for rows in steps.values())
    problem.assert_full_gradient(module, {name: value / (20 if is_mean else 1)
                                          for name, value in svrg.full_gradient.items()})

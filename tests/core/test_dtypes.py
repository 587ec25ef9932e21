"""Trainings in float16 and float64."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from held_batches import rows_of
from problems import Problem
from svrg_optimization import SVRGModule
from svrg_optimization.proximal import (
    L1,
    GroupLasso,
)
from svrg_optimization.svrg_optimizer import _SVRGOptimizer

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@pytest.mark.parametrize('context, multi_precision', [(mx.cpu(), True), (TWO_DEVICES, False)])
@pytest.mark.filterwarnings('ignore:Accumulating with float16')
def test_a_full_gradient_of_float16_is_summed_in_float32(multi_precision, context):
    rng = np.random.RandomState(0)
    # In float16 the sum would stop growing at 2048, or lose the small terms.
    features = (1 + rng.rand(4096, 2)).astype(np.float16)
    weight = mx.sym.Variable('w', shape=(1, 2), dtype='float16')
    product = mx.sym.broadcast_mul(mx.sym.Variable('data'), weight)
    symbol = mx.sym.MakeLoss(mx.sym.square(mx.sym.sum(product, axis=1)) * 0.5)
    train_data = mx.io.NDArrayIter(mx.nd.array(features, dtype='float16'), batch_size=8)
    module = SVRGModule(symbol, label_names=None, update_freq=1, context=context)
    module.bind(train_data.provide_data)
    start = np.array([[0.25, -0.125]], np.float16)
    module.init_params(arg_params={'w': mx.nd.array(start, dtype='float16')})
    module.init_optimizer(optimizer_params={'learning_rate': 0.01, 'momentum': 0.5,
                                            'multi_precision': multi_precision})
    module.update_full_grads(train_data)
    exact = features.astype(float)
    full = 8 * (exact @ start.T.astype(float)).T @ exact / 4096
    actual = sum(share['w'].asnumpy() for share in module._param_dict)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, full, rtol=1e-3)
    assert module._mod_aux._exec_group.grad_arrays[0][0].dtype == np.float16
    train_data.reset()
    module.forward_backward(next(train_data))
    module.update()
    # At the snapshot the SVRG gradient is the full gradient.
    np.testing.assert_allclose(module.get_params()[0]['w'].asnumpy(), start - 0.01 / 8 * actual,
                               rtol=2e-3)


# Rates and factors are exact in float32: MXNet's operators take no others.
@pytest.mark.parametrize('arguments, sgd, alpha, proximal', [
    ({}, {}, 1, {}), ({'context': TWO_DEVICES}, {'momentum': 0.5}, 1, {}),
    ({'alpha': 0.3}, {'momentum': 0.5, 'wd': 2 ** -7}, 0.3, {}),
    ({'proximal': L1(0.125)}, {}, 1, {'fc_weight': oracle.soft_threshold(0.125)})])
def test_a_training_in_float64_is_exact_to_float64(arguments, sgd, alpha, proximal):
    problem, sgd = Problem('softmax', features=8), {'learning_rate': 0.5, **sgd}
    module = problem.module(2, **arguments)
    module.fit(in_float64(problem), eval_metric=[], num_epoch=5, optimizer_params=sgd,
               arg_params=weights_in_float64(problem))
    svrg = problem.svrg(8, proximal=proximal, **sgd)
    svrg.alpha = lambda _: alpha
    svrg.fit(5, 2)
    assert module.get_params()[0]['fc_weight'].dtype == np.float64
    assert module._param_dict[0]['fc_weight'].dtype == np.float64
    problem.assert_weights(module, svrg.weights, 1e-12)


def in_float64(problem):
    data, labels = (mx.nd.array(rows, dtype='float64')
                    for rows in (problem.features, problem.targets))
    return mx.io.NDArrayIter(data, labels, 8, label_name='label')


def weights_in_float64(problem):
    return {name: mx.nd.array(value, dtype='float64') for name, value in problem.weights.items()}


@pytest.mark.parametrize('multi_precision', [False, True])
@pytest.mark.parametrize('as_list', [False, True])
@pytest.mark.filterwarnings('ignore:Accumulating with float16')
def test_proximal_steps_in_float16_add_up_with_multi_precision(multi_precision, as_list):
    """With multi_precision steps that float16 would lose add up, and the two copies agree."""
    problem = Problem(rows=40)
    module = problem.bound(proximal=GroupLasso(2 ** -13, axis=0))
    steps = module._proximal.steps({'fc_weight': (1, 4)}, {0: 'fc_weight'})
    optimizer = _SVRGOptimizer('sgd', learning_rate=0.5, multi_precision=multi_precision,
                               proximal=steps)
    weight = mx.nd.full((1, 4), 0.5, dtype='float16')
    weight[:] = mx.nd.array([[0.5, -0.5, 0.5, 0.5]])
    state = optimizer.create_state_multi_precision(0, weight)
    gradient = mx.nd.zeros((1, 4), dtype='float16')
    for _ in range(8):
        optimizer.update_multi_precision(*(([given] if as_list else given)
                                           for given in (0, weight, gradient, state)))
    if multi_precision:
        expected = (1 - 8 * 2 ** -14) * np.array([[0.5, -0.5, 0.5, 0.5]])
        np.testing.assert_allclose(state[1].asnumpy(), expected, rtol=1e-6)
        assert (weight.asnumpy() == state[1].asnumpy().astype(np.float16)).all()
        assert weight.asnumpy()[0, 0] < 0.5
    assert weight.dtype == np.float16


def test_a_training_on_stored_batches_in_float64_is_exact_to_float64(runs):
    problem = Problem('softmax', rows=136)
    module = problem.module(2, store_snapshot_grads=True)
    steps = []
    module.fit(in_float64(problem), eval_metric=[], num_epoch=3,
               optimizer_params={'learning_rate': 0.125}, arg_params=weights_in_float64(problem),
               batch_end_callback=lambda param: steps.append(
                   (param.epoch, rows_of(problem, param.locals['data_batch']))))
    svrg = problem.svrg(8, learning_rate=0.125)
    for number, (epoch, rows) in enumerate(steps):
        if number % 17 == 0 and epoch % 2 == 0:
            svrg.take_snapshot()
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights, 1e-12)
    assert not runs

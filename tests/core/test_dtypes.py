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


@pytest.mark.parametrize('context', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
@pytest.mark.parametrize('multi_precision', [True, False])
@pytest.mark.filterwarnings('ignore:Accumulating with float16')
def test_float16(multi_precision, context):
    """The full gradient of a float16 parameter is summed and kept in float32."""
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


@pytest.mark.parametrize('context', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
def test_float64(context):
    """With float64 data and parameters the result is float64's."""
    problem = Problem('softmax')
    train_data = mx.io.NDArrayIter(mx.nd.array(problem.features, dtype='float64'),
                                   mx.nd.array(problem.targets, dtype='float64'), 8,
                                   label_name='label')
    module = problem.module(2, context=context)
    # A rate that is exact in float32: MXNet's operators take no other.
    module.fit(train_data, eval_metric=[], num_epoch=5, optimizer_params={'learning_rate': 0.125},
               arg_params={name: mx.nd.array(value, dtype='float64')
                           for name, value in problem.weights.items()})
    problem.assert_weights(module, problem.svrg(8, learning_rate=0.125).fit(5, 2), 1e-12)


SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}


def oracle_of(problem, alpha):
    svrg = problem.svrg(**SETTINGS)
    svrg.alpha = alpha if callable(alpha) else lambda _: float(alpha)
    return svrg


def test_float64_alpha():
    problem = Problem('softmax', rows=40)
    module = problem.module(1, alpha=0.3)
    module.bind([mx.io.DataDesc('data', (10, 4), 'float64')],
                [mx.io.DataDesc('label', (10,), 'float64')])
    module.init_params(arg_params={name: mx.nd.array(value, dtype='float64')
                                   for name, value in problem.weights.items()})
    module.init_optimizer(optimizer_params=SETTINGS)
    train_data = mx.io.NDArrayIter(mx.nd.array(problem.features, dtype='float64'),
                                   mx.nd.array(problem.targets, dtype='float64'), 10,
                                   label_name='label')
    module.fit(train_data, num_epoch=3, eval_metric='acc')
    assert module._param_dict[0]['fc_weight'].dtype == np.float64
    problem.assert_weights(module, oracle_of(problem, 0.3).fit(3, 1), 1e-6)


@pytest.mark.parametrize('multi_precision', [False, True])
@pytest.mark.parametrize('as_list', [False, True])
@pytest.mark.filterwarnings('ignore:Accumulating with float16')
def test_float16_proximal(multi_precision, as_list):
    """With multi_precision steps that float16 would lose add up, and the two copies agree."""
    problem = Problem(rows=40)
    module = problem.bound(proximal=GroupLasso(2 ** -13, axis=0))
    steps = module._proximal.steps(module._arg_params, {0: 'fc_weight'})
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


def test_float64_proximal():
    problem = Problem('softmax', rows=40, features=8)
    data = mx.sym.Variable('data', dtype='float64')
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3, name='fc'),
                                  mx.sym.Variable('label', dtype='float64'))
    module = SVRGModule(symbol, label_names=('label',), update_freq=2, proximal=L1(0.125))
    iterator = mx.io.NDArrayIter(mx.nd.array(problem.features, dtype='float64'),
                                 mx.nd.array(problem.targets, dtype='float64'), 10,
                                 label_name='label')
    module.fit(iterator, eval_metric=[], num_epoch=5, optimizer_params={'learning_rate': 0.5},
               arg_params={name: mx.nd.array(value, dtype='float64')
                           for name, value in problem.weights.items()})
    twin = problem.svrg(learning_rate=0.5, proximal={'fc_weight': oracle.soft_threshold(0.125)})
    twin.fit(5, 2)
    weight = module.get_params()[0]['fc_weight']
    assert weight.dtype == np.float64
    problem.assert_weights(module, twin.weights, 1e-7)


def test_float64_stored(runs):
    problem = Problem('softmax', rows=136)
    module = problem.module(2, store_snapshot_grads=True)
    steps = []
    module.fit(mx.io.NDArrayIter(mx.nd.array(problem.features, dtype='float64'),
                                 mx.nd.array(problem.targets, dtype='float64'), 8,
                                 label_name='label'),
               eval_metric=[], num_epoch=3, optimizer_params={'learning_rate': 0.125},
               arg_params={name: mx.nd.array(value, dtype='float64')
                           for name, value in problem.weights.items()},
               batch_end_callback=lambda param: steps.append(
                   (param.epoch, rows_of(problem, param.locals['data_batch']))))
    svrg = problem.svrg(8, learning_rate=0.125)
    for number, (epoch, rows) in enumerate(steps):
        if number % 17 == 0 and epoch % 2 == 0:
            svrg.take_snapshot()
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights, 1e-12)
    assert not runs

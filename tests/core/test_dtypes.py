"""Trainings in float16 and float64."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from held_batches import assert_svrg
from problems import TWO_DEVICES, Problem
from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1


@pytest.mark.parametrize('context, multi_precision', [(mx.cpu(), True), (TWO_DEVICES, False)])
@pytest.mark.filterwarnings('ignore:Accumulating with float16')
def test_a_full_gradient_of_float16_is_summed_in_float32(multi_precision, context):
    # In float16 the sum would stop growing at 2048, or lose the small terms.
    features = (1 + np.random.RandomState(0).rand(4096, 2)).astype(np.float16)
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
    train_data.reset()
    module.forward_backward(next(train_data))
    module.update()
    # At the snapshot the SVRG gradient is the full gradient.
    np.testing.assert_allclose(module.get_params()[0]['w'].asnumpy(), start - 0.01 / 8 * actual,
                               rtol=2e-3)


# Rates and factors are exact in float32: MXNet's operators take no others.
@pytest.mark.parametrize('rows, settings, sgd, twin', [
    (40, {}, {}, {}), (40, {'context': TWO_DEVICES}, {'momentum': 0.5}, {}),
    (40, {'alpha': 0.3}, {'momentum': 0.5, 'wd': 2 ** -7}, {'alpha': 0.3}),
    (40, {'proximal': L1(0.125)}, {},
     {'proximal': {'fc_weight': oracle.soft_threshold(0.125)}})])
def test_a_training_in_float64_is_exact_to_float64(rows, settings, sgd, twin):
    problem, sgd = Problem('softmax', rows, 8, dtype='float64'), {'learning_rate': 0.5, **sgd}
    module = problem.module(2, **settings)
    assert_svrg(problem, module, 5, 2, problem.svrg(8, **sgd, **twin), sgd,
                train_data=problem.iterator(8))
    assert module.get_params()[0]['fc_weight'].dtype == np.float64
    assert module._param_dict[0]['fc_weight'].dtype == np.float64

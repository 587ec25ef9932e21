"""Trainings in float16."""

import mxnet as mx
import numpy as np
import pytest

from problems import TWO_DEVICES
from svrg_optimization import SVRGModule


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

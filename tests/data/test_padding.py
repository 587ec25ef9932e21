"""The padding of a batch is no part of the full gradient."""

import warnings

import mxnet as mx
import numpy as np
import pytest

import oracle
from bad_input import Data
from full_gradients import assert_pass, persistent
from problems import TWO_DEVICES, Problem
from svrg_optimization import SVRGModule


def reshaped(shape):
    return lambda data: mx.sym.reshape(data, shape=shape)


@pytest.mark.parametrize('kind, rows, layer, devices, batch_size', [
    ('linear', 37, reshaped((10, 4)), 1, 10), ('linear', 38, reshaped((10, -1)), 1, 10),
    ('linear', 37, persistent, 1, 10),  # an auxiliary state has the rows of a batch
    *(('softmax', rows, None, 4, 8) for rows in (33, 34, 35))])  # fewer rows than devices
def test_a_batch_that_cannot_be_cut_is_weighted_and_warned_of_once(kind, rows, layer, devices,
                                                                   batch_size):
    problem = Problem(kind, rows=rows)
    if layer:
        output = mx.sym.FullyConnected(layer(mx.sym.Variable('data')), num_hidden=1, name='fc')
        problem.symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label'))
    module = problem.bound(batch_size, context=[mx.cpu(i) for i in range(devices)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('ignore')
        warnings.filterwarnings('always', '.*weighted by its real rows')
        module.update_full_grads(problem.iterator(batch_size))
        module.update_full_grads(problem.iterator(batch_size))
    assert len(caught) == 1
    assert layer is None or 'cannot be bound for the real rows' in str(caught[0].message)
    svrg = problem.svrg(batch_size)
    svrg.take_snapshot()
    svrg.full_gradient = dict.fromkeys(problem.weights, 0.)
    for numbers in oracle.batches_of(rows, batch_size):
        for name, value in svrg.gradients(svrg.weights, numbers).items():
            svrg.full_gradient[name] = svrg.full_gradient[name] + (
                min(batch_size, rows - numbers[0]) / rows * value)
    problem.assert_full_gradient(module, svrg.full_gradient)
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    problem.train_epoch(module, svrg, batch_size)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_an_input_without_rows_has_no_padding(context):
    """It is the same in each batch."""
    problem, scale = Problem(rows=37), np.array([[1.0, -2.0, 0.5, 3.0]])
    scaled = mx.sym.broadcast_mul(mx.sym.Variable('data'), mx.sym.Variable('scale'))
    output = mx.sym.FullyConnected(scaled, num_hidden=1, name='fc')

    module = SVRGModule(mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')),
                        ('data', 'scale'), ('label',), update_freq=1, context=context)
    module.bind([('data', (10, 4)), mx.io.DataDesc('scale', (1, 4), layout='')],
                [('label', (10,))])
    module.init_params(arg_params=problem.arg_params())
    batches = list(problem.iterator())
    for batch in batches:
        batch.data.append(mx.nd.array(scale))
    problem.features = problem.features * scale
    assert_pass(problem, module, Data(*batches))


def test_a_device_without_a_share_of_the_last_rows_gets_none():
    """Of two rows the device with a tenth of the work would get none; steps have the padding."""
    problem = Problem(rows=32)
    module = problem.bound(context=TWO_DEVICES, work_load_list=[1, 9])
    module.init_optimizer(kvstore='local', optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg()
    for _ in range(2):
        module.update_full_grads(problem.iterator())
        svrg.take_snapshot()
        problem.assert_full_gradient(module, svrg.full_gradient)
        problem.train_epoch(module, svrg)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('pad', [-1, 11])
def test_a_pad_that_is_no_number_of_rows_is_refused(pad):
    problem = Problem(rows=400)
    for owner in type('Own', (mx.io.NDArrayIter,), {}), problem.iterator():
        owner.getpad = lambda *_: pad
        train_data = owner if isinstance(owner, mx.io.NDArrayIter) else problem.iterator(cls=owner)
        with pytest.raises(ValueError, match='train_data .* pad is an int from 0 .* not %r' % pad):
            problem.bound().update_full_grads(train_data)


def test_a_batch_of_padding_alone_does_not_count():
    problem = Problem(rows=40)
    batches = list(problem.iterator())
    batches.insert(2, problem.batch(10, pad=10))
    module = problem.bound()
    assert_pass(problem, module, Data(*batches))
    assert module._snapshot.full_gradient.batches == 4

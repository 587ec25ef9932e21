"""The inputs of a symbol's layers, whose moments make the metric of 'newton_cg'."""

import mxnet as mx
import numpy as np
import pytest

from dense_metric import assert_moments
from problems import TWO_DEVICES
from svrg_optimization import SVRGModule

A, B, LABEL = map(mx.sym.Variable, ('a', 'b', 'label'))
RNG = np.random.RandomState(0)
OF_A, OF_B, TARGETS = RNG.normal(3, 2, (40, 3)), RNG.normal(-1, 5, (40, 2)), RNG.normal(1, 1, 40)
BOTH, ROWS = mx.sym.concat(A, B, dim=1), np.column_stack([OF_A, OF_B])


def dense(inputs, **weight):
    return mx.sym.FullyConnected(inputs, num_hidden=1, name='fc', **weight)


def blocks_of(scores, batch=7, context=mx.cpu(), data_names=('a', 'b'), of_a=OF_A, labels=None):
    symbol = scores if labels else mx.sym.LinearRegressionOutput(scores, LABEL)
    names = [name for name in data_names if name in symbol.list_arguments()]
    train_data = mx.io.NDArrayIter({name: {'a': of_a, 'b': OF_B}[name] for name in names},
                                   labels or {'label': TARGETS}, batch)
    module = SVRGModule(symbol, data_names=names, label_names=list(labels or ['label']),
                        context=context)
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params()
    module.init_optimizer(optimizer='newton_cg')
    module.update_full_grads(train_data)
    return module._svrg.training.learned.metric.blocks


@pytest.mark.parametrize('scores, rows', [
    (dense(A), OF_A),
    (dense(BOTH), ROWS),
    (dense((A - 1) / 255), (OF_A - 1) / 255),
    (dense(mx.sym.log(mx.sym.abs(A))), np.log(abs(OF_A))),
    (dense(mx.sym.BlockGrad(A)), OF_A),
    (dense(mx.sym.slice_axis(BOTH, axis=1, begin=1, end=4)), ROWS[:, 1:4]),
    (dense(mx.sym.split(BOTH, num_outputs=5)[3]), ROWS[:, 3:4]),
    (dense(mx.sym.transpose(mx.sym.reshape(A, (0, 3, 1)), (0, 2, 1))), OF_A),
    (dense(mx.sym.broadcast_mul(A, mx.sym.reshape(LABEL, (-1, 1)))), OF_A * TARGETS[:, None]),
    (mx.sym.dot(mx.sym.Cast(BOTH, 'float32'), mx.sym.Variable('w_weight', shape=(1, 5)),
                transpose_b=True), ROWS),
], ids=['data', 'concat', 'constants', 'functions', 'BlockGrad', 'slice', 'split', 'transpose',
        'label', 'dot'])
def test_the_moments_are_those_of_the_inputs(scores, rows):
    block, = blocks_of(scores)
    assert_moments(block, rows)


@pytest.mark.parametrize('data_names', [('a', 'b'), ('b', 'a')])
@pytest.mark.parametrize('batch, context', [(10, mx.cpu()), (7, mx.cpu()), (10, TWO_DEVICES)])
@pytest.mark.parametrize('inputs_of_b', [B, B * 2 / 2])
def test_inputs_go_by_name(data_names, batch, context, inputs_of_b):
    """NDArrayIter sorts the names of a dict."""
    for block in blocks_of(dense(A) + mx.sym.FullyConnected(inputs_of_b, num_hidden=1), batch,
                           context, data_names):
        assert_moments(block, OF_A if block.names[0] == 'fc_weight' else OF_B)


WEIGHTS = np.arange(40.) % 3


@pytest.mark.parametrize('loss', [
    lambda losses, weights: mx.sym.MakeLoss(weights * losses),
    lambda losses, weights: mx.sym.MakeLoss(-mx.sym.sum(mx.sym.broadcast_mul(-losses, weights))),
    lambda losses, weights: mx.sym.Group([mx.sym.BlockGrad(losses), mx.sym.make_loss(
        (losses * mx.sym.sqrt(weights)) * mx.sym.sqrt(weights) / 2)])])
def test_rows_count_as_in_the_loss(loss):
    """Those of weight 0 have corrupt values."""
    losses = mx.sym.square(mx.sym.reshape(dense(A), (-1,)) - LABEL)
    block, = blocks_of(loss(losses, mx.sym.Variable('weights')), of_a=np.where(
        WEIGHTS[:, None] > 0, OF_A, 1e9), labels={'label': TARGETS, 'weights': WEIGHTS})
    assert_moments(block, np.repeat(OF_A, WEIGHTS.astype(int), axis=0))


def test_a_label_that_multiplies_a_part_of_the_loss_is_no_weight():
    outputs = mx.sym.reshape(dense(A), (-1,))
    block, = blocks_of(mx.sym.MakeLoss(mx.sym.exp(outputs) - LABEL * outputs), labels={
        'label': WEIGHTS})
    assert_moments(block, OF_A)


WEIGHT = mx.sym.Variable('fc_weight')


@pytest.mark.parametrize('scores', [
    dense(mx.sym.Embedding(mx.sym.abs(A), input_dim=20, output_dim=2)),
    dense(mx.sym.broadcast_add(A, mx.sym.Variable('shift_weight', shape=(1, 3)))),
    dense(mx.sym.BatchNorm(A)),
    dense(mx.sym.Dropout(A)),
    dense(mx.sym.broadcast_add(A * 0, mx.sym.random_normal(shape=(1, 3)))),
    dense(A, weight=WEIGHT) + mx.sym.FullyConnected(mx.sym.broadcast_add(A, mx.sym.Variable(
        'shift_weight', shape=(1, 3))), WEIGHT, num_hidden=1),
], ids=['Embedding', 'parameter', 'BatchNorm', 'Dropout', 'random', 'shared weight'])
def test_what_has_a_parameter_before_it_is_no_input(scores):
    with pytest.raises(ValueError, match="Choose 'sgd' with a learning_rate"):
        blocks_of(scores)

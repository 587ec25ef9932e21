"""The inputs of layers that an objective applies, whose moments make the metric."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd, util

from blocks import Blocks, as_blocks_take, weights_of
from dense_metric import assert_moments
from svrg_optimization import SVRGTrainer

RNG = np.random.RandomState(0)
OF_A, OF_B, TARGETS = RNG.normal(3, 2, (40, 3)), RNG.normal(-1, 5, (40, 2)), RNG.normal(1, 1, 40)
ROWS = np.column_stack([OF_A, OF_B])
CENTRE = np.array([[3., 2., 1.]])


def blocks_of(inputs_of, layer=None):
    layer, loss = layer or gluon.nn.Dense(1), gluon.loss.L2Loss()
    layer.initialize()
    arrays = [as_blocks_take(values) for values in (OF_A, OF_B, TARGETS)]
    data = [[array[begin:begin + 7] for array in arrays] for begin in range(0, 40, 7)]
    with autograd.pause():
        layer(inputs_of(*data[0][:2]))  # the shapes
    trainer = SVRGTrainer(layer.collect_params(), 'newton_cg', objective=lambda a, b, label: loss(
        layer(inputs_of(a, b)), label))
    trainer.update_full_grads(data)
    return trainer._svrg.training.learned.metric.blocks


def concat(a, b):
    return mx.np.concatenate([a, b], axis=1) if util.is_np_array() else nd.concat(a, b, dim=1)


class Within(gluon.nn.HybridBlock):
    """A Dense block in another one, after some arithmetic."""

    def __init__(self):
        super().__init__()
        self.dense = gluon.nn.Dense(1)

    def hybrid_forward(self, F, x):  # noqa: N803
        return self.dense(F.npx.reshape(x, (-2, -1)) / 255 if util.is_np_array() else
                          F.reshape(x, (0, -1)) / 255)


class Product(gluon.Block):
    """Operators on parameters."""

    def __init__(self, transposed=False):
        super().__init__()
        self.transposed = transposed
        self.weight = self.params.get('weight', shape=(1, 5) if transposed else (5, 1))
        self.bias = self.params.get('bias', shape=(1,), init='zeros')

    def forward(self, x):
        dot = mx.np.dot if util.is_np_array() else nd.dot
        scores = (nd.dot(x, self.weight.data(), transpose_b=True) if self.transposed
                  else dot(x, self.weight.data()))
        return scores + self.bias.data() if util.is_np_array() else (
            nd.broadcast_add(scores, self.bias.data()))


@pytest.mark.parametrize('inputs_of, rows', [
    (lambda a, b: a, OF_A),
    (concat, ROWS),
    (lambda a, b: (a - as_blocks_take(CENTRE)) / 255, (OF_A - CENTRE) / 255),
    (lambda a, b: nd.BlockGrad(a.as_nd_ndarray()).as_np_ndarray() if util.is_np_array()
     else nd.BlockGrad(a), OF_A),
    (lambda a, b: concat(a, b)[:, 1:4], ROWS[:, 1:4]),
    (lambda a, b: a.reshape((-1, 1, 3)), OF_A),
    (lambda a, b: concat(b, a).astype('float32'), np.column_stack([OF_B, OF_A])),
], ids=['data', 'concat', 'constants', 'BlockGrad', 'slice', 'reshape', 'order'])
def test_the_moments_are_those_of_the_inputs(inputs_of, rows):
    block, = blocks_of(inputs_of)
    assert_moments(block, rows)


@pytest.mark.parametrize('hybridized', [False, True])
def test_a_layer_within_a_block(hybridized):
    layer = Within()
    layer.hybridize(hybridized)
    block, = blocks_of(concat, layer)
    assert_moments(block, ROWS / 255)
    assert layer._active == hybridized


@pytest.mark.parametrize('layer', [Product(), pytest.param(
    Product(transposed=True), marks=pytest.mark.nd_arrays)])
def test_operators_on_parameters(layer):
    block, = blocks_of(concat, layer)
    assert_moments(block, ROWS)
    assert [name.rsplit('_')[-1] for name in block.names] == ['weight', 'bias']


@pytest.mark.parametrize('counts_all', [False, True])
def test_rows_count_as_in_the_loss(counts_all):
    """Of two losses of the same outputs it is not known."""
    weights, layer, loss = np.arange(40) % 3, gluon.nn.Dense(1, in_units=3), gluon.loss.L2Loss()
    layer.initialize()
    of_a = np.where(weights[:, None] + counts_all > 0, OF_A, 1e9)  # corrupt where it is 0
    arrays = [as_blocks_take(values) for values in (of_a, TARGETS, weights[:, None])]

    def objective(a, label, weight):
        outputs = layer(a)
        of_rows = loss(outputs, label, weight)
        return of_rows + loss(outputs, label) if counts_all else of_rows

    trainer = SVRGTrainer(layer.collect_params(), 'newton_cg', objective=objective)
    trainer.update_full_grads([[array[:15] for array in arrays], [array[15:] for array in arrays]])
    block, = trainer._svrg.training.learned.metric.blocks
    assert_moments(block, np.repeat(OF_A, 1 if counts_all else weights, axis=0))


def test_what_has_a_parameter_before_it_is_no_input():
    """Nor has a weight one that is applied to an input and to outputs of its own."""
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.BatchNorm(), gluon.nn.Dense(1))
    with pytest.raises(ValueError, match="it has BatchNorm; .* Choose 'sgd'"):
        blocks_of(concat, network)
    square, network = gluon.nn.Dense(3), gluon.nn.HybridSequential()
    network.add(square, square, gluon.nn.Dense(1))
    with pytest.raises(ValueError, match="for this one: it has hidden layers.* Choose 'sgd'"):
        blocks_of(lambda a, b: a, network)


class Detector(gluon.nn.HybridBlock):
    """A network that returns its outputs only while it is recorded, as YOLO3 of GluonCV."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def hybrid_forward(self, F, x):  # noqa: N803
        is_recorded = autograd.is_recording() and autograd.is_training()
        return self.body(x) if is_recorded else (F.zeros((1,)), self.body(x))


@pytest.mark.parametrize('hybridized', [False, True])
@pytest.mark.filterwarnings('ignore:tol cannot be checked')
def test_the_look_for_inputs_changes_neither_statistics_nor_random_numbers(hybridized):
    def pass_of(**given):
        problem, losses = Blocks('softmax'), []
        net = problem.net(extra=[gluon.nn.Dropout(0.5), gluon.nn.BatchNorm(in_channels=4)])
        detector, loss = Detector(net), problem.loss()
        detector.hybridize(hybridized)

        def objective(data, label):
            losses.append(loss(detector(data), label))
            return losses[-1]

        mx.random.seed(1)
        problem.trainer(net, settings={'learning_rate': 0.1}, objective=objective, **given
                        ).update_full_grads(problem.loader())
        return [loss.asnumpy() for loss in losses[:4]] + [
            value for name, value in weights_of(net).items() if 'running' in name]

    for found, expected in zip(pass_of(tol=1e-9), pass_of()):
        np.testing.assert_array_equal(found, expected)

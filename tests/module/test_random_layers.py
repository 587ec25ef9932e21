"""Dropout and the like: masks of a step, the random stream, and the rate."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import blocks
import stepping
from blocks import Blocks
from problems import TWO_DEVICES, Problem, prepared
from svrg_optimization import SVRGModule


def perceptron(first, second=lambda data: data):
    """Return a perceptron with a layer before, and one behind its hidden layer."""
    hidden = mx.sym.Activation(mx.sym.FullyConnected(
        first(mx.sym.Variable('data')), num_hidden=5, name='hidden'), act_type='tanh')
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(second(hidden), num_hidden=3, name='fc'),
                                mx.sym.Variable('label'), name='loss')


def dropout_problem(names):
    problem = Problem('perceptron')
    problem.symbol = perceptron(lambda data: mx.sym.Dropout(data, p=0.25, name=names[0]),
                                lambda data: mx.sym.Dropout(data, name=names[1]))
    return problem


class ForwardAlone(stepping.Training):
    def backward(self, batch):
        self.module.forward(batch, is_train=False)
        self.module.backward()


def of_symbol(first, contexts, cls=stepping.Training):
    problem = Problem('perceptron')
    problem.symbol = perceptron(first)
    return cls(problem, context=contexts)


def of_blocks(changed, contexts, hybridized=None, extra=()):
    """Train a network of blocks on changed data."""
    problem = Blocks('perceptron')
    net, loss = problem.net(contexts, hybridized, extra), problem.loss()
    return blocks.Training(problem, net=net, objective=lambda data, label: loss(
        net(changed(data)), label))


def with_numpy_noise(data):
    return data + mx.nd.array(np.random.normal(size=data.shape), data.context)


# What draws, for symbols and arrays; MXNet has a generator of its own for the last two.
DRAWN = [
    lambda lib, data: data + lib.broadcast_like(lib.random.normal(shape=(1, 4)), data),
    lambda lib, data: data + lib.BlockGrad(lib.shuffle(data)),
    lambda lib, data: lib.broadcast_add(data, lib.reshape(lib.cast(lib.random.multinomial(
        lib.softmax(lib.slice_axis(data, axis=0, begin=0, end=1)), shape=4)[0], 'float32'),
        shape=(1, 4)))]


@pytest.mark.filterwarnings('ignore:backward was called twice')  # a step would leave the snapshot
@pytest.mark.parametrize('contexts', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('make', [
    *(lambda contexts, cls=cls, names=names: cls(dropout_problem(names), context=contexts)
      for cls in (stepping.Training, ForwardAlone)
      for names in (('first', 'second'), ('drop', 'drop'))),  # as of a block that is called twice
    *(functools.partial(of_symbol, functools.partial(drawn, mx.sym)) for drawn in DRAWN),
    *(functools.partial(of_blocks, functools.partial(drawn, mx.nd)) for drawn in DRAWN),
    *(functools.partial(of_blocks, lambda data: data, hybridized=hybridized,
                        extra=[gluon.nn.Dropout(0.5)]) for hybridized in (None, {}))])
def test_gradients_at_the_snapshot_cancel(make, contexts):
    """At the snapshot the SVRG gradient is the full gradient, whatever is drawn."""
    training = make(contexts=contexts)
    training.snapshot()
    full = training.full_gradient()
    assert max(np.abs(value).max() for value in full.values()) > 0.01
    for batch, _ in training.batches():
        training.backward(batch)
        for name, value in training.gradients().items():
            np.testing.assert_allclose(value, full[name], atol=1e-5)


def test_a_pass_draws_masks():
    """The gradient of w x is x under a mask, which is 0 or twice as large."""
    rows = 2. ** np.arange(16).reshape(16, 1)
    product = mx.sym.FullyConnected(mx.sym.Dropout(mx.sym.Variable('data')), num_hidden=1,
                                    no_bias=True, name='fc')
    train_data = mx.io.NDArrayIter(rows, batch_size=4)
    module = prepared(SVRGModule(mx.sym.MakeLoss(product), label_names=None), train_data)
    module.update_full_grads(train_data)
    drawn = module._param_dict[0]['fc_weight'].asscalar() * 4  # the sum over all rows
    assert drawn % 2 == 0 and 0 < drawn < 2 * rows.sum()


class NumpyNoise(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], with_numpy_noise(in_data[0]))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register('numpy_noise')
class NumpyNoiseProp(mx.operator.CustomOpProp):
    def create_operator(self, *_):
        return NumpyNoise()


@pytest.mark.parametrize('make', [
    functools.partial(of_symbol, lambda data: mx.sym.Custom(data, op_type='numpy_noise')),
    functools.partial(of_blocks, with_numpy_noise)])
def test_draws_that_do_not_repeat_are_told_once(make):
    training = make(contexts=mx.cpu())
    with pytest.warns(UserWarning) as told:
        for _ in range(2):
            training.snapshot()
            training.epoch()
    assert ['random numbers' in str(each.message) for each in told] == [True]


def test_gradients_that_are_added_to_earlier_ones_are_not_taken_for_draws():
    problem = Problem('perceptron')
    module = problem.bound(grad_req='add', sgd={'learning_rate': 0.1})
    for _ in range(2):  # warnings are errors
        module.forward_backward(problem.batch(10))
        module.update_full_grads(problem.iterator())


def rnn(data, dropout):
    output = mx.sym.RNN(mx.sym.expand_dims(data, 0), mx.sym.Variable('p_weight'),
                        mx.sym.Variable('s'), mode='rnn_tanh', state_size=4, num_layers=2,
                        p=dropout, name='noise')
    return mx.sym.reshape(output, shape=(10, 4))


@pytest.mark.parametrize('layer, is_random', [
    (lambda data: data + mx.sym.random.normal(shape=(10, 4), name='noise'), True),
    (lambda data: mx.sym.LeakyReLU(data, act_type='rrelu', name='noise')[0], True),
    (lambda data: data + mx.sym.BlockGrad(mx.sym.shuffle(data, name='noise')), True),
    (lambda data: rnn(data, 0.5), True),
    (lambda data: mx.sym.LeakyReLU(data, act_type='leaky'), False), (mx.sym.gamma, False),
    (lambda data: rnn(data, 0), False), (lambda data: mx.sym.Dropout(data, name='noise'), True)])
def test_layers_that_draw_are_found_in_a_symbol(layer, is_random):
    """They are not run: MXNet crashes where it runs the layer rrelu."""
    symbol = perceptron(layer)
    module = SVRGModule(symbol, label_names=('label',), state_names=[
        name for name in symbol.list_arguments() if name == 's'])
    assert module._svrg.reference.noise_sources() == ['noise'] * is_random


def test_a_gamma_that_batch_norm_sets_to_1_is_no_part_of_the_objective():
    """Its gradient is 0, and weight decay would give the norm a floor of wd."""
    problem, wd = Problem(rows=40), 0.5
    frozen = mx.sym.BatchNorm(mx.sym.Variable('data'), use_global_stats=True, name='norm')
    problem.symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(frozen, num_hidden=1, name='fc'), mx.sym.Variable('label'))
    problem.weights = {'fc_weight': np.full((1, 4), 0.1), 'fc_bias': np.zeros(1),
                       'norm_beta': np.zeros(4), 'norm_gamma': np.full(4, 3.)}
    module = problem.bound(sgd={'wd': wd})
    module.update_full_grads(problem.iterator())
    inputs = problem.features / np.sqrt(1 + 1e-3)  # of a BatchNorm with its first statistics
    residuals = inputs.sum(axis=1) / 10 - problem.targets
    gradient = residuals.dot(inputs) / 40 + wd / 10
    assert module.gradient_norm == pytest.approx(np.abs([*gradient, residuals.mean()]).max(), 1e-5)
    assert module.full_objective == pytest.approx(
        (residuals @ residuals / 40 + wd * 4 / 100) / 2, rel=1e-5)

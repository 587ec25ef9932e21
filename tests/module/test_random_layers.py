"""Dropout and the like: masks of a step, the random stream, and the rate."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import blocks
import oracle
import stepping
from blocks import Blocks
from problems import TWO_DEVICES, Problem
from sequences import Sequences
from svrg_optimization import SVRGModule
from svrg_optimization.module.executor_group import gradients


def perceptron(first, second=lambda data: data):
    """Return a perceptron with a layer before, and one behind its hidden layer."""
    hidden = mx.sym.Activation(mx.sym.FullyConnected(
        first(mx.sym.Variable('data')), num_hidden=5, name='hidden'), act_type='tanh')
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(second(hidden), num_hidden=3, name='fc'),
                                mx.sym.Variable('label'), name='loss')


def dropout_problem(rows=40, names=('first', 'second'), **dropout):
    problem = Problem('perceptron', rows=rows)
    problem.symbol = perceptron(lambda data: mx.sym.Dropout(data, p=0.25, name=names[0]),
                                lambda data: mx.sym.Dropout(data, name=names[1], **dropout))
    return problem


def run(module, problem):
    """Train by hand; return all that can be seen of each step, and what the stream holds then."""
    seen = []
    mx.random.seed(11)
    for batch in [*problem.iterator(), *problem.iterator()]:
        module.forward(batch)
        seen.append(module.get_outputs()[0].asnumpy())
        module.backward()
        seen += [array.asnumpy() for array in sum(module._exec_group.grad_arrays, [])]
        module.update()
        seen.append(module.get_outputs()[0].asnumpy())
    seen.append(module.predict(problem.iterator()).asnumpy())
    return seen, mx.nd.random.uniform(shape=(4,)).asnumpy()


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('dropout', [{}, {'axes': (0,)}, {'mode': 'always'}])
def test_the_random_stream_without_a_snapshot_is_modules(context, dropout):
    problem, results = dropout_problem(**dropout), []
    plain = mx.mod.Module(problem.symbol, label_names=('label',), context=context)
    for module in (problem.module(alpha=0, context=context), plain):
        module.bind(problem.iterator().provide_data, problem.iterator().provide_label)
        module.init_params(arg_params=problem.arg_params())
        module.init_optimizer(optimizer_params={'learning_rate': 0.1})
        results.append(run(module, problem))
    (ours, our_stream), (theirs, their_stream) = results
    np.testing.assert_array_equal(our_stream, their_stream)
    for one, other in zip(ours, theirs):
        np.testing.assert_array_equal(one, other)


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
    return blocks.Training(problem, net=net, loss_fn=lambda data, label: loss(
        net(changed(data)), label))


def with_numpy_noise(data):
    return data + mx.nd.array(np.random.normal(size=data.shape), data.context)


def unchanged(data):
    return data


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
    *(lambda contexts, cls=cls, names=names: cls(dropout_problem(names=names), context=contexts)
      for cls in (stepping.Training, ForwardAlone)
      for names in (('first', 'second'), ('drop', 'drop'))),  # as of a block that is called twice
    *(functools.partial(of_symbol, functools.partial(drawn, mx.sym)) for drawn in DRAWN),
    *(functools.partial(of_blocks, functools.partial(drawn, mx.nd)) for drawn in DRAWN),
    *(functools.partial(of_blocks, unchanged, hybridized=hybridized,
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
            for batch, rows in training.batches():
                training.backward(batch)
                training.step(rows)
    assert ['random numbers' in str(each.message) for each in told] == [True]


def test_gradients_that_are_added_to_earlier_ones_are_not_taken_for_draws():
    problem = Problem('perceptron')
    module = problem.bound(grad_req='add', sgd={'learning_rate': 0.1})
    for _ in range(2):  # warnings are errors
        module.forward_backward(problem.batch(10))
        module.update_full_grads(problem.iterator())


def test_training_is_svrg_under_the_masks_that_were_drawn():
    """Float64 SVRG under the masks of each step and of the pass."""
    masks_of = []

    def masked(data, **dropout):
        """Return Dropout, as bits too, of which the mask is an output."""
        masks_of.append(mx.sym.BlockGrad(mx.sym.Dropout(mx.sym.ones_like(data), **dropout)))
        return data * masks_of[-1]

    problem = dropout_problem(rows=37)
    loss = perceptron(functools.partial(masked, p=0.25), masked)
    problem.symbol = mx.sym.Group([loss, *masks_of])
    module = problem.bound(sgd={'learning_rate': 0.1, 'momentum': 0.5})
    svrg = problem.svrg(momentum=0.5)
    pass_masks = []

    def masks_in(module):
        return [mask.asnumpy().astype(float) for mask in module.get_outputs()[1:3]]

    class Watched(mx.io.NDArrayIter):
        def next(self):
            if self.cursor >= 0:  # the batch before has been computed
                pass_masks.append(masks_in(module._svrg.reference.executors._others[-1] if (
                    self.cursor == 30) else module._mod_aux))
            return super().next()

    for epoch in range(3):
        if epoch != 1:
            del pass_masks[:]
            module.update_full_grads(Watched(problem.features, problem.targets, 10,
                                             label_name='label'))
            snapshot = dict(svrg.weights)
            total = dict.fromkeys(snapshot, 0.0)
            for i, masks in enumerate(pass_masks):
                rows = np.arange(10 * i, min(10 * i + 10, 37))
                assert len(masks[0]) == len(rows) and set(np.unique(masks[1])) == {0, 2}
                gradients = oracle.perceptron(snapshot, problem.features[rows],
                                              problem.targets[rows], masks)
                total = {name: total[name] + gradients[name] for name in total}
            full = {name: value * 10 / 37 for name, value in total.items()}
            problem.assert_full_gradient(module, full)
        for batch in problem.iterator():
            module.forward_backward(batch)
            masks = masks_in(module)
            module.update()
            data = batch.data[0].asnumpy().astype(float), batch.label[0].asnumpy()
            now = oracle.perceptron(svrg.weights, *data, masks)
            then = oracle.perceptron(snapshot, *data, masks)
            svrg.optimizer.step(svrg.weights, {name: now[name] - then[name] + full[name]
                                               for name in now})
    problem.assert_weights(module, svrg.weights)


def test_gradients_at_the_snapshot_cancel_in_each_bucket():
    class Dropped(Sequences):
        def sym_gen(self, length):
            dropped = mx.sym.Dropout(mx.sym.Variable('data'), p=0.5)
            pooled = mx.sym.sum(dropped, axis=1, keepdims=True)
            output = mx.sym.FullyConnected(pooled, num_hidden=1, name='fc')
            return (mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')), ('data',),
                    ('label',))

    problem = Dropped()
    problem.weights['fc_weight'] = np.ones((1, 1))
    module = problem.fit(problem.module(1), 1)
    module.update_full_grads(problem.iterator())
    full = module._snapshot.full_gradient.totals()
    for batch in problem.iterator():
        module.forward_backward(batch)
        for name, (gradient,) in gradients(module._curr_module).items():
            np.testing.assert_allclose(gradient.asnumpy(), full[name].asnumpy(), atol=1e-5)


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


SCALE = 1 / np.sqrt(1 + 1e-3)  # of a BatchNorm with its first statistics


@pytest.mark.parametrize('optimizer, rate', [('sgd', {'learning_rate': 0.05})])
@pytest.mark.filterwarnings('ignore:training did not converge|tol cannot be checked')
def test_a_gamma_that_batch_norm_sets_to_1_is_no_part_of_the_objective(optimizer, rate):
    """Its gradient is 0, and weight decay gave the norm a floor of wd: no tol was reached."""
    rng, wd = np.random.RandomState(0), 0.01
    features = rng.normal(size=(200, 4))
    targets = features.dot([1, -0.5, 0.2, 3]) + rng.normal(size=200)
    frozen = mx.sym.BatchNorm(mx.sym.Variable('data'), use_global_stats=True, name='norm')
    module = SVRGModule(mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(frozen, num_hidden=1, name='fc'), mx.sym.Variable('label')),
        label_names=('label',), update_freq=1, tol=1e-7)
    module.fit(mx.io.NDArrayIter(features, targets, 10, label_name='label'), eval_metric=[],
               num_epoch=40, optimizer=optimizer, optimizer_params={'wd': wd, **rate})
    assert module.gradient_norm <= 1e-5
    params = {name: value.asnumpy().astype('float64') for name, value in
              module.get_params()[0].items()}
    inputs = SCALE * features + params['norm_beta']
    residuals = inputs.dot(params['fc_weight'][0]) + params['fc_bias'] - targets
    gradient = residuals.dot(inputs) / 200 + wd * params['fc_weight'][0]
    assert np.abs([*gradient, residuals.mean()]).max() < 2e-5
    weights = params['fc_weight'].ravel()
    assert module.objective == pytest.approx(
        (residuals @ residuals / 200 + wd * weights @ weights) / 2, rel=1e-5)

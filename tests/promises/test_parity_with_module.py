"""SVRGModule does what Module does: one body of tests for both.

A scenario is run with Module, with an SVRGModule that has no snapshot, and,
where its results do not depend on the steps taken, with one that has.
"""

import itertools

import mxnet as mx
import numpy as np
import pytest

from problems import TWO_DEVICES
from svrg_optimization import SVRGModule


def classifier(**kwargs):
    hidden = mx.sym.FullyConnected(mx.sym.Variable('data', **kwargs), num_hidden=4, name='hidden')
    scores = mx.sym.FullyConnected(mx.sym.Activation(hidden, act_type='tanh', name='tanh'),
                                   num_hidden=3, name='fc')
    return mx.sym.SoftmaxOutput(scores, name='softmax')


def classifier_data(rows=20, batch_size=5, **kwargs):
    rng = np.random.RandomState(1)
    return mx.io.NDArrayIter(rng.normal(size=(rows, 6)).astype('float32'),
                             rng.randint(3, size=rows).astype('float32'), batch_size, **kwargs)


def parameters(module):
    arg_params, aux_params = module.get_params()
    return {name: value.asnumpy() for name, value in [*arg_params.items(), *aux_params.items()]}


def bound(make, symbol=None, data=None, shapes=None, binds=(), **kwargs):
    """Return a module that is bound and initialized, alike for all that `make` makes."""
    module = make(classifier() if symbol is None else symbol, **kwargs)
    data = data or classifier_data()
    module.bind(*(shapes or (data.provide_data, data.provide_label)), **dict(binds))
    mx.random.seed(3)
    module.init_params(mx.init.Uniform(0.5))
    return module


def train(module, data=None, **kwargs):
    if not module.optimizer_initialized:
        module.init_optimizer(**kwargs)
    for batch in data or classifier_data():
        module.forward_backward(batch)
        module.update()
    return parameters(module)


SCENARIOS = []


def scenario(function):
    SCENARIOS.append(pytest.param(function, id=function.__name__))
    return function


@scenario
def training_with_each_way_to_update(make):
    two = {'context': TWO_DEVICES}
    nag = mx.optimizer.NAG(momentum=0.9, rescale_grad=0.2)
    fixed = {'grad_req': {'hidden_bias': 'null', 'fc_bias': 'null'}}
    for given, kwargs in (
            ({}, {}), (two, {}), (two, {'kvstore': 'device'}), ({}, {'kvstore': None}),
            ({}, {'kvstore': mx.kv.create('local')}), ({**two, 'work_load_list': [1, 4]}, {}),
            ({}, {'optimizer': 'adam'}), ({}, {'optimizer': nag}), ({'binds': fixed}, {}),
            ({'fixed_param_names': ['fc_bias']}, {})):
        yield train(bound(make, **given), **kwargs)


@scenario
def predictions_and_scores(make):
    module, data = bound(make), classifier_data(rows=18)
    yield module.predict(data)
    yield module.predict(data, num_batch=2)
    yield module.predict(data, merge_batches=False)
    yield [outputs[0] for outputs, _, _ in module.iter_predict(data)]
    yield module.score(data, 'acc')
    yield module.score(data, mx.metric.create(['acc', 'ce']), num_batch=3)
    yield module.get_outputs(), module.get_outputs(merge_multi_context=False)


@scenario
def inference_only(make):
    module, data = bound(make, binds={'for_training': False}), classifier_data()
    yield module.predict(data)
    with pytest.raises(AssertionError):
        module.backward()
    module.init_optimizer()
    module.bind(data.provide_data, data.provide_label, force_rebind=True)
    yield train(module)


@scenario
def gradients_of_the_inputs(make):
    for context in (mx.cpu(), TWO_DEVICES):
        module = bound(make, context=context, binds={'inputs_need_grad': True})
        module.forward_backward(next(classifier_data()))
        yield module.get_input_grads(), module.get_input_grads(merge_multi_context=False)


@scenario
def batches_of_other_shapes(make):
    module = bound(make)
    for rows in (5, 2, 9, 5):
        module.forward(mx.io.DataBatch([mx.nd.ones((rows, 6))], [mx.nd.zeros((rows,))]))
        yield module.get_outputs(), module.output_shapes, module.data_shapes, module.label_shapes
    module.reshape([('data', (4, 6))], [('softmax_label', (4,))])
    yield module.data_shapes, module.label_shapes, module.output_shapes


def normalized():
    data = mx.sym.BatchNorm(mx.sym.Variable('data'), fix_gamma=False, name='norm')
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3, name='fc'),
                                name='softmax')


@scenario
def training_on_batches_of_changing_sizes(make):
    for symbol, grad_req, context in (
            (classifier(), 'write', mx.cpu()), (classifier(), 'add', TWO_DEVICES),
            (normalized(), 'add', mx.cpu()), (normalized(), 'write', TWO_DEVICES)):
        rng = np.random.RandomState(0)
        module = bound(make, symbol, context=context, binds={
            'grad_req': grad_req, 'inputs_need_grad': grad_req == 'write'})
        module.init_optimizer(optimizer_params={'learning_rate': 0.1, 'momentum': 0.5})
        for size in rng.choice([4, 6, 10, 14], 24):
            batch = mx.io.DataBatch([mx.nd.array(rng.normal(size=(size, 6)))],
                                    [mx.nd.array(rng.randint(3, size=size))])
            if rng.rand() < 0.2:
                module.forward(batch, is_train=False)
            module.forward_backward(batch)
            module.update()
            mx.nd.waitall()  # BatchNorm writes its states behind the engine's back
            yield module.get_outputs(), parameters(module), module.data_shapes
            if grad_req == 'write':
                yield module.get_input_grads()


@scenario
def several_inputs_and_outputs(make):
    one, two = mx.sym.Variable('one'), mx.sym.Variable('two')
    label = mx.sym.Variable('label')
    total = mx.sym.FullyConnected(one, num_hidden=2, name='a') + mx.sym.FullyConnected(
        two, num_hidden=2, name='b')
    symbol = mx.sym.Group([mx.sym.SoftmaxOutput(total, label, name='loss'),
                           mx.sym.BlockGrad(total, name='shown')])
    rng = np.random.RandomState(0)
    data = mx.io.NDArrayIter({'one': rng.normal(size=(12, 3)), 'two': rng.normal(size=(12, 4))},
                             {'label': rng.randint(2, size=12)}, 4)
    module = bound(make, symbol, data, data_names=('one', 'two'), label_names=('label',))
    yield train(module, data), module.get_outputs(), module.predict(data)
    yield module.data_names, module.label_names, module.output_names, module.output_shapes


@scenario
def no_loss_and_gradients_from_above(make):
    symbol = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=2, name='fc')
    for context in (mx.cpu(), TWO_DEVICES):
        module = bound(make, symbol, label_names=None, context=context,
                       shapes=[[('data', (4, 3))]], binds={'inputs_need_grad': True})
        module.init_optimizer()
        for _ in range(3):
            module.forward(mx.io.DataBatch([mx.nd.ones((4, 3))], None))
            module.backward([mx.nd.arange(8).reshape((4, 2))])
            module.update()
        yield parameters(module), module.get_input_grads()


@scenario
def layouts(make):
    data = mx.sym.transpose(mx.sym.Variable('data'), axes=(1, 0, 2))
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.FullyConnected(
        mx.sym.flatten(data), num_hidden=2, name='fc'), axis=1), name='loss')
    module = bound(make, symbol, label_names=None, context=TWO_DEVICES,
                   shapes=[[mx.io.DataDesc('data', (3, 4, 2), layout='TNC')]])
    module.forward(mx.io.DataBatch([mx.nd.arange(24).reshape((3, 4, 2))], None))
    module.backward()
    yield module.get_outputs(), module.output_shapes, [
        [array.asnumpy() for array in arrays] for arrays in module._exec_group.grad_arrays]


@scenario
def parameters_set_and_initialized(make):
    module = bound(make)
    weights = {'fc_weight': mx.nd.ones((3, 4)), 'fc_bias': mx.nd.ones((3,))}
    with pytest.raises(RuntimeError):
        module.set_params(weights, None)
    module.set_params(weights, None, allow_missing=True)
    yield parameters(module)
    with pytest.raises(ValueError):
        module.set_params({**weights, 'extra': mx.nd.ones((1,))}, None, allow_missing=True)
    module.set_params({**weights, 'extra': mx.nd.ones((1,))}, None, allow_missing=True,
                      allow_extra=True)
    module.set_params({'fc_bias': mx.nd.zeros((3,))}, None, True, False)
    yield parameters(module)
    mx.random.seed(5)
    module.init_params(mx.init.Uniform(0.5), weights, None, True, True)
    yield parameters(module)


@scenario
def borrowed_optimizer(make):
    first, second = bound(make), bound(make)
    first.init_optimizer(optimizer_params={'learning_rate': 0.1, 'momentum': 0.9})
    second.borrow_optimizer(first)
    for i, batch in enumerate(classifier_data()):
        module = (first, second)[i % 2]
        module.forward_backward(batch)
        module.update()
    yield parameters(first), parameters(second)


@scenario
def shared_parameters(make):
    first = bound(make)
    train(first)
    second = make(classifier())
    second.bind([('data', (2, 6))], [('softmax_label', (2,))], shared_module=first)
    yield train(second, [mx.io.DataBatch([mx.nd.ones((2, 6))], [mx.nd.zeros((2,))])])
    first.forward(next(classifier_data()))
    yield first.get_outputs()


@scenario
def lists_of_batches(make):
    module = bound(make, data=classifier_data(batch_size=6), context=TWO_DEVICES)
    module.init_optimizer()
    pieces = [mx.io.DataBatch([mx.nd.full((3, 6), i)], [mx.nd.full((3,), i)]) for i in (0, 1)]
    module.forward_backward(pieces)
    module.update()
    metric = mx.metric.create('acc')
    module.update_metric(metric, [piece.label for piece in pieces], pre_sliced=True)
    yield parameters(module), metric.get()


@scenario
def monitored(make):
    module = bound(make)
    monitor = mx.monitor.Monitor(1, lambda array: array, r'[a-z]+_output', sort=True)
    module.install_monitor(monitor)
    monitor.tic()
    module.forward_backward(next(classifier_data()))
    yield [(name, value) for _, name, value in monitor.toc()]


@scenario
def a_part_of_a_sequential_module(make):
    features = mx.mod.Module(mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4, name='f'),
                             label_names=[])
    module, data = make(classifier()), classifier_data()
    mx.random.seed(3)
    mx.mod.SequentialModule().add(features).add(module, take_labels=True, auto_wiring=True).fit(
        data, eval_metric='acc', num_epoch=2)
    yield parameters(module), parameters(features)


@scenario
def names_that_an_optimizer_knows(make):
    for context, kvstore, optimizer in itertools.product(
            (mx.cpu(), TWO_DEVICES), (lambda: None, lambda: 'local', lambda: mx.kv.create('local')),
            ('sgd', mx.optimizer.SGD(rescale_grad=0.2))):
        module = bound(make, context=context)
        module.init_optimizer(kvstore(), optimizer)
        yield (module._optimizer.idx2name, module._optimizer.wd_mult,
               module._optimizer.rescale_grad, module._update_on_kvstore)


def with_snapshot(symbol, *args, **kwargs):
    """Make an SVRGModule whose snapshot is the weights that it is initialized with."""
    module = SVRGModule(symbol, *args, update_freq=1, **kwargs)
    initialize = module.init_params

    def init_params(*init_args, **init_kwargs):
        initialize(*init_args, **init_kwargs)
        if module.for_training and module.label_shapes == classifier_data().provide_label:
            module.update_full_grads(classifier_data())
            module._snapshot.full_gradient.rows = 20
    module.init_params = init_params
    return module


def without_snapshot(symbol, *args, **kwargs):
    return SVRGModule(symbol, *args, update_freq=1, **kwargs)


def comparable(value):
    """Return what == compares: of an array its type, shape and bits."""
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [comparable(each) for each in value]
    if isinstance(value, mx.nd.NDArray):
        value = value.asnumpy()
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def assert_same(function, make):
    for actual, expected in zip(function(make), function(mx.mod.Module)):
        assert comparable(actual) == comparable(expected)


@pytest.mark.parametrize('function', SCENARIOS)
@pytest.mark.filterwarnings('ignore')
def test_it_is_module_without_a_snapshot(function):
    assert_same(function, without_snapshot)


@pytest.mark.parametrize('function', [
    predictions_and_scores, gradients_of_the_inputs, batches_of_other_shapes, monitored])
@pytest.mark.filterwarnings('ignore')
def test_a_snapshot_changes_no_output(function):
    assert_same(function, with_snapshot)

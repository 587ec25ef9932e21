"""The snapshot's executors run on the live module's inputs, and in its activations' memory."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from pairs import in_pairs
from problems import Problem
from svrg_optimization import SVRGModule

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}


@pytest.fixture(autouse=True)
def pool_is_shared(monkeypatch):
    """Share the memory of networks of any size."""
    monkeypatch.setattr('svrg_optimization.module.executors._WORTH_SHARING', -1)


def outputs_of(problem, weights, rows):
    """Compute the network's outputs in float64: probabilities of a softmax."""
    hidden = np.tanh(problem.features[rows] @ weights['hidden_weight'].T + weights['hidden_bias'])
    return oracle.softmax(hidden @ weights['fc_weight'].T + weights['fc_bias'])


def assert_outputs(module, expected):
    np.testing.assert_allclose(module.get_outputs()[0].asnumpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_outputs_and_input_gradients_stay_valid(context):
    problem = Problem('perceptron')
    module = problem.module(1, context=context)
    iterator = problem.iterator()
    module.bind(iterator.provide_data, iterator.provide_label, inputs_need_grad=True)
    module.init_params(arg_params=problem.arg_params())
    module.init_optimizer(optimizer_params=SETTINGS)
    assert module._svrg.reference.executors.shares_pool
    plain = mx.mod.Module(problem.symbol, label_names=('label',), context=context)
    plain.bind(iterator.provide_data, iterator.provide_label, inputs_need_grad=True)
    plain.init_params()
    module.update_full_grads(iterator)
    svrg = problem.svrg(**SETTINGS)
    svrg.take_snapshot()
    for batch, rows in zip(problem.iterator(), oracle.batches_of(40, 10)):
        expected = outputs_of(problem, svrg.weights, rows)
        plain.set_params(*module.get_params())
        plain.forward_backward(batch)
        input_gradient = plain.get_input_grads()[0].asnumpy()
        module.forward(batch)
        kept = module.get_outputs()[0]
        assert_outputs(module, expected)
        module.backward()
        assert_outputs(module, expected)
        np.testing.assert_array_equal(module.get_input_grads()[0].asnumpy(), input_gradient)
        module.update()
        svrg.step(rows)
        assert_outputs(module, expected)
        module.update_full_grads(iterator)
        svrg.take_snapshot()
        assert_outputs(module, expected)
        np.testing.assert_allclose(kept.asnumpy(), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(module.get_input_grads()[0].asnumpy(), input_gradient)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_a_pass_between_forward_and_backward_keeps_outputs(context):
    problem = Problem('perceptron')
    module = problem.bound(context=context, sgd=SETTINGS)
    svrg = problem.svrg(**SETTINGS)
    for batch, rows in zip(problem.iterator(), oracle.batches_of(40, 10)):
        module.forward(batch)
        expected = outputs_of(problem, svrg.weights, rows)
        module.update_full_grads(problem.iterator())
        svrg.take_snapshot()
        assert_outputs(module, expected)
        module.backward()
        module.update()
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


@in_pairs({
    'rows': [40, 37],
    'context': [mx.cpu(), TWO_DEVICES],
    'stored': [False, True]})
def test_training_in_shared_memory_is_svrg(rows, context, stored):
    problem = Problem('perceptron', rows=rows)
    module = problem.module(2, context=context, store_snapshot_grads=stored and 3000)
    steps = []
    module.fit(problem.iterator(), eval_metric=['acc', 'ce'], num_epoch=4,
               arg_params=problem.arg_params(), optimizer_params=SETTINGS,
               batch_end_callback=lambda param: steps.append((param.epoch, [
                   np.abs(problem.features - row).sum(axis=1).argmin()
                   for row in param.locals['data_batch'].data[0].asnumpy()])))
    svrg = problem.svrg(**SETTINGS)
    for number, (epoch, batch) in enumerate(steps):
        if epoch % 2 == 0 and number % 4 == 0:
            svrg.take_snapshot()
        svrg.step(np.array(batch), 10)  # fewer were cut from a padded batch of 10
    problem.assert_weights(module, svrg.weights)


def test_batches_may_change_their_size_and_back():
    problem = Problem('perceptron', rows=40)
    module = problem.bound(sgd=SETTINGS)
    svrg = problem.svrg(**SETTINGS)
    module.update_full_grads(problem.iterator())
    svrg.take_snapshot()
    for rows in (range(10), range(10, 14), range(20), range(30, 40), range(3)):
        rows = np.array(rows)
        module.forward_backward(mx.io.DataBatch([mx.nd.array(problem.features[rows])],
                                                [mx.nd.array(problem.targets[rows])]))
        module.update()
        assert_outputs(module, outputs_of(problem, svrg.weights, rows))
        svrg.step(rows)
        problem.assert_weights(module, svrg.weights)
    module.predict(problem.iterator())
    module.update_full_grads(problem.iterator())
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)


def test_snapshot_outlasts_a_new_bind():
    problem = Problem('perceptron')
    module = problem.bound(sgd=SETTINGS)
    svrg = problem.svrg(**SETTINGS)
    for bind_again in (False, True, True):
        if bind_again:
            iterator = problem.iterator()
            module.get_params()  # or Module begins with those of the bind before
            module.bind(iterator.provide_data, iterator.provide_label, force_rebind=True)
        else:
            module.update_full_grads(problem.iterator())
            svrg.take_snapshot()
        problem.train_epoch(module, svrg)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('layer', ['BatchNorm', 'Dropout'])
def test_random_layers_and_statistics_share_no_pool(layer):
    """MXNet would share moving statistics as well, and masks are read out of the pool."""
    hidden = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3)
    symbol = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(
        getattr(mx.sym, layer)(hidden), num_hidden=1), mx.sym.Variable('label'))
    module = SVRGModule(symbol, label_names=('label',), update_freq=1)
    module.bind([('data', (4, 2))], [('label', (4,))])
    assert module._svrg.reference.executors.shares_inputs == (layer == 'BatchNorm')
    assert not module._svrg.reference.executors.shares_pool


def test_a_second_backward_after_one_forward_is_modules():
    problem = Problem('perceptron')
    iterator = problem.iterator()
    gradients = {}
    for make in (problem.module, lambda: mx.mod.Module(problem.symbol, label_names=('label',))):
        module = make()
        module.bind(iterator.provide_data, iterator.provide_label, inputs_need_grad=True)
        module.init_params(arg_params=problem.arg_params())
        if isinstance(module, SVRGModule):
            module.update_full_grads(iterator)
        module.forward(next(problem.iterator()))
        for _ in range(3):
            module.backward()
            gradients.setdefault(type(module), []).append(module.get_input_grads()[0].asnumpy())
    for actual, expected in zip(*gradients.values()):
        np.testing.assert_array_equal(actual, expected)


def test_outputs_stay_over_passes_between_forward_backward_and_update():
    problem = Problem('perceptron')
    module = problem.bound(sgd=SETTINGS)
    expected = outputs_of(problem, problem.weights, np.arange(10))
    module.forward(next(problem.iterator()))
    for step in (module.backward, module.update, lambda: None):
        module.update_full_grads(problem.iterator())
        step()
        assert_outputs(module, expected)


def test_modules_that_share_their_parameters_share_the_pool():
    """The second's executors run in the first's pool, those of its snapshot too."""
    problem = Problem('perceptron')
    first = problem.bound(sgd=SETTINGS)
    second = problem.module()
    second.bind([('data', (4, 4))], [('label', (4,))], shared_module=first)
    second.borrow_optimizer(first)
    first.update_full_grads(problem.iterator())
    rows = np.arange(4)
    batch = mx.io.DataBatch([mx.nd.array(problem.features[rows])],
                            [mx.nd.array(problem.targets[rows])])
    expected = outputs_of(problem, problem.weights, rows)
    second.forward(batch)
    second.update_full_grads(problem.iterator(4))
    second.backward()
    assert_outputs(second, expected)
    svrg = problem.svrg(4, **SETTINGS)
    svrg.optimizer.rescale = 1 / 10  # the optimizer is that of the first
    svrg.take_snapshot()
    second.update()
    svrg.step(rows)
    problem.assert_weights(second, svrg.weights)


def test_the_user_may_reshape_the_auxiliary_module():
    problem = Problem('perceptron')
    module = problem.bound(sgd=SETTINGS)
    svrg = problem.svrg(**SETTINGS)
    module.update_full_grads(problem.iterator())
    svrg.take_snapshot()
    for batch_size in (7, 40):
        module._mod_aux.predict(problem.iterator(batch_size))
        problem.train_epoch(module, svrg)
    problem.assert_weights(module, svrg.weights)

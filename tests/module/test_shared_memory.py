"""The executors at the snapshot run on the input arrays of the module."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from held_batches import SETTINGS
from problems import TWO_DEVICES, Problem


def outputs_of(problem, weights, rows):
    """Compute the network's outputs in float64: probabilities of a softmax."""
    hidden = np.tanh(problem.features[rows] @ weights['hidden_weight'].T + weights['hidden_bias'])
    return oracle.softmax(hidden @ weights['fc_weight'].T + weights['fc_bias'])


def assert_outputs(module, expected):
    np.testing.assert_allclose(module.get_outputs()[0].asnumpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('passes', ['after forward', 'after backward', 'after update'])
@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_outputs_and_input_gradients_stay_valid_over_steps_and_passes(context, passes):
    """Those that are a second backward's, too."""
    problem, modules = Problem('perceptron'), []
    for made in (problem.module(1, context=context),
                 mx.mod.Module(problem.symbol, label_names=('label',), context=context)):
        made.bind([('data', (10, 4))], [('label', (10,))], inputs_need_grad=True)
        made.init_params(arg_params=problem.arg_params())
        modules.append(made)
    module, plain = modules
    module.init_optimizer(optimizer_params=SETTINGS)
    assert module._svrg.reference.executors.shares_inputs
    svrg, expected, inputs, kept = problem.svrg(**SETTINGS), None, None, []

    def check(after):
        if after == passes:
            module.update_full_grads(problem.iterator())
            svrg.take_snapshot()
        for outputs in (module.get_outputs()[0], *kept[-1:]):
            np.testing.assert_allclose(outputs.asnumpy(), expected, rtol=1e-5, atol=1e-6)
        if after != 'after forward':
            np.testing.assert_array_equal(module.get_input_grads()[0].asnumpy(), inputs)

    module.update_full_grads(problem.iterator())
    svrg.take_snapshot()
    for batch, rows in zip(problem.iterator(), oracle.batches_of(40, 10)):
        expected = outputs_of(problem, svrg.weights, rows)
        plain.set_params(*module.get_params())
        plain.forward_backward(batch)
        inputs = plain.get_input_grads()[0].asnumpy()
        module.forward(batch)
        kept.append(module.get_outputs()[0])
        check('after forward')
        for _ in range(2):
            module.backward()
            check('after backward')
        module.update()
        svrg.step(rows)  # of the second backward, which follows the first one's snapshot
        problem.assert_weights(module, svrg.weights)
        check('after update')


def test_batches_may_change_their_size_and_back_over_binds_and_evaluations():
    problem, svrg = Problem('perceptron', rows=40), Problem('perceptron').svrg(**SETTINGS)
    module = problem.bound(sgd=SETTINGS)
    module.update_full_grads(problem.iterator())
    svrg.take_snapshot()
    for rows in ((10,), (10, 14), (20,), (30, 40), (3,)):
        expected = outputs_of(problem, svrg.weights, np.arange(*rows))
        problem.step(module, svrg, *rows)
        assert_outputs(module, expected)
    for batch_size in (7, 40):  # the user may reshape the auxiliary module
        module._mod_aux.predict(problem.iterator(batch_size))
        problem.train_epoch(module, svrg)
        module.predict(problem.iterator())
        module.get_params()  # or Module begins with those of the bind before
        module.bind([('data', (10, 4))], [('label', (10,))], force_rebind=True)
        problem.train_epoch(module, svrg)
    problem.assert_weights(module, svrg.weights)


def test_modules_that_share_their_parameters_have_inputs_of_their_own():
    problem = Problem('perceptron')
    first, second = problem.bound(sgd=SETTINGS), problem.module()
    second.bind([('data', (4, 4))], [('label', (4,))], shared_module=first)
    second.borrow_optimizer(first)
    first.update_full_grads(problem.iterator())
    svrg = problem.svrg(4, **SETTINGS, rescale=1 / 10)  # the optimizer is that of the first
    svrg.take_snapshot()
    second.forward(problem.batch(4))
    second.update_full_grads(problem.iterator(4))
    second.backward()
    assert_outputs(second, outputs_of(problem, problem.weights, np.arange(4)))
    second.update()
    svrg.step(np.arange(4))
    problem.assert_weights(second, svrg.weights)

"""Every operator gets arrays of one context, as a GPU demands; on CPUs MXNet computes across them.

The module is on other CPUs than the default context, where an array goes whose context somebody
forgot. test_training_is_svrg.py looks for such arrays in trainings with more features.
"""

import mxnet as mx
import numpy as np
import pytest

from problems import Problem
from svrg_optimization import LinearDecay
from svrg_optimization.diagnostics import gradient_variance

ONE, TWO = mx.cpu(1), [mx.cpu(1), mx.cpu(2)]
SGD = {'learning_rate': 0.05, 'momentum': 0.5, 'wd': 0.01}


def fitted(problem, context, epochs=3, **given):
    module = problem.module(2, context=context, **given.pop('settings', {}))
    return problem.fit(module, epochs, **{'optimizer_params': SGD, **given})


def trained_on_devices_alone(context):
    fitted(Problem(), context, kvstore=None, settings={'alpha': LinearDecay(1, 6)})


def newton_cg(context):
    fitted(Problem(), context, 5, optimizer='newton_cg', optimizer_params={})


def adam_and_a_long_pass(context):
    fitted(Problem('softmax', rows=170), context, optimizer='adam', optimizer_params={},
           settings={'nonfinite': 'raise'})


def layers_with_masks_and_states(context):
    problem = Problem('softmax', rows=20)
    layer = mx.sym.BatchNorm(mx.sym.Dropout(mx.sym.Variable('data')), name='norm', fix_gamma=False)
    problem.symbol = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(layer, num_hidden=3, name='fc'), mx.sym.Variable('label'),
        normalization='batch')
    problem.weights.update(norm_gamma=np.ones(4), norm_beta=np.zeros(4))
    fitted(problem, context)


def gradients_that_add_up(context):
    problem = Problem('softmax')
    module = problem.bound(context=context, grad_req='add', sgd=SGD)
    module.update_full_grads(problem.iterator())
    for batch in problem.iterator():
        module.forward_backward(batch)
    module.update()


def batches_of_other_sizes_and_a_measurement(context):
    problem = Problem('softmax', rows=37)
    module = fitted(problem, context, monitor=mx.monitor.Monitor(1))
    gradient_variance(module, problem.iterator())
    problem.fit(module, 4, problem.iterator(5), begin_epoch=3)


@pytest.mark.filterwarnings('ignore:with kvstore=None each of the 2 devices')
@pytest.mark.parametrize('context', [ONE, TWO])
@pytest.mark.parametrize('feature', [
    trained_on_devices_alone, newton_cg, adam_and_a_long_pass, layers_with_masks_and_states,
    gradients_that_add_up, batches_of_other_sizes_and_a_measurement])
def test_no_operator_gets_arrays_of_two_contexts(mixtures, feature, context):
    """On one device and on two, neither of them the default one."""
    assert mx.current_context() == mx.cpu(0)
    feature(context)
    mx.nd.waitall()
    assert not mixtures, mixtures[0]


def test_a_mixture_is_noticed(mixtures):
    here, there = (mx.nd.ones((2,), ctx=context) for context in (mx.cpu(0), ONE))
    here.copyto(there)
    assert not mixtures
    np.testing.assert_array_equal((here + there).asnumpy(), 2)
    there += here
    mx.nd.broadcast_add(there, there, out=here)
    assert [contexts for _, contexts, _ in mixtures] == [[(1, 0), (1, 1)]] * 3

"""Every operator gets arrays of one context, as a GPU demands; on CPUs MXNet computes across them.

The module is on other CPUs than the default context, where an array goes whose context somebody
forgot. test_training_is_svrg.py looks for such arrays in trainings with more features.
"""

import mxnet as mx
import numpy as np
import pytest

from problems import Problem
from svrg_optimization import LinearDecay, SVRGModule
from svrg_optimization.diagnostics import gradient_variance

ONE, TWO = mx.cpu(1), [mx.cpu(1), mx.cpu(2)]
SGD = {'learning_rate': 0.05, 'momentum': 0.5, 'wd': 0.01}


def fit(make=Problem, settings=(), sgd=SGD, epochs=3, update_on_kvstore='1', **given):
    """Return a training on some devices of a new problem: `given` is of fit."""
    def train(context, patch):
        patch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
        problem = make()
        module = problem.module(2, context=context, **dict(settings))
        problem.fit(module, epochs, optimizer_params=sgd, **given)
        mx.nd.waitall()
        return problem, module
    return train


def of(kind, rows=37):
    return lambda: Problem(kind, rows=rows)


def with_layer(layer, **kwargs):
    """Put a layer before the last one of a problem."""
    def make():
        problem = Problem('softmax', rows=20)
        output = mx.sym.FullyConnected(layer(mx.sym.Variable('data')), num_hidden=3, name='fc')
        problem.symbol = mx.sym.SoftmaxOutput(output, mx.sym.Variable('label'), name='loss',
                                              **kwargs)
        problem.weights.update(norm_gamma=np.ones(4), norm_beta=np.zeros(4))
        return problem
    return make


def norm(data):
    return mx.sym.BatchNorm(data, name='norm', fix_gamma=False)


def gradients_that_add_up(context, _):
    problem = Problem('softmax', rows=40)
    module = problem.bound(context=context, grad_req='add', sgd=SGD)
    module.update_full_grads(problem.iterator())
    for batch in problem.iterator():
        module.forward_backward(batch)
    module.update()


def later(context, patch):
    """Batches of other sizes, checkpoints, diagnostics and a monitor."""
    problem, module = fit(of('softmax'))(context, patch)
    module.save_checkpoint('model', 3, save_optimizer_states=True)
    loaded = SVRGModule.load('model', 3, load_optimizer_states=True, label_names=('label',),
                             context=context)
    problem.fit(loaded, 4, begin_epoch=3, optimizer_params=SGD)
    gradient_variance(module, problem.iterator())
    problem.fit(module, 4, problem.iterator(5), begin_epoch=3)


FEATURES = [
    later, gradients_that_add_up,
    fit(of('perceptron'), update_on_kvstore='0', optimizer='adam', sgd={'learning_rate': 0.01}),
    fit(kvstore=None, settings={'alpha': LinearDecay(1, 6)}),
    fit(of('softmax', 170), {'nonfinite': 'raise'}),
    fit(optimizer='newton_cg', sgd={}, epochs=5),
    fit(with_layer(mx.sym.Dropout)), fit(with_layer(norm)),
    fit(with_layer(lambda data: data, normalization='batch')),
    fit(of('softmax'), monitor=mx.monitor.Monitor(1))]


@pytest.mark.filterwarnings('ignore:with kvstore=None each of the 2 devices')
@pytest.mark.parametrize('context', [ONE, TWO])
@pytest.mark.parametrize('feature', FEATURES)
def test_no_operator_gets_arrays_of_two_contexts(mixtures, monkeypatch, tmp_path, feature, context):
    """On one device and on two, neither of them the default one."""
    monkeypatch.chdir(tmp_path)
    assert mx.current_context() == mx.cpu(0)
    feature(context, monkeypatch)
    assert not mixtures, mixtures[0]


def test_a_mixture_is_noticed(mixtures):
    here, there = (mx.nd.ones((2,), ctx=context) for context in (mx.cpu(0), ONE))
    here.copyto(there)
    assert not mixtures
    np.testing.assert_array_equal((here + there).asnumpy(), 2)
    there += here
    mx.nd.broadcast_add(there, there, out=here)
    assert [contexts for _, contexts, _ in mixtures] == [[(1, 0), (1, 1)]] * 3

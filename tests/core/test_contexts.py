"""Every operator gets arrays of one context, as a GPU demands; on CPUs MXNet computes across them.

The module is on other CPUs than the default context, where an array goes whose context somebody
forgot.
"""

import ctypes
import traceback

import mxnet as mx
import numpy as np
import pytest
from mxnet.base import _LIB, check_call

from problems import Problem, SparseProblem
from sequences import Sequences
from svrg_optimization import (
    BarzilaiBorwein,
    LinearDecay,
    SVRGBucketingModule,
    SVRGModule,
)
from svrg_optimization.diagnostics import VarianceCallback, gradient_variance
from svrg_optimization.proximal import L1, Box, GroupLasso

ONE, TWO = mx.cpu(1), [mx.cpu(1), mx.cpu(2)]
PINNED = 3  # memory that a GPU can read, too
MAY_MIX = '_copyto'
SGD = {'learning_rate': 0.05, 'momentum': 0.5, 'wd': 0.01}


def context_of(handle):
    kind, number = ctypes.c_int(), ctypes.c_int()
    check_call(_LIB.MXNDArrayGetContext(ctypes.c_void_p(handle), ctypes.byref(kind),
                                        ctypes.byref(number)))
    return kind.value, number.value


def name_of(creator):
    name = ctypes.c_char_p()
    check_call(_LIB.MXSymbolGetAtomicSymbolName(creator, ctypes.byref(name)))
    return name.value.decode()


@pytest.fixture
def mixtures(monkeypatch):
    """List the operators that get or give arrays of several contexts, and who calls them."""
    invoke, found = _LIB.MXImperativeInvokeEx, []

    def watch(creator, num_inputs, inputs, num_outputs, outputs, *rest):
        status = invoke(creator, num_inputs, inputs, num_outputs, outputs, *rest)
        handles = inputs[:num_inputs.value] + outputs._obj[:num_outputs._obj.value]
        contexts = {context for context in map(context_of, handles) if context[0] != PINNED}
        if status == 0 and len(contexts) > 1 and name_of(creator) != MAY_MIX:
            found.append((name_of(creator), sorted(contexts),
                          ''.join(traceback.format_stack(limit=6))))
        return status

    monkeypatch.setattr(_LIB, 'MXImperativeInvokeEx', watch)
    yield found
    mx.nd.waitall()


def fit(problem, context, update_freq=2, sgd=None, num_epoch=3, optimizer='sgd', kvstore='local',
        **arguments):
    module = problem.module(update_freq, context=context, **arguments)
    problem.fit(module, num_epoch, optimizer=optimizer, kvstore=kvstore,
                optimizer_params=sgd or SGD)
    return module


def with_layer(layer):
    """Put a layer before the last one of a problem."""
    problem = Problem('softmax', rows=20)
    output = mx.sym.FullyConnected(layer(mx.sym.Variable('data')), num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(output, mx.sym.Variable('label'), name='loss')
    return problem


def plain(context):
    fit(Problem('perceptron', rows=37), context)


def in_a_kvstore(context):
    for kind in ('local', 'device'):
        fit(Problem(rows=37), context, kvstore=mx.kv.create(kind), alpha=0.5)


def updated_by_the_module(context):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('MXNET_UPDATE_ON_KVSTORE', '0')
        fit(Problem('perceptron', rows=37), context, optimizer='adam',
            sgd={'learning_rate': 0.01})
        mx.nd.waitall()


def without_a_kvstore(context):
    fit(Problem(rows=37), context, kvstore=None, alpha=LinearDecay(1, 6))


def stored(context):
    fit(Problem('softmax', rows=37), context, store_snapshot_grads=True)


def many_stored_batches(context):
    problem = Problem('softmax', rows=170)
    fit(problem, context, store_snapshot_grads=True, nonfinite='raise')


def row_sparse(context):
    for sparse_full_grad in (False, True):
        problem = SparseProblem()
        module = problem.module(context=context, sparse_full_grad=sparse_full_grad)
        problem.fit(module, 2, optimizer_params={'learning_rate': 0.05},
                    kvstore=mx.kv.create('local'),
                    sparse_row_id_fn=lambda batch: {'w': batch.data[0].indices})


def step_sizes(context):
    for momentum in (0, 0.5):
        rule = BarzilaiBorwein()
        fit(Problem(rows=37), context, 1, num_epoch=4,
            sgd={'lr_scheduler': rule, 'momentum': momentum})
        assert rule.rate is not None


def proximal(context):
    for operator in (L1(0.1), GroupLasso(0.1, axis=0), Box(-1, 1)):
        for update in '01':
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv('MXNET_UPDATE_ON_KVSTORE', update)
                fit(Problem(rows=20), context, sgd={'learning_rate': 0.05},
                    proximal={'fc_weight': operator})
                mx.nd.waitall()


def sampled(context):
    problem = Problem(rows=40)
    module = problem.module(context=context, full_grad_batches=2, updates_per_snapshot=3)
    module.fit(problem.iterator(), eval_metric='mse', num_epoch=2, optimizer_params=SGD)


def random_layers(context):
    problem = with_layer(lambda data: mx.sym.Dropout(data, p=0.5))
    fit(problem, context)


def moving_statistics(context):
    problem = with_layer(lambda data: mx.sym.BatchNorm(data, name='norm', fix_gamma=False))
    problem.weights.update(norm_gamma=np.ones(4), norm_beta=np.zeros(4))
    fit(problem, context)


def losses_that_are_means(context):
    problem = Problem('softmax', rows=37)
    problem.symbol = mx.sym.SoftmaxOutput(problem.symbol.get_internals()['fc_output'],
                                          mx.sym.Variable('label'), normalization='batch')
    fit(problem, context)


def gradients_that_add_up(context):
    problem = Problem('softmax', rows=40)
    module = problem.bound(context=context, grad_req='add', sgd=SGD)
    module.update_full_grads(problem.iterator())
    for batch in problem.iterator():
        module.forward_backward(batch)
    module.update()


def batches_of_other_sizes(context):
    problem = Problem('perceptron', rows=40)
    module = fit(problem, context)
    module.fit(problem.iterator(4), eval_metric='acc', begin_epoch=3, num_epoch=5)


def fixed_parameters(context):
    fit(Problem('perceptron', rows=37), context, fixed_param_names=['hidden_bias'])


def buckets(context):
    problem = Sequences()
    module = problem.module(2, context=context)
    problem.fit(module, 3, optimizer_params={'learning_rate': 0.02})
    assert type(module) is SVRGBucketingModule


def checkpoints(context):
    problem = Problem('softmax', rows=37)
    fit(problem, context, 4).save_checkpoint('model', 3, save_optimizer_states=True)
    module = SVRGModule.load('model', 3, load_optimizer_states=True, label_names=('label',),
                             context=context)
    module.fit(problem.iterator(), eval_metric='acc', begin_epoch=3, num_epoch=5,
               optimizer_params=SGD)


def diagnostics(context):
    problem = Problem('softmax', rows=40)
    module = fit(problem, context)
    gradient_variance(module, problem.iterator())
    module.fit(problem.iterator(), eval_metric='acc', begin_epoch=3, num_epoch=4,
               epoch_end_callback=VarianceCallback(module, problem.iterator()))


def monitored(context):
    problem = Problem('softmax', rows=40)
    module = problem.module(2, context=context)
    module.fit(problem.iterator(), eval_metric='acc', num_epoch=2,
               monitor=mx.monitor.Monitor(1))


FEATURES = [plain, in_a_kvstore, updated_by_the_module, without_a_kvstore, stored,
            many_stored_batches, row_sparse, step_sizes, proximal, sampled, random_layers,
            moving_statistics, losses_that_are_means, gradients_that_add_up,
            batches_of_other_sizes, fixed_parameters, buckets, checkpoints, diagnostics, monitored]


@pytest.mark.filterwarnings('ignore:with kvstore=None each of the 2 devices')
@pytest.mark.parametrize('feature', FEATURES)
def test_no_operator_gets_arrays_of_two_contexts(mixtures, monkeypatch, tmp_path, feature):
    """On one device and on two, neither of them the default one."""
    monkeypatch.chdir(tmp_path)
    assert mx.current_context() == mx.cpu(0)
    for context in (ONE, TWO):
        feature(context)
        assert not mixtures, mixtures[0]


def test_a_mixture_is_noticed(mixtures):
    here, there = (mx.nd.ones((2,), ctx=context) for context in (mx.cpu(0), ONE))
    here.copyto(there)
    assert not mixtures
    np.testing.assert_array_equal((here + there).asnumpy(), 2)
    there += here
    mx.nd.broadcast_add(there, there, out=here)
    assert [contexts for _, contexts, _ in mixtures] == [[(1, 0), (1, 1)]] * 3

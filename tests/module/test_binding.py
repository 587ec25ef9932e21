"""Binding again, reshaping, and binding with shared parameters."""

import mxnet as mx
import numpy as np
import pytest

from pairs import in_pairs
from problems import TWO_DEVICES, Problem
from svrg_optimization import SVRGModule


def bind(module, batch_size=10, **kwargs):
    module.bind([('data', (batch_size, 4))], [('label', (batch_size,))], **kwargs)


def test_snapshot_survives_a_rebind(training, caplog):
    training.snapshot()
    bind(training.module, 5)
    assert 'Already bound' in caplog.text
    training.epoch()
    for for_training in (False, True):
        training.module.get_params()  # or Module begins with those of the bind before
        bind(training.module, for_training=for_training, force_rebind=True)
        training.module.predict(training.problem.iterator())
    training.epoch()
    training.check()


@pytest.mark.parametrize('rebind', [False, True])
def test_the_full_gradient_is_in_units_of_the_batch_size_that_is_bound_now(training, rebind):
    training.snapshot()
    training.epoch()
    training.module.get_params()
    if rebind:
        bind(training.module, 7, force_rebind=True)
    else:
        training.module.reshape([('data', (7, 4))], [('label', (7,))])
    training.problem.step(training.module, training.svrg, 7)
    training.check()


def test_a_rebind_may_fix_parameters_and_frees_them_without_a_snapshot(training):
    training.snapshot()
    training.epoch()
    training.module.get_params()
    bind(training.module, force_rebind=True, grad_req={'fc_bias': 'null'})
    training.svrg.fixed = ('fc_bias',)
    training.epoch()
    training.snapshot()
    training.module.get_params()
    with pytest.warns(UserWarning, match='the snapshot is dropped.*fc_bias'):
        bind(training.module, force_rebind=True)
    training.svrg.fixed, training.svrg.snapshot = (), None
    with pytest.warns(UserWarning, match='without a snapshot'):
        training.epoch()
    training.check()


def with_auxiliary_states(problem):
    data = mx.sym.BatchNorm(mx.sym.Variable('data'), fix_gamma=False, name='norm')
    scores = mx.sym.FullyConnected(data, num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'), name='softmax')


@in_pairs({
    'change': [lambda _: None, with_auxiliary_states],
    'grad_req': ['write', 'add'],
    'context': [mx.cpu(), TWO_DEVICES]})
def test_batches_of_changing_sizes_are_those_of_module(change, grad_req, context):
    problem, rng = Problem('perceptron', rows=37), np.random.RandomState(0)
    change(problem)
    modules = [mx.mod.Module(problem.symbol, label_names=('label',), context=context),
               problem.module(1, context=context, alpha=0)]
    for module in modules:
        bind(module, grad_req=grad_req, inputs_need_grad=grad_req == 'write')
        mx.random.seed(0)
        np.random.seed(0)
        module.init_params()
        module.init_optimizer(optimizer_params={'learning_rate': 0.1, 'momentum': 0.5})
    for size in rng.choice([4, 6, 10, 14], 40):
        batch, found, evaluates = problem.batch(rng.randint(37, size=size)), [], rng.rand() < 0.2
        for module in modules:
            if evaluates:
                module.forward(batch, is_train=False)
            module.forward_backward(batch)
            module.update()
            mx.nd.waitall()  # BatchNorm writes its states behind the engine's back
            found.append([*module.get_outputs(), *module.get_params()[0].values(),
                          *module.get_params()[1].values()])
            if grad_req == 'write':
                found[-1] += module.get_input_grads()
            assert module.data_shapes[0].shape == (size, 4)
        for actual, expected in zip(*found):
            assert (actual.asnumpy() == expected.asnumpy()).all()


def test_a_reshape_that_failed_leaves_training_as_it_was(training):
    """MXNet leaves the new number of rows beside the old shapes."""
    training.snapshot()
    module = training.module
    with pytest.raises(mx.MXNetError):  # a feature too many
        module.forward(mx.io.DataBatch([mx.nd.zeros((4, 5))], [mx.nd.zeros(4)]))
    for size in (14, 6):
        module.forward(training.problem.batch(size), is_train=False)
        training.epoch()
    assert module._exec_group.batch_size == 10
    training.check()


def test_a_reshape_between_backward_and_update_keeps_the_step(training):
    training.snapshot()
    training.epoch()
    for batch, rows in training.batches():
        training.module.forward_backward(batch)
        training.module.reshape([('data', (20, 4))], [('label', (20,))])
        training.module.update()
        training.svrg.step(rows)
        training.module.reshape([('data', (10, 4))], [('label', (10,))])
    training.check()


def test_bind_that_fails_forgets_what_it_was_to_share(monkeypatch):
    def fail(*_):
        raise MemoryError

    problem = Problem(rows=40)
    first, second = problem.bound(sgd={}), problem.module()
    first.update_full_grads(problem.iterator())
    with monkeypatch.context() as patch:
        patch.setattr(type(second._svrg.reference), 'bind', fail)
        with pytest.raises(MemoryError):
            bind(second, shared_module=first)
    assert not second.binded and not second._snapshot.is_active


def test_modules_that_share_weights_share_the_snapshot():
    """Each has it in the units of its own rows, also if the other took it."""
    problem = Problem('perceptron')
    first, second = problem.bound(sgd={'learning_rate': 0.1}), problem.module()
    bind(second, 4, shared_module=first)
    svrg = problem.svrg()
    for owner, units in ((first, 1), (second, 0.4), (first, 1)):
        owner.update_full_grads(problem.iterator())
        svrg.take_snapshot()
        problem.assert_full_gradient(first, {name: value * units for name, value
                                             in svrg.full_gradient.items()})
        problem.step(first, svrg, 10)
        problem.step(second, svrg, 10, 14)
    problem.assert_weights(first, svrg.weights)
    problem.assert_weights(second, svrg.weights)


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_snapshot_is_never_shared_with_live_parameters(context):
    """Nor do the keys of the full gradient have to be in the KVStore that is borrowed."""
    problem, svrg = Problem(), Problem().svrg()
    plain = mx.mod.Module(problem.symbol, label_names=('label',), context=context)
    bind(plain)
    plain.init_params(arg_params=problem.arg_params())
    plain.init_optimizer(optimizer_params={'learning_rate': 0.1})
    module = problem.module(context=context)
    bind(module, shared_module=plain)
    module.update_full_grads(problem.iterator())
    svrg.take_snapshot()
    problem.train_epoch(module, svrg)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('is_shared', [False, True])
@pytest.mark.parametrize('convolves', [False, True])
def test_a_predictor_has_the_weights_that_are_set_last(monkeypatch, is_shared, convolves):
    """MXNet's fused operators of an executor without gradients keep the first ones."""
    monkeypatch.delenv('MXNET_SUBGRAPH_BACKEND', raising=False)
    data, values = mx.sym.Variable('data'), np.random.RandomState(0).normal(size=(6, 2, 5, 5))
    output = (mx.sym.Convolution(data, kernel=(5, 5), num_filter=1, name='layer') if convolves else
              mx.sym.FullyConnected(data, num_hidden=1, name='layer'))
    module = predictor = SVRGModule(output, label_names=None)
    if is_shared:
        module.bind([('data', (3, 2, 5, 5))])
        module.init_params()
        predictor = SVRGModule(output, label_names=None)
    predictor.bind([('data', (3, 2, 5, 5))], for_training=False,
                   shared_module=module if is_shared else None)
    for factor, rows in (1., 3), (2., 3), (3., 6), (4., 6):  # with other rows it is reshaped
        weight = mx.nd.ones((1, 2, 5, 5) if convolves else (1, 50)) * factor
        module.set_params({'layer_weight': weight, 'layer_bias': mx.nd.zeros((1,))}, {})
        predictor.forward(mx.io.DataBatch([mx.nd.array(values[:rows])], None))
        np.testing.assert_allclose(predictor.get_outputs()[0].asnumpy().ravel(),
                                   factor * values[:rows].sum(axis=(1, 2, 3)), rtol=1e-4)

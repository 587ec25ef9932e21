"""Binding again, reshaping, and what executors share: parameters."""

import mxnet as mx
import numpy as np
import pytest

from held_batches import SETTINGS
from problems import TWO_DEVICES, Problem, prepared
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
    training.module.get_params()
    bind(training.module, 7, force_rebind=True)  # in whose units the full gradient is then
    training.problem.step(training.module, training.svrg, 7)
    training.check()
    training.snapshot()
    training.problem.assert_full_gradient(training.module, {
        name: value * 0.7 for name, value in training.svrg.full_gradient.items()})


def test_batches_may_change_their_size_and_back(training):
    training.snapshot()
    for rows in ((10,), (10, 14), (20,), (30, 37), (3,)):
        training.problem.step(training.module, training.svrg, *rows)
    for batch_size in (7, 37):  # the user may reshape the auxiliary module
        training.module._mod_aux.predict(training.problem.iterator(batch_size))
        training.epoch()
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


def test_modules_that_share_weights_share_the_snapshot():
    """Each has it in the units of its own rows, also if the other took it."""
    problem = Problem('perceptron')
    first, second = problem.bound(sgd={'learning_rate': 0.1}), problem.module()
    bind(second, 4, shared_module=first)
    svrg = problem.svrg()
    for owner, units in ((first, 1), (second, 0.4), (first, 1)):
        second.forward(problem.batch(10, 14))  # whose inputs a pass of the first leaves alone
        owner.update_full_grads(problem.iterator())
        svrg.take_snapshot()
        problem.assert_full_gradient(first, {name: value * units for name, value
                                             in svrg.full_gradient.items()})
        second.backward()
        second.update()
        svrg.step(np.arange(10, 14))
        problem.step(first, svrg, 10)
    problem.assert_weights(first, svrg.weights)
    problem.assert_weights(second, svrg.weights)


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_snapshot_is_never_shared_with_live_parameters(context):
    """Nor do the keys of the full gradient have to be in the KVStore that is borrowed."""
    problem, svrg = Problem(), Problem().svrg()
    plain = mx.mod.Module(problem.symbol, label_names=('label',), context=context)
    prepared(plain, problem.iterator(), problem.arg_params(), {'learning_rate': 0.1})
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


def test_predictions_need_no_labels_and_a_failed_one_breaks_nothing(training):
    training.snapshot()
    problem = training.problem
    for rows, data in ((37, mx.io.NDArrayIter(problem.features, batch_size=16)),
                       (37, problem.features), (7, problem.features[:7])):
        training.epoch()
        expected = training.module.predict(problem.iterator())[:rows].asnumpy()
        np.testing.assert_allclose(training.module.predict(data).asnumpy(), expected, atol=1e-6)
        with pytest.raises(ValueError, match='batches must be such'):
            training.module.predict(problem.features[:, 1:])
    training.module.fit(problem.iterator(), num_epoch=1)


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_outputs_and_input_gradients_stay_valid_over_passes_and_an_update(context):
    """Those of each batch, after one backward or two."""
    problem = Problem('perceptron')
    module = prepared(problem.module(context=context), problem.iterator(), problem.arg_params(),
                      SETTINGS, inputs_need_grad=True)
    for batch in problem.iterator():
        module.forward(batch)
        outputs, expected = module.get_outputs()[0], module.get_outputs()[0].asnumpy()
        module.update_full_grads(problem.iterator())
        module.backward()
        inputs = module.get_input_grads()[0].asnumpy()
        module.backward()
        for change in (lambda: module.update_full_grads(problem.iterator()), module.update):
            change()
            for array, before in ((outputs, expected), (module.get_outputs()[0], expected),
                                  (module.get_input_grads()[0], inputs)):
                np.testing.assert_array_equal(array.asnumpy(), before)

"""What SVRGTrainer refuses or warns of, and what an error leaves behind."""

import signal

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from blocks import Blocks, assert_weights, train, train_plain, weights_of
from svrg_optimization import BarzilaiBorwein
from svrg_optimization.gluon import SVRGTrainer

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@pytest.mark.parametrize('pass_is_first', [True, False])
def test_static_shape_is_refused(pass_is_first):
    problem = Blocks('perceptron')
    net = problem.net(hybridized={'static_alloc': True, 'static_shape': True})
    trainer = problem.trainer(net)
    batch = next(iter(problem.loader()))
    before = weights_of(net)
    with pytest.raises(ValueError, match='must not be hybridized with static_shape=True'):
        if not pass_is_first:
            with autograd.record():
                net(batch[0])
        trainer.update_full_grads(problem.loader())
        trainer.backward(*batch)
    for name, value in before.items():
        np.testing.assert_array_equal(weights_of(net)[name], value)


class StopError(Exception):
    pass


@pytest.mark.parametrize('where', ['data', 'objective'])
@pytest.mark.parametrize('error', [StopError, KeyboardInterrupt])
def test_an_error_in_the_pass_leaves_weights_gradients_and_the_snapshot(where, error):
    """So does Ctrl-C."""
    problem = Blocks('perceptron')
    net, loss, places = problem.net(), problem.loss(), None

    def stop(place):
        if places is None:
            return
        places.append(place)
        if places.count(where) == 3:
            if error is KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)
            raise StopError

    def objective(data, label):
        value = loss(net(data), label)
        stop('objective')
        return value

    trainer = problem.trainer(net, objective=objective)
    train(trainer, problem.loader(), 1)
    places = []

    def batches():
        for batch in problem.loader():
            stop('data')
            yield batch

    def state():
        return [array.asnumpy() for param in net.collect_params().values()
                for array in (param.data(), param.grad())], [
                    share.asnumpy() for share in
                    trainer._svrg.snapshot.full_gradient.shares[0].values()], [
                        value.asnumpy() for values in trainer._at.copy_of_weights().values()
                        for value in values]

    before = state()
    with pytest.raises(error):
        trainer.update_full_grads(batches())
    for was, now in zip(before, state()):
        for first, second in zip(was, now):
            np.testing.assert_array_equal(first, second)
    assert trainer._svrg.snapshot.is_active


def test_a_step_without_backward_of_the_trainer_is_an_error():
    problem = Blocks('softmax')
    net, loss = problem.net(), problem.loss()
    trainer = problem.trainer(net)
    trainer.update_full_grads(problem.loader())
    data, label = next(iter(problem.loader()))
    with autograd.record():
        value = loss(net(data), label)
    value.backward()
    before = weights_of(net)
    with pytest.raises(RuntimeError, match=r'a step needs trainer.backward\(...\)'):
        trainer.step(10)
    assert all(np.array_equal(before[name], value) for name, value in weights_of(net).items())
    trainer.backward(data, label)
    trainer.step(10)
    with pytest.raises(RuntimeError, match='a step needs'):
        trainer.step(10, ignore_stale_grad=True)


def test_a_step_without_a_snapshot_warns_once():
    problem = Blocks('softmax')
    net, plain = problem.net(), problem.net()
    trainer = problem.trainer(net)
    with pytest.warns(UserWarning, match='without a snapshot are plain steps: call ') as caught:
        for batch in problem.loader():
            trainer.backward(*batch)
            trainer.step(10)
    assert len(caught) == 1
    train_plain(problem.trainer(plain, gluon.Trainer), plain, problem.loss(), problem.loader(), 1)
    assert_weights(net, weights_of(plain), 1e-7)


def test_a_parameter_that_the_objective_leaves_out_is_an_error():
    """Its gradient would be that of an earlier batch."""
    problem = Blocks('softmax')
    heads = [gluon.nn.Dense(3, in_units=4) for _ in range(2)]
    net, loss = gluon.nn.HybridSequential(), problem.loss()
    net.add(*heads)
    net.initialize()
    trainer = problem.trainer(net, objective=lambda data, label: loss(heads[0](data), label))
    with pytest.raises(ValueError, match='must use all parameters that are trained, and not leave'):
        trainer.update_full_grads(problem.loader())
    heads[1].collect_params().setattr('grad_req', 'null')
    train(trainer, problem.loader(), 2)


@pytest.mark.parametrize('change', [
    lambda net: net[0].weight.__setattr__('grad_req', 'write'),
    lambda net: net.collect_params().reset_ctx(mx.cpu(1)), lambda net: net.cast('float64')])
def test_parameters_with_other_arrays_drop_the_snapshot(change):
    problem = Blocks('perceptron')
    net, loss = problem.net(), problem.loss()
    net[0].weight.grad_req = 'null'

    def objective(data, label):
        value = net[0].weight.list_data()[0]
        return loss(net(data.as_in_context(value.context).astype(value.dtype)),
                    label.as_in_context(value.context))

    trainer = problem.trainer(net, objective=objective)
    trainer.update_full_grads(problem.loader())
    change(net)
    with pytest.warns(UserWarning) as caught:
        trainer.backward(*next(iter(problem.loader())))
        trainer.step(10)
    assert ['parameters have got other arrays' in str(warning.message)
            for warning in caught] == [True, False]
    trainer.update_full_grads(problem.loader())
    trainer.backward(*next(iter(problem.loader())))
    trainer.step(10)
    assert trainer._svrg.snapshot.is_active


def test_parameters_that_are_row_sparse_are_an_error():
    table = gluon.Parameter('table', shape=(6, 2), stype='row_sparse', grad_stype='row_sparse')
    table.initialize()
    with pytest.raises(ValueError, match='params must be dense, and table is row_sparse'):
        SVRGTrainer([table], 'sgd', objective=len)


def test_parameters_of_one_name_are_an_error():
    problem = Blocks('softmax')
    params = [param for _ in range(2) for param in problem.net().collect_params().values()]
    with pytest.raises(ValueError, match='params must have different names'):
        SVRGTrainer(params, 'sgd', objective=len)


@pytest.mark.parametrize('arguments, error, says', [
    ({'objective': None}, TypeError, 'objective must be a function'),
    ({'alpha': 2}, ValueError, 'alpha must be a number from 0 to 1'),
    ({'nonfinite': 'stop'}, ValueError, "nonfinite must be 'warn' or 'raise'"),
    ({'loss_is_mean': 1}, TypeError, 'loss_is_mean must be None, True or False'),
    ({'kvstore': 'dist_async'}, ValueError, "kvstore must be 'dist_sync' or of one process"),
    ({'kvstore': 'dist_sync', 'update_on_kvstore': True}, ValueError,
     'update_on_kvstore must be None or False'),
    ({'compression_params': {'type': '2bit'}}, ValueError, 'compression_params must be None'),
    ({'settings': {'lr_scheduler': BarzilaiBorwein()}}, ValueError, 'needs an SVRGModule')])
def test_bad_arguments_are_refused(arguments, error, says):
    problem = Blocks('softmax')
    with pytest.raises(error, match=says):
        problem.trainer(problem.net(), **{'objective': len, **arguments})


def test_bad_batches_are_refused():
    problem = Blocks('softmax')
    trainer = problem.trainer(problem.net())
    with pytest.raises(ValueError, match='at least one row of data'):
        trainer.update_full_grads([])
    with pytest.raises(TypeError, match='train_data must yield tuples or lists'):
        trainer.update_full_grads([mx.nd.ones((2, 4))])
    with pytest.raises(ValueError, match='batches must be'):
        trainer.update_full_grads(problem.loader(), batches=0)
    on_two = problem.trainer(problem.net(TWO_DEVICES))
    with pytest.raises(ValueError, match='inputs must be lists of one for each of the devices'):
        on_two.backward(*next(iter(problem.loader())))
    means = problem.trainer(problem.net(), loss_is_mean=True)
    with pytest.raises(ValueError, match='a loss of one element with loss_is_mean=True'):
        means.update_full_grads(problem.loader())


def test_divergence_is_said_once():
    problem = Blocks('linear')
    trainer = problem.trainer(problem.net(), settings={'learning_rate': 3.})
    with pytest.warns(UserWarning, match='training diverges') as caught:
        train(trainer, problem.loader(), 12)
    messages = [str(one.message) for one in caught if 'diverges' in str(one.message)]
    assert len(messages) == 1 and 'learning rate, 3,' in messages[0]

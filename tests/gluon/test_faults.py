"""What calls of SVRGTrainer refuse or warn of, and what an error leaves behind."""

import concurrent.futures
import math
import signal
import sys
import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from blocks import TWO_DEVICES, Blocks, Training, as_blocks_take, train_epochs, weights_of
from interruption import Interruption
from svrg_optimization.gluon import SVRGTrainer
from svrg_optimization.proximal import L1


def takes(data, **kwargs):
    """Return a call of a pass over data, or over what a function makes of a loader."""
    return lambda trainer, loader: trainer.update_full_grads(
        data(loader) if callable(data) else data, **kwargs)


def backward(*batch):
    return lambda trainer, loader: trainer.backward(*(batch or next(iter(loader))))


class Frame(np.ndarray):
    """An array that looks like a table of pandas."""

    iloc = None


def of_pandas(_):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(
        np.ones((20, 4)).view(Frame), np.ones(20)), 10)


def in_record(call):
    def recorded(trainer, loader):
        with autograd.record():
            call(trainer, loader)
    return recorded


def all_fixed(trainer, data):
    for param in trainer._params:
        param.grad_req = 'null'
    trainer.update_full_grads(data)


STATES = 'states must be a tuple or list, on'


@pytest.mark.parametrize('contexts, arguments, call, error, says', [
    (None, {}, all_fixed, ValueError, 'params must have one that is trained'),
    (None, {}, takes([]), ValueError, 'at least one row of data'),
    (None, {}, takes([()]), TypeError, r'train_data must yield tuples or lists .*, not \(\)'),
    (None, {}, takes(iter, batches=0), ValueError, 'batches must be'),
    (None, {'tol': 1e-3}, takes(iter, batches=3), ValueError, '^batches must be None with tol'),
    (None, {'optimizer': 'newton_cg', 'settings': {}}, takes(iter, batches=3), ValueError,
     '^batches must be None with newton_cg'),
    (None, {}, lambda trainer, data: trainer.epochs(iter(data), 1), TypeError, 'more than once'),
    *[(None, {}, lambda trainer, _, numbers=numbers: trainer.epochs(None, *numbers), error,
       'num_epoch|update_freq') for numbers, error in (
           ((1.5,), TypeError), ((-1,), ValueError), ((3, 0), ValueError), ((3, '2'), TypeError))],
    (None, {}, in_record(backward()), RuntimeError, r'outside of autograd.record\(\)'),
    (None, {'objective': lambda *_: None}, takes(iter), TypeError, 'must return the loss, an NDA'),
    (None, {'objective': lambda *_: (1.5, 1)}, backward(), TypeError, 'must return the loss, an N'),
    (None, {'loss_is_mean': True}, takes(iter), ValueError, 'one element with loss_is_mean=True'),
    (None, {}, takes(iter, states=mx.nd.ones((4, 2))), TypeError, STATES),
    (TWO_DEVICES, {}, takes(iter, states=[[mx.nd.ones((4, 2))]]), TypeError, STATES),
    (TWO_DEVICES, {}, backward(), ValueError, 'inputs must be lists of one for each of the devi'),
    (TWO_DEVICES, {}, takes(lambda loader: [[part[:1] for part in next(iter(loader))]]), ValueError,
     r'at least one for each of 2 devices.* \[1, 1\] rows'),
    (TWO_DEVICES, {}, takes(lambda loader: [([data], label) for data, label in loader]), ValueError,
     'train_data must yield lists of one for each of the devices'),
    (None, {}, takes(of_pandas), TypeError, 'train_data must be .* not of pandas.* df.to_numpy'),
    *[(None, {}, takes(data), TypeError, 'train_data must be a DataLoader or .*, and not')
      for data in (np.ones((20, 4)), as_blocks_take(np.ones((20, 4))))],
    (TWO_DEVICES, {'batch_axis': [0]}, takes(iter), ValueError, 'one for each of the 2 inputs'),
    (TWO_DEVICES, {'batch_axis': 1}, takes(iter), ValueError, 'the inputs have .4, None. rows')])
def test_bad_calls_are_refused(contexts, arguments, call, error, says):
    problem = Blocks('softmax')
    trainer = problem.trainer(problem.net(contexts or mx.cpu()), **arguments)
    with pytest.raises(error, match=says):
        call(trainer, problem.loader())
    assert trainer.gradient_norm is None


def test_a_step_needs_a_backward_of_the_trainer_and_a_batch_size():
    training = Training(Blocks())
    trainer, loss = training.trainer, training.problem.loss()
    training.snapshot()
    for (data, label), rows in training.batches():
        with autograd.record():
            value = loss(training.net(data), label)
        value.backward()
        for step in (trainer.step, trainer.update):
            with pytest.raises(RuntimeError, match=r'a step needs trainer.backward\(...\)'):
                step(10, ignore_stale_grad=True)
        training.backward((data, label))
        for bad, error in ((0, ValueError), (math.nan, ValueError), ('5', TypeError)):
            with pytest.raises(error, match='batch_size must be a number above 0, not'):
                trainer.step(bad)
        training.step(rows)
    training.check()


@pytest.mark.parametrize('means, says', [
    (False, '10 rows (or words): '), (True, '1 mean losses, one for each device: ')])
@pytest.mark.parametrize('settings, proximal, warns', [
    ({'learning_rate': 0.1}, None, 0), ({'wd': 0.01}, None, 1),
    ({'learning_rate': 0.1}, L1(0.01), 1)])
def test_a_batch_size_that_is_not_the_batchs_warns_once_if_it_matters(means, says, settings,
                                                                      proximal, warns):
    problem = Blocks('softmax')
    net, loss, right = problem.net(), problem.loss(), 1 if means else 10
    trainer = problem.trainer(net, settings=settings, proximal=proximal, objective=(
        lambda data, label: loss(net(data), label).mean() if means else loss(net(data), label)))
    trainer.update_full_grads(problem.loader())
    for batch_size, count in ((right, 0), (7, warns)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            for batch in problem.loader():
                trainer.backward(*batch)
                trainer.step(batch_size)
        assert len(caught) == (count or means and batch_size == 7)
        assert all(('another optimum' if count else 'are 0.143 times as long as the learning rate'
                    ) in str(one.message) for one in caught)
        assert all('of step is 7, and backward has summed the gradients of ' + says in str(
            one.message) and 'It must be step(%d) for this batch' % right in str(one.message)
                   and means == ('loss_is_mean=False' in str(one.message)) for one in caught)


@pytest.mark.parametrize('grad_req, sizes, told', [
    ('write', [10, 10, 10], 1), ('add', [10, 10, 10], 0), ('write', [10, 4, 10], 0),
    ('write', [10], 0)])
def test_a_forgotten_step_is_told_of_once(grad_req, sizes, told):
    problem = Blocks('softmax')
    net = problem.net()
    net.collect_params().setattr('grad_req', grad_req)
    trainer = problem.trainer(net)
    trainer.update_full_grads(problem.loader())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        for _ in range(2):
            for size in sizes:
                trainer.backward(*(each[:size] for each in next(iter(problem.loader()))))
            trainer.step(sum(sizes) if grad_req == 'add' else sizes[-1])
            net.collect_params().zero_grad()
    assert ['without a step between' in str(each.message) for each in caught] == [True] * told


@pytest.mark.usefixtures('signals_are_heard')
@pytest.mark.parametrize('error', [OSError, KeyboardInterrupt])
def test_an_error_in_the_pass_leaves_weights_gradients_and_the_snapshot(error):
    problem, calls, stops = Blocks('perceptron'), [], 10 ** 6
    net, loss = problem.net(), problem.loss()

    def objective(data, label):
        calls.append(None)
        if len(calls) == stops:
            if error is OSError:
                raise OSError
            signal.raise_signal(signal.SIGINT)
        return loss(net(data), label)

    training = Training(problem, net=net, objective=objective)
    training.snapshot()
    training.epoch()
    for batch, rows in training.batches():
        training.backward(batch)
        before = {name: value.tobytes() for name, value in weights_of(net).items()}
        stops = len(calls) + 3
        with pytest.raises(error):
            training.trainer.update_full_grads(problem.loader())
        assert {name: value.tobytes() for name, value in weights_of(net).items()} == before
        training.step(rows)
    training.check()


SCOPES = ['_run', '__enter__', '__exit__', 'set_recording', 'set_training', 'record']


@pytest.mark.parametrize('functions, least, call', [
    (['give'], 5, lambda trainer, batch: trainer.backward(*batch)),
    (SCOPES, 20, lambda trainer, batch: trainer.backward(*batch)),
    pytest.param(SCOPES, 20, lambda trainer, batch: trainer.update_full_grads([batch]),
                 marks=pytest.mark.slow)])
def test_a_ctrl_c_leaves_weights_in_place_and_autograd_as_it_was(functions, least, call):
    """While weights are put back, and while autograd is turned on or off."""
    problem = Blocks('perceptron')
    net = problem.net()
    trainer, batch = problem.trainer(net), next(iter(problem.loader()))
    trainer.update_full_grads([batch])
    live = [(param, param._data, param._grad) for param in net.collect_params().values()]
    count = Interruption(lambda: call(trainer, batch), functions=functions).operations
    assert count > least
    for at in range(1, count + 1):
        assert not Interruption(lambda: call(trainer, batch), at, functions).left_on, at
        assert all(param._data is data and param._grad is gradients
                   for param, data, gradients in live)
        if functions == ['give']:
            with pytest.raises(RuntimeError, match='a step needs'):
                trainer.step(10)


@pytest.mark.parametrize('hybridized', [None, {}])
def test_trainers_of_several_threads_do_not_see_each_others_blocks(hybridized):
    problem, call = Blocks('softmax'), gluon.Block.__call__

    def train_one(_=None):
        net = problem.net(hybridized=hybridized)
        train_epochs(problem.trainer(net, optimizer='newton_cg', settings={}),
                     list(problem.loader())[:2], 2, 1)
        return {name: value.tobytes() for name, value in weights_of(net).items()}

    expected, interval = train_one(), sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-5)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            found = list(pool.map(train_one, range(3)))
    finally:
        sys.setswitchinterval(interval)
    assert found == [expected] * 3
    assert gluon.Block.__call__ is call


@pytest.mark.parametrize('change', [
    lambda net: net[0].weight.__setattr__('grad_req', 'write'), lambda net: net.cast('float64'),
    lambda net: net.collect_params().reset_ctx(mx.cpu())])
@pytest.mark.parametrize('takes_snapshot', [False, True])
@pytest.mark.filterwarnings('ignore:backward was called twice')
def test_parameters_with_other_arrays_drop_the_snapshot(change, takes_snapshot):
    """And gradients that went with their arrays are none of a step."""
    problem = Blocks('perceptron')
    net, loss = problem.net(), problem.loss()
    net[0].weight.grad_req = 'null'
    trainer = problem.trainer(net, objective=lambda data, label: loss(
        net(data.astype(net[0].weight.dtype)), label))
    batch = next(iter(problem.loader()))
    trainer.update_full_grads(problem.loader())
    trainer.backward(*batch)
    change(net)
    before = weights_of(net)
    if takes_snapshot:
        with pytest.warns(UserWarning, match='parameters have got other arrays'):
            trainer.update_full_grads(problem.loader())
    with pytest.raises(RuntimeError, match='a step needs trainer.backward'):
        trainer.step(10)
    assert all((weights_of(net)[name] == value).all() for name, value in before.items())
    if takes_snapshot:
        trainer.backward(*batch)
        assert trainer._svrg.snapshot.is_active
        return
    with pytest.warns(UserWarning) as caught:
        trainer.backward(*batch)
        trainer.step(10)
    assert ['parameters have got other arrays' in str(warning.message)
            for warning in caught if warning.category is UserWarning] == [True, False]


def test_a_network_hybridized_with_static_shape_later_is_refused_at_the_next_step():
    training = Training(Blocks('perceptron'))
    training.snapshot()
    training.epoch()
    training.net.hybridize(static_alloc=True, static_shape=True)
    (batch, _), *_ = training.batches()
    for again in (lambda: training.backward(batch), training.snapshot):
        with pytest.raises(ValueError, match='with static_shape=True, .* write net.hybridize'):
            again()
    training.net.hybridize(static_alloc=True)
    training.epoch()
    training.check()


def other_loss(problem, net, batch):
    with autograd.record():
        value = problem.loss()(net(batch[0][-1]), batch[1][-1])
    value.backward()


def other_trainer(problem, net, batch):
    trainer = SVRGTrainer(net.collect_params('.*bias'), 'sgd', objective=lambda data, label:
                          problem.loss()(net(data), label))
    trainer.update_full_grads(problem.loader())
    trainer.backward(*batch)


@pytest.mark.parametrize('contexts', [[mx.cpu()], TWO_DEVICES])
@pytest.mark.parametrize('overwrite', [other_loss, other_trainer])
def test_gradients_that_are_overwritten_before_the_step_are_an_error(overwrite, contexts):
    problem = Blocks('perceptron')
    net = problem.net(contexts)
    trainer = SVRGTrainer(net.collect_params('.*weight'), 'sgd', objective=lambda data, label:
                          problem.loss()(net(data), label))
    trainer.update_full_grads(problem.loader())
    batch = [gluon.utils.split_and_load(array, contexts)
             for array in next(iter(problem.loader()))]
    trainer.backward(*batch)
    before = weights_of(net)
    overwrite(problem, net, batch)
    with pytest.raises(RuntimeError, match='overwritten the gradients of fc_weight, hidden_weight'):
        trainer.step(10)
    assert all((weights_of(net)[name] == value).all() for name, value in before.items())


def test_inputs_without_rows_are_given_to_each_device_whole():
    problem = Blocks('softmax')
    net, loss = problem.net(TWO_DEVICES), problem.loss()
    scale = as_blocks_take([[0.5, 0.5, 0.5, 0.5]])
    training = Training(problem, net=net, batch_axis=[None, 0, 0], objective=(
        lambda scale, data, label: loss(net(2 * scale * data), label)))
    training.trainer.update_full_grads([(scale, *batch) for batch in problem.loader()])
    training.svrg.take_snapshot()
    training.check_full_gradient()


def words(problem, numbers):
    """Return batches of ten rows, and of each batch only so many words count."""
    for number, (data, label) in zip(numbers, problem.loader()):
        yield data, label, mx.nd.array(np.arange(10) < number)


@pytest.mark.nd_arrays
def test_a_loss_of_one_word_after_losses_of_many_is_a_word():
    problem = Blocks('softmax')
    net, loss = problem.net(), problem.loss()

    def objective(data, label, mask):
        return mx.nd.contrib.boolean_mask(loss(net(data), label), mask)

    training = Training(problem, net=net, twin={'batch_size': 1}, objective=objective)
    training.trainer.update_full_grads(words(problem, [5, 1, 10]))
    training.svrg.take_snapshot(np.r_[0:5, 10:11, 20:30])
    for rows, batch in zip((range(5), [10], range(20, 30)), words(problem, [5, 1, 10])):
        training.backward(batch)
        training.svrg.optimizer.rescale = 1 / len(rows)
        training.step(np.array(rows), len(rows))
    training.check()
    with pytest.raises(ValueError, match='objective must return a loss of one element .* after s'):
        problem.trainer(net, objective=objective).update_full_grads(words(problem, [1, 5]))

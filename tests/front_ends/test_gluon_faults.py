"""What SVRGTrainer refuses or warns of, and what an error leaves behind."""

import math
import signal
import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from blocks import (
    BIAS,
    SETTINGS,
    Blocks,
    as_blocks_take,
    assert_weights,
    train,
    train_plain,
    weights_of,
)
from interruption import Interruption
from svrg_optimization.gluon import SVRGTrainer
from svrg_optimization.proximal import L1, GroupLasso

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def table(stype='default'):
    param = gluon.Parameter('table', shape=(6, 2), stype=stype, grad_stype=stype)
    param.initialize()
    return param


@pytest.mark.nd_arrays
@pytest.mark.parametrize('params, says', [
    (list, 'have at least one Parameter'), (dict, 'have at least one Parameter'),
    (lambda: gluon.nn.Dense(1).collect_params('typo'), 'have at least one Parameter'),
    (lambda: [table('row_sparse')], 'be dense, and table is row_sparse'),
    (lambda: [table(), table()], 'have different names')])
def test_bad_params_are_refused(params, says):
    with pytest.raises(ValueError, match='params must ' + says):
        SVRGTrainer(params(), 'sgd', objective=len)


PROXIMAL = {'settings': {'learning_rate': 0.1}}


@pytest.mark.parametrize('arguments, error, says', [
    ({'objective': None}, TypeError, 'objective must be a function'),
    ({'alpha': 2}, ValueError, 'alpha must be a number from 0 to 1'),
    ({'nonfinite': 'stop'}, ValueError, "nonfinite must be 'warn' or 'raise'"),
    ({'loss_is_mean': 1}, TypeError, 'loss_is_mean must be None, True or False'),
    ({'batch_axis': None}, TypeError, 'batch_axis must be an int of 0 or more, not None'),
    ({'batch_axis': [0, '1']}, TypeError, "batch_axis must be an int of 0 or more, not '1'"),
    ({'batch_axis': -1}, ValueError, 'batch_axis must be an int of 0 or more, not -1'),
    ({'tol': 0}, ValueError, 'tol must'), ({'tol': 'a'}, TypeError, 'tol must'),
    ({'tol': 1, 'alpha': 0}, ValueError, 'alpha must not be 0 with tol'),
    ({'store_snapshot_grads': 0.5}, TypeError, 'store_snapshot_grads must'),
    ({'kvstore': 'dist_async'}, ValueError, "kvstore must be 'dist_sync' or of one process"),
    ({'kvstore': 'dist_sync', 'update_on_kvstore': True}, ValueError,
     'update_on_kvstore must be None or False'),
    ({'settings': {'learning_rate': math.nan}}, ValueError, 'learning_rate must be a finite num'),
    ({'compression_params': {'type': '2bit'}}, ValueError, 'compression_params must be None'),
    ({**PROXIMAL, 'proximal': 3}, TypeError, 'proximal must'),
    ({**PROXIMAL, 'proximal': {'other': L1(1)}}, ValueError, "not for 'other'"),
    ({**PROXIMAL, 'proximal': {'fc_weight': GroupLasso(1, axis=5)}}, ValueError,
     'axis must be an axis of fc_weight'),
    ({**PROXIMAL, 'proximal': L1(1), 'update_on_kvstore': True}, ValueError,
     'update_on_kvstore must be None or False with proximal'),
    ({**PROXIMAL, 'proximal': L1(1), 'optimizer': 'adam'}, ValueError,
     'optimizer must be sgd without momentum for proximal.*adam'),
    ({'settings': {'momentum': 0.9}, 'proximal': L1(1)}, ValueError,
     'optimizer must be sgd without momentum for proximal.*momentum 0.9')])
def test_bad_arguments_are_refused(arguments, error, says):
    problem = Blocks('softmax')
    with pytest.raises(error, match=says):
        problem.trainer(problem.net(), **{'objective': len, **arguments})


def takes(data, **kwargs):
    """Return a call of a pass over data, or over what a function makes of a loader."""
    return lambda trainer, loader: trainer.update_full_grads(
        data(loader) if callable(data) else data, **kwargs)


def backward(*batch):
    return lambda trainer, loader: trainer.backward(*(batch or next(iter(loader))))


def in_record(call):
    def recorded(trainer, loader):
        with autograd.record():
            call(trainer, loader)
    return recorded


def of_numpy(loader):
    return [[array.asnumpy() for array in batch] for batch in loader]


NUMPY = np.ones((2, 4), 'float32'), np.ones(2, 'float32')
STATES = 'states must be a tuple or list of what objective takes'


@pytest.mark.parametrize('contexts, arguments, call, error, says', [
    (None, {}, takes([]), ValueError, 'at least one row of data'),
    (None, {}, takes([mx.nd.ones((2, 4))]), TypeError, 'train_data must yield tuples or lists'),
    (None, {}, takes([()]), TypeError, r'train_data must yield tuples or lists .*, not \(\)'),
    (None, {}, takes(iter, batches=0), ValueError, 'batches must be'),
    (None, {'tol': 1.}, takes(iter, batches=1), ValueError, 'batches must be None with tol'),
    (None, {}, takes(of_numpy), TypeError, 'must give objective NDArrays'),
    (None, {}, backward(*NUMPY), TypeError, 'must give objective NDArrays'),
    (None, {}, lambda trainer, _: trainer.backward(), TypeError, 'backward needs the inputs'),
    (None, {}, in_record(takes(iter)), RuntimeError, r'outside of autograd.record\(\)'),
    (None, {}, in_record(backward()), RuntimeError, r'outside of autograd.record\(\)'),
    (None, {'alpha': 0}, in_record(backward()), RuntimeError, r'outside of autograd.record\(\)'),
    (None, {'objective': lambda *_: None}, takes(iter), TypeError, 'must return the loss, an NDA'),
    (None, {'objective': lambda *_: (1.5, 1)}, backward(), TypeError, 'must return the loss, an N'),
    (None, {'loss_is_mean': True}, takes(iter), ValueError, 'one element with loss_is_mean=True'),
    (None, {}, takes(iter, states=mx.nd.ones((4, 2))), TypeError, STATES),
    (TWO_DEVICES, {}, takes(iter, states=mx.nd.ones((4, 2))), TypeError, STATES),
    (TWO_DEVICES, {}, takes(iter, states=[mx.nd.ones((4, 2))] * 2), TypeError, STATES),
    (TWO_DEVICES, {}, takes(iter, states=[[mx.nd.ones((4, 2))]]), TypeError, STATES),
    (TWO_DEVICES, {}, backward(), ValueError, 'inputs must be lists of one for each of the devi'),
    (TWO_DEVICES, {'batch_axis': [0]}, takes(iter), ValueError, 'one for each of the 2 inputs'),
    (TWO_DEVICES, {'batch_axis': 1}, takes(iter), ValueError, 'the inputs have .4, None. rows'),
    (TWO_DEVICES, {'batch_axis': 2}, takes(iter), ValueError, 'the inputs have .None, None. rows')])
def test_bad_calls_are_refused(contexts, arguments, call, error, says):
    problem = Blocks('softmax')
    trainer = problem.trainer(problem.net(contexts or mx.cpu()), **arguments)
    with pytest.raises(error, match=says):
        call(trainer, problem.loader())
    assert not trainer._svrg.snapshot.is_active


@pytest.mark.parametrize('fixed, says', [
    ('.*', 'params must have one that is trained'), (None, 'and not leave out left')])
def test_parameters_that_get_no_gradient_are_an_error(fixed, says):
    """That of a parameter which the objective leaves out would be that of an earlier batch."""
    problem = Blocks('softmax')
    used, left = (gluon.nn.Dense(3, in_units=4, prefix=name) for name in ('used', 'left'))
    net, loss = gluon.nn.HybridSequential(), problem.loss()
    net.add(used, left)
    net.initialize()
    if fixed:
        net.collect_params(fixed).setattr('grad_req', 'null')
    trainer = problem.trainer(net, objective=lambda data, label: loss(used(data), label))
    with pytest.raises(ValueError, match=says):
        trainer.update_full_grads(problem.loader())
    used.collect_params().setattr('grad_req', 'write')
    left.collect_params().setattr('grad_req', 'null')
    train(trainer, problem.loader(), 2)


def test_a_step_needs_a_backward_of_the_trainer_before_it():
    problem = Blocks('softmax')
    net, plain, loss = problem.net(), problem.net(), problem.loss()
    trainer = problem.trainer(net)
    with pytest.warns(UserWarning, match='without a snapshot are plain steps: call ') as caught:
        for batch in problem.loader():
            trainer.backward(*batch)
            trainer.step(10)
    assert len(caught) == 1
    train_plain(problem.trainer(plain, gluon.Trainer), plain, loss, problem.loader(), 1)
    assert_weights(net, weights_of(plain), 1e-7)
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
    for step in (trainer.step, trainer.update):
        with pytest.raises(RuntimeError, match='a step needs'):
            step(10, ignore_stale_grad=True)


@pytest.mark.parametrize('contexts, means, says', [
    ([mx.cpu()], False, '7 rows (or words): '), ([mx.cpu()], True, '1 means: '),
    (TWO_DEVICES, False, '7 rows (or words): ')])
@pytest.mark.parametrize('settings, proximal, warns', [
    ({'learning_rate': 0.1}, None, False), ({'wd': 0.01}, None, True),
    ({'learning_rate': 0.1}, L1(0.01), True)])
def test_a_batch_size_that_is_not_the_batchs_warns_once_if_it_matters(
        contexts, means, says, settings, proximal, warns):
    problem = Blocks('softmax', rows=17)
    net, loss = problem.net(contexts), problem.loss()

    def objective(data, label):
        value = loss(net(data), label)
        return value.mean() if means else value

    def messages(batch_size_of):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            warnings.filterwarnings('ignore', 'ndarray.as_in_context has')  # of split_and_load
            for batch in batches:
                trainer.backward(*(gluon.utils.split_and_load(array, contexts, even_split=False)
                                   for array in batch))
                trainer.step(batch_size_of(batch))
        return [str(one.message) for one in caught]

    batches = list(problem.loader()) * 2
    trainer = problem.trainer(net, objective=objective, settings=settings, proximal=proximal)
    trainer.update_full_grads(batches)
    assert not messages(lambda batch: 1 if means else len(batch[0]))
    found = messages(lambda _: 10)
    assert len(found) == warns
    for message in found:
        assert 'of step is 10, and backward has summed the gradients of ' + says in message
        assert message.endswith('as in step(1)' if means else 'as in step(len(data))')


class StopError(Exception):
    pass


@pytest.mark.usefixtures('signals_are_heard')
@pytest.mark.parametrize('where, error', [('data', StopError), ('objective', KeyboardInterrupt)])
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
                        value.asnumpy() for values in trainer._reference.copy_of_values().values()
                        for value in values]

    before = state()
    with pytest.raises(error):
        trainer.update_full_grads(batches())
    for was, now in zip(before, state()):
        for first, second in zip(was, now):
            np.testing.assert_array_equal(first, second)
    assert trainer._svrg.snapshot.is_active


def test_a_ctrl_c_while_the_weights_are_put_back_leaves_them_in_place():
    problem = Blocks('perceptron')
    net = problem.net()
    trainer = problem.trainer(net)
    trainer.update_full_grads(problem.loader())
    batch = next(iter(problem.loader()))
    live = [(param, param._data, param._grad) for param in net.collect_params().values()]
    call = gluon.HybridBlock._call_cached_op
    count = Interruption(lambda: trainer.backward(*batch), functions=['restore']).operations
    assert count > 5
    for at in range(1, count + 1):
        Interruption(lambda: trainer.backward(*batch), at, functions=['restore'])
        assert all(param._data is data and param._grad is gradients
                   for param, data, gradients in live)
        assert gluon.HybridBlock._call_cached_op is call
        with pytest.raises(RuntimeError, match='a step needs'):
            trainer.step(10)


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
            for warning in caught if warning.category is UserWarning] == [True, False]
    trainer.update_full_grads(problem.loader())
    trainer.backward(*next(iter(problem.loader())))
    trainer.step(10)
    assert trainer._svrg.snapshot.is_active


@pytest.mark.parametrize('bad, error', [
    (0, ValueError), (math.nan, ValueError), (None, TypeError), ('5', TypeError)])
def test_a_bad_batch_size_of_a_step_changes_nothing(bad, error):
    problem = Blocks()
    net = problem.net()
    trainer = problem.trainer(net)
    trainer.update_full_grads(problem.loader())
    for data, label in problem.loader():
        trainer.backward(data, label)
        with pytest.raises(error, match='batch_size must be a number above 0, not'):
            trainer.step(bad)
        trainer.step(len(data))
    assert_weights(net, problem.oracle(1))


def test_a_network_hybridized_with_static_shape_later_is_refused_at_the_next_step():
    problem = Blocks('perceptron')
    net = problem.net()
    trainer = problem.trainer(net)
    train(trainer, problem.loader(), 1)
    net.hybridize(static_alloc=True, static_shape=True)
    before = weights_of(net)
    for batch in problem.loader():
        with pytest.raises(ValueError, match='must not be hybridized with static_shape=True'):
            trainer.backward(*batch)
        with pytest.raises(RuntimeError, match='a step needs'):
            trainer.step(10)
    for name, value in before.items():
        np.testing.assert_array_equal(weights_of(net)[name], value)
    net.hybridize(static_alloc=True)
    train(trainer, problem.loader(), 2, begin=1)
    assert_weights(net, problem.oracle(2))


def other_loss(problem, net, batch):
    """As of a user's own on the last device."""
    with autograd.record():
        value = problem.loss()(net(batch[0][-1]), batch[1][-1])
    value.backward()


def other_trainer(problem, net, batch):
    """One for the biases."""
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
    with pytest.raises(RuntimeError, match='another backward pass.* has overwritten those of '
                                           'fc_weight, hidden_weight. One SVRGTrainer can'):
        trainer.step(10)
    for name, value in before.items():
        np.testing.assert_array_equal(weights_of(net)[name], value)
    trainer.backward(*batch)
    trainer.step(10)
    assert all((weights_of(net)[name] != value).any() == name.endswith('weight')
               for name, value in before.items())


def test_gradients_that_add_up_may_get_those_of_another_loss():
    """The SVRG gradient of the objective and the gradient of another function are of their sum."""
    problem = Blocks('softmax')
    net = problem.net()
    net.collect_params().setattr('grad_req', 'add')
    trainer = problem.trainer(net, settings={'learning_rate': 0.2})
    trainer.update_full_grads(problem.loader())
    svrg = problem.svrg(10, learning_rate=0.2)
    svrg.take_snapshot()
    for number, batch in enumerate(problem.loader()):
        net.collect_params().zero_grad()
        trainer.backward(*batch)
        with autograd.record():
            penalty = sum((param.data() ** 2).sum() for param in net.collect_params().values())
        penalty.backward()
        trainer.step(10)
        before = {name: value.copy() for name, value in svrg.weights.items()}
        svrg.step(np.arange(10) + 10 * number)
        for name, value in before.items():
            svrg.weights[name] -= 0.2 * 2 * value / 10
    assert_weights(net, svrg.weights)


@pytest.mark.parametrize('zero_in', ['first batch of the pass', 'first step'])
def test_gradients_of_float16_that_are_0_are_no_error(zero_in):
    weight = gluon.Parameter('weight', shape=(3,), dtype='float16', init='ones')
    weight.initialize()
    trainer = SVRGTrainer([weight], 'sgd', {'learning_rate': 0.5, 'multi_precision': True},
                          objective=lambda rows: (rows * weight.data()).sum(axis=1))
    zeros, ones = (as_blocks_take(np.full((2, 3), value), 'float16') for value in (0, 1))
    trainer.update_full_grads([[zeros], [ones]] if zero_in.endswith('pass') else [[ones], [zeros]])
    trainer.backward(zeros)
    trainer.step(2)  # the gradients of zeros at both weights cancel, and the mean is 1/2
    np.testing.assert_array_equal(weight.data().asnumpy(), 0.75 * np.ones(3))


@pytest.mark.parametrize('given', [3, None, 'dict', 'numpy'])
def test_the_first_input_may_be_anything(given):
    problem = Blocks('softmax')
    net, loss = problem.net(), problem.loss()

    def objective(first, data, label):
        if isinstance(first, dict):
            data, label = first['data'], first['label']
        if isinstance(first, np.ndarray):
            data = as_blocks_take(first)
        return loss(net(data), label)

    class Loader:
        def __iter__(self):
            for data, label in problem.loader():
                first = {'dict': {'data': data, 'label': label}, 'numpy': data.asnumpy()}.get(
                    given, given)
                yield first, data, label

    train(problem.trainer(net, objective=objective), Loader(), 4)
    assert_weights(net, problem.oracle(4))


@pytest.mark.nd_arrays
@pytest.mark.parametrize('layout', ['NDArray', 'NumPy'])
def test_a_batch_that_is_split_along_time_is_an_error(layout):
    data = np.random.RandomState(0).normal(size=(8, 6, 3)).astype('float32')
    batches = [(mx.nd.array(data) if layout == 'NDArray' else data,)]
    net, loss = gluon.nn.Dense(1, in_units=3, flatten=False), gluon.loss.L2Loss(batch_axis=1)
    net.initialize(ctx=TWO_DEVICES)

    def trainer_of(objective, axis):
        return SVRGTrainer(net.collect_params(), 'sgd', objective=objective, batch_axis=axis)

    def by_sequence(data):
        return loss(net(data), data[:, :, :1])

    trainer = trainer_of(by_sequence, 0)
    with pytest.raises(ValueError, match='batch_axis must be the axis of the rows in each input, 1 '
                                         'for .T, N, C.*: it has 6 elements for a batch, and 12'):
        trainer.update_full_grads(batches)
    assert not trainer._svrg.snapshot.is_active
    trainer_of(by_sequence, 1).update_full_grads(batches)
    for axis in (0, 1):  # these count what they should: words, and a mean
        for objective in (lambda data: (net(data) - data[:, :, :1]) ** 2,
                          lambda data: by_sequence(data).mean()):
            trainer_of(objective, axis).update_full_grads(batches)


def test_inputs_without_rows_are_given_to_each_device_whole():
    problem = Blocks('softmax')
    net, loss = problem.net(TWO_DEVICES), problem.loss()
    scale = as_blocks_take([[0.5, 0.5, 0.5, 0.5]])
    trainer = problem.trainer(net, batch_axis=[None, 0, 0], objective=lambda scale, data, label:
                              loss(net(2 * scale * data), label))
    trainer.update_full_grads([(scale, *batch) for batch in problem.loader()])
    svrg = problem.svrg(1)
    svrg.take_snapshot()
    full = trainer._svrg.snapshot.full_gradient
    np.testing.assert_allclose(full.totals()['fc_weight'].asnumpy() / full.batch_size,
                               svrg.full_gradient['fc_weight'], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match='train_data must yield lists of one for each of the dev'):
        trainer.update_full_grads([([scale], *batch) for batch in problem.loader()])


def words(problem, numbers):
    """Return batches of ten rows, and of each batch only so many words count."""
    for number, (data, label) in zip(numbers, problem.loader()):
        yield data, label, mx.nd.array(np.arange(10) < number)


@pytest.mark.nd_arrays
def test_a_loss_of_one_word_after_losses_of_many_is_a_word():
    problem = Blocks('softmax')
    net, loss = problem.net(), problem.loss()
    trainer = problem.trainer(net, objective=lambda data, label, mask: mx.nd.contrib.boolean_mask(
        loss(net(data), label), mask))
    trainer.update_full_grads(words(problem, [5, 1, 10]))
    counted = np.r_[0:5, 10:11, 20:30]
    svrg = problem.svrg(1, **{**SETTINGS, **BIAS})
    svrg.take_snapshot(counted)
    for rows, batch in zip((range(5), [10], range(20, 30)), words(problem, [5, 1, 10])):
        trainer.backward(*batch)
        trainer.step(len(rows))
        svrg.optimizer.rescale = 1 / len(rows)
        svrg.step(np.array(rows), batch_size=len(rows))
    assert_weights(net, svrg.weights)
    first = problem.trainer(net, objective=lambda data, label, mask: mx.nd.contrib.boolean_mask(
        loss(net(data), label), mask))
    with pytest.raises(ValueError, match='objective must return a loss of one element .* after a'):
        first.update_full_grads(words(problem, [1, 5]))


@pytest.mark.nd_arrays
def test_losses_by_time_step_of_batches_of_other_sequences_warn():
    problem = Blocks('linear')
    weight = gluon.Parameter('weight', shape=(4, 1), init='ones')
    weight.initialize()
    trainer = SVRGTrainer([weight], 'sgd', batch_axis=1, objective=lambda data: (
        mx.nd.dot(data, weight.data()) ** 2).mean(axis=(1, 2)))
    data = mx.nd.array(problem.features[:30].reshape(5, 6, 4))
    trainer.update_full_grads([[data[:, :3]], [data[:, 3:]]])
    with pytest.warns(UserWarning, match='5 elements for 1 rows along batch_axis as for 3'):
        trainer.update_full_grads([[data[:, :3]], [data[:, 3:4]]])

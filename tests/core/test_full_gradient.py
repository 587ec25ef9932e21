"""The full gradient of one pass: which rows it is the mean of, all or some."""

import logging
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

import oracle
from bad_input import Data
from full_gradients import assert_pass, full_gradient, randomize, short_batches
from held_batches import SETTINGS
from problems import TWO_DEVICES, Problem, prepared
from svrg_optimization import SVRGModule


@pytest.mark.parametrize('work_load_list, compression_params', [
    (None, None), ([1, 3], {'type': '2bit', 'threshold': 0.5})])
def test_each_device_holds_an_equal_share_which_no_compression_changes(work_load_list,
                                                                       compression_params):
    """Zeros before the first of two snapshots."""
    problem = Problem('perceptron', rows=37)
    module = problem.bound(context=TWO_DEVICES, work_load_list=work_load_list,
                           compression_params=compression_params)
    assert module._param_dict is None
    module.init_optimizer(kvstore='device')
    assert not any(value.asnumpy().any() for share in module._param_dict
                   for value in share.values())
    for seed in range(2):
        weights = randomize(module, problem, seed)
        module.update_full_grads(problem.iterator(shuffle=True))
        expected = full_gradient(problem, weights, np.arange(37))
        for device, share in zip(TWO_DEVICES, module._param_dict):
            assert {value.context for value in share.values()} == {device}
            problem.assert_values({name: value.asnumpy() for name, value in share.items()},
                                  {name: value / 2 for name, value in expected.items()}, 1e-5)


def handled(handle, wrap=lambda iterator: iterator):
    return lambda problem: wrap(problem.iterator(last_batch_handle=handle))


def three_batches(iterator):
    return mx.io.ResizeIter(iterator, 3)


def twice(iterator):
    return mx.io.ResizeIter(iterator, 8)


def halves(batch):
    """Return a batch as a list of one for each of two devices."""
    data, label = (np.split(each[0].asnumpy(), 2) for each in (batch.data, batch.label))
    return [mx.io.DataBatch([mx.nd.array(data[half])], [mx.nd.array(label[half])], pad)
            for half, pad in enumerate((max(0, batch.pad - 5), min(5, batch.pad)))]


def in_lists(handle, wrap=lambda iterator: iterator):
    return lambda problem: Data(*map(halves, wrap(problem.iterator(last_batch_handle=handle))))


def bare(problem):
    """Return batches with data and labels alone, as Module takes them."""
    return Data(*(SimpleNamespace(data=batch.data, label=batch.label)
                  for batch in short_batches(problem)))


@pytest.mark.parametrize('rows, make, passes, settings', [
    (4, Problem.iterator, [4], {}),
    (37, lambda problem: problem.iterator(5), [37], {}),
    # Rows left over by one pass come first in the next, and are counted as its padding.
    (38, handled('roll_over'), [30, 32, 34], {}),
    (38, handled('roll_over', mx.io.PrefetchingIter), [30, 32, 34], {}),
    (38, handled('roll_over', three_batches), [30, 30], {}),
    (38, handled('roll_over', lambda data: mx.io.PrefetchingIter(three_batches(data))), [30, 30],
     {}),
    (38, handled('discard'), [30, 30], {}),
    (37, short_batches, [37, 37], {}), (37, bare, [37], {}),
    *((40, lambda problem, dtype=dtype: mx.io.NDArrayIter(
        mx.nd.array(problem.features, dtype=dtype), problem.targets, 10, label_name='label'),
       [40], {}) for dtype in ('uint8', 'int32', 'float64')),
    *((rows, in_lists('pad'), [rows, rows], {'context': TWO_DEVICES}) for rows in (40, 37, 33)),
    (37, in_lists('discard'), [30, 30], {'context': TWO_DEVICES}),
    # A batch in the middle of a pass may be padded.
    (37, handled('pad', twice), [37], {'context': TWO_DEVICES}),
    (37, in_lists('pad', twice), [37], {'context': TWO_DEVICES})])
def test_each_row_that_an_iterator_yields_counts_once(rows, make, passes, settings):
    problem = Problem(rows=rows)
    problem.features = np.round(4 * np.abs(problem.features))  # as uint8 has them
    module = problem.bound(**settings)
    train_data = make(problem)
    for expected in passes:
        assert_pass(problem, module, train_data, expected)


@pytest.mark.filterwarnings('ignore:Data provided by label_shapes')
@pytest.mark.parametrize('bound, labelled', [(True, False), (False, False), (False, True)])
def test_labels_that_the_loss_lacks_are_zeros(bound, labelled):
    """What Module takes for them; those that the data have all the same do not matter."""
    problem = Problem(rows=37)
    given = problem.targets if labelled else None
    if bound:
        module = problem.module()
        module.bind([('data', (10, 4))], None)
    else:
        output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
        module = SVRGModule(mx.sym.MakeLoss(0.5 * mx.sym.square(output)), label_names=None,
                            update_freq=1)
        module.bind([('data', (10, 4))])
    module.init_params(arg_params=problem.arg_params())
    problem.targets = np.zeros(37)
    assert_pass(problem, module, mx.io.NDArrayIter(problem.features, given, 10))


def test_the_objective_of_a_long_pass_counts_each_batch_once():
    """Losses are added up after each 64 batches, which two devices do not join."""
    problem = Problem('softmax', rows=332)
    module = problem.bound(5, context=TWO_DEVICES)
    module.update_full_grads(problem.iterator(5))
    expected = oracle.loss(problem.network, problem.weights, problem.features, problem.targets)
    np.testing.assert_allclose(module.full_objective, expected / 332, rtol=1e-6)


@pytest.mark.parametrize('context, multi_precision', [(mx.cpu(), True), (TWO_DEVICES, False)])
@pytest.mark.filterwarnings('ignore:Accumulating with float16')
def test_a_full_gradient_of_float16_is_summed_in_float32(multi_precision, context):
    # In float16 the sum would stop growing at 2048, or lose the small terms.
    features = (1 + np.random.RandomState(0).rand(4096, 2)).astype(np.float16)
    weight = mx.sym.Variable('w', shape=(1, 2), dtype='float16')
    product = mx.sym.broadcast_mul(mx.sym.Variable('data'), weight)
    symbol = mx.sym.MakeLoss(mx.sym.square(mx.sym.sum(product, axis=1)) * 0.5)
    train_data = mx.io.NDArrayIter(mx.nd.array(features, dtype='float16'), batch_size=8)
    start = np.array([[0.25, -0.125]], np.float16)
    module = prepared(SVRGModule(symbol, label_names=None, update_freq=1, context=context),
                      train_data, {'w': mx.nd.array(start, dtype='float16')}, {
                          'learning_rate': 0.01, 'momentum': 0.5,
                          'multi_precision': multi_precision})
    module.update_full_grads(train_data)
    exact = features.astype(float)
    full = 8 * (exact @ start.T.astype(float)).T @ exact / 4096
    actual = sum(share['w'].asnumpy() for share in module._param_dict)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, full, rtol=1e-3)
    train_data.reset()
    module.forward_backward(next(train_data))
    module.update()
    # At the snapshot the SVRG gradient is the full gradient.
    np.testing.assert_allclose(module.get_params()[0]['w'].asnumpy(), start - 0.01 / 8 * actual,
                               rtol=2e-3)


# Over samples of the batches

def test_a_function_of_the_number_of_snapshots_gives_the_batches(caplog):
    problem, seen = Problem('softmax', rows=37), []
    module = problem.module(2, full_grad_batches=lambda number: seen.append(number) or 2 ** number)
    with caplog.at_level(logging.INFO):
        problem.fit(module, 8, optimizer_params=SETTINGS)
    samples = map(np.arange, (10, 20, 37, 37))
    problem.assert_weights(module, problem.svrg(**SETTINGS).fit(8, 2, samples=samples))
    assert seen == [0, 1, 2, 3]
    assert [record.getMessage() for record in caplog.records
            if 'batches' in record.getMessage()] == [
        'Epoch[%d] Full gradient batches=%d' % line for line in ((0, 1), (2, 2), (4, 4), (6, 4))]


@pytest.mark.parametrize('epochs', [2, 3])
def test_a_long_stream_trains_by_epochs_of_so_many_batches(epochs):
    """A ResizeIter that does not reset it; each pass and each epoch goes on where it stands."""
    problem = Problem(rows=1000)
    module, stream = problem.module(full_grad_batches=2), problem.iterator()
    problem.fit(module, epochs, mx.io.ResizeIter(stream, 3, reset_internal=False),
                optimizer_params=SETTINGS)
    svrg = problem.svrg(**SETTINGS)
    for begin in range(0, 50 * epochs, 50):
        svrg.take_snapshot(begin + np.arange(20))
        for step in range(3):
            svrg.step(begin + 20 + 10 * step + np.arange(10))
    problem.assert_weights(module, svrg.weights)
    assert stream.cursor == 50 * epochs - 10  # no batch was read that was not used

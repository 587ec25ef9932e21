"""The full gradient of one pass: which rows it is the mean of, all or some."""

import collections
import logging

import mxnet as mx
import numpy as np
import pytest

import oracle
from checkpoints import bits
from full_gradients import ShortBatches, assert_pass, full_gradient, randomize
from pairs import in_pairs
from problems import TWO_DEVICES, Problem
from samples import SETTINGS, first_rows, fit, train
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


def of_dtype(dtype):
    return lambda problem: mx.io.NDArrayIter(mx.nd.array(problem.features, dtype=dtype),
                                             problem.targets, 10, label_name='label')


def twice(iterator):
    return mx.io.ResizeIter(iterator, 8)


def lists_of_batches(iterator):
    """Wrap an iterator so that each batch comes as a list of halves, one a device."""
    class Halves:
        reset = iterator.reset

        def __iter__(self):
            for batch in iterator:
                data, label = (np.split(each[0].asnumpy(), 2) for each in (batch.data, batch.label))
                pads = max(0, batch.pad - 5), min(5, batch.pad)
                yield [mx.io.DataBatch([mx.nd.array(data[half])], [mx.nd.array(label[half])],
                                       pads[half]) for half in (0, 1)]
    return Halves()


def in_lists(handle, wrap=lambda iterator: iterator):
    return lambda problem: lists_of_batches(wrap(problem.iterator(last_batch_handle=handle)))


class Bare(ShortBatches):
    """Batches with data and labels alone, as Module takes them."""

    def __iter__(self):
        bare = collections.namedtuple('Batch', 'data label')
        return (bare(batch.data, batch.label) for batch in super().__iter__())


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
    (37, ShortBatches, [37, 37], {}), (37, Bare, [37], {}),
    *((40, of_dtype(dtype), [40], {}) for dtype in ('uint8', 'int32', 'float64')),
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


def test_the_unit_is_the_batch_size_that_is_bound():
    """Neither a batch's size nor the iterator's, whatever ran last."""
    problem = Problem(rows=37)
    module = problem.bound(batch_size=10, alpha=0, sgd={'learning_rate': 0.})
    for batch in ShortBatches(problem):
        module.forward_backward(batch)
        module.update()
    module.alpha = 1
    assert_pass(problem, module, ShortBatches(problem))
    assert_pass(problem, module, problem.iterator(batch_size=5))
    module.reshape([('data', (20, 4))], [('label', (20,))])
    assert_pass(problem, module, problem.iterator(batch_size=20), units=20)


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


def test_each_device_has_a_weight_of_its_own_in_a_mean():
    """Of twelve rows the first of three devices has four, so that its weight is 1."""
    problem = Problem('softmax', rows=48)
    problem.symbol = mx.sym.SoftmaxOutput(problem.symbol.get_internals()['fc_output'],
                                          mx.sym.Variable('label'), normalization='batch')
    module = problem.bound(12, context=[mx.cpu(i) for i in range(3)], work_load_list=[2, 1, 3])
    module.init_optimizer(kvstore='device')
    assert_pass(problem, module, problem.iterator(12), units=3)


@pytest.mark.parametrize('context, multi_precision', [(mx.cpu(), True), (TWO_DEVICES, False)])
@pytest.mark.filterwarnings('ignore:Accumulating with float16')
def test_a_full_gradient_of_float16_is_summed_in_float32(multi_precision, context):
    # In float16 the sum would stop growing at 2048, or lose the small terms.
    features = (1 + np.random.RandomState(0).rand(4096, 2)).astype(np.float16)
    weight = mx.sym.Variable('w', shape=(1, 2), dtype='float16')
    product = mx.sym.broadcast_mul(mx.sym.Variable('data'), weight)
    symbol = mx.sym.MakeLoss(mx.sym.square(mx.sym.sum(product, axis=1)) * 0.5)
    train_data = mx.io.NDArrayIter(mx.nd.array(features, dtype='float16'), batch_size=8)
    module = SVRGModule(symbol, label_names=None, update_freq=1, context=context)
    module.bind(train_data.provide_data)
    start = np.array([[0.25, -0.125]], np.float16)
    module.init_params(arg_params={'w': mx.nd.array(start, dtype='float16')})
    module.init_optimizer(optimizer_params={'learning_rate': 0.01, 'momentum': 0.5,
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

class Endless(mx.io.DataIter):
    """Random batches of a linear problem, without an end."""

    provide_data, provide_label = [('data', (10, 4))], [('label', (10,))]

    def __init__(self):
        super().__init__(10)
        self.rng, self.yielded = np.random.RandomState(0), 0

    def next(self):
        self.yielded += 1
        features = self.rng.normal(size=(10, 4))
        return mx.io.DataBatch([mx.nd.array(features)], [mx.nd.array(features[:, 0])], pad=0)


def test_a_function_of_the_number_of_snapshots_gives_the_batches(caplog):
    problem, seen = Problem('softmax', rows=37), []
    module = problem.module(2, full_grad_batches=lambda number: seen.append(number) or 2 ** number)
    with caplog.at_level(logging.INFO):
        fit(problem, module, 8)
    samples = (first_rows(37, batches) for batches in (1, 2, 4, 4))
    problem.assert_weights(module, train(problem.svrg(**SETTINGS), 8, samples, 2).weights)
    assert seen == [0, 1, 2, 3]
    assert [record.getMessage() for record in caplog.records
            if 'batches' in record.getMessage()] == [
        'Epoch[%d] Full gradient batches=%d' % line for line in ((0, 1), (2, 2), (4, 4), (6, 4))]


@in_pairs({
    'shuffle': [False, True],
    'handle': ['pad', 'discard', 'roll_over'],
    'batches': [4, lambda _: 100]})
def test_whole_data_as_a_sample_give_the_same_bits(shuffle, handle, batches):
    problem, found = Problem('perceptron', rows=37), []
    for count in (None, batches):
        np.random.seed(3)
        module = problem.module(2, full_grad_batches=count)
        found.append(bits(fit(problem, module, 5, problem.iterator(shuffle=shuffle,
                                                                   last_batch_handle=handle))))
    assert found[0] == found[1]


@pytest.mark.parametrize('epochs', [2, 3])
def test_an_endless_stream_trains_by_epochs_of_so_many_batches(epochs):
    """A ResizeIter that does not reset it; each pass and each epoch goes on where it stands."""
    problem, stream = Problem(rows=40), Endless()
    module = problem.module(full_grad_batches=2)
    fit(problem, module, epochs, mx.io.ResizeIter(stream, 3, reset_internal=False))
    svrg, rng = problem.svrg(**SETTINGS), np.random.RandomState(0)
    svrg.features = rng.normal(size=(50 * epochs, 4))
    svrg.targets = svrg.features[:, 0]
    for begin in range(0, 50 * epochs, 50):
        svrg.take_snapshot(begin + np.arange(20))
        for step in range(3):
            svrg.step(begin + 20 + 10 * step + np.arange(10))
    problem.assert_weights(module, svrg.weights)
    assert stream.yielded == 5 * epochs

"""The full gradient of one pass: which rows it is the mean of."""

import collections

import mxnet as mx
import numpy as np
import pytest

import oracle
from bad_input import Data
from full_gradients import ShortBatches, assert_pass, full_gradient, randomize
from problems import TWO_DEVICES, Problem
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


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_rows_are_along_the_axis_of_the_layout(context):
    rng = np.random.RandomState(0)
    sequences, targets = rng.normal(size=(3, 7, 2)), rng.normal(size=7)
    data = mx.sym.transpose(mx.sym.Variable('data'), axes=(1, 0, 2))
    output = mx.sym.FullyConnected(mx.sym.sum(data, axis=1), num_hidden=1, name='fc')
    problem = Problem(rows=7, features=2)
    problem.features, problem.targets = sequences.sum(axis=0), targets

    batches = [mx.io.DataBatch([mx.nd.array(sequences[:, rows])], [mx.nd.array(targets[rows])], pad)
               for pad, rows in ((0, [0, 1, 2, 3, 4]), (3, [5, 6, 0, 1, 2]))]
    module = SVRGModule(mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')),
                        label_names=('label',), update_freq=1, context=context)
    module.bind([mx.io.DataDesc('data', (3, 5, 2), layout='TNC')],
                [mx.io.DataDesc('label', (5,), layout='N')])
    module.init_params(arg_params=problem.arg_params())
    assert_pass(problem, module, Data(*batches), units=5)


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
    np.testing.assert_allclose(module.objective, expected / 332, rtol=1e-6)


def test_each_device_has_a_weight_of_its_own_in_a_mean():
    """Of twelve rows the first of three devices has four, so that its weight is 1."""
    problem = Problem('softmax', rows=48)
    problem.symbol = mx.sym.SoftmaxOutput(problem.symbol.get_internals()['fc_output'],
                                          mx.sym.Variable('label'), normalization='batch')
    module = problem.bound(12, context=[mx.cpu(i) for i in range(3)], work_load_list=[2, 1, 3])
    module.init_optimizer(kvstore='device')
    assert_pass(problem, module, problem.iterator(12), units=3)

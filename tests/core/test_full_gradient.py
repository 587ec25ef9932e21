"""The full gradient of one pass: which rows it is the mean of."""

import collections

import mxnet as mx
import numpy as np
import pytest

from full_gradients import ShortBatches, full_gradient, lists_of_batches, randomize
from pairs import in_pairs
from problems import Problem
from svrg_optimization import SVRGModule

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@pytest.mark.filterwarnings('ignore:with kvstore=None each of the 2 devices')
@in_pairs({
    'kvstore': [None, 'local', 'object'],
    'context, work_load_list': [
        (mx.cpu(), None), (TWO_DEVICES, None), (TWO_DEVICES, [1, 3])],
    'rows': [40, 37, 32]})
def test_each_of_four_snapshots_is_the_mean_over_all_rows(context, work_load_list, rows, kvstore):
    problem = Problem('perceptron', rows=rows)
    module = problem.bound(context=context, work_load_list=work_load_list)
    module.init_optimizer(kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore)
    train_data = problem.iterator()
    for seed in range(4):
        weights = randomize(module, problem, seed)
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, full_gradient(problem, weights, np.arange(rows)))


def test_each_device_holds_an_equal_share():
    """With a KVStore each device holds an equal part of the sum."""
    problem = Problem()
    module = problem.bound(context=TWO_DEVICES)
    module.init_optimizer(kvstore='device')
    assert [sorted(share) for share in module._param_dict] == [['fc_bias', 'fc_weight']] * 2
    assert not any(value.asnumpy().any() for share in module._param_dict
                   for value in share.values())
    module.update_full_grads(problem.iterator())
    expected = full_gradient(problem, problem.weights, np.arange(40))
    for device, share in zip(TWO_DEVICES, module._param_dict):
        for name, value in share.items():
            assert value.context == device
            np.testing.assert_allclose(value.asnumpy(), expected[name] / 2, rtol=1e-5, atol=1e-5)


def test_a_pass_needs_no_optimizer():
    problem = Problem(rows=37)
    module = problem.bound()
    assert module._param_dict is None
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


def test_data_may_have_fewer_rows_than_a_batch():
    problem = Problem(rows=4)
    module = problem.bound()
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(4)))


@pytest.mark.parametrize('wrap', [
    lambda iterator: iterator,
    mx.io.PrefetchingIter,
    lambda iterator: mx.io.ResizeIter(iterator, 3),
    lambda iterator: mx.io.PrefetchingIter(mx.io.ResizeIter(iterator, 3)),
])
def test_rows_that_roll_over_count_in_the_next_pass(wrap):
    """Rows left over by one pass come first in the next, and are counted as its padding."""
    problem = Problem(rows=38)
    module = problem.bound()
    train_data = wrap(problem.iterator(last_batch_handle='roll_over'))
    whole_passes = not isinstance(getattr(train_data, 'iters', [train_data])[0], mx.io.ResizeIter)
    for rows in (30, 32, 34) if whole_passes else (30, 30):
        module.update_full_grads(train_data)
        expected = full_gradient(problem, problem.weights, np.arange(rows))
        problem.assert_full_gradient(module, expected)


def test_discarded_rows_do_not_count():
    problem = Problem(rows=38)
    module = problem.bound()
    for _ in range(2):
        module.update_full_grads(problem.iterator(last_batch_handle='discard'))
        problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(30)))


def test_shuffled_rows_count_once():
    problem = Problem(rows=37)
    module = problem.bound()
    train_data = problem.iterator(shuffle=True)
    for _ in range(3):
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


@pytest.mark.parametrize('rows', [40, 37, 33])
@pytest.mark.parametrize('last_batch_handle', ['pad', 'discard'])
def test_a_batch_may_be_a_list_of_one_for_each_device(rows, last_batch_handle):
    problem = Problem(rows=rows)
    module = problem.bound(context=TWO_DEVICES)
    train_data = lists_of_batches(problem.iterator(last_batch_handle=last_batch_handle))
    expected = np.arange(rows if last_batch_handle == 'pad' else rows // 10 * 10)
    for _ in range(3):
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, full_gradient(problem, problem.weights, expected))


def test_batches_need_no_pad():
    """Anything with a batch's data and labels will do, as in Module."""
    problem = Problem(rows=40)
    batch_class = collections.namedtuple('Batch', 'data label')

    class Plain(ShortBatches):
        provide_data = problem.iterator().provide_data
        provide_label = problem.iterator().provide_label

        def __iter__(self):
            return (batch_class(batch.data, batch.label) for batch in super().__iter__())

    module = problem.module()
    module.fit(Plain(problem), eval_metric=[], num_epoch=3, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.1})
    problem.assert_weights(module, problem.svrg().fit(3, 1))


def test_a_short_batch_without_pad_counts_its_rows():
    problem = Problem(rows=37)
    module = problem.bound()
    for _ in range(2):
        module.update_full_grads(ShortBatches(problem))
        problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


def test_the_unit_is_the_batch_size_that_is_bound():
    """Neither a batch's size nor the iterator's, whatever ran last."""
    problem = Problem(rows=37)
    module = problem.bound(batch_size=10, alpha=0, sgd={})
    for batch in ShortBatches(problem):
        module.forward_backward(batch)
        module.update()
    module.set_params(problem.arg_params(), {})
    module.alpha = 1
    module.update_full_grads(ShortBatches(problem))
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))
    module.update_full_grads(problem.iterator(batch_size=5))
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))
    module.reshape([('data', (20, 4))], [('label', (20,))])
    module.update_full_grads(problem.iterator(batch_size=20))
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37), 20))


def test_rows_are_along_the_axis_of_the_layout():
    """The batch axis is where the layout says."""
    rng = np.random.RandomState(0)
    sequences, targets = rng.normal(size=(3, 7, 2)), rng.normal(size=7)
    data = mx.sym.transpose(mx.sym.Variable('data'), axes=(1, 0, 2))
    output = mx.sym.FullyConnected(mx.sym.sum(data, axis=1), num_hidden=1, name='fc')
    symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label'))
    problem = Problem(rows=7, features=2)
    problem.features, problem.targets = sequences.sum(axis=0), targets

    class TimeMajor:
        def reset(self):
            pass

        def __iter__(self):
            for start in (0, 5):
                rows = np.arange(start, start + 5) % 7
                yield mx.io.DataBatch([mx.nd.array(sequences[:, rows])],
                                      [mx.nd.array(targets[rows])], pad=0 if start == 0 else 3)

    for context in (mx.cpu(), TWO_DEVICES):
        module = SVRGModule(symbol, label_names=('label',), update_freq=1, context=context)
        module.bind([mx.io.DataDesc('data', (3, 5, 2), layout='TNC')],
                    [mx.io.DataDesc('label', (5,), layout='N')])
        module.init_params(arg_params=problem.arg_params())
        module.update_full_grads(TimeMajor())
        expected = full_gradient(problem, problem.weights, np.arange(7), 5)
        problem.assert_full_gradient(module, expected)


@pytest.mark.parametrize('dtype', ['uint8', 'int32', 'float64'])
def test_data_may_have_another_dtype_than_is_bound(dtype):
    problem = Problem(rows=40)
    problem.features = np.round(4 * np.abs(problem.features))
    module = problem.bound()
    data = mx.io.NDArrayIter(mx.nd.array(problem.features, dtype=dtype), problem.targets, 10,
                             label_name='label')
    module.update_full_grads(data)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(40)))


def test_labels_that_are_missing_are_zeros():
    """What Module takes for the labels then are zeros."""
    problem = Problem(rows=40)
    module = problem.module()
    with pytest.warns(UserWarning, match='label_shapes'):
        module.bind([('data', (10, 4))], None)
    module.init_params(arg_params=problem.arg_params())
    module.update_full_grads(mx.io.NDArrayIter(problem.features, None, 10))
    problem.targets[:] = 0
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(40)))


@pytest.mark.parametrize('labelled', [False, True])
def test_a_loss_needs_no_labels(labelled):
    """Those that the data have all the same do not matter."""
    problem = Problem(rows=37)
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    problem.symbol = mx.sym.MakeLoss(0.5 * mx.sym.square(output))
    module = SVRGModule(problem.symbol, label_names=None, update_freq=1)
    module.bind([('data', (10, 4))])
    module.init_params(arg_params=problem.arg_params())
    module.update_full_grads(
        mx.io.NDArrayIter(problem.features, problem.targets if labelled else None, 10))
    problem.targets[:] = 0
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


def test_lists_of_batches_cannot_be_held():
    problem = Problem(rows=40)
    module = problem.bound(context=TWO_DEVICES, store_snapshot_grads=True)
    with pytest.raises(ValueError, match='store_snapshot_grads must be False where train_data '
                                         'yields lists of batches'):
        module.update_full_grads(lists_of_batches(problem.iterator()))


def test_a_full_gradient_that_is_not_finite_is_warned_of_or_refused():
    problem = Problem(rows=40)
    features = problem.features.copy()
    problem.features[7, 2] = np.inf
    module = problem.bound()
    with pytest.warns(UserWarning, match='the full gradient is not finite: fc_weight') as caught:
        module.update_full_grads(problem.iterator())
        module.update_full_grads(problem.iterator())
    assert sum('not finite' in str(warning.message) for warning in caught) == 1
    raising = problem.bound(nonfinite='raise')
    problem.features, infinite = features, problem.features
    raising.update_full_grads(problem.iterator())
    expected = full_gradient(problem, problem.weights, np.arange(40))
    problem.features = infinite
    with pytest.raises(FloatingPointError, match='the full gradient is not finite: fc_weight'):
        raising.update_full_grads(problem.iterator())
    problem.assert_full_gradient(raising, expected)  # that in force stays

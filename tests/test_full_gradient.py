"""The full gradient of one pass, and which rows it is the mean of."""

import collections
import contextlib
import functools
import json
import warnings

import mxnet as mx
import numpy as np
import pytest

import oracle
from problems import Problem
from svrg_optimization import SVRGModule
from svrg_optimization.checkpoint.format import arrays_of_kind, with_prefix
from svrg_optimization.core.full_gradient import FullGradient
from svrg_optimization.core.loss_reduction import LossReduction, is_row_wise
from svrg_optimization.core.snapshot_module import SnapshotModule
from svrg_optimization.mxnet_bridge import executor_group

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def full_gradient(problem, weights, rows, batch_size=10):
    gradients = problem.network(weights, problem.features[rows], problem.targets[rows])
    return {name: value * batch_size / len(rows) for name, value in gradients.items()}


def randomize(module, problem, seed):
    rng = np.random.RandomState(seed)
    weights = {name: rng.normal(size=value.shape) for name, value in problem.weights.items()}
    module.set_params({name: mx.nd.array(value) for name, value in weights.items()}, {})
    return weights


def lists_of_batches(iterator):
    """Wrap an iterator so that each batch comes as a list of halves, one a device."""
    class Halves:
        provide_data, provide_label = iterator.provide_data, iterator.provide_label
        reset = iterator.reset

        def __iter__(self):
            for batch in iterator:
                data, label, half = batch.data[0], batch.label[0], len(batch.data[0]) // 2
                yield [mx.io.DataBatch([data[:half]], [label[:half]], pad=max(0, batch.pad - half)),
                       mx.io.DataBatch([data[half:]], [label[half:]], pad=min(half, batch.pad))]
    return Halves()


class ShortBatches:
    """Yield the last batch with fewer rows, its pad being None."""

    def __init__(self, problem, batch_size=10, count=None):
        self.problem, self.batch_size, self.count = problem, batch_size, count

    def reset(self):
        pass

    def __iter__(self):
        features, targets = self.problem.features, self.problem.targets
        for start in range(0, len(features), self.batch_size):
            stop = start + self.batch_size
            yield mx.io.DataBatch([mx.nd.array(features[start:stop])],
                                  [mx.nd.array(targets[start:stop])])


@pytest.mark.parametrize('kvstore', [None, 'local', 'object'])
@pytest.mark.parametrize('context, work_load_list', [
    (mx.cpu(), None), (TWO_DEVICES, None), (TWO_DEVICES, [1, 3])])
@pytest.mark.parametrize('rows', [40, 37, 32])
def test_four_snapshots_in_a_row(context, work_load_list, rows, kvstore):
    problem = Problem('perceptron', rows=rows)
    module = problem.bound(context=context, work_load_list=work_load_list)
    module.init_optimizer(kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore)
    train_data = problem.iterator()
    for seed in range(4):
        weights = randomize(module, problem, seed)
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, full_gradient(problem, weights, np.arange(rows)))


def test_shares_of_the_devices():
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


def test_without_an_optimizer():
    problem = Problem(rows=37)
    module = problem.bound()
    assert module._param_dict is None
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


def test_fewer_rows_than_a_batch():
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
def test_roll_over(wrap):
    """Rows left over by one pass come first in the next, and are counted as its padding."""
    problem = Problem(rows=38)
    module = problem.bound()
    train_data = wrap(problem.iterator(last_batch_handle='roll_over'))
    whole_passes = not isinstance(getattr(train_data, 'iters', [train_data])[0], mx.io.ResizeIter)
    for rows in (30, 32, 34) if whole_passes else (30, 30):
        module.update_full_grads(train_data)
        expected = full_gradient(problem, problem.weights, np.arange(rows))
        problem.assert_full_gradient(module, expected)


def test_discard():
    problem = Problem(rows=38)
    module = problem.bound()
    for _ in range(2):
        module.update_full_grads(problem.iterator(last_batch_handle='discard'))
        problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(30)))


def test_shuffled():
    problem = Problem(rows=37)
    module = problem.bound()
    train_data = problem.iterator(shuffle=True)
    for _ in range(3):
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


@pytest.mark.parametrize('kind, rows', [
    ('csv', 37), ('csv', 40), ('csv', 400), ('csv', 437), ('libsvm', 40), ('libsvm', 400)])
def test_iterators_over_files(tmp_path, kind, rows):
    """From hundreds of rows on MXNet's iterators yield some twice if reset before their end."""
    problem = Problem(rows=rows)
    data, label = str(tmp_path / 'data'), str(tmp_path / 'label')
    if kind == 'csv':
        np.savetxt(data, problem.features, delimiter=',', fmt='%.9g')
        np.savetxt(label, problem.targets, fmt='%.9g')
        train_data = mx.io.CSVIter(data_csv=data + '?delimiter=,', data_shape=(4,),
                                   label_csv=label + '?delimiter=,', label_shape=(1,),
                                   batch_size=10, round_batch=False)
    else:
        with open(data, 'w') as file:
            for target, row in zip(problem.targets, problem.features):
                columns = ' '.join('%d:%.9g' % column for column in enumerate(row))
                file.write('%.9g %s\n' % (target, columns))
        train_data = mx.io.LibSVMIter(data_libsvm=data, data_shape=(4,), batch_size=10)
    module = problem.module()
    module.bind(train_data.provide_data, [mx.io.DataDesc('label', (10,))])
    module.init_params(arg_params=problem.arg_params())
    expected = full_gradient(problem, problem.weights, np.arange(rows))
    for _ in range(2):
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, expected)
    for _ in range(2):
        train_data.reset()
        next(train_data)
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, expected)
    train_data.reset()
    module.update_full_grads(train_data)
    problem.assert_full_gradient(module, expected)
    if rows % 10:
        return  # the rows that MXNet pads with are not the oracle's
    train_data.reset()
    module.fit(train_data, eval_metric=[], num_epoch=4,
               optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg()
    svrg.fit(4, 1)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)


@pytest.mark.parametrize('rows', [40, 37, 33])
@pytest.mark.parametrize('last_batch_handle', ['pad', 'discard'])
def test_lists_of_batches(rows, last_batch_handle):
    problem = Problem(rows=rows)
    module = problem.bound(context=TWO_DEVICES)
    train_data = lists_of_batches(problem.iterator(last_batch_handle=last_batch_handle))
    expected = np.arange(rows if last_batch_handle == 'pad' else rows // 10 * 10)
    for _ in range(3):
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, full_gradient(problem, problem.weights, expected))


@pytest.mark.parametrize('lists', [True, False])
def test_padded_batch_in_the_middle_of_a_pass(lists):
    problem = Problem(rows=37)
    module = problem.bound(context=TWO_DEVICES)
    twice = mx.io.ResizeIter(problem.iterator(), 8)
    module.update_full_grads(lists_of_batches(twice) if lists else twice)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


def test_batches_that_know_of_no_padding():
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


def test_short_batch_without_pad():
    problem = Problem(rows=37)
    module = problem.bound()
    for _ in range(2):
        module.update_full_grads(ShortBatches(problem))
        problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


def test_batch_size_is_the_bound_one():
    """Neither a batch's size nor the iterator's, whatever ran last."""
    problem = Problem(rows=37)
    module = problem.bound(batch_size=10)
    module.init_optimizer()
    for batch in ShortBatches(problem):
        module.forward_backward(batch)
        module.update()
    module.set_params(problem.arg_params(), {})
    module.update_full_grads(ShortBatches(problem))
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))
    module.update_full_grads(problem.iterator(batch_size=5))
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))
    module.reshape([('data', (20, 4))], [('label', (20,))])
    module.update_full_grads(problem.iterator(batch_size=20))
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37), 20))


def test_time_major_data():
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


@contextlib.contextmanager
def warnings_of_rows():
    """Record the warnings of batches that are weighted by their real rows."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('ignore')
        warnings.filterwarnings('always', '.*weighted by its real rows')
        yield caught


def weighted_by_real_rows(problem, batch_size=10):
    """What remains to be done with a padded batch that cannot be cut."""
    rows = len(problem.features)
    total = dict.fromkeys(problem.weights, 0.0)
    for numbers in oracle.batches_of(rows, batch_size):
        real = min(batch_size, rows - numbers[0])
        gradients = problem.network(problem.weights, problem.features[numbers],
                                    problem.targets[numbers])
        for name, value in gradients.items():
            total[name] = total[name] + value * real / rows
    return total


def with_batch_size_in_symbol():
    problem = Problem(rows=37)
    data = mx.sym.reshape(mx.sym.Variable('data'), shape=(10, 4))
    output = mx.sym.FullyConnected(data, num_hidden=1, name='fc')
    problem.symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label'))
    return problem, mx.cpu()


def with_batch_size_hidden_in_reshape():
    problem = Problem(rows=38)
    data = mx.sym.reshape(mx.sym.Variable('data'), shape=(10, -1))
    output = mx.sym.FullyConnected(data, num_hidden=1, name='fc')
    problem.symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label'))
    return problem, mx.cpu()


@pytest.mark.parametrize('make', [with_batch_size_in_symbol, with_batch_size_hidden_in_reshape])
def test_batch_that_cannot_be_cut_is_weighted_and_warned_of_once(make):
    problem, context = make()
    module = problem.bound(context=context)
    with warnings_of_rows() as caught:
        module.update_full_grads(problem.iterator())
        module.update_full_grads(problem.iterator())
    assert len(caught) == 1 and 'cannot be bound for the real rows' in str(caught[0].message)
    problem.assert_full_gradient(module, weighted_by_real_rows(problem))
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg()
    svrg.take_snapshot()
    svrg.full_gradient = weighted_by_real_rows(problem)
    for batch, rows in zip(problem.iterator(), oracle.batches_of(len(problem.features), 10)):
        module.forward_backward(batch)
        module.update()
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('normalization', ['null', 'batch'])
@pytest.mark.parametrize('devices, rows', [(4, 33), (4, 34), (4, 35), (2, 33)])
def test_last_batch_with_fewer_rows_than_devices(devices, rows, normalization):
    problem = Problem('softmax', rows=rows)
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'),
                                          normalization=normalization)
    module = problem.bound(context=[mx.cpu(i) for i in range(devices)], batch_size=8)
    module.update_full_grads(problem.iterator(8))
    units = devices if normalization == 'batch' else 8
    problem.assert_full_gradient(module, {
        name: value * units / rows for name, value in
        problem.network(problem.weights, problem.features, problem.targets).items()})


def mean_loss(kind):
    """A problem whose loss is a mean over the batch."""
    problem = Problem('softmax', rows=37)
    data, label = mx.sym.Variable('data'), mx.sym.Variable('label')
    scores = mx.sym.FullyConnected(data, num_hidden=3, name='fc')
    if kind in ('batch', 'valid'):
        problem.symbol = mx.sym.SoftmaxOutput(scores, label, normalization=kind)
    else:
        losses = -mx.sym.pick(mx.sym.log_softmax(scores), label)
        problem.symbol = (mx.sym.MakeLoss(mx.sym.mean(losses)) if kind == 'operators' else
                          mx.sym.MakeLoss(mx.sym.expand_dims(losses, 1), normalization='batch'))
    return problem


@pytest.mark.parametrize('kind, loss_is_mean', [
    ('batch', None), ('valid', None), ('make_loss', None), ('batch', True), ('operators', True)])
def test_losses_that_are_means(kind, loss_is_mean):
    problem = mean_loss(kind)
    module = problem.bound(loss_is_mean=loss_is_mean)
    for _ in range(2):
        module.update_full_grads(problem.iterator())
        problem.assert_full_gradient(module,
                                     full_gradient(problem, problem.weights, np.arange(37), 1))


@pytest.mark.parametrize('work_load_list', [None, [1, 3]])
@pytest.mark.parametrize('rows', [40, 37, 33, 32])
def test_mean_over_several_devices(rows, work_load_list):
    """Module adds up the devices' means: twice the mean over all rows, each counted alike."""
    problem = Problem('softmax', rows=rows)
    problem.symbol = mean_loss('batch').symbol
    module = problem.bound(context=TWO_DEVICES, work_load_list=work_load_list)
    module.init_optimizer(kvstore='device')
    module.update_full_grads(problem.iterator())
    expected = full_gradient(problem, problem.weights, np.arange(rows), 2)
    problem.assert_full_gradient(module, expected)


@pytest.mark.parametrize('kind', ['batch', 'operators'])
def test_training_with_a_mean_loss(kind):
    problem = mean_loss(kind)
    module = problem.module(2, loss_is_mean=True if kind == 'operators' else None)
    module.fit(problem.iterator(), eval_metric=[], num_epoch=6, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.3, 'rescale_grad': 1.0})
    problem.assert_weights(module, problem.svrg(learning_rate=0.3).fit(6, 2))


def test_vector_of_losses_that_mxnet_takes_for_one_row():
    """Its gradient is a sum for all that ``normalization='batch'`` says."""
    problem = Problem('softmax', rows=37)
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    losses = -mx.sym.pick(mx.sym.log_softmax(scores), mx.sym.Variable('label'))
    problem.symbol = mx.sym.MakeLoss(losses, normalization='batch')
    module = problem.bound()
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


def test_loss_that_moves_no_parameter_does_not_count():
    problem = Problem('softmax', rows=37)
    label = mx.sym.Variable('label')
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    loss = mx.sym.SoftmaxOutput(scores, label, normalization='batch', name='loss')
    shown = mx.sym.MakeLoss(mx.sym.BlockGrad(mx.sym.sum(scores)))
    problem.symbol = mx.sym.Group([loss, shown, mx.sym.make_loss(mx.sym.sum(loss))])
    module = problem.bound()
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37), 1))


def test_loss_behind_a_stopped_gradient_counts():
    """MXNet's loss layers ignore the gradient from above, a zero too."""
    label = mx.sym.Variable('label')
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    problem = Problem('softmax', rows=37)
    problem.symbol = mx.sym.BlockGrad(mx.sym.SoftmaxOutput(scores, label, normalization='batch'))
    module = problem.bound()
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37), 1))


def test_sum_loss_may_be_declared():
    problem = Problem('softmax', rows=37)
    module = problem.bound(loss_is_mean=False)
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


def test_losses_of_both_kinds_are_warned_of_where_they_differ():
    data, label = mx.sym.Variable('data'), mx.sym.Variable('label')
    scores = mx.sym.FullyConnected(data, num_hidden=3, name='fc')
    symbol = mx.sym.Group([mx.sym.SoftmaxOutput(scores, label, normalization='batch', name='mean'),
                           mx.sym.SoftmaxOutput(scores, label, name='sum')])

    def network(weights, features, targets):
        gradients = oracle.softmax_regression(weights, features, targets)
        return {name: value * (1 + 1 / len(features)) for name, value in gradients.items()}

    for rows in (40, 37):
        problem = Problem('softmax', rows=rows)
        problem.symbol, problem.network = symbol, network
        module = problem.bound()
        with warnings_of_rows() as caught:
            module.update_full_grads(problem.iterator())
            module.update_full_grads(problem.iterator())
        assert len(caught) == (rows != 40)
        assert all('losses that are means' in str(warning.message) for warning in caught)
        problem.assert_full_gradient(module, weighted_by_real_rows(problem))


class Empty:
    def reset(self):
        pass

    def __iter__(self):
        return iter(())


class Failing(ShortBatches):
    """Fail in the middle of a pass."""

    error = KeyboardInterrupt

    def __iter__(self):
        batches = super().__iter__()
        yield next(batches)
        raise self.error


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('bad, error', [
    (lambda _: Empty(), ValueError), (Failing, KeyboardInterrupt)])
def test_failed_pass_leaves_the_snapshot_in_force(bad, error, context):
    problem = Problem('perceptron')
    module = problem.bound(context=context)
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg()

    def epoch(snapshot):
        train_data = problem.iterator()
        if snapshot:
            module.update_full_grads(train_data)
            svrg.take_snapshot()
            train_data.reset()
        for batch, rows in zip(train_data, oracle.batches_of(40, 10)):
            module.forward_backward(batch)
            module.update()
            svrg.step(rows)

    with pytest.raises(error):
        module.update_full_grads(bad(problem))
    epoch(snapshot=False)
    epoch(snapshot=True)
    with pytest.raises(error):
        module.update_full_grads(bad(problem))
    problem.assert_full_gradient(module, svrg.full_gradient)
    epoch(snapshot=False)
    problem.assert_weights(module, svrg.weights)


def test_failing_callback_leaves_the_module_usable():
    problem = Problem()
    module = problem.bound()

    def fail(param):
        if param.nbatch == 2:
            raise RuntimeError('stop here')

    with pytest.raises(RuntimeError, match='stop here'):
        module.update_full_grads(problem.iterator(), fail)
    assert module._param_dict is None
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(40)))


def test_empty_iterator_is_named():
    module = Problem().bound()
    with pytest.raises(ValueError, match='train_data must yield at least one row.*Empty'):
        module.update_full_grads(Empty())


@pytest.mark.parametrize('prepare', [
    lambda problem: problem.module(),
    lambda problem: bound_without(problem, parameters=False),
    lambda problem: bound_without(problem, for_training=False),
])
def test_module_that_is_not_ready(prepare):
    problem = Problem()
    with pytest.raises(RuntimeError, match='bound with for_training=True'):
        prepare(problem).update_full_grads(problem.iterator())


def bound_without(problem, parameters=True, for_training=True):
    module = problem.module()
    iterator = problem.iterator()
    module.bind(iterator.provide_data, iterator.provide_label, for_training=for_training)
    if parameters:
        module.init_params()
    return module


def test_accumulate_and_allocate():
    """What users of mxnet.contrib call by hand."""
    problem = Problem()
    module = problem.bound(context=TWO_DEVICES)
    module.init_optimizer(kvstore=mx.kv.create('local'))
    values = [mx.nd.ones((1, 4), ctx=device) for device in TWO_DEVICES for _ in range(2)]
    module._accumulate_kvstore('fc_weight', values)
    assert all((value.asnumpy() == 4).all() for value in values)
    assert all((share['fc_weight'].asnumpy() == 2).all() for share in module._param_dict)
    module._allocate_gradients('fc_weight', [value * 2 for value in values])
    assert all((share['fc_weight'].asnumpy() == 4).all() for share in module._param_dict)


@pytest.fixture
def merged(monkeypatch):
    """List how many batches each run of merged batches has."""
    counts = []
    run = SnapshotModule.gradients_of_merged
    monkeypatch.setattr(SnapshotModule, 'gradients_of_merged', lambda auxiliary, batches: (
        counts.append(len(batches)), run(auxiliary, batches))[1])
    return counts


@pytest.mark.parametrize('grad_req', ['write', 'add'])
@pytest.mark.parametrize('kind', ['linear', 'softmax', 'perceptron'])
@pytest.mark.parametrize('rows, runs', [
    (19, []), (25, [2]), (150, [15]), (160, [16]), (373, 3 * [12]), (480, 3 * [16])])
def test_small_batches_are_computed_as_one(merged, kind, rows, runs, grad_req):
    problem = Problem(kind, rows=rows)
    module = problem.bound(grad_req=grad_req)
    for seed in range(2):
        weights = randomize(module, problem, seed)
        module.update_full_grads(problem.iterator())
        problem.assert_full_gradient(module, full_gradient(problem, weights, np.arange(rows)))
        full = module._snapshot.full_gradient
        assert (full.rows, full.batches, full.batches_of_workers) == (
            rows, -(-rows // 10), [-(-rows // 10)])
    assert merged == 2 * runs


@pytest.mark.parametrize('callback', [None, lambda _: None])
def test_number_of_batches_that_are_computed_as_one_changes(merged, callback, capfd):
    problem = Problem('softmax', rows=130)
    module = problem.bound()
    for batches, runs in ((3, [3]), (None, [13]), (5, [5]), (1, []), (None, [13])):
        module.update_full_grads(problem.iterator(), callback, batches=batches)
        problem.assert_full_gradient(module, full_gradient(
            problem, problem.weights, np.arange(10 * (batches or 13))))
        assert merged == runs
        merged.clear()
    assert 'Need to re-allocate' not in capfd.readouterr().err  # as MXNet would print


@pytest.mark.parametrize('stored', [False, True])
@pytest.mark.parametrize('callback', [None, lambda _: None])
def test_batches_on_another_device_are_joined_there(monkeypatch, callback, stored):
    """The data of an NDArrayIter are on the CPU. An operation needs all arrays on one device."""
    concat, devices = mx.nd.concat, []

    def recorded(*arrays, **kwargs):
        devices.append({array.context for array in (*arrays, kwargs.get('out', arrays[0]))})
        return concat(*arrays, **kwargs)

    monkeypatch.setattr(mx.nd, 'concat', recorded)
    problem = Problem('softmax', rows=130)
    module = problem.bound(context=mx.cpu(1), store_snapshot_grads=stored)
    module.update_full_grads(problem.iterator(), callback)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(130)))
    assert all(found == {mx.cpu(0)} for found in devices)
    assert bool(devices) == (stored or callback is not None)


@pytest.mark.parametrize('batch_size, expected', [(20, [3] * 4), (30, [2] * 4), (50, [])])
def test_batches_of_two_mebibytes_are_computed_as_one(merged, batch_size, expected):
    """With 8000 features a row has 32 kB."""
    problem = Problem('perceptron', rows=267, features=8000)
    problem.weights['hidden_weight'] /= 50  # or all hidden units are saturated
    module = problem.bound(batch_size)
    module.update_full_grads(problem.iterator(batch_size))
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(267),
                                                       batch_size))
    assert merged == expected


def test_as_many_are_computed_as_one_as_suit_the_batches_that_are_bound(merged):
    problem = Problem('perceptron', rows=240, features=8000)
    problem.weights['hidden_weight'] /= 50
    module = problem.bound(30)
    for batch_size, expected in ((30, [2] * 4), (15, [4] * 4), (30, [2] * 4)):
        train_data = problem.iterator(batch_size)
        module.bind(train_data.provide_data, train_data.provide_label, force_rebind=True)
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, full_gradient(problem, problem.weights,
                                                           np.arange(240), batch_size))
        assert merged == expected
        merged.clear()


def other_size_of_batch(problem):
    """The data are bound in batches of 20, and not of 10."""
    return problem.bound(batch_size=20), problem.iterator()


def other_dtype(problem):
    data = mx.nd.array(problem.features, dtype='float64')
    return problem.bound(), mx.io.NDArrayIter(data, problem.targets, 10, label_name='label')


def mean_over_the_batch(problem):
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'), normalization='batch')
    return problem.bound(), problem.iterator()


def with_a_layer_over_the_rows(problem):
    """A layer that is not known to compute each row by itself."""
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(scores * 1, mx.sym.Variable('label'))
    return problem.bound(), problem.iterator()


@pytest.mark.parametrize('make, units', [
    (other_size_of_batch, 20), (other_dtype, 10), (mean_over_the_batch, 1),
    (with_a_layer_over_the_rows, 10),
    (lambda problem: (problem.bound(context=TWO_DEVICES), problem.iterator()), 10),
    (lambda problem: (problem.bound(), ShortBatches(problem)), 10)])
def test_batches_that_are_not_computed_as_one(merged, make, units):
    problem = Problem('softmax', rows=330)
    module, train_data = make(problem)
    module.update_full_grads(train_data)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(330),
                                                       units))
    assert not merged


def test_rows_as_weights_are_not_merged(merged):
    """Each row of the product has all rows of the batch in it."""
    data = mx.sym.Variable('data')
    problem = Problem('softmax', rows=320)
    product = mx.sym.FullyConnected(data, weight=data, no_bias=True, num_hidden=10)
    scores = mx.sym.FullyConnected(product, num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'))
    problem.weights['fc_weight'] = 0.1 * np.random.RandomState(0).normal(size=(3, 10))
    module = problem.bound()
    module.update_full_grads(problem.iterator())
    blocks = problem.features.reshape(-1, 10, 4)
    problem.features = (blocks @ blocks.transpose(0, 2, 1)).reshape(-1, 10)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(320)))
    assert not merged


@pytest.mark.parametrize('context, rows', [(mx.cpu(), 37), (TWO_DEVICES, 37), (TWO_DEVICES, 31)])
def test_input_without_rows(context, rows):
    """It is the same in each batch, and no part of it is padding."""
    problem = Problem(rows=rows)
    scaled = mx.sym.broadcast_mul(mx.sym.Variable('data'), mx.sym.Variable('scale'))
    output = mx.sym.FullyConnected(scaled, num_hidden=1, name='fc')
    problem.symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label'))
    scale = np.array([[1.0, -2.0, 0.5, 3.0]])

    class WithScale(ShortBatches):
        def __iter__(self):
            for batch in problem.iterator():
                batch.data.append(mx.nd.array(scale))
                yield batch

    module = SVRGModule(problem.symbol, ('data', 'scale'), ('label',), update_freq=1,
                        context=context)
    module.bind([('data', (10, 4)), mx.io.DataDesc('scale', (1, 4), layout='')],
                [('label', (10,))])
    module.init_params(arg_params=problem.arg_params())
    module.update_full_grads(WithScale(problem))
    problem.features = problem.features * scale
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(rows)))


@pytest.mark.parametrize('store', [False, True])
def test_fewer_rows_than_all_devices_have_a_share_of(store):
    """Of two rows the device with a tenth of the work would get none."""
    problem = Problem(rows=32)
    module = problem.bound(context=TWO_DEVICES, work_load_list=[1, 9], store_snapshot_grads=store)
    module.init_optimizer(kvstore='local', optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg()
    train_data = problem.iterator()
    for _ in range(2):
        module.update_full_grads(train_data)
        svrg.take_snapshot()
        problem.assert_full_gradient(module, svrg.full_gradient)
        for batch in module.training_batches(train_data):
            # Steps are on the batch with its padding.
            data = batch.data[0].asnumpy()
            assert len(data) == 10
            module.forward_backward(batch)
            module.update()
            svrg.step(np.array([np.abs(problem.features - row).sum(axis=1).argmin()
                                for row in data]))
    problem.assert_weights(module, svrg.weights)


def with_loss_of_weights_alone():
    """Its second term counts once for each batch, whatever its rows are."""
    problem = Problem(rows=320)
    weight = mx.sym.Variable('fc_weight', shape=(1, 4))
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), weight=weight, num_hidden=1, name='fc')
    pull = mx.sym.LinearRegressionOutput(weight, mx.sym.Variable('zero', shape=(1, 4)),
                                         grad_scale=20)
    problem.symbol = mx.sym.Group([
        mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')), pull])
    network = problem.network

    def with_pull(weights, features, targets):
        gradients = network(weights, features, targets)
        # MXNet divides a regression's gradient by the outputs of a row.
        batches = len(features) / 10
        return {**gradients, 'fc_weight': gradients['fc_weight'] + batches * 20 / 4
                * weights['fc_weight']}

    problem.network = with_pull
    return problem


def test_batches_are_not_merged_where_a_loss_has_no_rows(merged):
    problem = with_loss_of_weights_alone()
    module = problem.module(fixed_param_names=['zero'])
    iterator = problem.iterator()
    module.bind(iterator.provide_data, iterator.provide_label)
    module.init_params(arg_params={**problem.arg_params(), 'zero': mx.nd.zeros((1, 4))})
    module.update_full_grads(iterator)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(320)))
    assert not merged


@pytest.mark.parametrize('dtype', ['uint8', 'int32', 'float64'])
def test_data_of_another_dtype_than_is_bound(dtype):
    problem = Problem(rows=40)
    problem.features = np.round(4 * np.abs(problem.features))
    module = problem.bound()
    data = mx.io.NDArrayIter(mx.nd.array(problem.features, dtype=dtype), problem.targets, 10,
                             label_name='label')
    module.update_full_grads(data)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(40)))


def test_data_without_labels():
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
def test_loss_without_labels(labelled):
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


def gradients_of_two_devices(rng, count):
    """Random gradients: small and large ones, of two dtypes."""
    shapes = {'small': ((3, 2), 'float32'), 'bias': ((2,), 'float32'), 'wide': ((2,), 'float64'),
              'large': (((1 << 14) + 1,), 'float32')}
    return [{name: [mx.nd.array(rng.normal(size=shape), dtype=dtype, ctx=device)
                    for device in TWO_DEVICES] for name, (shape, dtype) in shapes.items()}
            for _ in range(count)]


def assert_shares(full_gradient, expected):
    for name in expected[0]:
        for share, values in zip(full_gradient.shares, expected):
            np.testing.assert_allclose(share[name].asnumpy(), values[name], rtol=1e-5, atol=1e-5,
                                       err_msg=name)


def sums_of(batches, weights=(1, 1)):
    return [{name: sum(weight * gradients[name][device].asnumpy().astype(float)
                       for gradients in batches) for name in batches[0]}
            for device, weight in enumerate(weights)]


def test_before_any_sum():
    gradients = {'w': [mx.nd.ones((3, 1)).tostype('row_sparse')],
                 'b': [mx.nd.ones((2,))]}
    full = FullGradient(gradients, 1, 10, False)
    assert full.finished is False and full.batches_of_workers == [] and full.row_counts == {}
    assert (full.rows, full.batches, full.batch_size, full.by_row) == (0, 0, 10, [{}])
    counts = FullGradient(gradients, 1, 10, False, ['w']).row_counts
    assert list(counts) == ['w'] and counts['w'].dtype == np.int64 and not counts['w'].any()


def test_groups_keep_the_order_of_the_parameters():
    """A rule of the user's own is called in this order."""
    names = ['weight%d' % number for number in range(20)]
    full = FullGradient({name: [mx.nd.ones((2,))] for name in names}, 1, 10, False)
    assert full.groups(names, fuses=False) == ([], names)
    assert full.groups(names[5:15]) == ([names[5:15]], [])


@pytest.mark.parametrize('count', [1, 63, 64, 65, 129])
def test_sum_of_stored_gradients(count):
    batches = gradients_of_two_devices(np.random.RandomState(0), count)
    full = FullGradient(batches[0], 2, 10, False)
    expected = sums_of(batches)
    copies = full.copies_of(batches)
    for gradients in batches:
        for arrays in gradients.values():
            for array in arrays:
                array[:] = 0  # the copies stay
    full.add_stored(copies)
    assert_shares(full, expected)
    assert [[array.context for array in arrays] for arrays in copies[0].values()] == (
        4 * [TWO_DEVICES])


@pytest.mark.parametrize('weights', [(1, 1), (1, 0.5), (0.25, 1), (0.5, 0.25), (2, 1)])
def test_sum_of_weighted_gradients(weights):
    batches = gradients_of_two_devices(np.random.RandomState(0), 5)
    full = FullGradient(batches[0], 2, 10, False)
    assert full.sums_stored(batches[0])
    for gradients in batches:
        full.add(gradients, weights)
    assert_shares(full, sums_of(batches, weights))


@pytest.mark.parametrize('add_devices', [True, False])
def test_mean_without_a_kvstore(add_devices):
    batches = gradients_of_two_devices(np.random.RandomState(0), 5)
    full = FullGradient(batches[0], 2, 10, False)
    full.finish(0, None, None, add_devices)  # no row was there
    assert not full.finished
    for gradients in batches:
        full.add(gradients, (1, 1))
        full.count({}, 10)
    full.finish(6, None, None, add_devices)
    expected = [{name: value * 10 / 50 for name, value in values.items()}
                for values in sums_of(batches)]
    if add_devices:
        expected = 2 * [{name: (value + expected[1][name]) / 2
                         for name, value in expected[0].items()}]
    assert full.finished and (full.rows, full.batches, full.batches_of_workers) == (50, 5, [6])
    assert_shares(full, expected)
    for name, total in full.totals().items():
        np.testing.assert_allclose(total.asnumpy(), expected[0][name] + expected[1][name],
                                   rtol=1e-5, atol=1e-5)
    for device, share in zip(TWO_DEVICES, full.shares):
        assert all(value.context == device for value in share.values())


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_full_gradient_by_row(dtype):
    """Each row over the part of the devices' batches that have it."""
    rng = np.random.RandomState(0)
    parts = rng.normal(size=(5, 2, 4, 3)) * (rng.rand(5, 2, 4, 1) < 0.6)
    parts[:, :, 2] = 0
    batches = [{'w': [mx.nd.array(part, dtype=dtype, ctx=device).tostype('row_sparse')
                      for part, device in zip(of_batch, TWO_DEVICES)]} for of_batch in parts]
    full = FullGradient(batches[0], 2, 10, False, ['w'])
    for gradients in batches:
        full.add(gradients, (1, 1))
        full.count(gradients, 8)
    full.finish(5, None, None, True)
    counts = (parts != 0).any(axis=3).sum(axis=(0, 1))
    assert list(full.row_counts['w']) == list(counts) and counts[2] == 0 and full.rows == 40
    mean = parts.sum(axis=(0, 1)) * 10 / 40
    for device, share, by_row in zip(TWO_DEVICES, full.shares, full.by_row):
        np.testing.assert_allclose(share['w'].asnumpy(), mean / 2, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(by_row['w'].asnumpy(),
                                   mean / 2 * 10 / np.maximum(counts, 1)[:, None],
                                   rtol=1e-5, atol=1e-5)
        assert by_row['w'].dtype == np.dtype(dtype) and by_row['w'].context == device


@pytest.mark.parametrize('saved, devices, batch_size, loss_is_mean', [
    (2, 2, 10, False), (1, 2, 10, False), (2, 1, 10, False), (1, 1, 5, False), (2, 2, 20, False),
    (2, 1, 20, True)])
@pytest.mark.parametrize('shares_differ', [True, False])
def test_packed_full_gradient(saved, devices, batch_size, loss_is_mean, shares_differ):
    """On other devices, and in the units of other batches."""
    [gradients] = gradients_of_two_devices(np.random.RandomState(0), 1)
    full = FullGradient(gradients, saved, 10, loss_is_mean)
    full.add(gradients, (1, 1))
    if not shares_differ and saved == 2:
        for name, arrays in gradients.items():
            full.share_out(name, arrays)
            for share in full.shares:
                share[name][:] = arrays[0]
    full.count({}, 10)
    full.shares_differ = shares_differ and saved == 2
    facts, kinds = full.pack()
    arrays = {name: getattr(value, 'asnumpy', lambda value=value: value)()
              for kind, values in kinds.items()
              for name, value in with_prefix(kind, values).items()}

    def unpack(arrays):
        return made.unpack(facts, functools.partial(arrays_of_kind, arrays=arrays))

    assert len(arrays) == 4 * (saved if shares_differ else 1)
    made = FullGradient(gradients, devices, batch_size, loss_is_mean)
    lacking = {name: value for name, value in arrays.items() if not name.endswith('wide')}
    assert unpack(lacking) == {'wide'} and not made.finished
    assert not made.shares[0]['small'].asnumpy().any()
    assert unpack({**arrays, 'full:0:more': np.ones(1)}) == set()
    assert made.finished and (made.rows, made.batches) == (10, 1)
    units = 1 if loss_is_mean else batch_size / 10
    shares = [{name: value.asnumpy() * units for name, value in share.items()}
              for share in full.shares]
    if saved != devices:
        shares = devices * [{name: sum(share[name] for share in shares) / devices
                             for name in shares[0]}]
    assert_shares(made, shares)


def test_parameters_that_are_not_finite():
    [gradients] = gradients_of_two_devices(np.random.RandomState(0), 1)
    full = FullGradient(gradients, 2, 10, False)
    assert full.nonfinite() == []
    full.shares[1]['bias'][1] = np.inf
    full.shares[0]['large'][7] = np.nan
    assert full.nonfinite() == ['bias', 'large']


def test_stored_gradients_of_another_dtype_are_not_summed():
    half = {'w': [mx.nd.zeros((2,), dtype='float16')]}
    sparse = {'w': [mx.nd.zeros((2, 1), stype='row_sparse')]}
    for gradients in (half, sparse):
        assert not FullGradient(gradients, 1, 10, False).sums_stored(gradients)


@pytest.mark.parametrize('loss, is_mean, is_mixed', [
    ([None], False, False), (['batch'], True, False), (['valid'], True, False),
    ([None, 'batch'], False, True), (['batch', 'batch'], True, False), ([], False, False)])
def test_weights_of_batches(loss, is_mean, is_mixed):
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    shapes = {'data': (8, 4), 'label': (8,)}
    losses = [mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'), name='loss%d' % i,
                                   **({'normalization': kind} if kind else {}))
              for i, kind in enumerate(loss)]
    scale = loss_scale(mx.sym.Group(losses or [scores]), shapes)
    assert (scale.is_mean, scale.is_mixed) == (is_mean, is_mixed)
    assert scale.is_row_wise == (loss == [None])
    expected = [0.5 * 2 * 3 / 8, 0.5 * 2 * 1 / 8] if is_mean else [0.5, 0.5]
    assert scale.weights([3, 1], 0.5, 8) == expected


def nodes_of(symbol):
    return json.loads(symbol.tojson())['nodes']


def loss_scale(symbol, shapes):
    return LossReduction(symbol, nodes_of(symbol), shapes)


def nodes_of_rows(**changed):
    return nodes_of(network_of_rows(**changed))


def network_of_rows(**changed):
    data, label = mx.sym.Variable('data'), mx.sym.Variable('label')
    layer = mx.sym.Convolution(data, kernel=(1, 1), num_filter=2)
    layer = mx.sym.Pooling(mx.sym.Activation(layer, act_type='relu'), kernel=(1, 1))
    layer = changed.get('layer', lambda layer: layer)(mx.sym.Flatten(layer))
    return changed.get('loss', mx.sym.SoftmaxOutput)(
        mx.sym.FullyConnected(layer, num_hidden=3), label, **changed.get('arguments', {}))


def test_networks_of_rows_that_do_not_depend_on_each_other():
    inputs = {'data': (8, 1, 2, 2), 'label': (8,)}
    for loss in (mx.sym.SoftmaxOutput, mx.sym.LinearRegressionOutput, mx.sym.SVMOutput,
                 mx.sym.LogisticRegressionOutput, mx.sym.MAERegressionOutput):
        assert is_row_wise(nodes_of_rows(loss=loss), inputs)
    assert is_row_wise(nodes_of_rows(arguments={'normalization': 'null'}), inputs)
    for kind in ('batch', 'valid'):
        assert not is_row_wise(nodes_of_rows(arguments={'normalization': kind}), inputs)
    assert not is_row_wise(nodes_of_rows(layer=mx.sym.BatchNorm), inputs)
    assert not is_row_wise(nodes_of_rows(), {'data': (8, 1, 2, 2)})  # the labels a parameter


def test_rows_as_weights_are_not_rows():
    data, label = mx.sym.Variable('data'), mx.sym.Variable('label')
    product = mx.sym.FullyConnected(data, weight=data, no_bias=True, num_hidden=8)
    nodes = nodes_of(mx.sym.SoftmaxOutput(product, label))
    assert not is_row_wise(nodes, {'data': (8, 4), 'label': (8,)})


def test_which_losses_tell():
    """Those that move a parameter, and MakeLoss where its normalization says so."""
    shapes = {'data': (8, 4), 'label': (8,)}
    data, weight = mx.sym.Variable('data'), mx.sym.Variable('w', shape=(8, 4))
    mean = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3), mx.sym.Variable('label'),
                                normalization='batch')
    for normalization in ('null', 'batch'):
        loss = mx.sym.MakeLoss(data * weight, normalization=normalization)
        assert loss_scale(loss, {'data': (8, 4)}).is_mean == (normalization == 'batch')
    for moves, loss in ((False, data * 2), (False, mx.sym.BlockGrad(weight) * data),
                        (True, weight * mx.sym.BlockGrad(data)),
                        (True, mx.sym.BlockGrad(data) * weight), (True, weight * 1)):
        scale = loss_scale(mx.sym.Group([mean, mx.sym.MakeLoss(loss)]), shapes)
        assert (scale.is_mixed, scale.is_mean) == (moves, not moves)


def test_callback_sees_the_sum_so_far():
    """Also where gradients are stored and batches wait for others."""
    problem = Problem('perceptron', rows=170)
    module = problem.bound(store_snapshot_grads=True)
    passes = []
    module.update_full_grads(problem.iterator(), passes.append)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(170)))
    assert [param.nbatch for param in passes] == list(range(17))


def test_lists_of_batches_cannot_be_held():
    problem = Problem(rows=40)
    module = problem.bound(context=TWO_DEVICES, store_snapshot_grads=True)
    with pytest.raises(ValueError, match='store_snapshot_grads must be False where train_data '
                                         'yields lists of batches'):
        module.update_full_grads(lists_of_batches(problem.iterator()))


@pytest.mark.parametrize('rows, function', [(10, 'run'), (40, 'run_merged')])
def test_errors_of_mxnet_are_passed_on(monkeypatch, rows, function):
    problem = Problem(rows=rows)
    module = problem.bound()

    def fail(*_):
        raise mx.MXNetError('no memory')

    monkeypatch.setattr(executor_group, function, fail)
    with pytest.raises(mx.MXNetError, match='no memory'):
        module.update_full_grads(problem.iterator())


def test_full_gradient_that_is_not_finite():
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


class Persistent(mx.operator.CustomOp):
    """Remember the latest batch in an auxiliary state, as a Boltzmann machine does its chains."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])
        aux[0][:] = in_data[0]

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register('svrg_test_persistent')
class PersistentProp(mx.operator.CustomOpProp):
    def list_auxiliary_states(self):
        return ['chain_min']

    def infer_shape(self, in_shape):
        return in_shape, [in_shape[0]], [in_shape[0]]

    def create_operator(self, *_):
        return Persistent()


def test_auxiliary_state_with_a_row_for_each_of_the_batch():
    """The padding of a batch cannot be cut off: it is weighted, and that is said."""
    problem = Problem(rows=37)
    data = mx.sym.Custom(mx.sym.Variable('data'), op_type='svrg_test_persistent', name='persistent')
    problem.symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(data, num_hidden=1, name='fc'), mx.sym.Variable('label'))
    module = problem.bound()
    with warnings_of_rows() as caught:
        module.update_full_grads(problem.iterator())
        module.update_full_grads(problem.iterator())
    assert len(caught) == 1 and 'cannot be bound for the real rows' in str(caught[0].message)
    rows = oracle.batches_of(37, 10)
    sums = [problem.network(problem.weights, problem.features[part], problem.targets[part])
            for part in rows]
    expected = {name: 10 / 37 * (sum(part[name] for part in sums[:3]) + 0.7 * sums[3][name])
                for name in sums[0]}
    problem.assert_full_gradient(module, expected)


@pytest.mark.parametrize('pad', [-1, 11])
@pytest.mark.parametrize('rows', [40, 400])
def test_padding_that_cannot_be(pad, rows):
    class Wrong(mx.io.NDArrayIter):
        def getpad(self):
            return pad

    problem = Problem(rows=rows)
    module = problem.bound()
    with pytest.raises(ValueError, match='pad is from 0 to their 10 rows, not %d' % pad):
        module.update_full_grads(Wrong(problem.features, problem.targets, 10, label_name='label'))


@pytest.mark.parametrize('stored', [False, True])
def test_outputs_without_a_loss_are_named(stored):
    problem = Problem(rows=400)
    inside = problem.symbol.get_internals()
    loss = mx.sym.MakeLoss(mx.sym.square(inside['fc_output']), name='loss')
    module = SVRGModule(mx.sym.Group([loss, inside['fc_output'], mx.sym.BlockGrad(loss)]),
                        label_names=None, update_freq=1, store_snapshot_grads=stored)
    train_data = mx.io.NDArrayIter(problem.features, batch_size=10)
    module.bind(train_data.provide_data)
    module.init_params()
    with pytest.raises(ValueError, match='outputs without a loss beside those with one, and so no '
                                         'full gradient: put fc_output into mx.sym.BlockGrad'):
        module.update_full_grads(train_data)


@pytest.mark.parametrize('pad', ['a', 1.5])
def test_padding_that_is_no_int(pad):
    class Wrong(mx.io.NDArrayIter):
        def getpad(self):
            return pad

    problem = Problem()
    with pytest.raises(TypeError, match='train_data must yield batches whose pad is an int, not'):
        problem.bound().update_full_grads(Wrong(problem.features, problem.targets, 10,
                                                label_name='label'))


def test_custom_operator_that_is_no_loss():
    """Operators of one's own may be losses; MXNet says which of them are not."""
    symbol = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4, name='fc')
    symbol = mx.sym.Custom(symbol, op_type='svrg_test_persistent', name='own')
    module = SVRGModule(symbol, label_names=None, update_freq=1)
    module.bind([('data', (10, 4))])
    module.init_params()
    with pytest.raises(ValueError, match='the symbol has no loss, and so no full gradient'):
        module.update_full_grads(mx.io.NDArrayIter(np.ones((20, 4)), batch_size=10))

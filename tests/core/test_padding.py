"""The padding of a batch is no part of the full gradient."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from full_gradients import (
    ShortBatches,
    full_gradient,
    lists_of_batches,
    persistent,
    warnings_of_rows,
    weighted_by_real_rows,
)
from problems import Problem
from svrg_optimization import SVRGModule

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@pytest.mark.parametrize('lists', [True, False])
def test_a_batch_in_the_middle_of_a_pass_may_be_padded(lists):
    problem = Problem(rows=37)
    module = problem.bound(context=TWO_DEVICES)
    twice = mx.io.ResizeIter(problem.iterator(), 8)
    module.update_full_grads(lists_of_batches(twice) if lists else twice)
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


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
    problem.train_epoch(module, svrg)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('rows', [33, 34, 35])
def test_a_last_batch_of_fewer_rows_than_devices_is_weighted_with_its_padding(rows):
    problem = Problem('softmax', rows=rows)
    module = problem.bound(context=[mx.cpu(i) for i in range(4)], batch_size=8)
    with warnings_of_rows() as caught:
        module.update_full_grads(problem.iterator(8))
    assert len(caught) == 1
    problem.assert_full_gradient(module, weighted_by_real_rows(problem, 8))


@pytest.mark.parametrize('context, rows', [(mx.cpu(), 37), (TWO_DEVICES, 37)])
def test_an_input_without_rows_has_no_padding(context, rows):
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
def test_a_device_without_a_share_of_the_last_rows_gets_none(store):
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


def test_a_batch_is_weighted_where_an_auxiliary_state_has_its_rows():
    """The padding of a batch cannot be cut off: it is weighted, and that is said."""
    problem = Problem(rows=37)
    data = persistent(mx.sym.Variable('data'))
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
def test_a_pad_of_more_or_less_than_the_rows_is_refused(pad, rows):
    class Wrong(mx.io.NDArrayIter):
        def getpad(self):
            return pad

    problem = Problem(rows=rows)
    module = problem.bound()
    with pytest.raises(ValueError, match='pad is from 0 to their 10 rows, not %d' % pad):
        module.update_full_grads(Wrong(problem.features, problem.targets, 10, label_name='label'))


@pytest.mark.parametrize('pad', ['a', 1.5])
def test_a_pad_that_is_no_int_is_refused(pad):
    class Wrong(mx.io.NDArrayIter):
        def getpad(self):
            return pad

    problem = Problem()
    with pytest.raises(TypeError, match='train_data must yield batches whose pad is an int, not'):
        problem.bound().update_full_grads(Wrong(problem.features, problem.targets, 10,
                                                label_name='label'))


@pytest.mark.parametrize('stored', [False, True])
def test_a_batch_of_padding_alone_does_not_count(stored):
    """It says nothing of the full gradient, and is stepped on as the iterator yields it."""
    problem = Problem(rows=40)
    batches = list(problem.iterator())
    batches.insert(2, mx.io.DataBatch(batches[0].data, batches[0].label, pad=10))

    class Batches(list):
        def reset(self):
            pass

    module = problem.bound(store_snapshot_grads=stored)
    svrg = problem.svrg()
    svrg.take_snapshot()
    module.update_full_grads(Batches(batches))
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert module._snapshot.full_gradient.batches == 4
    assert [batch.pad for batch in module._svrg.store.batches] == [0, 0, 10, 0, 0][:5 * stored]

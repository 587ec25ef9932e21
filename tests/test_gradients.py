"""SVRG gradients where Module's gradients are not plainly written once a step."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from problems import Problem
from svrg_optimization import SVRGModule
from svrg_optimization.core.correction import (
    add_fused,
    copies_fused,
    correct,
    correct_fused,
    fusable_parameters,
)


def bound(problem, grad_req, context=None):
    module = problem.bound(grad_req=grad_req, context=context or mx.cpu())
    module.init_optimizer(optimizer_params={'learning_rate': 0.05, 'momentum': 0.5})
    return module


def clear(module):
    for arrays in module._exec_group.grad_arrays:
        for array in arrays:
            if array is not None:
                array[:] = 0


@pytest.mark.parametrize('context', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
@pytest.mark.parametrize('grad_req, added', [
    ('add', ['fc_weight', 'fc_bias', 'hidden_weight', 'hidden_bias']),
    ({'fc_weight': 'add', 'hidden_bias': 'add'}, ['fc_weight', 'hidden_bias'])])
@pytest.mark.parametrize('passes', [1, 2, 4])
def test_added_gradients_count_the_full_gradient_each_time(context, grad_req, added, passes):
    problem = Problem('perceptron')
    module = bound(problem, grad_req, context)
    svrg = problem.svrg(learning_rate=0.05, momentum=0.5)
    for epoch in range(3):
        if epoch != 1:
            module.update_full_grads(problem.iterator())
            svrg.take_snapshot()
        total = dict.fromkeys(svrg.weights, 0.0)
        batches = zip(problem.iterator(), oracle.batches_of(40, 10))
        for number, (batch, rows) in enumerate(batches, 1):
            module.forward_backward(batch)
            gradients = svrg.gradients(svrg.weights, rows)
            at_snapshot = svrg.gradients(svrg.snapshot, rows)
            steps = {name: gradients[name] - at_snapshot[name] + svrg.full_gradient[name]
                     for name in total}
            total = {name: total[name] + step if name in added else step
                     for name, step in steps.items()}
            if number % passes == 0:
                module.update()
                clear(module)
                svrg.optimizer.step(svrg.weights, total)
                total = dict.fromkeys(svrg.weights, 0.0)
    problem.assert_weights(module, svrg.weights)


def test_added_gradients_that_the_user_does_not_clear():
    """As in Module they go on adding up, each with its correction."""
    problem = Problem()
    module = bound(problem, 'add')
    svrg = problem.svrg(learning_rate=0.05, momentum=0.5)
    module.update_full_grads(problem.iterator())
    svrg.take_snapshot()
    total = dict.fromkeys(svrg.weights, 0.0)
    for batch, rows in zip(problem.iterator(), oracle.batches_of(40, 10)):
        module.forward_backward(batch)
        module.update()
        gradients = svrg.gradients(svrg.weights, rows)
        at_snapshot = svrg.gradients(svrg.snapshot, rows)
        total = {name: total[name] + gradients[name] - at_snapshot[name] + svrg.full_gradient[name]
                 for name in total}
        svrg.optimizer.step(svrg.weights, total)
    problem.assert_weights(module, svrg.weights)


def test_parameters_without_gradients():
    problem = Problem('perceptron')
    module = bound(problem, {'hidden_bias': 'null', 'fc_bias': 'null'})
    svrg = problem.svrg(learning_rate=0.05, momentum=0.5, fixed=('hidden_bias', 'fc_bias'))
    module.fit(problem.iterator(), eval_metric=[], num_epoch=4)
    problem.assert_weights(module, svrg.fit(4, 1))
    assert set(module._param_dict[0]) == {'hidden_weight', 'fc_weight'}


@pytest.mark.parametrize('context', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
@pytest.mark.parametrize('multi_precision', [True, False])
@pytest.mark.filterwarnings('ignore:Accumulating with float16')
def test_float16(multi_precision, context):
    """The full gradient of a float16 parameter is summed and kept in float32."""
    rng = np.random.RandomState(0)
    # In float16 the sum would stop growing at 2048, or lose the small terms.
    features = (1 + rng.rand(4096, 2)).astype(np.float16)
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
    assert module._mod_aux._exec_group.grad_arrays[0][0].dtype == np.float16
    train_data.reset()
    module.forward_backward(next(train_data))
    module.update()
    # At the snapshot the SVRG gradient is the full gradient.
    np.testing.assert_allclose(module.get_params()[0]['w'].asnumpy(), start - 0.01 / 8 * actual,
                               rtol=2e-3)


def test_float16_rule_is_computed_in_float32():
    module = Problem().module()
    current = mx.nd.array([1000.5], dtype='float16')
    module._svrg_grads_update_rule(current, mx.nd.array([1000], dtype='float16'),
                                   mx.nd.array([0.0001]))
    np.testing.assert_allclose(current.asnumpy(), np.float16(0.5001))


@pytest.mark.parametrize('context', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
def test_float64(context):
    """With float64 data and parameters the result is float64's."""
    problem = Problem('softmax')
    train_data = mx.io.NDArrayIter(mx.nd.array(problem.features, dtype='float64'),
                                   mx.nd.array(problem.targets, dtype='float64'), 8,
                                   label_name='label')
    module = problem.module(2, context=context)
    # A rate that is exact in float32: MXNet's operators take no other.
    module.fit(train_data, eval_metric=[], num_epoch=5, optimizer_params={'learning_rate': 0.125},
               arg_params={name: mx.nd.array(value, dtype='float64')
                           for name, value in problem.weights.items()})
    problem.assert_weights(module, problem.svrg(8, learning_rate=0.125).fit(5, 2), 1e-12)


def test_states_are_those_of_the_live_module():
    """A state enters the gradient at the snapshot as it enters that at the weights."""
    data, state = mx.sym.Variable('data'), mx.sym.Variable('state', shape=(4, 3))
    output = mx.sym.FullyConnected(data * state, num_hidden=1, name='fc')
    symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label'))
    rng = np.random.RandomState(0)
    problem = Problem(rows=12, features=3)
    problem.features, problem.targets = rng.normal(size=(12, 3)), rng.normal(size=12)
    train_data = mx.io.NDArrayIter(problem.features, problem.targets, 4, label_name='label')
    module = SVRGModule(symbol, label_names=('label',), state_names=('state',), update_freq=1)
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(arg_params=problem.arg_params())
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    module.set_states(value=2)
    doubled = problem.features * 2
    problem.features = doubled
    svrg = problem.svrg(batch_size=4)
    module.update_full_grads(train_data)
    svrg.take_snapshot()
    for factor in (2, 3, 0.5):
        module.set_states(value=factor)
        svrg.features = doubled / 2 * factor
        train_data.reset()
        for batch, rows in zip(train_data, oracle.batches_of(12, 4)):
            module.forward_backward(batch)
            module.update()
            svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


def test_symbol_without_a_loss():
    """It has no full gradient of its own, which is said; the rest works."""
    symbol = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=2, name='fc')
    module = SVRGModule(symbol, label_names=None, update_freq=1)
    train_data = mx.io.NDArrayIter(np.ones((8, 3)), batch_size=4)
    module.bind(train_data.provide_data)
    module.init_params()
    module.init_optimizer()
    with pytest.raises(ValueError, match='no loss'):
        module.update_full_grads(train_data)
    before = module.get_params()[0]['fc_bias'].asnumpy()
    module.forward(next(mx.io.NDArrayIter(np.ones((8, 3)), batch_size=4)))
    module.backward([mx.nd.ones((4, 2))])
    module.update()
    np.testing.assert_allclose(module.get_params()[0]['fc_bias'].asnumpy(), before - 0.01,
                               rtol=1e-5)


def test_snapshot_shared_by_modules_that_share_weights():
    """A snapshot that one of them takes is the other's too."""
    problem = Problem('perceptron')
    first = problem.bound()
    first.init_optimizer(optimizer_params={'learning_rate': 0.1})
    second = problem.module()
    train_data = problem.iterator(4)
    second.bind(train_data.provide_data, train_data.provide_label, shared_module=first)
    svrg = problem.svrg()
    for owner in (first, second, first):
        owner.update_full_grads(problem.iterator())
        svrg.take_snapshot()
        units = {first: 1, second: 0.4}
        problem.assert_full_gradient(first, {name: value * units[owner] for name, value
                                             in svrg.full_gradient.items()})
        for module, rows in ((first, np.arange(10)), (second, np.arange(10, 14))):
            batch = mx.io.DataBatch([mx.nd.array(problem.features[rows])],
                                    [mx.nd.array(problem.targets[rows])])
            module.forward_backward(batch)
            module.update()
            svrg.step(rows)  # in the units of these rows, whoever took the snapshot
    problem.assert_weights(first, svrg.weights)
    problem.assert_weights(second, svrg.weights)


@pytest.mark.parametrize('context', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
def test_snapshot_is_never_shared_with_live_parameters(context):
    """Nor do the keys of the full gradient have to be in the KVStore that is borrowed."""
    problem = Problem()
    plain = mx.mod.Module(problem.symbol, label_names=('label',), context=context)
    train_data = problem.iterator()
    plain.bind(train_data.provide_data, train_data.provide_label)
    plain.init_params(arg_params=problem.arg_params())
    plain.init_optimizer(optimizer_params={'learning_rate': 0.1})
    module = problem.module(context=context)
    module.bind(train_data.provide_data, train_data.provide_label, shared_module=plain)
    svrg = problem.svrg()
    module.update_full_grads(train_data)
    svrg.take_snapshot()
    for batch, rows in zip(problem.iterator(), oracle.batches_of(40, 10)):
        module.forward_backward(batch)
        module.update()
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


def values_of(arrays):
    return [array.asnumpy() for array in arrays]


@pytest.mark.parametrize('dtype, tolerance', [('float32', 1e-6), ('float64', 1e-14)])
@pytest.mark.parametrize('count', [1, 59, 60, 61, 121])
@pytest.mark.parametrize('alpha', [1, 0.3])
def test_many_small_gradients(dtype, tolerance, count, alpha):
    """So many are corrected and copied in one operation, and the others in the next one."""
    rng = np.random.RandomState(count)
    now, then, full = ([rng.normal(size=(2, 1 + i % 3)) for i in range(count)] for _ in range(3))
    gradients, at_snapshot, mean = ([mx.nd.array(value, dtype=dtype) for value in values]
                                    for values in (now, then, full))
    copies = copies_fused(gradients)
    one_by_one = [gradient.copy() for gradient in gradients]
    alphas = [] if alpha == 1 else [alpha]  # it is 1 by default
    for three in zip(one_by_one, at_snapshot, mean):
        correct(*three, *alphas)
    correct_fused(gradients, at_snapshot, mean, *alphas)
    for one, other in zip(one_by_one, gradients):
        assert (one.asnumpy() == other.asnumpy()).all()
    expected = [now[i] - alpha * (then[i] - full[i]) for i in range(count)]
    assert len(copies) == count
    for arrays, values in ((gradients, expected), (at_snapshot, then), (mean, full), (copies, now)):
        for array, value in zip(arrays, values):
            assert array.dtype == np.dtype(dtype)
            np.testing.assert_allclose(array.asnumpy(), value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize('count', [1, 60, 61, 121])
def test_many_small_sums(count):
    rng = np.random.RandomState(count)
    totals, terms = ([rng.normal(size=(2, 1 + i % 3)) for i in range(count)] for _ in range(2))
    sums, gradients = ([mx.nd.array(value) for value in values] for values in (totals, terms))
    add_fused(sums, gradients)
    for i in range(count):
        np.testing.assert_allclose(sums[i].asnumpy(), totals[i] + terms[i], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(gradients[i].asnumpy(), terms[i], rtol=1e-6)


@pytest.mark.parametrize('alpha', [1, 0.3])
@pytest.mark.parametrize('dtype, stype', [
    (dtype, stype) for dtype in ('float16', 'float32', 'float64')
    for stype in ('default', 'row_sparse') if (dtype, stype) != ('float16', 'row_sparse')])
def test_correction_leaves_the_other_gradients_as_they_are(dtype, stype, alpha):
    arrays = [mx.nd.array([[5], [2], [0]], dtype=dtype).tostype(stype),
              mx.nd.array([[1], [0], [0]], dtype=dtype).tostype(stype),
              mx.nd.array([[3], [3], [4]], dtype='float32' if dtype == 'float16' else dtype)]
    before = values_of(arrays)
    correct(*arrays, alpha)
    now, then, full = values_of(arrays)
    np.testing.assert_allclose(now, before[0] - alpha * (before[1] - before[2]),
                               rtol=1e-3 if dtype == 'float16' else 1e-6)
    assert (then == before[1]).all() and (full == before[2]).all()
    assert arrays[0].dtype == np.dtype(dtype) and arrays[0].stype == stype


def test_small_parameters():
    """Dense ones of up to 2¹⁴ numbers, those of each dtype together."""
    def gradient(size, dtype='float32', stype='default'):
        return [mx.nd.zeros((size, 1), dtype=dtype, stype=stype)]

    assert fusable_parameters({
        'a': gradient(3), 'wide': gradient(3, 'float64'), 'most': gradient(1 << 14),
        'more': gradient((1 << 14) + 1), 'half': gradient(3, 'float16'),
        'sparse': gradient(3, stype='row_sparse'), 'b': gradient(1)}) == [
            ['a', 'most', 'b'], ['wide']]
    assert fusable_parameters({'half': gradient(3, 'float16')}) == []


def test_rule_of_ones_own_in_place():
    class Own(SVRGModule):
        def _svrg_grads_update_rule(self, current, at_snapshot, full):
            current -= at_snapshot
            current += full
            return current

    problem = Problem('perceptron', rows=37)
    module = Own(problem.symbol, label_names=('label',), update_freq=2)
    module.fit(problem.iterator(), eval_metric='acc', num_epoch=4, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.1})
    problem.assert_weights(module, problem.svrg().fit(4, 2))

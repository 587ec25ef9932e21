"""The correction of a gradient: the rule, by itself and when it fails."""

import mxnet as mx
import numpy as np
import pytest

from pairs import in_pairs
from problems import Problem
from svrg_optimization import SVRGModule
from svrg_optimization.core.correction import (
    add_fused,
    correct,
    correct_fused,
    correct_rows_of_batch,
    fusable_parameters,
    svrg_gradient,
)


def test_the_update_rule_may_be_called_by_hand():
    module = Problem().module()
    current = mx.nd.array([[1, 2], [3, 4]])
    result = module._svrg_grads_update_rule(current, mx.nd.array([[1, 1], [1, 1]]),
                                            mx.nd.array([[10, 20], [30, 40]]))
    assert result is current
    assert current.asnumpy().tolist() == [[10, 21], [32, 43]]


def test_update_is_refused_after_a_correction_that_failed(training):
    training.snapshot()
    batch = next(training.problem.iterator())
    training.module.alpha = lambda _: 2
    with pytest.raises(ValueError, match='alpha must be'):
        training.module.forward_backward(batch)
    with pytest.raises(ValueError, match='alpha must be'):
        training.module.update()
    training.check()
    training.module.alpha = 1
    training.module.update()
    training.svrg.step(np.arange(10))
    training.check()


@pytest.mark.parametrize('kind', ['rule', 'method'])
def test_an_interrupted_correction_is_never_done_twice(kind):
    """An update with gradients corrected in part is an error, and never corrects them twice."""
    class Own(SVRGModule):
        fails = False

        def _svrg_grads_update_rule(self, current, at_snapshot, full):
            self.calls += 1
            if self.fails and self.calls == 2 and kind == 'rule':
                raise KeyboardInterrupt
            return super()._svrg_grads_update_rule(current, at_snapshot, full)

        def _update_svrg_gradients(self):
            self.calls = 0
            super()._update_svrg_gradients()
            if self.fails and kind == 'method':
                raise KeyboardInterrupt

    problem = Problem(rows=40)
    module = Own(problem.symbol, label_names=('label',), update_freq=1)
    train_data = problem.iterator()
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(arg_params=problem.arg_params())
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    module.update_full_grads(train_data)
    train_data.reset()
    svrg = problem.svrg(learning_rate=0.1)
    svrg.take_snapshot()
    for number, batch in enumerate(train_data):
        module.forward(batch)
        if number in {0, 2}:
            module.fails = True
            with pytest.raises(KeyboardInterrupt):
                module.backward()
            module.fails = False
            if kind == 'rule':
                with pytest.raises(RuntimeError, match='^update needs another forward and back'):
                    module.update()
                module.forward(batch)
                module.backward()
        else:
            module.backward()
        module.update()
        svrg.step(np.arange(10 * number, 10 * number + 10))
    problem.assert_weights(module, svrg.weights)


def test_float16_rule_is_computed_in_float32():
    module = Problem().module()
    current = mx.nd.array([1000.5], dtype='float16')
    module._svrg_grads_update_rule(current, mx.nd.array([1000], dtype='float16'),
                                   mx.nd.array([0.0001]))
    np.testing.assert_allclose(current.asnumpy(), np.float16(0.5001))


def values_of(arrays):
    return [array.asnumpy() for array in arrays]


@in_pairs({
    'dtype, tolerance': [('float32', 1e-6), ('float64', 1e-14)],
    'count': [1, 59, 60, 61, 121],
    'alpha': [1, 0.3]})
def test_many_small_gradients_are_corrected_as_each_by_itself(dtype, tolerance, count, alpha):
    """So many are corrected in one operation, and the others in the next one."""
    rng = np.random.RandomState(count)
    now, then, full = ([rng.normal(size=(2, 1 + i % 3)) for i in range(count)] for _ in range(3))
    gradients, at_snapshot, mean = ([mx.nd.array(value, dtype=dtype) for value in values]
                                    for values in (now, then, full))
    one_by_one = [gradient.copy() for gradient in gradients]
    alphas = [] if alpha == 1 else [alpha]  # it is 1 by default
    for three in zip(one_by_one, at_snapshot, mean):
        correct(*three, *alphas)
    for group in fusable_parameters({i: [gradient] for i, gradient in enumerate(gradients)}):
        correct_fused([(mean[i], at_snapshot[i], gradients[i]) for i in group], *alphas)
    for one, other in zip(one_by_one, gradients):
        assert (one.asnumpy() == other.asnumpy()).all()
    expected = [now[i] - alpha * (then[i] - full[i]) for i in range(count)]
    for arrays, values in ((gradients, expected), (at_snapshot, then), (mean, full)):
        for array, value in zip(arrays, values):
            assert array.dtype == np.dtype(dtype)
            np.testing.assert_allclose(array.asnumpy(), value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize('count', [1, 60, 61, 121])
def test_many_small_sums_are_exact(count):
    rng = np.random.RandomState(count)
    totals, terms = ([rng.normal(size=(2, 1 + i % 3)) for i in range(count)] for _ in range(2))
    sums, gradients = ([mx.nd.array(value) for value in values] for values in (totals, terms))
    for group in fusable_parameters({i: [gradient] for i, gradient in enumerate(gradients)}):
        add_fused([sums[i] for i in group], [gradients[i] for i in group])
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
    plain = svrg_gradient(*(array.tostype('default').astype('float64') for array in arrays), alpha)
    correct(*arrays, alpha)
    now, then, full = values_of(arrays)
    for expected in (before[0] - alpha * (before[1] - before[2]), plain.asnumpy()):
        np.testing.assert_allclose(now, expected, rtol=1e-3 if dtype == 'float16' else 1e-6)
    assert (then == before[1]).all() and (full == before[2]).all()
    assert arrays[0].dtype == np.dtype(dtype) and arrays[0].stype == stype


def test_small_dense_parameters_of_a_dtype_are_taken_together():
    """Dense ones of up to 2¹⁴ numbers, those of each dtype together."""
    def gradient(size, dtype='float32', stype='default'):
        return [mx.nd.zeros((size, 1), dtype=dtype, stype=stype)]

    assert fusable_parameters({
        'a': gradient(3), 'wide': gradient(3, 'float64'), 'most': gradient(1 << 14),
        'more': gradient((1 << 14) + 1), 'half': gradient(3, 'float16'),
        'sparse': gradient(3, stype='row_sparse'), 'b': gradient(1)}) == [
            ['a', 'most', 'b'], ['wide']]
    assert fusable_parameters({'half': gradient(3, 'float16')}) == []


@pytest.mark.parametrize('alpha', [1, 0.3])
def test_the_rows_of_a_batch_are_corrected_by_the_formula(alpha):
    """The other rows stay empty."""
    arrays = [mx.nd.array(value).tostype('row_sparse')
              for value in ([[5], [0], [2]], [[1], [0], [4]])]
    full = mx.nd.array([[3], [7], [4]])
    plain = svrg_gradient(*(array.tostype('default') for array in arrays), full, alpha).asnumpy()
    correct_rows_of_batch(*arrays, full, alpha)
    np.testing.assert_allclose(arrays[0].asnumpy(), plain * [[1], [0], [1]], rtol=1e-6)

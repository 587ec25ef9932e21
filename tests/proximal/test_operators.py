"""Proximal operators by themselves."""

import math

import mxnet as mx
import numpy as np
import pytest

import oracle
from oracle import box
from pairs import in_pairs
from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1, Box, GroupLasso

OPERATORS = [
    (L1(0.3), oracle.soft_threshold(0.3), lambda w: 0.3 * np.abs(w).sum()),
    (GroupLasso(0.7, axis=0), oracle.block_threshold(0.7, 0),
     lambda w: 0.7 * np.linalg.norm(w, axis=1).sum()),
    (GroupLasso(0.7, axis=1), oracle.block_threshold(0.7, 1),
     lambda w: 0.7 * np.linalg.norm(w, axis=0).sum()),
    (GroupLasso(0.7, axis=-1, low=0),
     lambda value, rate: oracle.block_threshold(0.7, 1)(np.maximum(value, 0), rate),
     lambda w: math.inf if (w < 0).any() else 0.7 * np.linalg.norm(w, axis=0).sum()),
    (Box(), lambda value, rate: value, lambda w: 0.),
    (Box(-0.1, 0.2), box(-0.1, 0.2), lambda w: math.inf),
    (Box(-math.inf, 0.2), box(-math.inf, 0.2), lambda w: math.inf),
    (Box(0.1, 0.1), box(0.1, 0.1), lambda w: math.inf),
    (Box(0), box(0, math.inf), lambda w: math.inf),
    (L1(0.3, low=0), lambda value, rate: np.maximum(value - rate * 0.3, 0),
     lambda w: math.inf if (w < 0).any() else 0.3 * w.sum()),
    (L1(0.3, -0.125, 0.25),
     lambda value, rate: np.clip(oracle.soft_threshold(0.3)(value, rate), -0.125, 0.25),
     lambda w: math.inf if (w != w.clip(-0.125, 0.25)).any() else 0.3 * np.abs(w).sum()),
]


@in_pairs({
    'dtype, tolerance': [('float32', 1e-6), ('float64', 1e-7)],
    'columns': [7, 7000],
    'operator, expected, value': OPERATORS})
def test_operators_and_their_values_are_exact(operator, expected, value, columns, dtype, tolerance):
    given = np.random.RandomState(0).normal(size=(5, columns)) * np.logspace(0, -3, 5)[:, None]
    given[2] = 0
    weight = mx.nd.array(given, dtype=dtype)
    of_numpy, given = weight.asnumpy(), weight.asnumpy().astype(float)
    np.testing.assert_allclose(operator.value(weight), value(given), rtol=tolerance)
    operator.prox(weight, 0.4)
    operator.prox(of_numpy, 0.4)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(of_numpy, weight.asnumpy(), rtol=10 * eps,
                               atol=eps if columns > 7 else 0)  # some are near a threshold
    result = expected(given, 0.4)
    np.testing.assert_allclose(weight.asnumpy(), result, rtol=tolerance, atol=tolerance)
    assert ((weight.asnumpy() == 0) == (result == 0)).all()
    after = value(weight.asnumpy().astype(float))
    np.testing.assert_allclose(operator.value(weight), after if math.isfinite(after) else 0,
                               rtol=tolerance)
    operator.prox(weight, 0.)
    np.testing.assert_allclose(weight.asnumpy(), result, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize('threshold', [0., 1e-45, 1e-37, 0.7, 1e37, 1e300])
def test_thresholds_of_any_size_are_exact(threshold):
    weight = mx.nd.array([-2, -0.7, 0, 1e-37, 3])
    expected = oracle.soft_threshold(threshold)(weight.asnumpy().astype(float), 1.)
    L1(threshold).prox(weight, 1.)
    np.testing.assert_array_equal(weight.asnumpy(), expected.astype('float32'))


def test_operators_work_after_an_error_of_the_range():
    for operator, *_ in OPERATORS:
        for method, *others in ('value',), ('prox', 0.4):
            weight = mx.nd.ones((2, 3))
            math.exp(-1000)  # with this error of the C library MXNet refuses to read an infinity
            getattr(operator, method)(weight, *others)


class Noting(GroupLasso):
    """An operator of one's own that notes what it gets."""

    got = ()

    def prox(self, weight, step_size):
        self.got += (weight.shape, np.dtype(weight.dtype).name, step_size),
        super().prox(weight, step_size)


@pytest.mark.filterwarnings('ignore:Accumulating with float16')
@pytest.mark.parametrize('dtype, multi_precision', [
    ('float16', False), ('float16', True), ('float32', False), ('float64', False)])
def test_an_operator_gets_a_weight_in_full_precision(dtype, multi_precision):
    """With multi_precision steps that float16 would lose add up."""
    operator, start = Noting(2 ** -13, axis=0), np.array([[0.5, -0.5, 0.5, 0.5]])
    weight = mx.sym.Variable('w', shape=(1, 4), dtype=dtype)
    loss = mx.sym.MakeLoss(mx.sym.broadcast_mul(mx.sym.Variable('data'), weight))
    module = SVRGModule(loss, label_names=None, update_freq=1, alpha=0, proximal={'w': operator})
    module.bind([mx.io.DataDesc('data', (10, 4), dtype)])
    module.init_params(arg_params={'w': mx.nd.array(start, dtype=dtype)})
    module.init_optimizer(kvstore=None, optimizer_params={
        'learning_rate': 0.5, 'multi_precision': multi_precision})
    for _ in range(8):
        module.forward_backward(mx.io.DataBatch([mx.nd.zeros((10, 4), dtype=dtype)]))
        module.update()
    assert operator.got == (((1, 4), 'float32' if dtype == 'float16' else dtype, 0.5),) * 8
    weight = module.get_params()[0]['w']
    assert weight.dtype == np.dtype(dtype)
    if multi_precision or dtype != 'float16':
        np.testing.assert_allclose(weight.asnumpy(), (1 - 8 * 2 ** -14) * start, rtol=(
            2e-4 if multi_precision else 1e-6))
        assert np.abs(weight.asnumpy()).max() < 0.5


def test_values_are_summed_in_float64():
    weight = mx.nd.full((10001, 1), 1)
    weight[0] = 0.1
    for operator in L1(0.1), GroupLasso(0.1, axis=0):
        assert abs(operator.value(weight) - 10000.1 * 0.1) < 1e-8


@pytest.mark.parametrize('rows', [2, 20000])
def test_nan_is_not_hidden(rows):
    for operator, *_ in OPERATORS:
        weight = mx.nd.ones((rows, 2))
        weight[0, 1] = np.nan
        operator.prox(weight, 0.1)
        assert np.isnan(weight.asnumpy()[0, 1])
        assert not math.isfinite(operator.value(weight))


@pytest.mark.parametrize('axis, other, threshold', [
    (0, (1, 2, 3), 4), (1, (0, 2, 3), 4.5), (-1, (0, 1, 2), 5.5)])
def test_groups_may_be_along_any_axis(axis, other, threshold):
    given = np.random.RandomState(0).normal(size=(4, 3, 2, 2))
    weight = mx.nd.array(given)
    GroupLasso(threshold, axis).prox(weight, 1)
    norms = np.sqrt((given ** 2).sum(axis=other, keepdims=True))
    assert 0 < (norms < threshold).sum() < norms.size
    np.testing.assert_allclose(weight.asnumpy(), given * np.maximum(0, 1 - threshold / norms),
                               rtol=1e-5)


@pytest.mark.parametrize('make, error, message', [
    (lambda: L1('1'), TypeError, "strength must be a number of 0 or more, not '1'"),
    (lambda: L1(-1), ValueError, 'strength must be a number of 0 or more, not -1'),
    (lambda: L1(math.inf), ValueError, 'strength must be'),
    (lambda: L1(1, 0, -1), ValueError, 'high must be'),
    (lambda: GroupLasso(math.nan, 1), ValueError, 'strength must be'),
    (lambda: GroupLasso(1, 1, low=1), ValueError, 'low must be 0 or -inf, not 1'),
    (lambda: GroupLasso(1, True), TypeError, 'axis must be an int, not True'),
    (lambda: Box(1, 0), ValueError, 'high must be a number of low, 1, or more, not 0'),
    (lambda: Box(math.nan, 0), ValueError, 'low must be a number, and no NaN, not nan'),
    (lambda: Box(None, 0), TypeError, 'low must be a number, and no NaN, not None')])
def test_bad_numbers_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_numbers_of_numpy_become_pythons():
    operators = L1(np.float32(0.5)), L1(np.array(1), np.int64(2)), GroupLasso(
        np.float64(1), np.int8(1)), Box(np.float32(0), np.float16(1))
    for operator in operators:
        assert {type(value) for value in vars(operator).values()} <= {int, float}
    assert repr(operators[2]) == 'GroupLasso(strength=1.0, axis=1, low=-inf)'

"""The metric of fewer rows than columns, against dense matrices in float64, and trainings."""

import mxnet as mx
import numpy as np
import pytest

from dense_metric import block_of, dense, inverse_of, metric_of, moments_of, of_all_outputs
from svrg_optimization import SVRGModule
from svrg_optimization.core.front_end import Layer, Workers
from svrg_optimization.rate import moments
from svrg_optimization.rate.basis import Reflections, of_rows
from svrg_optimization.rate.learned import Learned
from svrg_optimization.rate.metric import Block
from svrg_optimization.rate.moments import InputMoments, Moments
from svrg_optimization.rate.saved import learned_of, state_of
from svrg_optimization.rate.secant_pairs import SecantPairs

RNG = np.random.RandomState(0)
ROWS, COLUMNS = 7, 12
PLAIN = RNG.normal(size=(ROWS, COLUMNS)) + np.arange(COLUMNS)
INPUTS = {'plain': PLAIN, 'raw': PLAIN * np.logspace(-3, 3, COLUMNS),
          'constant columns': np.column_stack([PLAIN[:, 2:], np.full(ROWS, 3.), np.zeros(ROWS)]),
          'equal rows': PLAIN[[0, 1, 2, 0, 1, 2, 3]],
          'one column each': np.eye(ROWS, COLUMNS)}


def few(rows):
    """Return the Moments of fewer rows than columns."""
    mean = rows.mean(axis=0)
    return Moments(mean, (rows - mean) / np.sqrt(len(rows)))


def few_block(rows, decays, axis=1):
    return Block(['weight', 'bias'][:len(decays)], axis, few(rows), list(decays), 'float64')


@pytest.mark.parametrize('inputs', INPUTS)
def test_reflections_are_an_orthogonal_matrix_of_the_eigenvectors(inputs):
    rows, one = INPUTS[inputs], np.eye(COLUMNS)
    values, basis = of_rows(rows)
    matrix = basis.times(one)
    assert isinstance(basis, Reflections)
    np.testing.assert_allclose(matrix.T @ matrix, one, atol=1e-14)
    np.testing.assert_allclose(basis.times_transposed(one), matrix.T, atol=1e-14)
    products = rows.T @ rows
    np.testing.assert_allclose(matrix * values @ matrix.T, products, atol=1e-14 * products.max())
    positive = abs(RNG.normal(size=(3, COLUMNS)))
    assert (basis.sizes(positive) >= (1 - 1e-12) * positive @ abs(matrix)).all()


@pytest.mark.parametrize('axis', [0, 1])
@pytest.mark.parametrize('decays', [(0.3,), (1e-7, 0.), (0.3, 0.), (0.3, 0.2)])
@pytest.mark.parametrize('inputs', INPUTS)
def test_the_variables_are_those_of_the_dense_matrix(inputs, decays, axis):
    rows = INPUTS[inputs]
    metric = metric_of(few_block(rows, decays, axis), 2.5)
    matrix = of_all_outputs(metric, dense(rows, decays))
    weights, moved = RNG.normal(size=(2, metric.size))
    gradient, scale = matrix @ moved, np.sqrt(np.diag(matrix))
    whitened, pulled = metric.whiten(weights), metric.pull(gradient)
    for found, expected in (
            (whitened @ whitened, weights @ matrix @ weights),
            (pulled @ pulled, gradient @ moved), (pulled @ whitened, gradient @ weights),
            (metric.push(whitened), weights),
            (metric.unpull(pulled) / scale, gradient / scale),
            (metric.unpull(whitened) / scale, matrix @ weights / scale),
            (matrix @ metric.push(pulled) / scale, gradient / scale)):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize('decays', [(0.,), (0., 0.), (1e-7, 0.), (0.3,), (0.3, 0.2)])
@pytest.mark.parametrize('inputs', INPUTS)
def test_outputs_have_the_sizes_that_the_covariances_tell(inputs, decays):
    found, expected = (metric_of(block) for block in (
        few_block(INPUTS[inputs], decays), block_of(INPUTS[inputs], decays)))
    weights = RNG.normal(size=found.size)
    for method in ('spread', 'spreads_of_outputs', lambda metric, weights: metric.rounding(
            weights, 'float32')):
        one, other = (getattr(metric, method)(weights) if isinstance(method, str) else method(
            metric, weights) for metric in (found, expected))
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize('decays', [(0.,), (0., 0.), (1e-7, 0.), (0.3,), (0.3, 0.2)])
@pytest.mark.parametrize('inputs', INPUTS)
def test_directions_outside_of_the_rows_do_not_count(inputs, decays):
    rows = INPUTS[inputs]
    metric = metric_of(few_block(rows, decays))
    left = 1. if len(decays) == 1 else decays[1] / (1 + decays[1])
    varying = np.vstack([(rows - rows.mean(axis=0)) / np.sqrt(ROWS),
                         np.sqrt(left) * rows.mean(axis=0)])
    scale = np.sqrt(np.square(varying).sum(axis=0)) if not decays[0] else np.ones(COLUMNS)
    scale[scale == 0] = 1.
    within = np.linalg.pinv(varying / scale, rcond=1e-10) @ (varying / scale)
    move = RNG.normal(size=metric.size)
    seen = metric.resolved(metric.whiten(move), move, {})
    pushed = metric.push(seen)
    expected, found = (metric.arrays(each)['weight'] for each in (move, pushed))
    np.testing.assert_allclose(found * scale, expected * scale @ within.T,
                               atol=1e-9 * np.abs(expected * scale).max())
    rank = np.linalg.matrix_rank(varying / scale, 1e-9)
    assert metric.blocks[0].resolved.sum() == rank
    if inputs != 'raw':  # eigenvalues of so different covariances are rounding
        assert block_of(rows, decays).resolved.sum() == rank
    # Their lengths are those of the dense matrix.
    matrix = of_all_outputs(metric, dense(rows, decays))
    np.testing.assert_allclose(seen @ seen, pushed @ matrix @ pushed, rtol=1e-7)


def test_outside_of_the_rows_nothing_is_known_without_a_decay():
    """There the matrix of the scaled columns is 1, as where columns do not vary."""
    rows = INPUTS['raw']
    scale, centred = rows.std(axis=0), rows - rows.mean(axis=0)
    within = np.linalg.pinv(centred / scale, rcond=1e-10)
    inverse = ROWS * within @ within.T + np.eye(COLUMNS) - within @ (centred / scale)
    np.testing.assert_allclose(inverse_of(few_block(rows, (0., 0.)))[:-1, :-1],
                               inverse / np.outer(scale, scale), rtol=1e-6,
                               atol=1e-9 / scale.min() ** 2)


def test_a_metric_is_that_of_its_rows_in_any_order():
    rows = INPUTS['raw']
    metric, layer = metric_of(few_block(rows, (0.1, 0.))), Layer('weight', 'bias', 1)

    def is_of(rows):
        return metric.is_of({layer: few(rows)})

    assert is_of(rows) and is_of(rows[::-1])
    assert not is_of(2 * rows) and not is_of(rows + 1) and not is_of(rows[1:])
    assert not metric.is_of({layer: moments_of(rows)})


def test_a_file_has_the_rows():
    learned = Learned(pairs=SecantPairs(40, 1., 2), metric=metric_of(
        few_block(INPUTS['raw'], (0.1, 0.)), outputs=3))
    again, vector = learned_of(state_of(learned), {}).metric, RNG.normal(size=learned.metric.size)
    assert again.blocks[0].moments.has_rows
    np.testing.assert_array_equal(again.whiten(vector), learned.metric.whiten(vector))


# The moments of a pass

class _Reference:
    def inputs_of_weights(self, batch, a_pass):
        return [(Layer('weight', 'bias', 1), *batch)]

    def weights(self):
        return {'weight': [np.zeros((1, COLUMNS))]}


def measured(*batches):
    found = InputMoments(_Reference(), None)
    for batch in batches:
        found.add(batch)
    moments_of_pass, = found.of_all(Workers()).values()
    return moments_of_pass


@pytest.mark.parametrize('most, numbers, are_few', [
    (ROWS, ROWS * COLUMNS, True), (ROWS - 1, 1000, False), (3, 1000, False),
    (COLUMNS, 1000, True), (ROWS, ROWS * COLUMNS - 1, False)])
def test_rows_are_kept_while_they_are_few(monkeypatch, most, numbers, are_few):
    """Else there are the variances; up to some columns the covariances."""
    monkeypatch.setattr(moments, 'COLUMNS', most)
    monkeypatch.setattr(moments, 'NUMBERS', numbers)
    found, expected = measured((PLAIN[:3],), (PLAIN[3:6],), (PLAIN[6:],)), moments_of(PLAIN)
    np.testing.assert_allclose(found.variances, PLAIN.var(axis=0), rtol=1e-12)
    if most == COLUMNS:
        np.testing.assert_allclose(found.spread, expected.spread, atol=1e-12)
    elif are_few:
        assert found.spread.shape == PLAIN.shape
        np.testing.assert_allclose(found.times(np.eye(COLUMNS)), expected.spread, atol=1e-12)
    else:
        np.testing.assert_allclose(found.times(np.eye(COLUMNS)), np.diag(found.spread))


def test_rows_have_weights(monkeypatch):
    monkeypatch.setattr(moments, 'COLUMNS', ROWS)
    weights, inputs = mx.nd.array([0, 1, 2, 0, -2, 1, 3.]), mx.nd.array(PLAIN, dtype='float64')
    found = measured((inputs[:3], weights[:3]), (inputs[3:], weights[3:]))
    expected = moments_of(np.repeat(PLAIN, [0, 1, 2, 0, 2, 1, 3], axis=0))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(found.times(np.eye(COLUMNS)), expected.spread, atol=1e-12)


# Trainings

WIDE = 600, 1025
KINDS = {'squares': (mx.sym.LinearRegressionOutput, 1e-3),
         'logistic': (mx.sym.LogisticRegressionOutput, 0.3)}


def newton(rows, targets, kind, decay):
    """Return the outputs at the optimum, by Newton's method on the dual variables, one a row."""
    count = len(rows)
    mean = rows.mean(axis=0)
    kernel = (rows - mean) @ (rows - mean).T / decay / count
    weights, bias = np.zeros(count), 0.
    for _ in range(50):
        outputs = kernel @ weights + bias
        chance = 1 / (1 + np.exp(-outputs))
        slopes, curvatures = (outputs - targets, np.ones(count)) if kind == 'squares' else (
            chance - targets, chance * (1 - chance))
        # The optimum has weights = -slopes, and slopes that add up to 0.
        matrix = np.block([[np.eye(count) + curvatures[:, None] * kernel, curvatures[:, None]],
                           [np.ones((1, count)), np.zeros((1, 1))]])
        step = np.linalg.solve(matrix, np.append(-slopes - weights, -weights.sum()))
        weights, bias = weights + step[:-1], bias + step[-1]
    assert np.abs(slopes + weights).max() < 1e-10
    return kernel @ weights + bias


@pytest.mark.parametrize('is_raw', [False, True])
@pytest.mark.parametrize('kind', KINDS)
def test_many_columns_take_as_few_passes_as_few(kind, is_raw):
    rng = np.random.RandomState(0)
    rows = rng.normal(size=WIDE)
    outputs = rows @ rng.normal(size=WIDE[1]) / 16
    targets = outputs + 0.3 * rng.normal(size=WIDE[0]) if kind == 'squares' else (
        outputs + rng.logistic(size=WIDE[0]) > 0) * 1.
    if is_raw:
        rows = rows * 10 ** rng.uniform(-1, 1, WIDE[1]) + 10 * rng.normal(size=WIDE[1])
    network, decay = KINDS[kind]
    decay = decay * rows.var(axis=0).mean()
    symbol = network(mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc'),
                     mx.sym.Variable('label'))
    module = SVRGModule(symbol, label_names=('label',), tol=1e-5)
    mx.random.seed(0)
    module.fit(mx.io.NDArrayIter(np.float32(rows), np.float32(targets), 100, label_name='label'),
               eval_metric=[], num_epoch=100, optimizer='newton_cg',
               initializer=mx.init.Normal(0.01), optimizer_params={'wd': decay})
    assert module.result.has_converged and module.result.passes <= 60
    found = {name: value.asnumpy().astype('f8') for name, value in module.get_params()[0].items()}
    exact = newton(np.float32(rows).astype('f8'), targets, kind, decay)
    error = np.float32(rows) @ found['fc_weight'][0] + found['fc_bias'] - exact
    assert np.sqrt(np.square(error).mean()) < 1e-4 * exact.std()

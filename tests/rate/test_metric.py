"""Moments, blocks and the metric, against dense matrices in float64."""

import concurrent.futures
import threading
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from dense_metric import (
    block_of,
    dense,
    inverse_of,
    metric_of,
    moments_of,
    of_all_outputs,
)
from svrg_optimization.core.front_end import Layer, Workers
from svrg_optimization.rate.basis import Vectors
from svrg_optimization.rate.metric import Block, blocks_of
from svrg_optimization.rate.moments import COLUMNS, InputMoments, Moments

RNG = np.random.RandomState(0)
ROWS = RNG.normal(size=(50, 4)) @ RNG.normal(size=(4, 4)) + [0, 1, -2, 5]
OUTPUTS = 3
LAYER = Layer('weight', 'bias', 1)


DECAYS = [(0.,), (0.3,), (0., 0.), (0.3, 0.), (0.3, 0.2)]


def of_variances(rows, decays):
    """Return M of one output with variances about the means alone; a bias is joined to these."""
    columns, mean, variances = rows.shape[1], rows.mean(axis=0), rows.var(axis=0) + decays[0]
    if len(decays) == 1:
        return np.diag(variances + mean ** 2)
    left = decays[1] / (1 + decays[1])  # what a decayed bias leaves of the means
    shift = np.eye(columns + 1)
    shift[-1, :-1] = mean / (1 + decays[1])
    return shift.T @ np.diag([*(variances + left * mean ** 2), 1 + decays[1]]) @ shift


@pytest.mark.parametrize('axis', [0, 1])
@pytest.mark.parametrize('multiplier', [1., 2.5])
@pytest.mark.parametrize('decays', DECAYS)
@pytest.mark.parametrize('matrix_of', [dense, of_variances])
def test_the_variables_are_those_of_the_dense_matrix(matrix_of, decays, multiplier, axis):
    metric = metric_of(block_of(ROWS, decays, axis, is_full=matrix_of is dense), multiplier)
    matrix = of_all_outputs(metric, matrix_of(ROWS, decays))
    weights, gradient = RNG.normal(size=(2, metric.size))
    whitened, pulled = metric.whiten(weights), metric.pull(gradient)
    for found, expected in (
            (whitened @ whitened, weights @ matrix @ weights),
            (pulled @ pulled, gradient @ np.linalg.solve(matrix, gradient)),
            (pulled @ whitened, gradient @ weights),
            (metric.push(whitened), weights), (metric.unpull(pulled), gradient),
            (metric.push(pulled), np.linalg.solve(matrix, gradient)),
            (metric.unpull(whitened), matrix @ weights)):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert isinstance(metric.blocks[0].basis, Vectors) == (matrix_of is dense)


@pytest.mark.parametrize('axis', [0, 1])
@pytest.mark.parametrize('is_full', [True, False])
@pytest.mark.parametrize('decays', DECAYS)
def test_the_diagonal_is_that_of_the_matrix_and_scales_the_rounding(decays, is_full, axis):
    """Of weights that each move by their precision."""
    metric = metric_of(block_of(ROWS, decays, axis, is_full=is_full), 2.)
    diagonal, vector = np.diag(of_all_outputs(metric, dense(ROWS, decays))), RNG.normal(
        size=metric.size)
    found, expected = metric.diagonal(-0.5), metric.arrays((2 * diagonal) ** -0.5)
    assert tuple(found) == metric.blocks[0].names
    for name, roots in found.items():
        np.testing.assert_allclose(roots + 0 * expected[name], expected[name], rtol=1e-12)
    for dtype in 'float32', 'float64':
        np.testing.assert_allclose(metric.rounding(vector, dtype), np.finfo(dtype).eps * np.sqrt(
            diagonal @ vector ** 2), rtol=1e-9)


@pytest.mark.parametrize('is_invariant', [False, True])
@pytest.mark.parametrize('decays', [(0.,), (0.3,), (0., 0.), (0.3, 0.)])
def test_the_spread_is_that_of_the_outputs(decays, is_invariant):
    """About their means if there is a bias, which takes these up, or about 0."""
    block = block_of(ROWS, decays, is_invariant=is_invariant)
    metric = metric_of(block, 2.)
    vector = RNG.normal(size=metric.size)
    arrays = metric.arrays(vector)
    weight, bias = arrays['weight'], arrays['bias'] if len(block.names) == 2 else 0.
    if is_invariant:
        weight, bias = weight - weight.mean(axis=0), bias - np.mean(bias)
    outputs = ROWS @ weight.T + bias
    rest = decays[0] * np.square(weight).sum()
    centred = outputs - outputs.mean(axis=0) if len(block.names) == 2 else outputs
    expected = (np.square(centred).sum() / 50 + rest) / 2 + np.square(arrays['other']).sum() / 4
    np.testing.assert_allclose(metric.spread(vector), np.sqrt(expected), rtol=1e-9)


@pytest.mark.parametrize('is_invariant', [False, True])
@pytest.mark.parametrize('decays', [(0.3,), (0.3, 0.)])
def test_a_distance_is_that_of_the_output_that_is_farthest(decays, is_invariant):
    """Beside its spread; a softmax has one spread for all, and other parameters count for each."""
    metric = metric_of(block_of(ROWS, decays, is_invariant=is_invariant))
    weights, move = RNG.normal(size=(2, metric.size))
    matrix = of_all_outputs(metric, dense(ROWS, decays))
    places = metric.arrays(np.arange(metric.size))
    if is_invariant:
        for part in [metric.arrays(move)[name] for name in metric.blocks[0].names]:
            part -= part.mean(axis=0)  # a view
    lengths, spreads = [], []
    for number in range(OUTPUTS):
        chosen = [*places['weight'][number], *places['bias'][number:number + len(decays) - 1]]
        only = np.zeros(metric.size)
        only[chosen] = move[chosen]
        lengths.append(only @ matrix @ only)
        weight = metric.arrays(weights)['weight']
        weight = weight[number] - is_invariant * weight.mean(axis=0)
        spreads.append(weight @ (ROWS.T @ ROWS / 50 if len(decays) == 1 else np.cov(
            ROWS.T, bias=True)) @ weight + 0.3 * weight @ weight)
    if is_invariant:
        lengths, spreads = [sum(lengths)], [sum(spreads)]
    rest = metric.arrays(move)
    others = np.square(rest['other']).sum() / 4 + (
        np.square(rest['bias']).sum() / 9 if len(decays) == 1 else 0.)
    np.testing.assert_allclose(metric.lengths_of_outputs(metric.whiten(move)), np.sqrt(
        np.array(lengths) + others), rtol=1e-9)
    np.testing.assert_allclose(metric.sizes_of_outputs(weights, 0.), np.sqrt(spreads), rtol=1e-9)
    alike = metric.sizes_of_outputs(0 * weights, 1e-6)  # a rounding of 1e-6 is little beside them
    np.testing.assert_allclose(alike, 0.01, rtol=1e-9)


@pytest.mark.parametrize('axis', [0, 1])
@pytest.mark.parametrize('decays', DECAYS)
@pytest.mark.parametrize('is_softmax', [True, False])
def test_what_a_softmax_does_not_see_is_left_out_unless_it_is_decayed(is_softmax, decays, axis):
    metric = metric_of(block_of(ROWS, decays, axis))
    errors = RNG.normal(size=(50, OUTPUTS))
    if is_softmax:
        errors -= errors.mean(axis=1, keepdims=True)

    def vector(weight, bias):
        return metric.vector({'weight': weight if axis else weight.T, 'bias': bias,
                              'other': np.ones((2, 2))})

    metric.find_invariant(vector(errors.T @ ROWS / 50, errors.mean(axis=0)), is_first=True)
    assert metric.blocks[0].is_invariant == is_softmax
    weight, bias = RNG.normal(size=(OUTPUTS, 4)), RNG.normal(size=OUTPUTS)
    shared = weight + RNG.normal(size=4), bias + 7
    for method in metric.whiten, metric.pull:
        seen = metric.arrays(method(vector(*shared)) - method(vector(weight, bias)))
        assert bool(np.abs(seen['weight']).max() > 1e-9) == bool(decays[0] or not is_softmax)
        if len(decays) == 2:
            assert bool(np.abs(seen['bias']).max() > 1e-9) == bool(decays[1] or not is_softmax)


def test_an_invariant_is_none_of_chance():
    """Later gradients show it, however small the first; a gradient of 0 shows nothing."""
    metric, gradient = metric_of(block_of(ROWS, (0., 0.))), np.arange(OUTPUTS) - (OUTPUTS - 1) / 2
    of_all, zero = (metric.vector({'weight': np.outer(each, np.ones(4)), 'bias': each,
                                   'other': np.ones((2, 2))}) for each in (gradient, 0 * gradient))
    for found, is_first, is_invariant in (
            (zero, True, False), (of_all, True, True), (1e-9 * of_all, False, True),
            (of_all * np.nan, False, True), (of_all + 1e-3, False, False),
            (of_all, False, False)):
        metric.find_invariant(found, is_first)
        assert metric.blocks[0].is_invariant == is_invariant
    of_bias = metric_of(block_of(ROWS, (0., 0.1)))
    of_bias.find_invariant(of_all, is_first=True)
    assert not of_bias.blocks[0].is_invariant


@pytest.mark.parametrize('decay', [0., 0.1])
def test_a_constant_column_leaves_the_others_as_they_are(decay):
    rows = np.column_stack([ROWS, np.full(50, 3.)])
    inverse = inverse_of(block_of(rows, (decay, 0.), dtype='float32'))
    without = inverse_of(block_of(ROWS, (decay, 0.), dtype='float32'))
    np.testing.assert_allclose(inverse[:4, :4], without[:4, :4], rtol=1e-9)
    # Its weight does what the bias does. Without decay M has no inverse there: its diagonal is.
    expected = 1 / (decay or np.square(3.))
    np.testing.assert_allclose(inverse[4, 4], expected, rtol=1e-9)
    block = block_of(rows, (decay, 0.), dtype='float32')
    assert block.resolved.sum() == 4 and np.isfinite(block.scale).all()
    zeros = block_of(0 * rows, (0., 0.), dtype='float32')
    assert not zeros.resolved.any()
    np.testing.assert_array_equal(inverse_of(zeros)[:5, :5], np.eye(5))


@pytest.mark.parametrize('is_softmax', [False, True])
def test_where_an_operator_holds_a_weight_at_0_a_move_says_nothing(is_softmax):
    """A column that is held for some outputs only tells of what the others have in common."""
    metric = metric_of(block_of(ROWS, (0., 0.)))
    metric.blocks[0].sums_up = is_softmax
    weights, move = RNG.normal(size=(2, metric.size))
    metric.arrays(weights)['weight'][0, 1:3] = 0.  # a view
    found = metric.arrays(metric.push(metric.resolved(
        metric.whiten(move), weights, {'weight': object()})))
    expected = {name: each.copy() for name, each in metric.arrays(move).items()}
    expected['weight'][0, 1:3] = 0.
    if is_softmax:
        expected['weight'][:, [0, 3]] -= expected['weight'][:, [0, 3]].mean(axis=0)
        expected['bias'] -= expected['bias'].mean()
    for name, each in expected.items():
        np.testing.assert_allclose(found[name], each, rtol=1e-9, atol=1e-9)


def resolved(metric, weight, bias):
    """Return a weight without the directions in which inputs do not vary, and its bias."""
    vector = metric.vector({'weight': weight if metric.blocks[0].axis else weight.T, 'bias': bias,
                            'other': np.ones((2, 2))})
    whitened = metric.whiten(vector)
    found = metric.arrays(metric.push(metric.resolved(whitened, vector, {})))
    np.testing.assert_allclose(found['other'], 1.)
    np.testing.assert_array_equal(metric.whiten(vector), whitened)  # it is not changed
    return found['weight'] if metric.blocks[0].axis else found['weight'].T, found['bias']


@pytest.mark.parametrize('axis', [0, 1])
@pytest.mark.parametrize('gap, is_resolved', [(1e-8, False), (1e-6, True), (1e-3, True)])
def test_directions_in_which_inputs_do_not_vary_are_told(gap, is_resolved, axis):
    """Two columns that differ by less than the rounding of their moments."""
    rows = np.random.RandomState(1).normal(size=(400, 2))
    rows[:, 1] = rows[:, 0] + gap * rows[:, 1]
    block = block_of(rows, (0., 0.), axis, 'float32')
    np.testing.assert_array_equal(np.sort(block.resolved), [is_resolved, True])
    centred = rows - rows.mean(axis=0)
    scale = centred.std(axis=0)
    _, values, directions = np.linalg.svd(centred / scale / 20, full_matrices=False)
    kept = np.where([True, is_resolved], values, 1.)
    weight = np.random.RandomState(2).normal(size=(OUTPUTS, 2))
    np.testing.assert_allclose(weight @ inverse_of(block)[:2, :2], weight @ (
        directions.T / kept ** 2 @ directions / scale / scale[:, None]), rtol=2e-3)
    bias = np.array([1., 2., 3.])
    found, found_bias = resolved(metric_of(block, 2.), weight, bias)
    left_out = np.outer(weight * scale @ directions[1], directions[1] / scale) * (not is_resolved)
    np.testing.assert_allclose(found, weight - left_out, rtol=1e-4, atol=1e-4)
    # Outputs stay as they are at the mean of the rows.
    np.testing.assert_allclose(found_bias, bias + left_out @ rows.mean(axis=0), rtol=1e-4,
                               atol=1e-4)


@pytest.mark.parametrize('is_full', [True, False])
@pytest.mark.parametrize('about, is_resolved', [(1e17, False), (1e14, True)])
def test_a_column_that_varies_by_less_than_its_rounding_is_not_resolved(about, is_resolved,
                                                                        is_full):
    variances = ROWS.var(axis=0)
    block = Block(['weight', 'bias'], 1, Moments(
        np.array([about, 0, 0, 0]), np.diag(variances) if is_full else variances), [0., 0.],
        'float32')
    assert block.resolved.sum() == 3 + is_resolved
    weight = RNG.normal(size=(OUTPUTS, 4))
    found, _ = resolved(metric_of(block), weight, np.zeros(OUTPUTS))
    np.testing.assert_allclose(found, weight * [is_resolved, 1, 1, 1], rtol=1e-9)


def test_the_parameter_of_a_direction_is_that_of_its_largest_part():
    metric = metric_of(block_of(ROWS, (0.,)))
    for name in metric.shapes:
        vector = metric.vector({each: np.full(shape, 2. if each == name else -0.1)
                                for each, shape in metric.shapes.items()})
        assert metric.largest_part(vector) == name


# The moments of a pass

def input_moments(batches, columns, axis=1, workers=None):
    shape = (OUTPUTS, columns) if axis else (columns, OUTPUTS)
    layer = LAYER._replace(axis=axis)
    moments = InputMoments(SimpleNamespace(
        inputs_of_weights=lambda batch, source: [(layer, *batch)],
        weights=lambda: {'weight': [np.zeros(shape)]}), None)
    for batch in batches:
        moments.add(batch if isinstance(batch, tuple) else (batch,))
    return moments.of_all(workers or Workers())[layer]


@pytest.mark.exact_data
@pytest.mark.parametrize('offset', [0, 1e6])
@pytest.mark.parametrize('columns', [4, COLUMNS + 1])
def test_moments_are_those_of_all_rows(columns, offset):
    """Batches of several rows, of one, and of padding alone; numbers exact as float32 has them."""
    rows = np.round(4 * RNG.normal(size=(60, columns))) / 4 + offset
    batches = [mx.nd.array(rows[:30]), mx.nd.array(rows[30:59]), np.empty(0),
               mx.nd.array(rows[59:])]
    found = input_moments(batches, columns)
    expected = moments_of(rows - offset)
    np.testing.assert_allclose(found.mean - offset, expected.mean, atol=1e-9)
    np.testing.assert_allclose(found.times(np.eye(columns)), expected.spread, rtol=1e-7, atol=1e-8)
    if columns == 4:
        block = Block(['weight', 'bias'], 1, found, [0., 0.], 'float32')
        np.testing.assert_allclose(inverse_of(block)[:4, :4], np.linalg.inv(expected.spread),
                                   rtol=1e-7)


@pytest.mark.parametrize('axis', [0, 1])
@pytest.mark.parametrize('columns', [6, COLUMNS + 1])
def test_sparse_rows_of_many_columns_have_mean_squares(columns, axis):
    rows = RNG.normal(size=(40, columns)) * (RNG.uniform(size=(40, columns)) < 0.2)
    found = input_moments([mx.nd.array(rows[:30]).tostype('csr'),
                           mx.nd.array(rows[30:]).tostype('csr')], columns, axis)
    if columns > COLUMNS:
        np.testing.assert_array_equal(found.mean, 0)
        np.testing.assert_allclose(found.spread, np.square(rows).mean(axis=0), rtol=1e-6)
    else:
        np.testing.assert_allclose(found.spread, moments_of(rows).spread, atol=1e-6)


@pytest.mark.parametrize('stype', ['default', 'csr'])
@pytest.mark.parametrize('columns', [4, COLUMNS + 1])
def test_rows_count_by_the_size_of_their_weights(columns, stype):
    """An array of another size, such as one number for all rows, says nothing of a row."""
    rows, weights = RNG.normal(size=(40, columns)), np.arange(40) % 3 / 4 * (-1) ** np.arange(40)
    found = input_moments([(
        mx.nd.array(rows[part]).tostype(stype), mx.nd.array(weights[part, None]), mx.nd.ones(1))
        for part in (slice(0, 1), slice(1, 30), slice(30, 40))], columns)
    counted = np.repeat(rows, np.arange(40) % 3, axis=0)
    is_diagonal = stype == 'csr' and columns > COLUMNS
    np.testing.assert_allclose(found.mean, 0 if is_diagonal else counted.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(found.times(np.eye(columns)), np.diag(np.square(counted).mean(
        axis=0)) if is_diagonal else moments_of(counted).spread, atol=1e-6)


@pytest.mark.parametrize('columns', [4, COLUMNS + 1])
def test_workers_have_the_moments_of_all_of_them(columns):
    """Their means differ, about which each adds its own rows up."""
    rows = RNG.normal(size=(60, columns)) + 3
    rows[40:] -= 9
    meeting, told = threading.Barrier(2), [None, None]

    class OfTwo(Workers):
        def __init__(self, rank):
            self.rank = rank

        def total(self, array):
            told[self.rank] = array
            meeting.wait(30)
            total = told[0] + told[1]
            meeting.wait(30)
            return total

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda rank, part: input_moments([part], columns, workers=OfTwo(rank)),
                         range(2), (rows[:40], rows[40:]))
    expected = moments_of(rows, columns <= COLUMNS)
    for each in found:
        np.testing.assert_allclose(each.mean, expected.mean, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(each.spread, expected.spread, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('is_full', [True, False])
def test_a_metric_is_that_of_its_rows_in_any_order(is_full):
    """A resume on other data begins anew: scaled, shifted, or other rows of as many."""
    rows = np.column_stack([ROWS, np.full(50, 0.1), 1e-3 * ROWS[:, 0] + 1e3])
    metric = metric_of(block_of(rows, (0.1, 0.), is_full=is_full))
    other, wide = np.random.RandomState(3).permutation(rows), np.column_stack([rows, rows])

    def is_of(rows, layer=LAYER, others=()):
        return metric.is_of({layer: moments_of(rows, is_full), **dict(others)})

    assert is_of(rows) and is_of(other)
    assert is_of(rows, others={LAYER._replace(weight='another'): moments_of(wide)})
    assert not metric.is_of({}) and not is_of(rows, LAYER._replace(weight='another'))
    assert not is_of(wide)
    for column in range(6):
        for changed in rows * np.where(np.arange(6) == column, 1.001, 1.), rows + 1e-3 * (
                np.arange(6) == column):
            assert not is_of(changed)
    assert not is_of(rows[:25])
    shuffled = rows.copy()
    shuffled[:, 0] = other[:, 0]  # the same means and variances
    assert is_of(shuffled) != is_full


# The blocks of a model

@pytest.mark.parametrize('shapes, multipliers, moments, names', [
    ({}, {}, {}, ('weight', 'bias')), ({'bias': None}, {}, {}, ('weight',)),
    ({}, {'bias': 2.}, {}, ('weight',)), ({}, {}, {'mean': np.zeros(4)}, ('weight',)),
    ({'bias': (1,)}, {}, {}, ('weight',)), ({'weight': None}, {}, {}, None),
    ({}, {}, {'spread': np.full((4, 4), np.nan)}, None)])
def test_a_bias_is_joined_where_it_can_take_up_the_means(shapes, multipliers, moments, names):
    """It needs the multiplier of the weight, and one number for each output."""
    shapes = {name: shape for name, shape in {
        'weight': (OUTPUTS, 4), 'bias': (OUTPUTS,), **shapes}.items() if shape}
    mean_gradient = SimpleNamespace(multipliers={'weight': 1., 'bias': 1., **multipliers},
                                    decays={'weight': 0.5, 'bias': 0.25})
    blocks = blocks_of({LAYER: moments_of(ROWS)._replace(**moments)}, mean_gradient, shapes, 3.,
                       'float32')
    assert [block.names for block in blocks] == ([names] if names else [])
    for block in blocks:
        assert block.decays == [1.5, 0.75][:len(names)]


@pytest.mark.parametrize('wd', [1e-3, 1e-7])
def test_a_decay_resolves_no_direction_in_which_inputs_do_not_vary(wd):
    """With one that is large beside the columns, and with one for which they are scaled."""
    rows = np.column_stack([ROWS, np.full(len(ROWS), 3.)])
    block = block_of(rows, (wd, 0.), dtype='float32')
    assert block.resolved.sum() == ROWS.shape[1]
    np.testing.assert_allclose(inverse_of(block) @ dense(rows, (wd, 0.)), np.eye(6), atol=1e-6)

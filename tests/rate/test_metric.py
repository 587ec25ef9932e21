"""Moments, blocks and the metric, against dense matrices in float64."""

import concurrent.futures
import threading
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from dense_metric import block_of, dense, metric_of, moments_of, of_all_outputs
from svrg_optimization.core.front_end import Layer, Workers
from svrg_optimization.rate import moments
from svrg_optimization.rate.learned import Learned
from svrg_optimization.rate.metric import Block, blocks_of
from svrg_optimization.rate.moments import COLUMNS, InputMoments, Moments
from svrg_optimization.rate.saved import learned_of, state_of
from svrg_optimization.rate.secant_pairs import SecantPairs

RNG = np.random.RandomState(0)
ROWS = RNG.normal(size=(50, 4)) @ RNG.normal(size=(4, 4)) + [0, 1, -2, 5]
FEW = np.random.RandomState(0).normal(size=(7, 12)) + np.arange(12)  # fewer than columns
RAW = FEW * np.logspace(-3, 3, 12)
OUTPUTS = 3
LAYER = Layer('weight', 'bias', 1)
WIDE = {'plain': FEW, 'raw': RAW, 'equal rows': FEW[[0, 1, 2, 0, 1, 2, 3]],
        'constant columns': np.column_stack([FEW[:, 2:], np.full(7, 3.), np.zeros(7)]),
        'one column each': np.eye(7, 12)}
# Rows, and what is kept of them.
INPUTS = {**{kind: (ROWS, kind) for kind in ('covariances', 'variances')},
          **{name: (rows, 'rows') for name, rows in WIDE.items()}}


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
@pytest.mark.parametrize('inputs, decays', [
    (inputs, decays) for inputs, (_, kind) in INPUTS.items()
    for decays in ((0.,), (0., 0.), (0.3,), (1e-7, 0.), (0.3, 0.), (0.3, 0.2))
    if decays[0] or kind != 'rows'])  # without a decay that matrix has no inverse
def test_the_variables_are_those_of_the_dense_matrix(inputs, decays, multiplier, axis):
    rows, kind = INPUTS[inputs]
    metric = metric_of(block_of(rows, decays, axis, kind=kind), multiplier)
    matrix = of_all_outputs(metric, (of_variances if kind == 'variances' else dense)(rows, decays))
    weights, moved = RNG.normal(size=(2, metric.size))
    gradient, scale = matrix @ moved, np.sqrt(np.diag(matrix))
    whitened, pulled = metric.whiten(weights), metric.pull(gradient)
    tolerance = 1e-8 if kind == 'rows' else 1e-9
    for found, expected in (
            (whitened @ whitened, weights @ matrix @ weights),
            (pulled @ pulled, gradient @ moved), (pulled @ whitened, gradient @ weights),
            (metric.push(whitened), weights), (metric.unpull(pulled) / scale, gradient / scale),
            (metric.unpull(whitened) / scale, matrix @ weights / scale),
            (matrix @ metric.push(pulled) / scale, gradient / scale)):
        np.testing.assert_allclose(found, expected, rtol=tolerance,
                                   atol=tolerance * np.abs(expected).max())
    parts = abs(gradient) @ abs(np.array([metric.pull(one) for one in np.eye(metric.size)]))
    assert (abs(metric.sizes(gradient)) >= (1 - 1e-12) * parts).all()
    diagonal = np.diag(of_all_outputs(metric, dense(rows, decays)))
    expected = metric.arrays((multiplier * diagonal) ** -0.5)
    for name, roots in metric.diagonal(-0.5).items():
        np.testing.assert_allclose(roots + 0 * expected[name], expected[name], rtol=1e-12)
    np.testing.assert_allclose(metric.rounding(weights, 'float32'), np.finfo('f4').eps * np.sqrt(
        diagonal @ weights ** 2), rtol=1e-9)


@pytest.mark.parametrize('is_invariant', [False, True])
@pytest.mark.parametrize('decays', [(0.3,), (0.3, 0.)])
@pytest.mark.parametrize('inputs', ['covariances', 'raw'])
def test_a_distance_is_that_of_the_output_that_is_farthest(inputs, decays, is_invariant):
    """Beside its spread; a softmax has one spread for all, and other parameters count for each."""
    rows, kind = INPUTS[inputs]
    metric = metric_of(block_of(rows, decays, is_invariant=is_invariant, kind=kind))
    weights, move = RNG.normal(size=(2, metric.size))
    matrix = of_all_outputs(metric, dense(rows, decays))
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
        spreads.append(weight @ (rows.T @ rows / len(rows) if len(decays) == 1 else np.cov(
            rows.T, bias=True)) @ weight)
    if is_invariant:
        lengths, spreads = [sum(lengths)], [sum(spreads)]
    rest = metric.arrays(move)
    others = np.square(rest['other']).sum() / 4 + (
        np.square(rest['bias']).sum() / 9 if len(decays) == 1 else 0.)
    np.testing.assert_allclose(metric.lengths_of_outputs(metric.whiten(move)), np.sqrt(
        np.array(lengths) + others), rtol=1e-9)
    np.testing.assert_allclose(metric.spreads_of_outputs(weights), np.sqrt(spreads), rtol=1e-9)


def test_what_a_softmax_does_not_see_is_found_and_none_of_chance():
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
    shared = metric.vector({'weight': np.ones((OUTPUTS, 4)), 'bias': np.ones(OUTPUTS),
                            'other': np.zeros((2, 2))})
    for decays, is_seen in ((0., 0.), False), ((0.1, 0.), True), ((0., 0.1), True):
        metric = metric_of(block_of(ROWS, decays))
        metric.find_invariant(of_all, is_first=True)
        assert metric.blocks[0].is_invariant == (decays[1] == 0)
        for method in metric.whiten, metric.pull:
            assert bool(np.abs(method(shared)).max() > 1e-9) == is_seen


@pytest.mark.parametrize('kind', ['covariances', 'variances'])
def test_a_column_that_varies_by_less_than_its_rounding_is_not_resolved(kind):
    spread = ROWS.var(axis=0) if kind == 'variances' else np.diag(ROWS.var(axis=0))
    for about, is_resolved in (1e17, False), (1e14, True):
        block = Block(['weight', 'bias'], 1, Moments(np.array([about, 0, 0, 0]), spread), [0., 0.],
                      'float32')
        assert block.resolved.sum() == 3 + is_resolved
    for wd in 1e-3, 1e-7:  # large beside the columns, and so small that these are scaled
        block = block_of(np.column_stack([ROWS, np.full(50, 3.)]), (wd, 0.), kind=kind,
                         dtype='float32')
        assert block.resolved.sum() == 4


@pytest.mark.parametrize('decays', [(0.,), (0., 0.), (1e-7, 0.), (0.3,), (0.3, 0.2)])
@pytest.mark.parametrize('inputs', WIDE)
def test_directions_outside_of_the_rows_do_not_count(inputs, decays):
    rows = WIDE[inputs]
    metric = metric_of(block_of(rows, decays, kind='rows'))
    left = 1. if len(decays) == 1 else decays[1] / (1 + decays[1])
    varying = np.vstack([(rows - rows.mean(axis=0)) / np.sqrt(7),
                         np.sqrt(left) * rows.mean(axis=0)])
    scale = np.sqrt(np.square(varying).sum(axis=0)) if not decays[0] else np.ones(12)
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


@pytest.mark.parametrize('is_softmax', [False, True])
def test_where_an_operator_holds_a_weight_at_0_a_move_says_nothing(is_softmax):
    """A column that is held for some outputs only tells of what the others have in common."""
    metric = metric_of(block_of(ROWS, (0., 0.)))
    metric.blocks[0].sums_up = is_softmax
    weights, move = RNG.normal(size=(2, metric.size))
    metric.arrays(weights)['weight'][0, 1:3] = 0.  # a view
    found = metric.push(metric.resolved(metric.whiten(move), weights, {'weight': object()}))
    expected = metric.arrays(move)  # views
    expected['weight'][0, 1:3] = 0.
    if is_softmax:
        expected['weight'][:, [0, 3]] -= expected['weight'][:, [0, 3]].mean(axis=0)
        expected['bias'] -= expected['bias'].mean()
    np.testing.assert_allclose(found, move, rtol=1e-9, atol=1e-9)


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
@pytest.mark.parametrize('is_weighted', [False, True])
@pytest.mark.parametrize('stype, columns, axis', [
    ('default', 4, 1), ('default', COLUMNS + 1, 1), ('csr', 6, 0), ('csr', COLUMNS + 1, 0)])
def test_moments_are_those_of_all_rows(stype, columns, axis, is_weighted, offset):
    """Batches of several rows, of one, and of padding alone; numbers exact as float32 has them.

    Rows count by the size of their weights. An array of another size, such as one number for all
    rows, says nothing of a row.
    """
    rows = np.round(4 * RNG.normal(size=(60, columns))) / 4
    if stype == 'csr':
        rows, offset = rows * (RNG.uniform(size=rows.shape) < 0.2), 0
    weights = np.arange(60) % 3 * (-1.) ** np.arange(60) if is_weighted else np.ones(60)
    found = input_moments([(
        mx.nd.array(rows[part] + offset).tostype(stype) if rows[part].size else np.empty(0),
        *((mx.nd.array(weights[part, None]), mx.nd.ones(1)) if is_weighted else ()))
        for part in (slice(30), slice(30, 59), slice(0), slice(59, 60))], columns, axis)
    counted = np.repeat(rows, abs(weights).astype(int), axis=0)
    expected = moments_of(counted)
    if stype == 'csr' and columns > COLUMNS:
        expected = Moments(np.zeros(columns), np.diag(np.square(counted).mean(axis=0)))
    np.testing.assert_allclose(found.mean - offset, expected.mean, atol=1e-9)
    np.testing.assert_allclose(found.times(np.eye(columns)), expected.spread, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize('most, numbers, kind', [
    (7, 7 * 12, 'rows'), (7, 7 * 12 - 1, 'variances'), (6, 1000, 'variances'),
    (3, 1000, 'variances'), (12, 1000, 'covariances')])
def test_rows_are_kept_while_they_are_few(monkeypatch, most, numbers, kind):
    """Else there are the variances; up to some columns the covariances."""
    monkeypatch.setattr(moments, 'COLUMNS', most)
    monkeypatch.setattr(moments, 'NUMBERS', numbers)
    found, expected = input_moments([FEW[:3], FEW[3:6], FEW[6:]], 12), moments_of(FEW, kind)
    np.testing.assert_allclose(found.spread, expected.spread, atol=1e-12)
    np.testing.assert_allclose(found.variances, FEW.var(axis=0), rtol=1e-12)


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
    expected = moments_of(rows, 'covariances' if columns <= COLUMNS else 'variances')
    for each in found:
        np.testing.assert_allclose(each.mean, expected.mean, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(each.spread, expected.spread, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('inputs', ['covariances', 'variances', 'raw'])
def test_a_metric_is_that_of_its_rows_in_any_order(inputs):
    """A resume on other data begins anew: scaled, shifted, or other rows of as many."""
    rows, kind = INPUTS[inputs]
    metric = metric_of(block_of(rows, (0.1, 0.), kind=kind))
    others = np.random.RandomState(3).permutation(rows)
    shuffled = np.column_stack([others[:, 0], rows[:, 1:]])  # the same means and variances
    shift = np.eye(1, rows.shape[1], 2) * 1e-3
    for given, is_like in ((rows, True), (others, True), (1.001 * rows, False),
                           (rows[::2], False), (rows + shift, False), (np.tile(rows, 2), False),
                           (shuffled, kind != 'covariances')):
        assert metric.is_of({LAYER: moments_of(given, kind)}) == is_like
    assert not metric.is_of({LAYER._replace(weight='another'): moments_of(rows, kind)})


def test_a_file_has_the_rows_that_are_few():
    learned = Learned(pairs=SecantPairs(40, 1., 2), metric=metric_of(
        block_of(RAW, (0.1, 0.), kind='rows')))
    again, vector = learned_of(state_of(learned), {}).metric, RNG.normal(size=learned.metric.size)
    assert again.blocks[0].moments.has_rows
    np.testing.assert_array_equal(again.whiten(vector), learned.metric.whiten(vector))


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

"""What a move between two snapshots teaches: gamma and pairs, with random numbers gamma alone."""

import numpy as np
import pytest

from svrg_optimization.core.arrays import precision_of
from svrg_optimization.rate.metric import Metric
from svrg_optimization.rate.random import Random
from svrg_optimization.rate.regime import Move, Regime
from svrg_optimization.rate.smooth import Smooth

RNG = np.random.RandomState(0)
HESSIAN = np.diag([1., 2., 5.])
METRIC = Metric({'w': (3,)}, {'w': 1.})


def move_of(s, y=None):
    s = np.array(s, float)
    y = HESSIAN @ s if y is None else np.array(y, float)
    return Move(s, y, s @ s, s @ y, y @ y, 0.)


def learned(*moves):
    regime = Regime(METRIC, 'float64')
    for move in moves:
        regime.learn(move)
    return regime


def test_gamma_is_the_second_of_barzilai_and_borwein():
    moves = [move_of(s) for s in RNG.normal(size=(3, 3))]
    pairs = learned(*moves).pairs
    assert pairs.gamma == pytest.approx(moves[-1].product / moves[-1].square)
    assert len(pairs) == 3


@pytest.mark.parametrize('s, expected', [([1, 0, 0], 0.2), ([0, 0, 1], 0.2), ([0, 1, 0], 0.2)])
def test_a_failed_move_makes_gamma_no_larger(s, expected):
    """Its pair counts all the same."""
    regime = learned(move_of([0, 0, 1]))
    regime.learn(move_of(s), has_failed=True)
    assert regime.pairs.gamma == pytest.approx(expected) and len(regime.pairs) == 2
    regime.learn(move_of([1, 0, 0]))
    assert regime.pairs.gamma == pytest.approx(1.)
    regime.learn(move_of([0, 0, 1]), has_failed=True)
    assert regime.pairs.gamma == pytest.approx(0.2)


def test_the_first_move_sets_gamma_though_it_has_failed():
    regime = Regime(METRIC, 'float64')
    regime.learn(move_of([0, 1, 0]), has_failed=True)
    assert regime.pairs.gamma == pytest.approx(0.5)


@pytest.mark.parametrize('how, expected', [
    ({'has_fallen': True}, 10.), ({'has_fallen': True, 'has_failed': True}, 1.), ({}, 1.)])
def test_gamma_grows_along_a_move_without_curvature_that_lowers_the_objective(how, expected):
    regime = learned(move_of([1, 0, 0]))
    regime.learn(move_of([1, 0, 0], [0, 0, 0]), **how)
    assert regime.pairs.gamma == pytest.approx(expected) and len(regime.pairs) == 1


@pytest.mark.parametrize('s, y, rounding', [
    ([1, 0, 0], [-1, 0, 0], 0.), ([1, 0, 0], [np.nan] * 3, 0.), ([1, 0, 0], [np.inf, 0, 0], 0.),
    ([1, 0, 0], [1e-9, 1, 0], 0.),  # at a right angle, but for rounding
    ([1e-3, 0, 0], [1e-3, 0, 0], 1e-4)])  # a change of rounding
def test_a_move_that_tells_nothing_is_not_learned(s, y, rounding):
    regime = learned(move_of([0, 1, 0]))
    with np.errstate(invalid='ignore'):
        regime.learn(move_of(s, y), rounding)
    assert regime.pairs.gamma == pytest.approx(0.5) and len(regime.pairs) == 1


@pytest.mark.parametrize('size', [1e-30, 1., 1e30])
def test_moves_of_any_size_are_learned(size):
    """In NumPy 2 the precision of float32 must not make float32 of what it is multiplied by."""
    assert type(precision_of('float32')) is float
    regime = Regime(METRIC, 'float32')
    regime.learn(move_of([0, size, 0]))
    assert regime.pairs.gamma == pytest.approx(0.5) and len(regime.pairs) == 1


@pytest.mark.parametrize('difference, is_explained', [
    (1.5, True), (0.9, False), (2.2, False), (0.99, True), (2.01, True), (np.nan, True)])
def test_gradients_explain_what_lies_between_their_slopes(difference, is_explained):
    move = Move(np.ones(1), np.ones(1), 1., 1., 1., before=1., after=2.)
    assert move.explains(difference, 0.01, 0.) == is_explained
    assert move.explains(difference, 0., 0.02) == is_explained


def test_the_rate_keeps_nag_stable_and_takes_four_time_constants():
    regime = Smooth(METRIC, 'float64')
    regime.pairs.gamma = 3.
    assert regime.rate(0.7, 40, 2) == pytest.approx(3 * 4 * 0.3 / 40)
    assert regime.rate(0.7, 2, 40) == pytest.approx(3 * 1.5 * 1.7 / 2.4 / 40)


@pytest.mark.parametrize('has_noise, curvatures, expected', [
    (True, [4.], 0.25), (True, [4., 0.1], 0.275), (True, [4., 0.1, 0.1], 0.3025),
    (True, [4., 8.], 0.125), (True, [4., 3.9], 1 / 3.9), (False, [4., 0.1], 10.)])
def test_gamma_grows_by_a_tenth_at_most_where_batches_differ(has_noise, curvatures, expected):
    """As with Dropout."""
    regime, s = Random(METRIC, 'float32'), np.array([0.6, 0.8, 0])
    regime.has_noise = has_noise
    for curvature in curvatures:
        regime.learn(move_of(s, curvature * s))
    assert regime.pairs.gamma == pytest.approx(expected)
    assert not len(regime.pairs)
    assert regime.rate(0.9, 10, 10) == pytest.approx(expected / 10)

"""What a move between two snapshots teaches: gamma and pairs."""

import numpy as np
import pytest

from svrg_optimization.core.arrays import precision_of
from svrg_optimization.rate.metric import Metric
from svrg_optimization.rate.regime import Move, Regime

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


def test_gamma_is_the_inverse_of_the_largest_curvature_of_the_pairs_kept():
    """The second of Barzilai and Borwein, as long as a move with a smaller one is kept."""
    steep, flat = [0, 0.1, 1], [1, 0, 0]
    regime, (s, y) = learned(move_of(flat), move_of(steep), move_of(flat)), (steep, HESSIAN @ steep)
    assert regime.pairs.gamma == pytest.approx(s @ y / (y @ y)) and len(regime.pairs) == 3
    for number in range(8):
        regime.learn(move_of([1, number, 0]))
    assert regime.pairs.gamma == pytest.approx(s @ y / (y @ y)) and len(regime.pairs) == 10
    regime.learn(move_of(flat))
    of_last = HESSIAN[:2, :2] @ [1, 7]
    assert regime.pairs.gamma == pytest.approx(of_last @ [1, 7] / (of_last @ of_last))


@pytest.mark.parametrize('y', [[0, 0, 0], [1e-9, 1, 0], [-1e-9, 1, 0]])
@pytest.mark.parametrize('has_fallen, expected', [(True, 10.), (False, 1.)])
def test_gamma_grows_along_a_move_without_curvature_that_lowers_the_objective(has_fallen, expected,
                                                                              y):
    regime = learned(move_of([1, 0, 0]))
    regime.learn(move_of([1, 0, 0], y), has_fallen)
    assert regime.pairs.gamma == pytest.approx(expected) and len(regime.pairs) == 1
    unknown = Regime(METRIC, 'float64')
    unknown.learn(move_of([1, 0, 0], y), has_fallen)
    assert unknown.pairs.gamma == (pytest.approx(10.) if has_fallen else None)


@pytest.mark.parametrize('y, has_fallen', [
    ([-1, 0, 0], True), ([-1, 0, 0], False), ([1e-9, 1, 0], False), ([np.nan] * 3, True),
    ([np.nan] * 3, False), ([np.inf, 0, 0], False)])
def test_a_move_that_tells_nothing_is_not_learned(y, has_fallen):
    regime = learned(move_of([0, 1, 0]))
    with np.errstate(invalid='ignore'):
        regime.learn(move_of([1, 0, 0], y), has_fallen)
    assert regime.pairs.gamma == pytest.approx(0.5) and len(regime.pairs) == 1


@pytest.mark.parametrize('size', [1e-30, 1., 1e30])
def test_moves_of_any_size_are_learned(size):
    """In NumPy 2 the precision of float32 must not make float32 of what it is multiplied by."""
    assert type(precision_of('float32')) is float
    regime = Regime(METRIC, 'float32')
    regime.learn(move_of([0, size, 0]))
    assert regime.pairs.gamma == pytest.approx(0.5) and len(regime.pairs) == 1

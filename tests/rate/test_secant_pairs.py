"""The matrix of L-BFGS and its inverse, against updates of BFGS."""

from types import SimpleNamespace

import numpy as np
import pytest

from dense_metric import by_bfgs
from svrg_optimization.rate import secant_pairs
from svrg_optimization.rate.secant_pairs import SecantPairs, room_for

SIZE = 12
RNG = np.random.RandomState(0)
ROOT = RNG.normal(size=(SIZE, SIZE))
HESSIAN = ROOT @ ROOT.T + np.eye(SIZE)
MOVES = RNG.normal(size=(14, SIZE))
PAIRS = [(move, HESSIAN @ move + 0.1 * move ** 3) for move in MOVES]


def pairs_of(number, gamma=0.3, room=12):
    pairs = SecantPairs(SIZE, gamma, room)
    for pair in PAIRS[:number]:
        pairs.add(*pair)
    pairs.gamma = gamma
    return pairs


def hessian_of_bfgs(pairs, gamma):
    return by_bfgs(np.eye(SIZE) / gamma, pairs)


@pytest.mark.parametrize('number, room', [(0, 12), (1, 12), (2, 12), (10, 12), (14, 12), (14, 5)])
def test_the_matrix_is_that_of_bfgs(number, room):
    """Of the last pairs, which are kept; gamma is of the last ten."""
    pairs, kept = pairs_of(number, room=room), PAIRS[:number][-room:]
    vector, hessian = RNG.normal(size=SIZE), hessian_of_bfgs(kept, 0.3)
    assert len(pairs) == len(kept)
    np.testing.assert_allclose(pairs.times(vector), np.linalg.solve(hessian, vector),
                               rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(pairs.inverse()(vector), hessian @ vector,
                               rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(pairs.largest(), 1 / np.linalg.eigvalsh(hessian)[0], rtol=1e-9)
    np.testing.assert_allclose(pairs.squares(), [y @ y / (s @ y) for s, y in kept[-10:]], rtol=1e-9)


@pytest.mark.parametrize('number', [0, 1, 3, 14])
def test_random_vectors_have_the_matrix_as_covariance(number):
    pairs, factor = pairs_of(number), []
    for unit in np.eye(SIZE + len(pairs)):
        numbers = iter(unit)  # of a generator
        factor.append(pairs.sample(SimpleNamespace(normal=lambda size=None, numbers=numbers: (
            np.array([next(numbers) for _ in range(size)]) if size else next(numbers)))))
    factor = np.array(factor)
    expected = np.linalg.inv(hessian_of_bfgs(PAIRS[:number][-12:], 0.3))
    np.testing.assert_allclose(factor.T @ factor, expected, rtol=1e-9, atol=1e-9)


def test_gamma_is_the_inverse_of_the_largest_curvature_of_the_latest_pairs():
    """The second of Barzilai and Borwein, as long as a move with a smaller one is among these."""
    curvatures, pairs = np.array([1., 2., 5.]), SecantPairs(3, 0.3, 12)
    assert pairs.gamma == 0.3
    moves = [np.array(move) for move in ([1., 0, 0], [0, 0.1, 1], [1e30, 0, 0], *(
        [1., number, 0] for number in range(8)), [1e-30, 0, 0])]
    for number, move in enumerate(moves, 1):
        pairs.add(move, curvatures * move)
        latest = [curvatures * move for move in moves[:number][-10:]]
        assert len(pairs) == number
        assert pairs.gamma == pytest.approx(min(
            change @ (change / curvatures) / (change @ change) for change in latest))


def test_a_large_model_keeps_fewer_pairs(monkeypatch):
    monkeypatch.setattr(secant_pairs, 'BYTES', 100000)
    assert [room_for(size) for size in (6, 12, 62, 90, 200)] == [10, 12, 60, 60, 31]
    monkeypatch.setattr(secant_pairs, 'BYTES', 1000)
    assert [room_for(size) for size in (6, 12, 62, 63, 0)] == [10, 5, 1, 0, 0]
    monkeypatch.setattr(secant_pairs, 'PAIRS', 3)
    assert room_for(6) == 3

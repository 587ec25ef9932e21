"""The matrix of L-BFGS in its compact form, against its two loops and against updates of BFGS."""

import numpy as np
import pytest

from svrg_optimization.rate import secant_pairs
from svrg_optimization.rate.secant_pairs import SecantPairs, room_for

SIZE = 12
RNG = np.random.RandomState(0)
ROOT = RNG.normal(size=(SIZE, SIZE))
HESSIAN = ROOT @ ROOT.T + np.eye(SIZE)
MOVES = RNG.normal(size=(14, SIZE))
PAIRS = [(move, HESSIAN @ move + 0.1 * move ** 3) for move in MOVES]
TOLERANCES = {'float64': 1e-9, 'float32': 1e-3}  # the pairs are kept in this dtype


def pairs_of(number, dtype='float64', gamma=0.3):
    pairs = SecantPairs(SIZE, dtype)
    for pair in PAIRS[:number]:
        pairs.add(*pair)
    pairs.gamma = gamma
    return pairs


def two_loops(vector, pairs, gamma):
    found = []
    for s, y in reversed(pairs):
        found.append(s @ vector / (s @ y))
        vector = vector - found[-1] * y
    vector = gamma * vector
    for (s, y), part in zip(pairs, reversed(found)):
        vector = vector + s * (part - y @ vector / (s @ y))
    return vector


def hessian_of_bfgs(pairs, gamma):
    matrix = np.eye(SIZE) / gamma
    for s, y in pairs:
        turned = matrix @ s
        matrix = matrix + np.outer(y, y) / (s @ y) - np.outer(turned, turned) / (s @ turned)
    return matrix


@pytest.mark.parametrize('dtype', TOLERANCES)
@pytest.mark.parametrize('number', [0, 1, 2, 10, 14])
def test_the_matrix_is_that_of_the_two_loops(number, dtype):
    """Of more than ten pairs the last ten count."""
    pairs, kept = pairs_of(number, dtype), PAIRS[:number][-10:]
    vector, tolerance = RNG.normal(size=SIZE), TOLERANCES[dtype]
    assert len(pairs) == len(kept) and pairs.rows().dtype == dtype
    np.testing.assert_allclose(pairs.times(vector), two_loops(vector, kept, 0.3),
                               rtol=tolerance, atol=tolerance)
    if dtype == 'float64':
        np.testing.assert_allclose(pairs.inverse_times(vector),
                                   hessian_of_bfgs(kept, 0.3) @ vector, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(pairs.inverse_times(pairs.times(vector)), vector,
                                   rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(pairs.squares(), [y @ y / (s @ y) for s, y in kept],
                               rtol=tolerance)


def test_pairs_written_in_other_variables_are_pairs_of_these():
    """Where the moves are T s the changes of the gradient are T^-T y."""
    turned = RNG.normal(size=(SIZE, SIZE)) + 4 * np.eye(SIZE)
    pairs, back = pairs_of(4), np.linalg.inv(turned).T
    pairs.transform(lambda move: turned @ move, lambda change: back @ change)
    expected = [(turned @ s, back @ y) for s, y in PAIRS[:4]]
    s, y = expected[-1]
    np.testing.assert_allclose(pairs.gamma, s @ y / (y @ y), rtol=1e-9)
    vector = RNG.normal(size=SIZE)
    np.testing.assert_allclose(pairs.times(vector), two_loops(vector, expected, pairs.gamma),
                               rtol=1e-8, atol=1e-8)


def test_without_pairs_a_transformation_leaves_gamma():
    pairs = pairs_of(0)
    pairs.transform(None, None)
    assert (len(pairs), pairs.gamma) == (0, 0.3)


def test_a_large_model_keeps_fewer_pairs(monkeypatch):
    monkeypatch.setattr(secant_pairs, '_BYTES', 1000)
    assert [room_for(*how) for how in (
        (12, 'float32'), (12, 'float64'), (62, 'float64'), (63, 'float64'), (0, 'float32'))] == [
            10, 5, 1, 0, 0]
    few, none = pairs_of(14, 'float64'), SecantPairs(63, 'float64')
    vector = RNG.normal(size=SIZE)
    np.testing.assert_allclose(few.times(vector), two_loops(vector, PAIRS[-5:], 0.3), rtol=1e-9)
    none.add(np.ones(63), np.ones(63))
    assert not len(none)

"""The jump to the least point of a quadratic on the span of the last moves."""

import numpy as np
import pytest

from svrg_optimization import jump as module
from svrg_optimization.jump import Moves

RNG = np.random.RandomState(0)
HESSIAN = np.diag([1., 3., 10., 30.])


def largest(numbers):
    return numbers


def test_the_jump_is_to_the_least_point_on_the_span():
    moves, ways = Moves(), RNG.normal(size=(2, 4))
    gradient, scales = RNG.normal(size=4), np.ones(4)
    assert moves.jump(gradient, scales, largest) is None
    for way in ways:
        moves.add(way, HESSIAN @ way)
    least = ways.T @ -np.linalg.solve(ways @ HESSIAN @ ways.T, ways @ gradient)
    np.testing.assert_allclose(moves.jump(gradient, scales, largest), least, rtol=1e-10)
    for way in np.eye(4)[:2]:
        moves.add(way, HESSIAN @ way)
    np.testing.assert_allclose(moves.jump(gradient, scales, largest),
                               -np.linalg.solve(HESSIAN, gradient), rtol=1e-8)


def test_a_flat_or_concave_combination_of_moves_is_left_out():
    moves, gradient = Moves(), np.array([1., 1., 1., 0.])
    for way, curvature in ((np.eye(4)[0], 2.), (np.eye(4)[0] + 1e-4 * np.eye(4)[1], 2.)):
        moves.add(way, curvature * np.eye(4)[0])
    np.testing.assert_allclose(moves.jump(gradient, np.ones(4), largest),
                               [-0.5, -2.5e-5, 0, 0], rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize('scale', [1., 0.01])
def test_it_goes_at_most_three_times_as_far_as_a_move(scale):
    moves, way = Moves(), np.array([0.1, 0., 0., 0.])
    moves.add(way, way)
    scales = np.array([scale, 1., 1., 1.])
    np.testing.assert_allclose(moves.jump(np.array([-9., 0, 0, 0]), scales, largest), 3 * way)
    np.testing.assert_allclose(moves.jump(np.array([-0.2, 0, 0, 0]), scales, largest), 2 * way)


def test_workers_jump_alike():
    """Each computes with the largest of all workers' numbers."""
    moves, way = Moves(), np.array([1., 0.])
    moves.add(way, way)
    found = moves.jump(np.array([-1., 0.]), np.ones(2), lambda numbers: [
        2 * number for number in numbers] if len(numbers) > 1 else numbers)
    np.testing.assert_allclose(found, way)  # 2 / 2


def test_memory_is_bounded(monkeypatch):
    moves = Moves()
    for number in range(7):
        moves.add(np.full(3, number), np.full(3, number))
    assert [move[0] for move in moves.moves] == [2, 3, 4, 5, 6] == [
        change[0] for change in moves.changes]
    monkeypatch.setattr(module, '_BYTES', 2 * 2 * 24)
    moves.add(np.full(3, 7.), np.full(3, 7.))
    assert [move[0] for move in moves.moves] == [6, 7]
    moves.add(np.full(50, 7.), np.full(50, 7.))  # of other parameters
    assert moves.moves == [] == moves.changes
    assert moves.jump(np.ones(50), np.ones(50), largest) is None

"""The decisions at a snapshot, each by its numbers: go back, make a check, say a word."""

import math

import numpy as np
import pytest

from svrg_optimization.core.optimality import Point
from svrg_optimization.rate.comparison import Compared, is_worse
from svrg_optimization.rate.convergence import Distance, is_due, word_of
from svrg_optimization.rate.regime import Move


def distance(way=1., hidden=0., near=1., enough=1.):
    return Distance(way, hidden, 1., near, enough, False, 1., 1.)


# What is left, the bound, and what rounding may hide; the floor is at 1.
@pytest.mark.parametrize('left, bound, hidden, near, expected', [
    (0.9, 9., 0., 1., 'converged'), (1.1, 9., 0., 1., None), (1.1, 0.9, 0., 1., 'at the floor'),
    (0.5, 0.9, 0., 0.4, 'at the floor'), (0.5, 1.1, 0., 0.4, None), (0.5, 0.9, 1.1, 0.4, None),
    (math.inf, math.inf, 0., 1., None), (math.nan, math.nan, 0., 1., None)])
def test_the_word_is_said_within_tol_or_at_the_floor(left, bound, hidden, near, expected):
    assert word_of(distance(hidden=hidden, near=near), left, bound) == expected


@pytest.mark.parametrize('way, left, hidden, number, expected', [
    (0.9, 2., 0., 7, True), (1.1, 2., 0., 7, False),  # after those that a failed check has taken
    (0.9, 2., 0., 6, False), (0.9, 0.9, 0., 6, True),  # before that where a word is likely
    (0.9, 0.9, 1.1, 6, False)])
def test_a_check_is_due_near_the_optimum(way, left, hidden, number, expected):
    assert is_due(distance(way, hidden), left, number, next_check=7) == expected


@pytest.mark.parametrize('rise, penalty, expected', [
    (1., 0., True), (math.inf, 0., True), (0., 0., True), (0., 0.5, False), (-1., 0., False)])
def test_moves_that_do_not_go_down_are_undone(rise, penalty, expected):
    point = Point(np.zeros(1), np.zeros(1), np.zeros(1), 1., penalty, 1., 10)
    found = Compared(point, point, Move(), rise, 0., False)
    assert is_worse(found) is expected
    assert is_worse(found._replace(former=None)) is False

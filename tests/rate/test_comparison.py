"""By how much the objective has changed between two snapshots, as far as numbers tell."""

import math

import numpy as np
import pytest

from svrg_optimization.core.optimality import Point
from svrg_optimization.rate.comparison import Compared, Move, change, is_worse
from svrg_optimization.rate.path import Trial

ROUNDING = 5e-15
MOVE = Move(length=1., product=1e-9, square=1., before=-3e-9, after=-2e-9)


def point(objective, penalty=0., gradient=0.):
    nothing = np.zeros(1)
    return Point(nothing, nothing + gradient, nothing, nothing, objective, penalty, 1., 10)


@pytest.mark.parametrize('before, now, expected', [
    (point(1), point(2), 1), (point(1), point(2, 0.5), 1.5), (point(1, 0.5), point(2), 0.5),
    (point(1), point(2, gradient=math.nan), math.inf), (point(1), point(math.inf), math.inf),
    (point(1), point(math.nan), math.inf),
    (point(math.nan), point(math.nan, 0, math.inf), math.inf),
    (point(1, math.inf), point(2), -math.inf),
    # The mean slope, where the objective is not known, and where its change is rounding:
    (point(math.nan), point(math.nan), -2.5e-9),
    (point(math.nan), point(math.nan, 0.5), 0.5 - 2.5e-9),
    (point(1), point(1 + 4e-15), -2.5e-9), (point(1), point(1 - 4e-15), -2.5e-9),
    (point(1), point(1 + 2e-14), 2e-14), (point(1), point(1 - 2e-14), -2e-14)])
def test_it_is_the_difference_where_that_is_known(before, now, expected):
    assert change(before, now, MOVE, ROUNDING, None, None) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize('difference, between, is_known', [
    # That of a convex objective lies between its slopes, to a tenth of these:
    (-1., None, True), (2., None, True), (2.15, None, True), (-1.15, None, True),
    (math.inf, None, True),
    # Else Simpson's rule, to a third of the steepest slope, tells if there is such an objective:
    (2.3, None, False), (-1.3, None, False), (2.3, 3., True), (2.3, 0.5, False),
    (-1.3, -2.2, True), (-1.3, 0.6, False)])
def test_a_difference_that_no_gradients_have_is_told_and_not_used(difference, between, is_known):
    told, move = [], MOVE._replace(before=-1., after=2.)
    found = change(point(1), point(1 + difference, 0.25), move, ROUNDING, lambda: between,
                   told.append)
    by_slopes = 0.5 if between is None else (1. + 4 * between) / 6
    assert found == pytest.approx((difference if is_known else by_slopes) + 0.25)
    assert len(told) == (not is_known)
    assert is_known or 'slopes' in told[0]


# The model falls by 1 on the way to a trial.
@pytest.mark.parametrize('rise, penalty, is_hidden, shrinks, expected', [
    (1., 0., False, True, True), (math.inf, 0., False, True, True), (0., 0., False, True, True),
    (math.nan, 0., False, True, True), (-9e-5, 0., False, True, True),
    (-2e-4, 0., False, False, False),
    (0., 0.5, False, True, False),  # the penalty's rounding may hide the fall
    # Where rounding may hide the move a smaller gradient tells that it is right:
    (-1., 0., True, True, False), (-1., 0., True, False, True)])
def test_a_trial_that_does_not_go_down_is_undone(rise, penalty, is_hidden, shrinks, expected):
    before = point(1., penalty)
    found = Compared(before, before, MOVE._replace(shrinks=shrinks), rise)
    trial = Trial(np.zeros(1), 1., 1., is_hidden)
    assert is_worse(found, trial) is expected
    assert is_worse(found._replace(former=None), trial) is False

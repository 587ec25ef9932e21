"""By how much the objective has changed between two snapshots, as far as numbers tell."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from svrg_optimization.core.optimality import Point
from svrg_optimization.rate.regime import Move
from svrg_optimization.rate.rollback import ROUNDING, change

MOVE = Move(length=1., product=1e-9, square=1., before=-3e-9, after=-2e-9)
EPS = np.finfo('float64').eps


def point(objective, penalty=0., gradient=0.):
    return Point(np.zeros(1), np.array([gradient]), objective, penalty, 1., 10)


def found(before, now, move=MOVE, **regime):
    return change(before, now, move, SimpleNamespace(**{
        'has_noise': False, 'residual': None, 'dtype': 'float64', 'largest': 0., 'slowdown': 1.,
        **regime}))


@pytest.mark.parametrize('before, now, expected', [
    (point(1), point(2), 1), (point(1), point(2, 0.5), 1.5), (point(1, 0.5), point(2), 0.5),
    (point(1), point(2, gradient=math.nan), math.inf), (point(1), point(math.inf), math.inf),
    (point(1, math.inf), point(2), -math.inf),
    # The mean slope, where the objective is not known:
    (point(math.nan), point(math.nan), -2.5e-9),
    (point(math.nan), point(math.nan, 0.5), 0.5 - 2.5e-9)])
def test_it_is_the_difference_where_that_is_known(before, now, expected):
    assert found(before, now) == pytest.approx(expected, abs=1e-15)


def test_what_is_rounding_lies_between_the_slopes():
    for difference in 1e-15, -1e-15, 0.:
        assert found(point(1), point(1 + difference)) == -2e-9
    steep = MOVE._replace(before=0., after=1e-7)
    assert found(point(1), point(1 - 1e-15), steep) == 0.
    assert found(point(1), point(1 + 4 * EPS), steep) == pytest.approx(4 * EPS)


@pytest.mark.parametrize('largest, is_rounding', [(0., False), (1e6, True), (1., False)])
def test_a_former_objective_has_rounding_in_all_later_ones(largest, is_rounding):
    """A difference of 1e-10 is none beside a sum that began at a million."""
    assert (found(point(1), point(1 + 1e-10), largest=largest) == -2e-9) is is_rounding
    within, above = (factor * ROUNDING * EPS * max(largest, 1.) for factor in (0.9, 1.2))
    assert found(point(1), point(1 + within), largest=largest) == -2e-9
    assert found(point(1), point(1 + above), largest=largest) == pytest.approx(above, rel=0.1)


def test_an_operator_is_asked_for_the_length_of_its_step_in_rounding():
    """Where the slopes say nothing, too."""
    before, now = point(1, 0.25), point(1 + 1e-15, 0.25)
    still = MOVE._replace(before=0., after=0.)
    lengths = {id(before): 5., id(now): 3.}
    assert found(before, now, still, residual=lambda each: lengths[id(each)]) == -2.
    assert found(before, point(2, 0.5), still, residual=lambda each: 0.) == 1.25


@pytest.mark.parametrize('slowdown, difference, expected', [
    (1., 0.09, 0.), (1., -0.09, 0.), (1., 0.2, 0.2), (2., 0.2, 0.), (2., 0.3, 0.3)])
def test_what_may_be_chance_is_no_change(slowdown, difference, expected):
    assert found(point(1), point(1 + difference), slowdown=slowdown,
                 has_noise=True) == pytest.approx(expected)

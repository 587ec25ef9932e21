"""Checks of a distance by another pass, of which only the measured point is not real."""

from types import SimpleNamespace

import numpy as np
import pytest

from svrg_optimization.core.front_end import Workers
from svrg_optimization.core.optimality import Point
from svrg_optimization.core.result import Training
from svrg_optimization.rate.convergence import Way
from svrg_optimization.rate.metric import Metric
from svrg_optimization.rate.smooth import Move, Smooth

HESSIAN = np.diag([1., 1000.])
SOURCE = SimpleNamespace(again=lambda: True)


def point(weights, gradient):
    return Point(weights, gradient, 0., 0., 1., 10)


def way_at(gradient, measured, moves=((0., 1.), (1., 0.))):
    """Return the Way at w = 0 after some moves, to which a pass finds `measured` of a move."""
    metric, way = Metric({'w': (2,)}, {'w': 1.}), Way.__new__(Way)
    regime, training = Smooth(metric, 'float64'), Training()
    for s in np.array(moves):
        y = HESSIAN @ s
        regime.learn(Move(s, y, s @ s, s @ y, y @ y))
    gradient = np.array(gradient)
    vars(way).update(
        point=point(np.zeros(2), gradient), rounding=1e-12, distance=0., has_vanished=False,
        _metric=metric,
        _proximal=False, _way=-regime.pairs.times(gradient), _trained=SimpleNamespace(
            rule=SimpleNamespace(regime=regime)), _svrg=SimpleNamespace(training=training),
        _measured=lambda _, workers, move: point(move['w'], measured(gradient, move['w'])))
    return way, training


@pytest.mark.parametrize('most, is_confirmed', [(1.1e-6, True), (0.9e-6, False)])
@pytest.mark.parametrize('gradient', [[1e-6, 0.], [0., 1e-3]])
def test_a_distance_is_checked_along_the_gradient(gradient, most, is_confirmed):
    """A pass counts that finds the largest curvature so far, though the latest was far smaller."""
    way, training = way_at(gradient, lambda before, by: before + HESSIAN @ by)
    assert way.is_confirmed(SOURCE, Workers(), most) == is_confirmed
    assert (training.checks, training.noisy) == (1, 0)


def test_a_pass_of_another_function_confirms_nothing():
    """Its gradient changes by more than any curvature makes it; five of them are enough."""
    way, training = way_at([0., 1e-3], lambda before, by: before + HESSIAN @ by + [10., 0.])
    for number in range(1, 8):
        assert not way.is_confirmed(SOURCE, Workers(), 1e-5)
        assert training.checks == training.noisy == min(number, 5)
    once = SimpleNamespace(again=lambda: None)
    assert not way_at([0., 0.], None)[0].is_confirmed(once, Workers(), 1.)


def test_at_a_gradient_of_zero_a_random_move_shows_that_the_objective_is_curved():
    way, _ = way_at([0., 0.], lambda before, by: before + HESSIAN @ by)
    assert way.is_confirmed(SOURCE, Workers(), 1e-9)
    flat, _ = way_at([0., 0.], lambda before, by: before)
    assert not flat.is_confirmed(SOURCE, Workers(), 1e-9)


def test_a_gradient_of_zero_at_a_kink_is_none_of_an_optimum():
    way, training = way_at([0., 0.], lambda before, by: before + np.sign(by))
    assert not way.is_confirmed(SOURCE, Workers(), 1e-9)
    assert training.is_stuck and training.checks == 2


def test_a_curvature_that_has_vanished_with_the_loss_confirms_nothing():
    """As that of separable classes, whose slopes are rounding at last."""
    for has_vanished in False, True:
        way, _ = way_at([1e-9, 0.], lambda before, by: before + 1e-4 * by)
        way.has_vanished = has_vanished
        assert way.is_confirmed(SOURCE, Workers(), 1e-4) != has_vanished

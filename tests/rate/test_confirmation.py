"""Checks of a distance by another pass, of which only the measured point is not real."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from svrg_optimization.core.front_end import Workers
from svrg_optimization.core.optimality import Point
from svrg_optimization.core.result import Training
from svrg_optimization.rate.confirmation import Confirmation
from svrg_optimization.rate.metric import Metric
from svrg_optimization.rate.regime import Move
from svrg_optimization.rate.smooth import Smooth

HESSIAN = np.diag([1., 1000.])
DATA = SimpleNamespace(again=lambda: True)


def point(weights, gradient):
    return Point(weights, gradient, 0., 0., 1., 10)


def check_at(gradient, measured, moves=((0., 1.), (1., 0.)), data=DATA, has_vanished=False):
    """Return the Confirmation at w = 0 after some moves; a pass finds `measured` of a move."""
    metric, training, gradient = Metric({'w': (2,)}, {'w': 1.}), Training(), np.array(gradient)
    regime = Smooth(metric, 'float64')
    for s in np.array(moves):
        y = HESSIAN @ s
        regime.learn(Move(s, y, s @ s, s @ y, y @ y))
    svrg = SimpleNamespace(training=training, nearby=lambda *_: contextlib.nullcontext(
        lambda move: point(move, measured(gradient, move))))
    trained = SimpleNamespace(rule=SimpleNamespace(regime=regime),
                              mean_gradient=lambda: SimpleNamespace(proximal={}))
    way = SimpleNamespace(
        point=point(np.zeros(2), gradient), rounding=1e-12, distance=0., metric=metric,
        has_vanished=has_vanished, move=-regime.pairs.times(gradient),
        steepest=max(regime.pairs.squares()))
    return Confirmation(svrg, trained, way, data, Workers()), training


@pytest.mark.parametrize('most, is_confirmed', [(1.1e-6, True), (0.9e-6, False)])
@pytest.mark.parametrize('gradient', [[1e-6, 0.], [0., 1e-3]])
def test_a_distance_is_checked_along_the_gradient(gradient, most, is_confirmed):
    """A pass counts that finds the largest curvature so far, though the latest was far smaller."""
    check, training = check_at(gradient, lambda before, by: before + HESSIAN @ by)
    assert check.is_within(most) == is_confirmed
    assert (training.checks, training.noisy) == (1, 0)


def test_a_pass_of_another_function_confirms_nothing():
    """Its gradient changes by more than any curvature makes it; five of them are enough."""
    check, training = check_at([0., 1e-3], lambda before, by: before + HESSIAN @ by + [10., 0.])
    for number in range(1, 8):
        assert not check.is_within(1e-5)
        assert training.checks == training.noisy == min(number, 5)
    once = SimpleNamespace(again=lambda: None)
    assert not check_at([0., 0.], None, data=once)[0].is_within(1.)


def test_at_a_gradient_of_zero_a_random_move_shows_that_the_objective_is_curved():
    check, _ = check_at([0., 0.], lambda before, by: before + HESSIAN @ by)
    assert check.is_within(1e-9)
    flat, _ = check_at([0., 0.], lambda before, by: before)
    assert not flat.is_within(1e-9)


def test_a_gradient_of_zero_at_a_kink_is_none_of_an_optimum():
    check, training = check_at([0., 0.], lambda before, by: before + np.sign(by))
    assert not check.is_within(1e-9)
    assert training.is_stuck and training.checks == 2


def test_a_curvature_that_has_vanished_with_the_loss_confirms_nothing():
    """As that of separable classes, whose slopes are rounding at last."""
    for has_vanished in False, True:
        check, _ = check_at([1e-9, 0.], lambda before, by: before + 1e-4 * by,
                            has_vanished=has_vanished)
        assert check.is_within(1e-4) != has_vanished

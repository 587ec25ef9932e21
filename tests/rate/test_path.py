"""Points of a path, by how much the model falls there, and the radius after a trial."""

import math

import numpy as np
import pytest

from svrg_optimization.core.optimality import Point
from svrg_optimization.rate.comparison import Compared, Move
from svrg_optimization.rate.metric import Metric
from svrg_optimization.rate.newton_cg import next_radius
from svrg_optimization.rate.path import Path, Trial, trial_at


@pytest.mark.parametrize('radius, has_ray, expected', [
    (0.5, False, [0.5, 0, 0, 0]), (1.25, False, [1, 0.75, 0, 0]), (5., False, [1, 1, 1, 0]),
    (math.inf, False, [1, 1, 1, 0]), (1.25, True, [1, 0.75, 0, 0]), (2., True, [1, 1, 1, 1])])
def test_a_trial_is_where_the_path_leaves_the_radius(radius, has_ray, expected):
    root, rng = np.random.RandomState(0).normal(size=(4, 4)), np.random.RandomState(1)
    metric, hessian, (at, gradient) = Metric({'w': (4,)}, {'w': 4.}), root @ root.T, rng.normal(
        size=(2, 4))
    corners, directions = np.tril(np.ones((4, 4)), -1), np.eye(4)[3:] * has_ray
    points, ray = ([[each, metric.pull(hessian @ metric.push(each))] for each in moves]
                   for moves in (corners, 3 * directions[:has_ray]))
    path = Path(*np.swapaxes(points, 0, 1), np.array(sum(ray, [])), corners[-1], corners[-1], True)
    trial = trial_at(path, radius, metric, Point(at, gradient, gradient, 0 * at, 0., 0., 1., 10))
    move = trial.weights - at
    np.testing.assert_allclose(metric.whiten(move), expected, atol=1e-12)
    assert trial.length == pytest.approx(np.linalg.norm(expected))
    assert trial.fall == pytest.approx(-(gradient @ move + move @ hessian @ move / 2))


@pytest.mark.parametrize('radius, length, rise, is_undone, expected', [
    (4., 4., 0.5, True, 1.), (4., 2., 0.5, True, 0.5), (math.inf, 2., math.inf, True, 0.5),
    (4., 4., -0.8, False, 16.), (4., 4., -0.7, False, 4.), (4., 2., -0.8, False, 4.)])
def test_the_radius_follows_the_fall_beside_that_of_the_model(radius, length, rise, is_undone,
                                                              expected):
    found = Compared(None, None, Move(), rise, is_undone)
    assert next_radius(radius, Trial(np.zeros(1), 1., length), found) == expected

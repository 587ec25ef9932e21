"""Each decision of an iteration, on objectives in NumPy: no model, no MXNet."""

import copy
import math

import numpy as np
import pytest
from scipy.optimize import minimize

from quadratic import LogCosh, Quadratic
from svrg_optimization.rate.comparison import Compared, Move
from svrg_optimization.rate.convergence import judge
from svrg_optimization.rate.learned import Learned
from svrg_optimization.rate.learning import learn, tried
from svrg_optimization.rate.newton_cg import begin, iterate, next_radius, solve
from svrg_optimization.rate.path import Trial, trial_at

RNG = np.random.RandomState(0)
ROWS = RNG.normal(size=(60, 5)) * np.logspace(0, 2, 5)
TARGETS = ROWS @ RNG.normal(size=5) + RNG.normal(size=60)
OF_ROWS = np.logspace(-3, 0, 60)  # which the metric does not know


def taken(objective, at=0.):
    """Return an objective, and what its first snapshot at some weights teaches."""
    learned = Learned()
    objective.now = objective.now + at
    learn(objective, learned, None)
    return objective, learned


def trained(objective, at=0., most=50):
    """Iterate to the end; return the values on the way, what was learned, and the last Verdict."""
    learned, values = Learned(), []
    objective.now = objective.now + at
    verdict, has_moved = begin(objective, learned), True
    while not verdict.word and has_moved and len(values) < most:
        values.append(objective.value(objective.at))
        verdict, has_moved = iterate(objective, learned)
        np.testing.assert_array_equal(objective.now, objective.at)
    return values, learned, verdict


@pytest.mark.parametrize('decay', [0., 0.5])
@pytest.mark.parametrize('of_rows', [1., OF_ROWS])
def test_iterations_come_to_the_optimum_and_the_word_is_confirmed(decay, of_rows):
    objective = Quadratic(ROWS, TARGETS, decay, of_rows=of_rows)
    values, learned, verdict = trained(objective)
    assert verdict.word == 'converged' and verdict.distance <= 1e-6
    assert learned.largest == pytest.approx(values[0])  # whose rounding may be in later ones
    best = objective.optimum()
    assert np.linalg.norm(ROWS @ (objective.at - best)) <= 1e-5 * np.linalg.norm(ROWS @ best)
    assert (np.diff(values) < 0).all() and objective.passes <= 60


@pytest.mark.parametrize('far', [0., 100., 1e4])
def test_a_loss_that_is_straight_far_away_is_lowered_by_each_iteration(far):
    """Newton's own step would go up there."""
    objective = LogCosh(np.column_stack([ROWS, np.ones(60)]), TARGETS + far)
    values, _, verdict = trained(objective)
    assert verdict.word and len(values) > 2 and (np.diff(values) < 0).all()
    best = objective.rows @ minimize(objective.value, objective.at, jac=objective.slope, options={
        'gtol': 1e-9}).x
    found = objective.rows @ objective.at
    assert np.linalg.norm(found - best) <= 1e-5 * np.linalg.norm(best)


def test_where_nothing_is_better_training_is_at_the_floor():
    objective = Quadratic(ROWS, TARGETS, tol=None)
    _, learned, verdict = trained(objective)
    assert verdict.word == 'at the floor' and learned.is_stuck
    np.testing.assert_allclose(objective.at, objective.optimum(), rtol=1e-9)


def test_judging_writes_nothing():
    objective, learned = taken(Quadratic(ROWS, TARGETS, tol=1e3), 1.)
    learned.path = solve(objective, learned)
    before, pairs = copy.copy(vars(learned)), copy.copy(vars(learned.pairs))
    assert judge(objective, learned).check is not None
    assert all(vars(learned)[name] is value for name, value in before.items())
    assert all(vars(learned.pairs)[name] is value for name, value in pairs.items())


class Changing(Quadratic):
    """Whose rows are others in each pass."""

    def point_at(self, metric, move=None):
        self.rows = np.random.RandomState(self.passes).normal(size=self.rows.shape) * (
            np.logspace(0, 2, 5))
        return super().point_at(metric, move)


class Losing(Quadratic):
    """Which has lost a row."""

    def point_at(self, metric, move=None):
        return super().point_at(metric, move)._replace(rows=len(self.rows) - 1)


def test_passes_of_another_objective_are_told():
    with np.errstate(all='ignore'):  # as in algorithm.take
        verdict = trained(Changing(ROWS, TARGETS))[-1]
    assert verdict.word is None and verdict.check.is_other_function
    _, learned, verdict = trained(Losing(ROWS, TARGETS))
    assert verdict.word is None and learned.rows_differ


# The path

def of_hessian(path, objective, learned):
    """Check that a path's changes of the gradient are the Hessian times its moves."""
    hessian, metric = objective.hessian(), learned.metric
    for move, change in zip((*path.points, *path.ray[:1]), (*path.changes, *path.ray[1:])):
        expected = metric.pull(hessian @ metric.push(move))
        np.testing.assert_allclose(change, expected, atol=1e-5 * (1 + np.abs(expected).max()))


def test_a_path_ends_at_a_tenth_of_the_gradient_and_its_pairs_shorten_the_next_one():
    objective, learned = taken(Quadratic(ROWS, TARGETS, of_rows=OF_ROWS))
    learned.radius = math.inf
    path, gradient = solve(objective, learned), learned.metric.pull(learned.point.gradient)
    assert path.is_exact and len(path.points) > 2
    assert np.linalg.norm(gradient + path.changes[-1]) <= 0.1 * np.linalg.norm(gradient)
    of_hessian(path, objective, learned)
    for move, change in path.products():
        learned.pairs.add(move, change)
    assert len(solve(objective, learned).points) < len(path.points)


def test_without_a_positive_curvature_the_path_goes_on_downhill():
    objective, learned = taken(Quadratic(ROWS, TARGETS, of_rows=-1.))
    path, gradient = solve(objective, learned), learned.metric.pull(learned.point.gradient)
    assert not path.is_exact and path.curvature == 0 and path.ray[0] @ gradient < 0
    of_hessian(path, objective, learned)
    np.testing.assert_allclose(np.linalg.norm(path.at(100.)[0]), 100.)
    trial = trial_at(path, 2., learned.metric, learned.point)
    assert objective.value(trial.weights) < objective.value(objective.at)




def test_the_fall_of_the_model_is_that_of_the_objective():
    objective, learned = taken(Quadratic(ROWS, TARGETS, 0.5))
    path = solve(objective, learned)
    for radius in 0.1, 1., math.inf:
        trial = trial_at(path, radius, learned.metric, learned.point)
        fall = objective.value(objective.at) - objective.value(trial.weights)
        assert trial.fall == pytest.approx(fall, rel=1e-4)
        assert trial.length == pytest.approx(min(radius, np.linalg.norm(path.points[-1])))


# Trials, and what they teach

@pytest.mark.parametrize('radius, length, rise, is_undone, expected', [
    (4., 4., 0.5, True, 1.), (4., 2., 0.5, True, 0.5), (math.inf, 2., math.inf, True, 0.5),
    (4., 4., -0.8, False, 16.), (4., 4., -0.7, False, 4.), (4., 2., -0.8, False, 4.)])
def test_the_radius_follows_the_fall_beside_that_of_the_model(radius, length, rise, is_undone,
                                                              expected):
    found = Compared(None, None, Move(), rise, is_undone)
    assert next_radius(radius, Trial(np.zeros(1), 1., length), found) == expected


def trial_to(objective, weights, **given):
    fall = objective.value(objective.at) - objective.value(weights)
    return Trial(weights, **{'fall': fall, 'length': 1., **given})


@pytest.mark.parametrize('part, is_undone, pairs', [
    (0.5, False, 1), (1., False, 1), (2.1, True, 1), (50., True, 0)])
def test_a_trial_that_goes_up_is_undone_and_teaches_if_it_is_near(part, is_undone, pairs):
    objective, learned = taken(Quadratic(ROWS, TARGETS), 1.)
    start, value, way = objective.at, objective.value(objective.at), objective.optimum() - 1
    found = tried(objective, learned, trial_to(objective, start + part * way, fall=1e-9 * value))
    assert found.is_undone == is_undone and len(learned.pairs) == pairs
    expected = start if is_undone else start + part * way
    for weights in objective.now, objective.at, learned.point.weights:
        np.testing.assert_allclose(weights, expected)
    assert found.rise == pytest.approx(objective.value(start + part * way) - value)
    if pairs:
        s, y = learned.pairs.moves[0], learned.pairs.changes[0]
        np.testing.assert_allclose(y, s, rtol=1e-6)  # the metric is the Hessian


def test_an_error_at_a_trial_leaves_the_weights_of_before():
    objective, learned = taken(Quadratic(ROWS, TARGETS), 1.)
    start, take = objective.at, objective.take_snapshot

    def interrupted(*given):
        take(*given)
        raise KeyboardInterrupt

    objective.take_snapshot = interrupted
    with pytest.raises(KeyboardInterrupt):
        tried(objective, learned, trial_to(objective, objective.optimum()))
    np.testing.assert_array_equal(objective.now, start)
    assert learned.is_fresh


def test_data_that_can_be_read_once_are_refused():
    objective = Quadratic(ROWS, TARGETS)
    objective.rewind = lambda: False
    with pytest.raises(ValueError, match="train_data must be read several times .* 'these'"):
        trained(objective)
    np.testing.assert_array_equal(objective.now, 0.)


@pytest.mark.parametrize('start, is_near', [(100., True), (0.9, False)])
def test_training_begins_near_0_where_the_objective_is_less(start, is_near):
    rows = ROWS / np.logspace(0, 2, 5)
    objective, learned = LogCosh(rows, rows @ np.ones(5)), Learned()
    objective.now = np.full(5, start)
    begin(objective, learned)
    assert (np.linalg.norm(objective.at) < 1) == is_near
    assert is_near or (objective.at == start).all()

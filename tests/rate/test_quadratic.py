"""What a snapshot does, on an objective in NumPy: no model, no MXNet."""

import numpy as np
import pytest

from quadratic import Quadratic
from svrg_optimization.rate.algorithm import jumps
from svrg_optimization.rate.convergence import judge
from svrg_optimization.rate.learned import Learned
from svrg_optimization.rate.learning import learn

RNG = np.random.RandomState(0)
ROWS = RNG.normal(size=(60, 5)) * np.logspace(0, 2, 5)
TARGETS = ROWS @ RNG.normal(size=5) + RNG.normal(size=60)


def optimum(decay):
    return np.linalg.solve(ROWS.T @ ROWS / 60 + decay * np.eye(5), ROWS.T @ TARGETS / 60)


def relative(weights, decay):
    """Return how far weights are from the optimum, in the outputs beside their spread."""
    best = optimum(decay)
    return np.linalg.norm(ROWS @ (weights - best)) / np.linalg.norm(ROWS @ best)


@pytest.mark.parametrize('decay', [0., 0.5])
def test_jumps_come_to_the_optimum_and_the_word_is_confirmed(decay):
    objective, learned = Quadratic(ROWS, TARGETS, decay), Learned()
    assert not learn(objective, learned, objective.kept())
    made = sum(jumps(objective, learned))
    verdict = judge(objective, learned)
    assert verdict.word == 'converged' and verdict.distance <= 1e-6 and made >= 1
    assert relative(objective.at, decay) <= 1e-6
    assert verdict.check.passes >= 1 and not verdict.check.pairs


def test_judging_writes_nothing():
    objective, learned = Quadratic(ROWS, TARGETS), Learned()
    learn(objective, learned, None)
    before, pairs = dict(vars(learned)), {**vars(learned.regime.pairs)}
    assert judge(objective, learned).word is None
    assert all(vars(learned)[name] is value for name, value in before.items())
    assert all(vars(learned.regime.pairs)[name] is value for name, value in pairs.items())


def test_steps_that_go_up_are_undone_with_half_the_rate():
    objective, learned = Quadratic(ROWS, TARGETS), Learned()
    learn(objective, learned, None)
    start, rate = objective.at, learned.rate
    learned.rate *= 1000
    objective.epoch(learned)
    assert objective.value(objective.now) > objective.value(start)
    assert learn(objective, learned, objective.kept())
    np.testing.assert_array_equal(objective.now, start)
    assert learned.num_rollbacks == 1 and learned.regime.slowdown == 2 and learned.rate <= rate


def test_steps_come_nearer():
    objective, learned = Quadratic(ROWS, TARGETS, 0.5), Learned()
    learn(objective, learned, None)
    for _ in range(30):
        objective.epoch(learned)
        assert not learn(objective, learned, objective.kept())
    assert relative(objective.at, 0.5) < 1e-2 and len(learned.regime.pairs) > 5

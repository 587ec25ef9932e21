"""What a snapshot does, on an objective in NumPy: no model, no MXNet."""

import numpy as np
import pytest

from quadratic import Quadratic
from svrg_optimization.rate.algorithm import _move
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


def taken(decay=0.):
    """Return an objective, and what its first snapshot has taught."""
    objective, learned = Quadratic(ROWS, TARGETS, decay), Learned()
    assert not learn(objective, learned, None)
    return objective, learned


@pytest.mark.parametrize('decay', [0., 0.5])
def test_moves_come_to_the_optimum_and_the_word_is_confirmed(decay):
    objective, learned = taken(decay)
    made = 0
    verdict = judge(objective, learned)
    while not verdict.word and _move(objective, learned):
        made, verdict = made + 1, judge(objective, learned)
    assert verdict.word == 'converged' and verdict.distance <= 1e-6 and made >= 1
    assert relative(objective.at, decay) <= 1e-6
    assert verdict.check.passes >= 1


def test_judging_writes_nothing():
    objective, learned = taken()
    before, pairs = dict(vars(learned)), {**vars(learned.regime.pairs)}
    assert judge(objective, learned).word is None
    assert all(vars(learned)[name] is value for name, value in before.items())
    assert all(vars(learned.regime.pairs)[name] is value for name, value in pairs.items())


def test_a_direction_that_is_flat_in_no_pair_is_found_and_learned():
    """The rows of a category hardly count, which the metric does not know."""
    category = np.arange(60) < 6
    objective, learned = Quadratic(np.column_stack([ROWS, category]), TARGETS, tol=2., of_rows=(
        np.where(category, 1e-3, 1.))), Learned()
    objective.now = np.ones(6)
    learn(objective, learned, None)
    verdict = judge(objective, learned)
    assert verdict.word is None and verdict.check.smallest < 0.01 and verdict.check.flat == 'w'
    assert np.abs(verdict.check.flattest).argmax() == 5
    former = len(learned.regime.pairs)
    learned.learn_check(verdict.check, objective.number)
    assert len(learned.regime.pairs) == former + len(verdict.check.pairs) > former
    assert learned.next_check == objective.number + verdict.check.passes

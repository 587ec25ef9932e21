"""What a snapshot does, on an objective in NumPy: no model, no MXNet."""

import numpy as np
import pytest

from quadratic import Quadratic
from svrg_optimization.rate import learning
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


def taken(decay=0.):
    """Return an objective, and what its first snapshot has taught."""
    objective, learned = Quadratic(ROWS, TARGETS, decay), Learned()
    assert not learn(objective, learned, None)
    return objective, learned


def trained(objective, learned, rate=1.):
    """Take a snapshot after an epoch at a times the rate; tell whether training went back."""
    learned.rate *= rate
    objective.epoch(learned)
    return learn(objective, learned, objective.kept())


@pytest.mark.parametrize('decay', [0., 0.5])
def test_jumps_come_to_the_optimum_and_the_word_is_confirmed(decay):
    objective, learned = taken(decay)
    made = sum(jumps(objective, learned))
    verdict = judge(objective, learned)
    assert verdict.word == 'converged' and verdict.distance <= 1e-6 and made >= 1
    assert relative(objective.at, decay) <= 1e-6
    assert verdict.check.passes >= 1 and not verdict.check.pairs


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


def test_steps_that_go_up_are_undone_with_half_the_rate():
    objective, learned = taken()
    start, rate = objective.at, learned.rate
    assert trained(objective, learned, 1000)
    np.testing.assert_array_equal(objective.now, start)
    assert learned.num_rollbacks == 1 and learned.regime.slowdown == 2 and learned.rate <= rate


def test_nothing_is_learned_from_steps_that_went_much_too_far():
    """Gamma is a tenth then, and the next pairs are the first ones."""
    objective, learned = taken()
    gamma = learned.regime.pairs.gamma
    assert trained(objective, learned, 1000) and not len(learned.regime.pairs)
    np.testing.assert_allclose(learned.regime.pairs.gamma, gamma / 10, rtol=1e-6)
    assert not trained(objective, learned) and len(learned.regime.pairs) == 1


def test_steps_come_nearer():
    objective, learned = taken(0.5)
    assert not any(trained(objective, learned) for _ in range(30))
    assert relative(objective.at, 0.5) < 1e-2 and len(learned.regime.pairs) > 5


def test_steps_of_no_change_are_kept(monkeypatch):
    objective, learned = taken()
    monkeypatch.setattr(learning, 'change', lambda *_: 0.)
    assert not trained(objective, learned)
    np.testing.assert_array_equal(objective.at, objective.now)


def test_the_largest_objective_is_kept_through_a_descent():
    """Its rounding may be in all that is computed later."""
    objective, learned = taken()
    first = objective.value(objective.at)
    for _ in range(3):
        trained(objective, learned)
    assert objective.value(objective.at) < 0.9 * first
    np.testing.assert_allclose(learned.largest, first, rtol=1e-12)


def test_the_rate_is_for_as_many_steps_as_there_were_before_a_snapshot():
    """Also at one without steps before it. At the first, two epochs are expected."""
    (objective, learned), rates = taken(), []
    for steps in 0, 3, 0, 0, 2, 0:
        if steps:
            objective.epoch(learned, steps)
        learn(objective, learned, objective.kept())
        objective.steps = 0
        rates.append(learned.rate * learned.regime.slowdown / learned.regime.pairs.gamma)
    stable = 1.7 / 2.4 / 6
    np.testing.assert_allclose(rates, [min(stable, 4 * 0.3 / steps)
                                       for steps in (12, 3, 3, 3, 2, 2)], rtol=1e-9)
    assert rates[0] < rates[1] == stable

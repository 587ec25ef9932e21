"""What the rule of 'svrg_lbfgs' keeps and what it forgets from one snapshot to the next."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from problems import Problem
from svrg_optimization.proximal import L1
from svrg_optimization.rate import composite, rollback, smooth

pytestmark = pytest.mark.usefixtures('without_jumps')


class Taken:
    """A module of 'svrg_lbfgs' at its first snapshot, its rule, and its data."""

    def __init__(self, problem, batch_size=10, proximal=None, **params):
        self.problem, self.train_data = problem, problem.iterator(batch_size)
        self.module = problem.bound(batch_size, proximal=proximal)
        self.module.init_optimizer(kvstore=None, optimizer='svrg_lbfgs', optimizer_params=params)
        self.rule = self.module._optimizer.lr_scheduler
        self.snapshot()

    def snapshot(self):
        self.module.update_full_grads(self.train_data)

    def step(self, number):
        self.train_data.reset()
        for _, batch in zip(range(number), self.train_data):
            self.module.forward_backward(batch)
            self.module.update()

    def begin_at(self, weights, count):
        """Take a snapshot at weights, as that after `count`, which says what batch it draws."""
        self.module.set_params({name: mx.nd.array(value) for name, value in weights.items()}, {})
        self.module._snapshot.num_taken = count
        self.snapshot()

    def weights(self):
        return {name: value.asnumpy().astype('float64')
                for name, value in self.module.get_params()[0].items()}

    def objective(self):
        return oracle.loss(self.problem.network, self.weights(), self.problem.features,
                           self.problem.targets) / len(self.problem.features)


def test_the_largest_objective_is_kept_through_a_descent():
    """Its rounding may be in all that is computed later."""
    taken = Taken(Problem('softmax'))
    first = taken.objective()
    for _ in range(3):
        taken.step(4)
        taken.snapshot()
    assert taken.objective() < 0.9 * first
    np.testing.assert_allclose(taken.rule.regime.largest, first, rtol=1e-6)


def test_the_rate_is_for_as_many_steps_as_there_were_before_a_snapshot():
    """Also at one without steps before it. At the first, two epochs are expected."""
    taken, rates = Taken(Problem('softmax')), []
    for steps in 0, 3, 0, 0, 2, 0:
        taken.step(steps)
        taken.snapshot()
        rates.append(taken.rule.rate * taken.rule.regime.slowdown / taken.rule.gamma)
    stable = 1.5 * 1.7 / 2.4 / 4
    np.testing.assert_allclose(rates, [min(stable, 4 * 0.3 / steps)
                                       for steps in (8, 3, 3, 3, 2, 2)], rtol=1e-9)
    assert rates[0] < rates[1] == stable


@pytest.mark.parametrize('place', ['learn', 'follow', 'rate'])
def test_after_an_interrupt_all_is_measured_anew(monkeypatch, place):
    """The weights of the snapshot are others then, so that nothing before it tells anything."""
    taken = Taken(Problem('softmax'))
    for _ in range(3):
        taken.step(4)
        taken.snapshot()
    assert len(taken.rule.regime.pairs) >= 3

    def interrupted(*_):
        raise KeyboardInterrupt

    taken.step(4)
    with monkeypatch.context() as patched:
        patched.setattr(smooth.Smooth, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            taken.snapshot()
    assert taken.module._snapshot.is_stale
    at, count = taken.weights(), taken.module._snapshot.num_taken
    taken.snapshot()
    fresh = Taken(Problem('softmax'))
    fresh.begin_at(at, count)
    assert len(taken.rule.regime.pairs) == len(fresh.rule.regime.pairs) == 1
    np.testing.assert_allclose(taken.rule.gamma, fresh.rule.gamma, rtol=1e-6)
    for name, value in at.items():
        np.testing.assert_array_equal(taken.weights()[name], value)


@pytest.mark.parametrize('changed, is_undone', [(0., True), (1e-3, True), (-1e-3, False)])
def test_a_jump_that_does_not_lower_the_objective_is_undone(monkeypatch, changed, is_undone):
    with monkeypatch.context() as patched:
        patched.setattr(composite.Composite, 'most_jumps', 0)
        taken = Taken(Problem('softmax'), proximal={'fc_weight': L1(0.05)})
    taken.rule.regime.jumps = 20
    taken.step(4)
    before, asked = taken.weights(), []

    def change(*_):
        asked.append(taken.weights())
        return -1. if len(asked) == 1 else changed  # the steps are kept

    monkeypatch.setattr(rollback, 'change', change)
    taken.snapshot()
    assert len(asked) >= 3  # a second one goes half as far
    assert np.abs(asked[1]['fc_weight'] - before['fc_weight']).max() > 1e-3
    unchanged = all(np.array_equal(taken.weights()[name], before[name]) for name in before)
    assert unchanged == is_undone
    assert taken.rule.num_rollbacks == 0 and taken.rule.regime.slowdown == 1.


def test_steps_of_no_change_are_kept(monkeypatch):
    taken = Taken(Problem('softmax'))
    taken.step(4)
    before = taken.weights()
    monkeypatch.setattr(rollback, 'change', lambda *_: 0.)
    taken.snapshot()
    assert taken.rule.num_rollbacks == 0
    for name, value in before.items():
        np.testing.assert_array_equal(taken.weights()[name], value)


def test_snapshots_in_other_units_are_not_compared():
    """With twice the rows in a batch the objective of a step is twice as large."""
    taken = Taken(Problem('softmax'))
    taken.step(4)
    at, count = taken.weights(), taken.module._snapshot.num_taken
    taken.module.reshape([('data', (20, 4))], [('label', (20,))])
    taken.train_data = taken.problem.iterator(20)
    taken.snapshot()
    assert taken.rule.num_rollbacks == 0
    for name, value in at.items():
        np.testing.assert_array_equal(taken.weights()[name], value)
    fresh = Taken(Problem('softmax'), 20, rescale_grad=0.1)
    fresh.begin_at(at, count)
    assert len(taken.rule.regime.pairs) == len(fresh.rule.regime.pairs) == 1
    np.testing.assert_allclose(taken.rule.gamma, fresh.rule.gamma, rtol=1e-6)


def test_a_step_that_is_taken_back_does_not_raise_gamma():
    """Far from the optimum a softmax is flat."""
    problem = Problem('softmax')
    taken = Taken(problem)
    gamma, rate = taken.rule.gamma, taken.rule.rate
    taken.rule.rate = 3 * gamma
    taken.step(4)
    taken.snapshot()
    assert taken.rule.num_rollbacks == 1
    assert taken.rule.gamma <= gamma and taken.rule.rate <= rate
    np.testing.assert_allclose(taken.objective(), oracle.loss(
        problem.network, problem.weights, problem.features, problem.targets) / 40, rtol=1e-6)

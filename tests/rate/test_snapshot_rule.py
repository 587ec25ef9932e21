"""What the rule of 'svrg_lbfgs' keeps and what it forgets from one snapshot to the next."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from problems import TWO_DEVICES, Problem, assert_close
from svrg_optimization.proximal import L1
from svrg_optimization.rate import composite, learning, smooth
from svrg_optimization.rate.learned import Noise

pytestmark = pytest.mark.usefixtures('without_jumps')


class Taken:
    """A module of 'svrg_lbfgs' at its first snapshot, its rule, and its data."""

    def __init__(self, batch_size=10, params=None, kvstore=None, kind='softmax', **settings):
        self.problem = problem = Problem(kind)
        self.train_data = problem.iterator(batch_size)
        self.module = problem.bound(batch_size, **settings)
        self.module.init_optimizer(kvstore, 'svrg_lbfgs', params or {})
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


@pytest.mark.parametrize('place', ['learn', 'follow', 'rate'])
def test_after_an_interrupt_all_is_measured_anew(monkeypatch, place):
    """The weights of the snapshot are others then, so that nothing before it tells anything."""
    taken = Taken()
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
    fresh = Taken()
    fresh.begin_at(at, count)
    assert len(taken.rule.regime.pairs) == len(fresh.rule.regime.pairs) == 1
    np.testing.assert_allclose(taken.rule.gamma, fresh.rule.gamma, rtol=1e-5)
    assert_close(taken.weights(), at, 0)


@pytest.mark.parametrize('proximal, changed, is_undone', [
    ({}, 0., True), ({'fc_weight': L1(0.05)}, 0., False),  # a penalty may hide what has changed
    ({'fc_weight': L1(0.05)}, 1e-3, True), ({'fc_weight': L1(0.05)}, -1e-3, False)])
def test_a_jump_that_does_not_lower_the_objective_is_undone(monkeypatch, proximal, changed,
                                                            is_undone):
    with monkeypatch.context() as patched:
        for regime in composite.Composite, smooth.Smooth:
            patched.setattr(regime, 'most_jumps', 0)
        taken = Taken(**({'proximal': proximal} if proximal else {}))
    taken.rule.regime.jumps = 20
    taken.step(4)
    before, asked = taken.weights(), []

    def change(*_):
        asked.append(taken.weights())
        return -1. if len(asked) == 1 else changed  # the steps are kept

    monkeypatch.setattr(learning, 'change', change)
    taken.snapshot()
    assert len(asked) >= 3  # a second one goes half as far
    assert np.abs(asked[1]['fc_weight'] - before['fc_weight']).max() > 1e-3
    unchanged = all(np.array_equal(taken.weights()[name], before[name]) for name in before)
    assert unchanged == is_undone
    assert taken.rule.num_rollbacks == 0 and taken.rule.regime.slowdown == 1.


def test_snapshots_in_other_units_are_not_compared():
    """With twice the rows in a batch the objective of a step is twice as large."""
    taken = Taken()
    taken.step(4)
    at, count = taken.weights(), taken.module._snapshot.num_taken
    taken.module.reshape([('data', (20, 4))], [('label', (20,))])
    taken.train_data = taken.problem.iterator(20)
    taken.snapshot()
    assert taken.rule.num_rollbacks == 0
    assert_close(taken.weights(), at, 0)
    fresh = Taken(20, {'rescale_grad': 0.1})
    fresh.begin_at(at, count)
    assert len(taken.rule.regime.pairs) == len(fresh.rule.regime.pairs) == 1
    np.testing.assert_allclose(taken.rule.gamma, fresh.rule.gamma, rtol=1e-5)


@pytest.mark.parametrize('place', [{}, {'context': TWO_DEVICES, 'kvstore': 'local'}])
def test_training_goes_back_without_momentum_and_with_half_the_rate(place):
    """Gamma is not raised by such a step, though a softmax is flat far from the optimum."""
    taken = Taken(**place)
    module, rule, start = taken.module, taken.rule, taken.weights()
    norm, objective, gamma, rate = module.gradient_norm, module.objective, rule.gamma, rule.rate
    rule.rate = 3 * gamma
    taken.step(4)
    taken.snapshot()
    assert (rule.regime.slowdown, rule.num_rollbacks) == (2, 1)
    assert rule.gamma <= gamma * (1 + 1e-9) and rule.rate <= rate * (1 + 1e-9)
    np.testing.assert_allclose([module.gradient_norm, module.objective], [norm, objective],
                               rtol=1e-6)
    updater = module._kvstore._updater if module._update_on_kvstore else module._updater
    assert not set(updater.states) & {0, 1, 2, 3, 'fc_weight', 'fc_bias'}
    assert_close(taken.weights(), start, 0)
    for _ in range(20):
        taken.step(4)
        taken.snapshot()
    assert taken.objective() < 0.9 * objective


@pytest.mark.parametrize('size, former, is_learned', [
    (1e-9, None, False), (1e-3, None, True),
    (1e-3, 1e9, True)])  # beside the gradient of a batch far away: that of now counts
def test_a_move_that_changes_the_gradient_by_its_rounding_is_not_learned(
        monkeypatch, size, former, is_learned):
    taken = Taken()
    start = {name: 0 * value for name, value in taken.weights().items()}
    taken.begin_at(start, 1)
    learned = []
    monkeypatch.setattr(smooth.Smooth, 'learn', lambda _, move, *told: learned.append(move))
    taken.rule.learned.noise = Noise(former, former) if former else taken.rule.learned.noise
    weight = np.zeros_like(start['fc_weight'])
    weight[0] = size
    taken.module.set_params({'fc_weight': mx.nd.array(weight), 'fc_bias': mx.nd.zeros(3)}, {})
    taken.rule.learned.is_fresh = False  # as if steps had moved them
    taken.snapshot()
    assert bool(learned) == is_learned


def test_weights_that_have_not_moved_are_no_worse():
    """Another order of raw rows changed the objective: rates were halved down to 1e-38."""
    taken = Taken()
    taken.rule.rate = 1e-25
    taken.step(4)
    taken.train_data.data[0][1][:] *= 1.01  # as by another rounding
    before = taken.module.objective
    taken.snapshot()
    assert taken.module.objective > before and not taken.rule.num_rollbacks


@pytest.mark.parametrize('steps', [0, 4])
def test_weights_that_a_user_sets_are_not_taken_back(steps):
    taken = Taken()
    taken.step(steps)
    given = {name: -3 * value for name, value in taken.weights().items()}
    before = taken.module.objective
    taken.module.set_params({name: mx.nd.array(value) for name, value in given.items()}, {})
    taken.snapshot()
    assert taken.module.objective > 2 * before and not taken.rule.num_rollbacks
    assert_close(taken.weights(), given, 1e-6)

"""What a Barzilai-Borwein rate is, and which optimizers can be given it."""


import mxnet as mx
import numpy as np
import pytest

from pairs import in_pairs
from problems import Problem
from svrg_bb import fit
from svrg_optimization import BarzilaiBorwein
from svrg_optimization.rate.barzilai_borwein import KeptSnapshot, check_step_size
from svrg_optimization.rate.rule import Change


@pytest.mark.parametrize('optimizer, params, message', [
    ('adam', {}, 'sgd or nag, .* for BarzilaiBorwein, not adam'),
    ('sgd', {'momentum': 1.5}, 'not sgd with momentum 1.5'),
    ('sgd', {'clip_gradient': 2.0}, 'not sgd with clip_gradient 2'),
    ('nag', {'learning_rate': 0}, 'learning_rate must be None or a number above 0, not 0'),
    ('svrg_bb', {'learning_rate': -1}, 'learning_rate must be None or a number above 0, not -1'),
    (mx.optimizer.SGD(momentum=-0.1, lr_scheduler=BarzilaiBorwein()), {}, 'momentum -0.1')])
def test_other_optimizers_are_an_error(optimizer, params, message):
    problem = Problem(rows=40)
    module = problem.bound()
    with pytest.raises(ValueError, match=message):
        module.init_optimizer(optimizer=optimizer,
                              optimizer_params={'lr_scheduler': BarzilaiBorwein(), **params})
    assert not module.optimizer_initialized and module._kvstore is None
    module.init_optimizer(optimizer_params={'lr_scheduler': BarzilaiBorwein()})
    module.update_full_grads(problem.iterator())


def test_refusal_leaves_the_rule_as_it_is():
    rule = BarzilaiBorwein(0.3)
    with pytest.raises(ValueError, match='not adam'):
        Problem(rows=40).bound().init_optimizer(optimizer='adam',
                                                optimizer_params={'lr_scheduler': rule})
    assert rule.base_lr == 0.3


def test_borrowed_optimizers_are_checked_too():
    problem = Problem(rows=40)
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    train_data = problem.iterator()
    plain.bind(train_data.provide_data, train_data.provide_label)
    plain.init_params()
    plain.init_optimizer(optimizer_params={'clip_gradient': 2., 'lr_scheduler': BarzilaiBorwein()})
    module = problem.bound()
    with pytest.raises(ValueError, match='not sgd with clip_gradient 2'):
        module.borrow_optimizer(plain)
    assert not module.optimizer_initialized


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match='alpha must not be 0'):
        problem = Problem(rows=40)
        fit(problem, problem.module(1, alpha=0), BarzilaiBorwein())
    with pytest.raises(TypeError, match='bounded must be True or False, not 1'):
        BarzilaiBorwein(bounded=1)
    for bad, error in ((0, ValueError), (float('nan'), ValueError), (float('inf'), ValueError),
                       ('0.1', TypeError), (True, TypeError)):
        with pytest.raises(error, match='base_lr must be None or a number above 0'):
            BarzilaiBorwein(bad)


def change(squared=0., product=0., changed=0., objective=0.):
    return Change(squared, product, changed, objective)


def test_rate_and_curvature_are_those_of_two_snapshots():
    rule = BarzilaiBorwein(0.01)
    assert (rule(0), rule(9)) == (0.01, 0.01)
    assert rule.bounded is True
    rule = BarzilaiBorwein(0.5, bounded=False)
    assert (rule.base_lr, rule.bounded, rule.rate, rule.curvature) == (0.5, False, None, 0)
    rule.advance(change(29, 28, 41), 4, 0)
    assert (rule.rate, rule.curvature) == (0.5, 0)  # the first snapshot tells of no other
    rule.advance(change(29, 28, 41), 4, 0)
    assert rule.rate == 29 / 28 / 4 == rule(0) and rule.curvature == 41 / 28
    for product, changed, steps in ((1, 1, 0), (0, 1, 3), (-1, 1, 3), (1, np.nan, 3),
                                    (1, np.inf, 3), (np.nan, 1, 3), (np.inf, np.inf, 3)):
        before = rule.curvature
        rule.advance(change(1, product, changed), steps, 0)
        assert rule.rate == 29 / 28 / 4, (product, changed, steps)
        assert rule.curvature == before * (0.9 if steps else 1)
    rule.bounded = True
    rule.curvature = 0.5
    rule.advance(change(4, 2, 1), 1, 0)
    assert (rule.rate, rule.curvature) == (3, 0.5)  # four times 2 / 1, and at most 1.5 / L
    rule.advance(change(4, 2, 1), 1, 0, units=4)  # gradients of batches four times as large
    assert rule.curvature == 0.9 * 4 * 0.5 and rule.rate == 1.5 / rule.curvature
    rule.advance(change(4, 2, 1), 8, 3.)  # of batches
    assert (rule.rate, rule.curvature) == (1.5 / 3, 3)
    rule.advance(change(4, 2, 1), 8, 0)
    assert (rule.rate, rule.curvature) == (1.5 / (0.9 * 3), 0.9 * 3)
    rule.advance(change(4, 2, 1), 1, 3., momentum=0.5)
    assert rule.rate == 1.5 * 1.5 / 2 / 3
    rule.bounded = False
    rule.advance(change(4, 2, 1), 1, 0, momentum=0.75)
    assert rule.rate == 2 / 4
    rule.restart()
    assert (rule.rate, rule.curvature, rule.best) == (None, 0, None)


@pytest.mark.parametrize('base_lr, curvature, momentum, rate', [
    (None, 8, 0, 1 / 8), (None, 8, 0.75, 1 / 4 / 8), (None, 0, 0.5, 0.01), (0.1, 8, 0, 0.1),
    (0.2, 8, 0.5, 1.5 * 1.5 / 2 / 8), (0.2, 0, 0.9, 0.2)])
def test_the_first_rate_is_measured_or_given_and_bounded(base_lr, curvature, momentum, rate):
    rule = BarzilaiBorwein(base_lr)
    rule.advance(Change(), 0, curvature, momentum=momentum)
    assert (rule.rate, rule.curvature) == (rate, curvature)


def look(rule, objective, norm):
    """Look at a snapshot after the one before; go on from it if it is not worse."""
    now = change(objective=objective)
    if rule.is_worse(now, norm):
        return True
    rule.accept(now, norm)
    return False


def test_training_goes_back_where_the_objective_is_above_that_of_the_snapshot_before():
    rule = BarzilaiBorwein(0.8)
    assert not look(rule, 3., 10.) and rule.best == KeptSnapshot(0, 10)  # begins anew
    assert not look(rule, -2., 20.) and rule.best == KeptSnapshot(-2, 20)
    assert look(rule, 1e-9, 1e-9) and rule.best == KeptSnapshot(-2, 20)  # whatever the norm
    assert not look(rule, 0., 30.) and rule.best == KeptSnapshot(-2, 30)
    assert look(rule, np.nan, np.nan) and look(rule, -5., np.inf)
    assert not look(rule, -np.inf, 50.) and rule.best == KeptSnapshot(0, 50)  # begins anew
    assert rule.largest_norm == 50
    rule.begin_anew()
    assert look(rule, -np.inf, np.nan)
    assert not look(rule, 7., 60.) and rule.best == KeptSnapshot(0, 60)


def test_the_way_back_reduces_rate_and_bound_which_grows_again():
    rule = BarzilaiBorwein(0.8)
    rule.advance(Change(), 0, 1.)
    rule.slow_down()
    rule.slow_down()
    assert (rule.rate, rule.slowdown, rule.ways_back) == (0.2, 4, 2)
    for times in range(1, 20):
        rule.advance(change(100, 1, 1), 1, 1.)
        assert rule.rate == pytest.approx(1.5 * min(1, 1.1 ** times / 4), rel=1e-12)
    rule.bounded = False
    rule.slow_down()
    rule.advance(change(100, 1, 1), 1, 1.)
    assert rule.rate == pytest.approx(1.1 / 2 * 100, rel=1e-12)


def test_what_is_noise_is_told_by_the_largest_norm():
    rule = BarzilaiBorwein()
    rule.accept(Change(), 2.)
    rule.accept(Change(), 1e-9)
    assert rule.is_noise(2e-6) and not rule.is_noise(2.1e-6)  # of float32's rounding


def test_a_fit_begins_anew_unless_it_is_resumed():
    rule = BarzilaiBorwein()
    rule.accept(Change(), 1.)
    rule.rate, rule.slowdown, rule.curvature, rule.ways_back = 0.5, 2., 3., 4
    rule.moves.add(np.ones(2), np.ones(2))
    other = BarzilaiBorwein()
    other.resume(rule.state())
    assert (other.rate, other.slowdown, other.curvature, other.largest_norm) == (0.5, 2, 3, 1)
    assert (other.ways_back, other.best) == (4, KeptSnapshot(0, 1))
    other.begin_fit()
    assert other.is_worse(change(objective=1e-9), 1.) and len(other.moves.moves) == 1
    other.begin_fit()
    assert not other.is_worse(change(objective=1.), 1.) and not other.moves.moves
    rule.begin_fit()
    assert not rule.is_worse(change(objective=1.), 1.) and not rule.moves.moves


@in_pairs({
    'alpha': [0, 1, lambda _: 0],
    'on_servers': [False, True],
    'optimizer, params, named': [
        ('sgd', {}, None), ('SGD', {'momentum': 0, 'clip_gradient': None}, None),
        ('nag', {}, None), ('no such', {}, 'no such'), ('adam', {}, 'adam'),
        ('sgd', {'momentum': 0.5}, None), (mx.optimizer.SGD, {}, None),
        (mx.optimizer.SGD, {'clip_gradient': 1.5, 'momentum': 0.5},
         'sgd with momentum 0.5 with clip_gradient 1.5'), (mx.optimizer.NAG, {}, None)]})
def test_a_rate_is_for_sgd_and_nag_of_the_workers(optimizer, params, named, on_servers, alpha):
    def check(**rule):
        made = optimizer if isinstance(optimizer, str) else optimizer(**params, **rule)
        check_step_size(made, {**params, **rule}, alpha, on_servers)

    check()
    check(lr_scheduler=mx.lr_scheduler.FactorScheduler(1))
    message = ('^optimizer must be sgd or nag.* not %s$' % named if named else
               '^alpha must not be 0' if alpha == 0 else
               '^kvstore must leave the updates to the workers' if on_servers else None)
    if message is None:
        check(lr_scheduler=BarzilaiBorwein())
        return
    with pytest.raises(ValueError, match=message):
        check(lr_scheduler=BarzilaiBorwein())


@pytest.mark.parametrize('optimizer, params, named', [
    ('sgd', {'momentum': 0.9}, None), ('nag', {'momentum': 0.5}, None), ('nag', {}, None),
    (mx.optimizer.NAG, {'momentum': 0.5}, None), ('sgd', {}, None),
    ('sgd', {'momentum': 1}, 'sgd with momentum 1'),
    ('nag', {'momentum': -0.5}, 'nag with momentum -0.5'),
    ('nag', {'clip_gradient': 2, 'momentum': 0.5}, 'nag with momentum 0.5 with clip_gradient 2'),
    ('sgd', {'momentum': 1.5, 'clip_gradient': None}, 'sgd with momentum 1.5'),
    ('adam', {}, 'adam'), ('signum', {'momentum': 0.9}, 'signum with momentum 0.9')])
def test_a_rate_with_momentum_is_for_sgd_and_nag(optimizer, params, named):
    params = {**params, 'lr_scheduler': BarzilaiBorwein()}
    made = optimizer if isinstance(optimizer, str) else optimizer(**params)
    if named is None:
        check_step_size(made, params, 1, False)
        return
    with pytest.raises(ValueError, match='^optimizer must be sgd or nag, with a momentum from 0 '
                                         'to below 1 .*, not %s$' % named):
        check_step_size(made, params, 1, False)


def test_a_scheduler_that_is_set_later_loses_no_snapshot():
    """Nothing checks it. The rate means something else to adam, but no snapshot is lost."""
    problem = Problem('softmax', rows=40)
    module = problem.bound()
    module.init_optimizer(optimizer='adam', optimizer_params={'learning_rate': 0.01})
    module._optimizer.lr_scheduler = rule = BarzilaiBorwein()
    for _ in range(2):
        module.update_full_grads(problem.iterator())
        module.forward_backward(next(problem.iterator()))
        module.update()
    assert rule.rate > 0


def test_an_optimizer_that_is_wrapped_is_looked_at():
    wrapped = type('Wrapped', (), {'default_opt': mx.optimizer.SGD(
        momentum=1.5, lr_scheduler=BarzilaiBorwein())})()
    with pytest.raises(ValueError, match='not sgd with momentum 1.5$'):
        check_step_size(wrapped, {}, 1, False)
    check_step_size(3, {}, 1, False)  # MXNet says that it is none

"""What a Barzilai-Borwein rate is, and which optimizers can be given it."""

import mxnet as mx
import numpy as np
import pytest

from pairs import in_pairs
from problems import Problem
from svrg_bb import fit
from svrg_optimization import BarzilaiBorwein
from svrg_optimization.step_size import check_step_size


@pytest.mark.parametrize('optimizer, params, message', [
    ('adam', {}, 'sgd or nag, .* for BarzilaiBorwein, not adam'),
    ('sgd', {'momentum': 1.5}, 'not sgd with momentum 1.5'),
    ('sgd', {'clip_gradient': 2.0}, 'not sgd with clip_gradient 2'),
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


def arrays_of(*values):
    return [mx.nd.array(np.atleast_1d(value)) for value in values]


def test_rate_and_curvature_are_those_of_two_snapshots():
    rule = BarzilaiBorwein(0.01)
    assert (rule(0), rule(9)) == (0.01, 0.01)
    assert rule.bounded is True
    rule = BarzilaiBorwein(0.5, bounded=False)
    assert (rule.base_lr, rule.bounded, rule.rate, rule.curvature) == (0.5, False, None, 0)
    # The second parameter has not moved, whatever its gradient does.
    rule.advance(arrays_of([3, 4], [0], 2), arrays_of([6, 2], [100], 1), 4)
    assert rule.rate == pytest.approx((25 + 4) / (18 + 8 + 2) / 4, rel=1e-12)
    assert rule.curvature == pytest.approx((36 + 4 + 1) / 28, rel=1e-12)
    assert rule(0) == rule.rate
    before = rule.rate, rule.curvature
    for moved, changed, steps in ((1, 1, 0), (1, 0, 3), (1, -1, 3), (0, 1, 3), (1, np.nan, 3),
                                  (1, np.inf, 3)):
        rule.advance(arrays_of(moved), arrays_of(changed), steps)
        assert (rule.rate, rule.curvature) == before, (moved, changed, steps)
    rule.advance(arrays_of(2), arrays_of(1), 1)
    kept = 0.98 * before[1]
    assert (rule.rate, rule.curvature) == (2, kept)  # the largest so far, 2 percent less
    rule.bounded = True
    rule.advance(arrays_of(2), arrays_of(1), 1)
    assert rule.curvature == 0.98 * kept and rule.rate == 1 / rule.curvature
    rule.advance(arrays_of(2), arrays_of(1), 1, units=4)  # gradients of batches four times as large
    assert rule.curvature == 0.98 * 4 * (0.98 * kept) and rule.rate == 1 / rule.curvature
    rule.bounded = False
    rule.advance(arrays_of(2), arrays_of(1), 1, momentum=0.75)
    assert rule.rate == 2 / 4
    rule.restart()
    moved, changed = np.float32([0.1, 0.3]), np.float32([0.7, 0.9])
    rule.advance(arrays_of(moved), arrays_of(changed), 1)
    moved, changed = moved.astype(float), changed.astype(float)
    assert rule.curvature == pytest.approx(changed @ changed / (moved @ changed), rel=1e-12)
    rule.restart()
    assert (rule.rate, rule.curvature) == (None, 0)


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
    params = {**params, 'lr_scheduler': BarzilaiBorwein(with_momentum=True)}
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

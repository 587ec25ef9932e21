"""Barzilai-Borwein steps, against float64."""

import logging
import re
import warnings

import mxnet as mx
import numpy as np
import pytest

import oracle
from cluster import run_workers
from problems import Problem, SparseProblem, assert_close
from svrg_optimization import BarzilaiBorwein, SVRGModule
from svrg_optimization.step_size import check_step_size

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


class SvrgBB:
    """SVRG-BB of Tan et al., Algorithm 1, and its rate at most 1 / L where that is asked for.

    With momentum the rate of the paper is multiplied by 1 - momentum.
    """

    def __init__(self, problem, rate, wd=0., bounded=True, batch_size=10, svrg=None, momentum=0.,
                 nesterov=False):
        self.svrg = svrg or problem.svrg(learning_rate=lambda _: self.rate, wd=wd,
                                         momentum=momentum, nesterov=nesterov)
        self.momentum = momentum
        self.rate, self.wd, self.bounded, self.batch_size = rate, wd, bounded, batch_size
        self.curvature, self.previous, self.steps = 0., None, 0
        self.rates = []

    def take_snapshot(self):
        self.svrg.take_snapshot()
        weights = self.svrg.snapshot
        full = {name: value / self.batch_size + self.wd * weights[name] * name.endswith('weight')
                for name, value in self.svrg.full_gradient.items()}
        now = [np.concatenate([part[name].ravel() for name in sorted(full)])
               for part in (weights, full)]
        if self.previous is not None:
            moved, changed = (new - old for new, old in zip(now, self.previous))
            if self.steps and moved @ changed > 0:
                self.rate = (1 - self.momentum) * moved @ moved / (moved @ changed) / self.steps
                self.curvature = max(self.curvature, changed @ changed / (moved @ changed))
                if self.bounded:
                    self.rate = min(self.rate, 1 / self.curvature)
        self.previous, self.steps = now, 0
        self.rates.append(self.rate)

    def step(self, rows):
        self.svrg.step(rows)
        self.steps += 1

    def fit(self, begin, end, update_freq, batches):
        for epoch in range(begin, end):
            if epoch % update_freq == 0:
                self.take_snapshot()
            for rows in batches:
                self.step(rows)
        return self.svrg.weights


def fit(problem, module, rule, begin=0, end=5, rate=0.05, wd=0., **kwargs):
    params = {'learning_rate': rate, 'wd': wd, 'lr_scheduler': rule}
    module.fit(problem.iterator(), eval_metric='mse', begin_epoch=begin, num_epoch=end,
               arg_params=problem.arg_params(), optimizer_params=params, **kwargs)
    return module


@pytest.mark.parametrize('kind', ['linear', 'softmax', 'perceptron'])
@pytest.mark.parametrize('wd', [0, 0.05])
@pytest.mark.parametrize('bounded', [True, False])
@pytest.mark.parametrize('update_freq', [1, 2])
@pytest.mark.parametrize('context, kvstore, update_on_kvstore', [
    (mx.cpu(), None, '1'), (mx.cpu(), 'object', '1'), (TWO_DEVICES, 'local', '1'),
    (TWO_DEVICES, 'device', '0')])
def test_is_svrg_bb(monkeypatch, kind, wd, bounded, update_freq, context, kvstore,
                    update_on_kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem(kind, rows=37)
    rule, rates = BarzilaiBorwein(bounded=bounded), []
    module = fit(problem, problem.module(update_freq, context=context), rule, wd=wd,
                 kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore,
                 batch_end_callback=lambda param: rates.append((param.epoch, rule(None))))
    twin = SvrgBB(problem, 0.05, wd, bounded)
    twin.fit(0, 5, update_freq, oracle.batches_of(37, 10))
    used = [rate for (epoch, rate), after in zip(rates, [(-1, 0), *rates])
            if epoch != after[0] and epoch % update_freq == 0]
    np.testing.assert_allclose(used, twin.rates, rtol=1e-5)
    assert len(set(used)) > 1
    problem.assert_weights(module, twin.svrg.weights)


@pytest.mark.parametrize('kind', ['softmax', 'perceptron'])
@pytest.mark.parametrize('bounded', [True, False])
@pytest.mark.parametrize('optimizer, wd', [
    ('sgd', 0.05), ('nag', 0)])  # the decay in MXNet's nag momentum is of the later weights
@pytest.mark.parametrize('momentum', [0.5, 0.9])
@pytest.mark.parametrize('context, kvstore', [(mx.cpu(), None), (TWO_DEVICES, 'local')])
def test_momentum(kind, bounded, optimizer, wd, momentum, context, kvstore):
    problem = Problem(kind, rows=37)
    rule = BarzilaiBorwein(bounded=bounded, with_momentum=True)
    params = {'learning_rate': 0.01, 'wd': wd, 'momentum': momentum, 'lr_scheduler': rule}
    module = problem.module(2, context=context)
    module.fit(problem.iterator(), eval_metric='mse', num_epoch=5, arg_params=problem.arg_params(),
               optimizer=optimizer, optimizer_params=params, kvstore=kvstore)
    twin = SvrgBB(problem, 0.01, wd, bounded, momentum=momentum, nesterov=optimizer == 'nag')
    twin.fit(0, 5, 2, oracle.batches_of(37, 10))
    np.testing.assert_allclose(rule.rate, twin.rate, rtol=1e-5)
    problem.assert_weights(module, twin.svrg.weights)


def badly_conditioned():
    rng = np.random.RandomState(0)
    problem = Problem(rows=20, features=8)
    problem.features *= np.logspace(0, -1, 8)
    problem.targets = problem.features @ rng.normal(size=8) + rng.normal(0.5, 0.3, 20)
    return problem


@pytest.mark.parametrize('bounded', [True, False])
def test_bound(bounded):
    problem, rule = badly_conditioned(), BarzilaiBorwein(bounded=bounded)
    module = fit(problem, problem.module(1), rule, end=5)
    twin = SvrgBB(problem, 0.05, bounded=bounded)
    twin.fit(0, 5, 1, oracle.batches_of(20, 10))
    np.testing.assert_allclose(rule.rate, twin.rate, rtol=1e-5)
    np.testing.assert_allclose(rule.curvature, twin.curvature, rtol=1e-5)
    problem.assert_weights(module, twin.svrg.weights)
    other = SvrgBB(problem, 0.05, bounded=not bounded)
    other.fit(0, 5, 1, oracle.batches_of(20, 10))
    assert abs(other.rate - twin.rate) > 0.1 * twin.rate


@pytest.mark.parametrize('rate', [1e-3, 0.01, 0.1, 1.0])
def test_needs_no_tuning(rate):
    problem = badly_conditioned()
    module = fit(problem, problem.module(2), BarzilaiBorwein(), end=600, rate=rate)
    design = np.column_stack([problem.features, np.ones(20)])
    solution = np.linalg.lstsq(design, problem.targets, rcond=None)[0]

    def loss(weights):
        return 0.5 * ((design @ weights - problem.targets) ** 2).mean()

    arg_params, _ = module.get_params()
    found = np.append(arg_params['fc_weight'].asnumpy(), arg_params['fc_bias'].asnumpy())
    assert loss(found) - loss(solution) < 1e-5


def test_rescale_grad_of_the_user():
    """The rate is that of the mean over the rows, whatever the gradients are multiplied by."""
    problem = Problem('softmax', rows=40)
    module, rule = problem.module(1), BarzilaiBorwein()
    optimizer = mx.optimizer.create('sgd', learning_rate=0.5, rescale_grad=0.01, lr_scheduler=rule)
    warnings.filterwarnings('ignore', 'Optimizer created manually')
    module.fit(problem.iterator(), eval_metric='acc', num_epoch=4,
               arg_params=problem.arg_params(), optimizer=optimizer)
    twin = SvrgBB(problem, 0.05)
    twin.fit(0, 4, 1, oracle.batches_of(40, 10))
    np.testing.assert_allclose(rule.rate, 10 * twin.rate, rtol=1e-5)
    problem.assert_weights(module, twin.svrg.weights)


def test_sparse_parameters():
    problem = SparseProblem(rows=40)
    rule = BarzilaiBorwein()
    module = problem.module(1)
    fit(problem, module, rule, end=4, kvstore=None)
    twin = SvrgBB(problem, 0.05)
    twin.fit(0, 4, 1, oracle.batches_of(40, 10))
    np.testing.assert_allclose(rule.rate, twin.rate, rtol=1e-5)
    problem.assert_weights(module, twin.svrg.weights)


def test_stays_where_nothing_is_learnt():
    problem = Problem(rows=40)
    module, rule = problem.bound(), BarzilaiBorwein()
    module.init_optimizer(optimizer_params={'learning_rate': 0.1, 'lr_scheduler': rule})
    train_data = problem.iterator()
    for _ in range(3):
        module.update_full_grads(train_data)
    assert rule.rate is None and rule(0) == 0.1


def test_stays_where_the_loss_is_concave():
    """The gradient of -w²/2 falls where w grows."""
    data = mx.sym.Variable('data')
    weight = mx.sym.Variable('w', shape=(1,), init=mx.init.One())
    concave = -mx.sym.broadcast_mul(data, mx.sym.square(weight)) / 2
    symbol = mx.sym.MakeLoss(concave + 0 * mx.sym.Variable('label'))
    module, rule = SVRGModule(symbol, label_names=['label'], update_freq=1), BarzilaiBorwein()
    train_data = mx.io.NDArrayIter(np.ones((8, 1)), np.ones((8, 1)), 4, label_name='label')
    module.fit(train_data, eval_metric=mx.metric.Loss(), num_epoch=3,
               optimizer_params={'learning_rate': 0.1, 'lr_scheduler': rule})
    weight = module.get_params()[0]['w'].asscalar()
    assert weight > 1 and rule.rate is None


def test_logs_the_rate_of_each_epoch(caplog):
    problem = Problem(rows=40)
    rule = BarzilaiBorwein()
    with caplog.at_level(logging.INFO):
        fit(problem, problem.module(2), rule, end=5)
    logged = re.findall(r'Epoch\[(\d)\] Learning rate=(\S+)', caplog.text)
    assert [int(epoch) for epoch, _ in logged] == [2, 4]
    assert float(logged[-1][1]) == pytest.approx(rule.rate, rel=1e-5)


@pytest.mark.parametrize('stop', [1, 2, 3, 4])
def test_same_bits_after_a_stop(tmp_path, stop):
    problem = Problem('softmax', rows=37)
    unbroken = fit(problem, problem.module(2), BarzilaiBorwein())
    prefix = str(tmp_path / 'model')
    module = fit(problem, problem.module(2), BarzilaiBorwein(), end=stop)
    module.save_checkpoint(prefix, stop, save_optimizer_states=True)
    loaded = SVRGModule.load(prefix, stop, load_optimizer_states=True, label_names=('label',))
    loaded.save_checkpoint(prefix, stop)  # before there is an optimizer again
    resumed = SVRGModule.load(prefix, stop, label_names=('label',))
    fit(problem, resumed, BarzilaiBorwein(), stop)
    for name, value in unbroken.get_params()[0].items():
        assert (value.asnumpy() == resumed.get_params()[0][name].asnumpy()).all()


@pytest.mark.parametrize('optimizer, params, message', [
    ('adam', {}, 'sgd without momentum and clip_gradient for BarzilaiBorwein, not adam'),
    ('sgd', {'momentum': 0.9}, 'not sgd with momentum 0.9'),
    ('nag', {'momentum': 0.5}, 'not nag with momentum 0.5'),
    ('sgd', {'clip_gradient': 2.0}, 'not sgd with clip_gradient 2'),
    (mx.optimizer.SGD(momentum=0.1, lr_scheduler=BarzilaiBorwein()), {}, 'momentum 0.1')])
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
    plain.init_optimizer(optimizer_params={'momentum': 0.9, 'lr_scheduler': BarzilaiBorwein()})
    module = problem.bound()
    with pytest.raises(ValueError, match='not sgd with momentum 0.9'):
        module.borrow_optimizer(plain)
    assert not module.optimizer_initialized


@pytest.mark.parametrize('change', ['reshape', 'rebind'])
@pytest.mark.parametrize('batch_size', [5, 20])
def test_other_batch_size_at_the_next_snapshot(change, batch_size):
    """The optimizer's rescale_grad stays that of the first one: the rate is the inverse."""
    problem = Problem('softmax', rows=40)
    rule = BarzilaiBorwein(bounded=False)
    module = problem.bound()
    module.init_optimizer(optimizer_params={'learning_rate': 0.1, 'lr_scheduler': rule})
    twin = SvrgBB(problem, 0.1, bounded=False)
    train_data = problem.iterator()
    twin.take_snapshot()
    module.update_full_grads(train_data)
    train_data.reset()
    for rows, batch in zip(oracle.batches_of(40, 10), train_data):
        module.forward_backward(batch)
        module.update()
        twin.step(rows)
    twin.take_snapshot()
    train_data = problem.iterator(batch_size)
    if change == 'reshape':
        module.reshape(train_data.provide_data, train_data.provide_label)
    else:
        module.get_params()
        module.bind(train_data.provide_data, train_data.provide_label, force_rebind=True)
    module.update_full_grads(train_data)
    np.testing.assert_allclose(rule.rate, twin.rate * 10 / batch_size, rtol=1e-5)
    np.testing.assert_allclose(rule.curvature, twin.curvature * batch_size / 10, rtol=1e-5)


def test_a_new_training_begins_anew():
    problem = Problem(rows=40)
    rule = BarzilaiBorwein()
    module = fit(problem, problem.module(1), rule)
    assert rule.rate is not None and rule.curvature
    module.init_params(mx.init.Normal(), force_init=True)
    assert rule.rate is None and not rule.curvature
    fit(problem, module, rule)
    assert rule.rate is not None
    fit(problem, problem.module(1), rule, end=1)
    assert rule.rate is None


@pytest.mark.parametrize('multipliers', [{'fc_weight': 3.}, {0: 3.}])
def test_weight_decay_by_number_and_by_name(multipliers):
    problem = Problem(rows=40)
    optimizer = mx.optimizer.create('sgd', learning_rate=0.05, wd=0.05, rescale_grad=0.1,
                                    lr_scheduler=BarzilaiBorwein(0.05))
    module = problem.bound()
    assert module._param_names[0] == 'fc_weight'
    module.init_optimizer(kvstore=None, optimizer=optimizer)
    optimizer.set_wd_mult(multipliers)
    if 0 in multipliers:
        optimizer.wd_mult = {0: 3., 1: 0.}
    train_data = problem.iterator()
    module.fit(train_data, eval_metric='mse', num_epoch=4)
    twin = SvrgBB(problem, 0.05, 0.15)
    problem.assert_weights(module, twin.fit(0, 4, 1, oracle.batches_of(40, 10)))


def test_parameters_that_are_not_stepped_say_nothing():
    problem = Problem('softmax', rows=40)
    rules = BarzilaiBorwein(), BarzilaiBorwein()
    fixed = problem.module(1, fixed_param_names=['fc_bias'])
    fit(problem, fixed, rules[0])
    optimizer = mx.optimizer.create('sgd', learning_rate=0.05, rescale_grad=0.1,
                                    lr_scheduler=rules[1])
    optimizer.set_lr_mult({'fc_bias': 0.})
    module = problem.module(1)
    module.fit(problem.iterator(), eval_metric='acc', num_epoch=5, optimizer=optimizer,
               arg_params=problem.arg_params())
    np.testing.assert_allclose(rules[1].rate, rules[0].rate, rtol=1e-5)
    np.testing.assert_allclose(rules[1].curvature, rules[0].curvature, rtol=1e-5)


def test_bad_arguments():
    with pytest.raises(ValueError, match='alpha must not be 0'):
        problem = Problem(rows=40)
        fit(problem, problem.module(1, alpha=0), BarzilaiBorwein())
    with pytest.raises(TypeError, match='bounded must be True or False, not 1'):
        BarzilaiBorwein(bounded=1)
    for bad, error in ((0, ValueError), (float('nan'), ValueError), (float('inf'), ValueError),
                       ('0.1', TypeError), (True, TypeError)):
        with pytest.raises(error, match='base_lr must be a number above 0'):
            BarzilaiBorwein(bad)


def arrays_of(*values):
    return [mx.nd.array(np.atleast_1d(value)) for value in values]


def test_rate_and_curvature_of_two_snapshots():
    rule = BarzilaiBorwein()
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
    assert (rule.rate, rule.curvature) == (2, before[1])  # the largest curvature so far
    rule.bounded = True
    rule.advance(arrays_of(2), arrays_of(1), 1)
    assert rule.rate == 1 / before[1]
    rule.advance(arrays_of(2), arrays_of(1), 1, units=4)  # gradients of batches four times as large
    assert rule.curvature == 4 * before[1] and rule.rate == 1 / rule.curvature
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


@pytest.mark.parametrize('alpha', [0, 1, lambda _: 0])
@pytest.mark.parametrize('on_servers', [False, True])
@pytest.mark.parametrize('optimizer, params, named', [
    ('sgd', {}, None), ('SGD', {'momentum': 0, 'clip_gradient': None}, None),
    ('nag', {}, 'nag'), ('no such', {}, 'no such'),
    ('sgd', {'momentum': 0.5}, 'sgd with momentum 0.5'), (mx.optimizer.SGD, {}, None),
    (mx.optimizer.SGD, {'clip_gradient': 1.5, 'momentum': 0.5},
     'sgd with momentum 0.5 with clip_gradient 1.5'), (mx.optimizer.NAG, {}, 'nag')])
def test_what_a_rate_can_be_given_to(optimizer, params, named, on_servers, alpha):
    def check(**rule):
        made = optimizer if isinstance(optimizer, str) else optimizer(**params, **rule)
        check_step_size(made, {**params, **rule}, alpha, on_servers)

    check()
    check(lr_scheduler=mx.lr_scheduler.FactorScheduler(1))
    message = ('^optimizer must be sgd .* not %s$' % named if named else
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
def test_what_a_rate_with_momentum_can_be_given_to(optimizer, params, named):
    params = {**params, 'lr_scheduler': BarzilaiBorwein(with_momentum=True)}
    made = optimizer if isinstance(optimizer, str) else optimizer(**params)
    if named is None:
        check_step_size(made, params, 1, False)
        return
    with pytest.raises(ValueError, match='^optimizer must be sgd or nag, with a momentum from 0 '
                                         'to below 1 .*, not %s$' % named):
        check_step_size(made, params, 1, False)


def test_a_scheduler_that_is_set_later():
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
        momentum=0.5, lr_scheduler=BarzilaiBorwein())})()
    with pytest.raises(ValueError, match='not sgd with momentum 0.5$'):
        check_step_size(wrapped, {}, 1, False)
    check_step_size(3, {}, 1, False)  # MXNet says that it is none


@pytest.mark.parametrize('kind, divided_by', [
    ('dist_sync', 16), ('dist', 8), pytest.param('dist_device', 8, marks=pytest.mark.exhaustive)])
def test_workers_that_update_share_the_rate(tmp_path, kind, divided_by):
    """Module divides by the rows of all workers only where the kind has "sync" in its name."""
    problem = Problem('softmax', rows=48)
    results = run_workers('fit_with_step_size', tmp_path, 2, 1, {'MXNET_UPDATE_ON_KVSTORE': '0'},
                          kind=kind, problem={'kind': 'softmax', 'rows': 48}, sizes=[24, 24],
                          batch_size=8, num_epoch=4, wd=0.05)
    svrg = oracle.Svrg(problem.network, problem.weights, problem.features, problem.targets, 16,
                       oracle.Sgd(lambda _: twin.rate, wd=0.05, rescale=1 / divided_by))
    twin = SvrgBB(problem, 0.05, 0.05, batch_size=divided_by, svrg=svrg)
    twin.fit(0, 4, 1, [np.r_[begin:begin + 8, begin + 24:begin + 32] for begin in (0, 8, 16)])
    for weights, rate in results:
        assert_close(weights, svrg.weights)
        np.testing.assert_allclose(rate, twin.rate, rtol=1e-5)


def test_servers_that_update_are_an_error(tmp_path):
    for message in run_workers('fit_with_step_size', tmp_path, problem={'rows': 24},
                               sizes=[12, 12], batch_size=4, num_epoch=1, wd=0):
        assert 'kvstore must leave the updates to the workers' in message

"""No training by svrg_lbfgs ends above its start, and none that did not converge is silent."""

import warnings

import mxnet as mx
import numpy as np
import pytest
from sklearn import datasets

from linear_models import Problem, by_gluon, by_module
from newton import mean_loss
from svrg_optimization import SVRGModule

WD = 1e-3
both = pytest.mark.parametrize('front_end', [by_module, by_gluon])


def heavy_rows(seed, loss):
    rng = np.random.RandomState(seed)
    rows = rng.normal(size=(400, 5)).astype('float32')
    scores = rows @ rng.normal(size=(5, 3)) + rng.gumbel(size=(400, 3))
    rows[:4] *= 1000
    labels = {'logistic': scores[:, 0] > 0, 'softmax': scores.argmax(axis=1),
              'huber': scores[:, 0]}[loss]
    return Problem(loss, rows, labels, WD, batch=40, shuffle=True), mx.init.Zero()


def shipped(load, loss, initializer):
    return Problem(loss, *load(return_X_y=True), WD, batch=40, shuffle=True), initializer


PROBLEMS = {
    'heavy logistic': heavy_rows(4, 'logistic'),
    'heavy softmax': heavy_rows(1, 'softmax'),
    'heavy huber': heavy_rows(2, 'huber'),
    'cancer': shipped(datasets.load_breast_cancer, 'logistic', mx.init.Uniform(0.07)),
    'wine': shipped(datasets.load_wine, 'softmax', mx.init.Normal(1)),
    'diabetes': shipped(datasets.load_diabetes, 'squares', mx.init.Xavier())}


def check(front_end, name, momentum, epochs):
    problem, initializer = PROBLEMS[name]
    np.random.seed(4)
    mx.random.seed(4)
    start = {'fc_weight': mx.nd.zeros((problem.outputs, problem.rows.shape[1])),
             'fc_bias': mx.nd.zeros(problem.outputs)}
    initializer(mx.init.InitDesc('fc_weight'), start['fc_weight'])
    rows, labels = (each.astype('float32').astype('f8') for each in (problem.rows, problem.targets))

    def objective(weight, bias):
        return mean_loss(problem.loss, rows @ weight.T + bias, labels) + WD / 2 * (
            weight ** 2).sum()

    before = objective(*(value.asnumpy().astype('f8') for value in start.values()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        found = front_end(problem, epochs, 1e-4, params={'momentum': momentum}, start=start)
    after = objective(found.weight, found.bias)
    assert after <= before * (1 + 1e-7)
    assert found.by.objective == pytest.approx(after, rel=1e-5)
    assert found.by.has_converged or any('training did not converge' in str(each.message)
                                         for each in caught)


@both
@pytest.mark.parametrize('name', PROBLEMS)
def test_no_training_ends_above_its_start(front_end, name):
    check(front_end, name, 0.9, 5)


@pytest.mark.exhaustive
@pytest.mark.parametrize('momentum', [0.9, 0])
@both
@pytest.mark.parametrize('name', PROBLEMS)
def test_none_does_after_any_number_of_epochs(front_end, name, momentum):
    for epochs in range(1, 31):
        check(front_end, name, momentum, epochs)


def heavy_logistic():
    problem, _ = heavy_rows(4, 'logistic')
    problem.shuffle = False
    return problem, problem.iterator()


def two_snapshots(context=mx.cpu()):
    """Return a module between two snapshots, its rule, its data and its weights at the first."""
    problem, train_data = heavy_logistic()
    module = SVRGModule(problem.symbol(), label_names=('label',), update_freq=1, context=context)
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(mx.init.Zero())
    module.init_optimizer(optimizer='svrg_lbfgs', kvstore=None if context == mx.cpu() else 'local')
    module.update_full_grads(train_data)
    start = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    return module, module._optimizer.lr_scheduler, train_data, start


def step_through(module, train_data):
    train_data.reset()
    for batch in train_data:
        module.forward_backward(batch)
        module.update()


@pytest.mark.parametrize('context', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
def test_training_goes_back_without_momentum_and_with_half_the_rate(context, without_jumps):
    module, rule, train_data, start = two_snapshots(context)
    norm, rate_before = module.gradient_norm, rule.rate
    rule.rate = 3 * rule.gamma
    step_through(module, train_data)
    module.update_full_grads(train_data)
    assert (rule.regime.slowdown, rule.num_rollbacks) == (2, 1) and rule.rate <= rate_before
    np.testing.assert_allclose(module.gradient_norm, norm, rtol=1e-6)
    updater = module._kvstore._updater if module._update_on_kvstore else module._updater
    assert not set(updater.states) & {0, 1, 2, 3, 'fc_weight', 'fc_bias'}
    for name, value in module.get_params()[0].items():
        np.testing.assert_array_equal(value.asnumpy(), start[name])
    rule.regime.jumps = 5
    for _ in range(20):
        step_through(module, train_data)
        module.update_full_grads(train_data)
    assert module.objective < 0.9 * np.log(2)


def test_weights_that_have_not_moved_are_no_worse():
    """Another order of raw rows changed the objective: rates were halved down to 1e-38."""
    module, rule, train_data, _ = two_snapshots()
    rule.rate = 1e-25
    step_through(module, train_data)
    train_data.reset()
    label = train_data.label[0][1]
    label[:] = label + 1e-3 * (1 - 2 * label)  # as by another rounding
    module.update_full_grads(train_data)
    assert rule.num_rollbacks == 0


def test_weights_that_no_step_has_made_are_kept(without_jumps):
    module, rule, train_data, start = two_snapshots()
    module.set_params({name: mx.nd.array(value + 7) for name, value in start.items()}, {})
    module.update_full_grads(train_data)
    assert rule.num_rollbacks == 0
    np.testing.assert_allclose(module.get_params()[0]['fc_weight'].asnumpy(),
                               start['fc_weight'] + 7)


def test_weights_that_a_user_sets_are_not_taken_back(without_jumps):
    problem, train_data = heavy_logistic()
    module = SVRGModule(problem.symbol(), label_names=('label',), update_freq=1)
    given = {'fc_weight': mx.nd.ones((1, 5)) * 3, 'fc_bias': mx.nd.zeros(1)}

    def load(epoch, *_):
        if epoch == 1:
            module.set_params(given, {})

    seen = []
    module.fit(train_data, eval_metric=[], num_epoch=3, initializer=mx.init.Zero(),
               optimizer='svrg_lbfgs', epoch_end_callback=load,
               batch_end_callback=lambda param: seen.append((param.epoch, module.objective)))
    expected = mean_loss('logistic', problem.rows.astype('f8') @ np.full((5, 1), 3.),
                         problem.targets)
    found = next(objective for epoch, objective in seen if epoch == 2)
    assert found == pytest.approx(expected, rel=1e-5) and expected > 2 * seen[0][1]

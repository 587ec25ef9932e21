"""No training by newton_cg ends above its start, and none that did not converge is silent."""

import warnings

import mxnet as mx
import numpy as np
import pytest
from sklearn import datasets

from linear_models import Problem, by_gluon, by_module
from newton import mean_loss

WD = 1e-3


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


def check(front_end, name, epochs):
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
        found = front_end(problem, epochs, 1e-4, start=start)
    after = objective(found.weight, found.bias)
    assert after <= before * (1 + 1e-7)
    rounding = np.finfo('f4').eps * np.abs(rows @ found.weight.T).max()  # of MXNet's outputs
    assert found.by.objective == pytest.approx(after, rel=1e-5, abs=rounding)
    assert found.by.has_converged or any('training did not converge' in str(each.message)
                                         for each in caught)


@pytest.mark.parametrize('name, front_end', zip(PROBLEMS, 3 * [by_module, by_gluon]))
def test_no_training_ends_above_its_start(name, front_end):
    check(front_end, name, 5)


@pytest.mark.exhaustive
@pytest.mark.parametrize('front_end', [by_module, by_gluon])
@pytest.mark.parametrize('name', PROBLEMS)
def test_none_does_after_any_number_of_epochs(front_end, name):
    for epochs in range(1, 31):
        check(front_end, name, epochs)

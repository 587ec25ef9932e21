"""Losses whose gradient is 0 count as none: the others decide how a batch is reduced."""

import warnings

import mxnet as mx
import pytest

import oracle
from problems import Problem

LABEL = mx.sym.Variable('label')


def scores():
    return mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')


def problem_with(*losses):
    problem = Problem('softmax', rows=25)
    problem.symbol = mx.sym.Group(list(losses))
    return problem


def softmax_of(outputs, **kwargs):
    return mx.sym.SoftmaxOutput(outputs, LABEL, **kwargs)


def full_gradient(problem, factor):
    gradients = oracle.softmax_regression(problem.weights, problem.features, problem.targets)
    return {name: factor * value for name, value in gradients.items()}


@pytest.mark.parametrize('shown', [
    lambda outputs: mx.sym.MakeLoss(outputs, grad_scale=0),
    lambda outputs: mx.sym.MakeLoss(outputs, grad_scale=0.0, normalization='batch'),
    lambda outputs: softmax_of(outputs, grad_scale=0, name='shown'),
    lambda outputs: mx.sym.LogisticRegressionOutput(
        outputs, mx.sym.one_hot(LABEL, depth=3), grad_scale=0)])
@pytest.mark.parametrize('normalization, factor', [('batch', 1 / 25), ('null', 10 / 25)])
def test_full_gradient_is_that_of_the_loss_with_a_gradient(shown, normalization, factor):
    outputs = scores()
    problem = problem_with(softmax_of(outputs, normalization=normalization), shown(outputs))
    module = problem.bound()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, factor))


def test_warning_of_mixed_losses_says_what_to_do():
    outputs = scores()
    problem = problem_with(softmax_of(outputs, normalization='batch', name='mean'),
                           softmax_of(outputs, grad_scale=1e-9, name='sum'))
    with pytest.warns(UserWarning, match='batch size that divides the rows, or pass loss_is_mean'):
        problem.bound().update_full_grads(problem.iterator())
    declared = problem.bound(loss_is_mean=True)
    declared.update_full_grads(problem.iterator())
    problem.assert_full_gradient(declared, full_gradient(problem, 1 / 25))

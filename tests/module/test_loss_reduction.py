"""Losses that are means and losses that are sums: how a batch counts in the full gradient."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from full_gradients import assert_pass, full_gradient, warnings_of_rows, weighted_by_real_rows
from problems import TWO_DEVICES, Problem

LABEL = mx.sym.Variable('label')


def softmax(scores, **kwargs):
    return mx.sym.SoftmaxOutput(scores, LABEL, **kwargs)


def losses_of(scores):
    return -mx.sym.pick(mx.sym.log_softmax(scores), LABEL)


def mean(scores):
    return softmax(scores, normalization='batch')


def beside(kind, shown):
    """Put a loss without a gradient beside a loss."""
    return lambda scores: mx.sym.Group([
        softmax(scores, normalization=kind, name='loss'), shown(scores)])


def problem_of(loss, rows=37):
    problem = Problem('softmax', rows=rows)
    problem.symbol = loss(mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc'))
    return problem


# Losses that have no gradient count as none: the others decide.
SHOWN = [
    lambda scores: mx.sym.MakeLoss(scores, grad_scale=0),
    lambda scores: mx.sym.MakeLoss(scores, grad_scale=0.0, normalization='batch'),
    lambda scores: softmax(scores, grad_scale=0, name='shown'),
    lambda scores: mx.sym.LogisticRegressionOutput(
        scores, mx.sym.one_hot(LABEL, depth=3), grad_scale=0),
    lambda scores: mx.sym.MakeLoss(mx.sym.BlockGrad(mx.sym.sum(scores))),
    lambda scores: mx.sym.make_loss(mx.sym.sum(mx.sym.BlockGrad(scores) * 2))]


def with_its_sum(scores):
    loss = mean(scores)
    return mx.sym.Group([loss, mx.sym.make_loss(mx.sym.sum(loss))])


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('loss, loss_is_mean, units', [
    (mean, None, 1), (mean, True, 1), (softmax, False, 10),
    (lambda scores: softmax(scores, normalization='valid'), None, 1),
    (lambda scores: mx.sym.MakeLoss(mx.sym.mean(losses_of(scores))), True, 1),
    (lambda scores: mx.sym.MakeLoss(mx.sym.expand_dims(losses_of(scores), 1),
                                    normalization='batch'), None, 1),
    # MXNet takes a vector for one row.
    (lambda scores: mx.sym.MakeLoss(losses_of(scores), normalization='batch'), None, 10),
    # MXNet's loss layers ignore the gradient from above, a zero too.
    (lambda scores: mx.sym.BlockGrad(mean(scores)), None, 1),
    *((beside(kind, shown), None, units) for shown in SHOWN
      for kind, units in (('batch', 1), ('null', 10))),
    (with_its_sum, None, 1)])
def test_a_full_gradient_is_reduced_as_the_loss(loss, loss_is_mean, units):
    problem = problem_of(loss)
    module = problem.bound(loss_is_mean=loss_is_mean)
    for _ in range(2):
        assert_pass(problem, module, units=units)


@pytest.mark.parametrize('work_load_list', [None, [1, 3]])
@pytest.mark.parametrize('rows', [40, 37, 33, 32])
def test_means_of_several_devices_add_up(rows, work_load_list):
    """Module adds up the devices' means: twice the mean over all rows, each counted alike."""
    problem = problem_of(mean, rows)
    module = problem.bound(context=TWO_DEVICES, work_load_list=work_load_list)
    module.init_optimizer(kvstore='device')
    assert_pass(problem, module, units=2)


def half_labelled(rows=37, ignored=-1):
    problem = problem_of(lambda scores: softmax(
        scores, normalization='valid', use_ignore=True, ignore_label=ignored), rows)
    labelled = np.random.RandomState(1).uniform(size=rows) < 0.5
    labelled[:12] = False  # a batch without any label, and one with few
    problem.targets[~labelled] = ignored
    return problem, np.flatnonzero(labelled)


@pytest.mark.parametrize('context, work_load_list', [
    (mx.cpu(), None), (TWO_DEVICES, None), (TWO_DEVICES, [1, 3])])
@pytest.mark.parametrize('rows, ignored', [(40, -1), (37, -1), (33, 7)])
@pytest.mark.parametrize('stores', [False, True])
def test_a_mean_over_labelled_rows_has_the_gradient_of_these(
        context, work_load_list, rows, ignored, stores):
    problem, labelled = half_labelled(rows, ignored)
    module = problem.bound(context=context, work_load_list=work_load_list,
                           store_snapshot_grads=stores)
    module.init_optimizer(kvstore='device')
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(
        problem, problem.weights, labelled, len(context) if context is TWO_DEVICES else 1))


def test_training_with_ignored_labels_ends_at_the_optimum_of_the_others():
    problem, labelled = half_labelled()
    np.random.seed(0)
    module = problem.module(2, tol=1e-5)
    problem.fit(module, 200, problem.iterator(shuffle=True), optimizer_params={
        'learning_rate': 1., 'rescale_grad': 1., 'wd': 0.1})
    weights = {name: value.asnumpy().astype('float64')
               for name, value in module.get_params()[0].items()}
    gradient = full_gradient(problem, weights, labelled, 1)
    gradient['fc_weight'] += 0.1 * weights['fc_weight']
    assert max(np.abs(value).max() for value in gradient.values()) < 1.01e-5


@pytest.mark.parametrize('loss', [
    lambda scores: mx.sym.MakeLoss(losses_of(scores) * (LABEL >= 0), normalization='valid'),
    lambda scores: mx.sym.SoftmaxOutput(scores, LABEL * 1, normalization='valid', use_ignore=True)])
def test_it_is_said_where_what_counts_is_not_known(loss):
    problem, _ = half_labelled()
    problem.symbol = problem_of(loss).symbol
    module = problem.bound()
    with pytest.warns(UserWarning, match="normalization='valid' counts what only the loss knows"):
        module.update_full_grads(problem.iterator())
    module.update_full_grads(problem.iterator())


@pytest.mark.parametrize('loss, loss_is_mean', [
    (mean, None), (lambda scores: mx.sym.MakeLoss(mx.sym.mean(losses_of(scores))), True)])
def test_training_with_a_mean_loss_is_svrg(loss, loss_is_mean):
    problem = problem_of(loss)
    module = problem.fit(problem.module(2, loss_is_mean=loss_is_mean), 6, optimizer_params={
        'learning_rate': 0.3, 'rescale_grad': 1.0})
    problem.assert_weights(module, problem.svrg(learning_rate=0.3).fit(6, 2))


@pytest.mark.parametrize('rows', [40, 37])
def test_losses_of_both_kinds_are_warned_of_where_they_differ(rows):
    def network(weights, features, targets):
        gradients = oracle.softmax_regression(weights, features, targets)
        return {name: value * (1 + 1 / len(features)) for name, value in gradients.items()}

    problem = problem_of(beside('batch', softmax), rows)
    problem.network = network
    module = problem.bound()
    with warnings_of_rows() as caught:
        module.update_full_grads(problem.iterator())
        module.update_full_grads(problem.iterator())
    assert len(caught) == (rows != 40)
    assert all('losses that are means' in str(warning.message) and 'batch size that divides the '
               'rows, or loss_is_mean' in str(warning.message) for warning in caught)
    problem.assert_full_gradient(module, weighted_by_real_rows(problem))

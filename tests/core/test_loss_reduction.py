"""Losses that are means and losses that are sums."""

import json

import mxnet as mx
import numpy as np
import pytest

import oracle
from full_gradients import full_gradient, warnings_of_rows, weighted_by_real_rows
from problems import Problem
from svrg_optimization.module.loss_reduction import LossReduction, is_row_wise

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def mean_loss(kind):
    """A problem whose loss is a mean over the batch."""
    problem = Problem('softmax', rows=37)
    data, label = mx.sym.Variable('data'), mx.sym.Variable('label')
    scores = mx.sym.FullyConnected(data, num_hidden=3, name='fc')
    if kind in ('batch', 'valid'):
        problem.symbol = mx.sym.SoftmaxOutput(scores, label, normalization=kind)
    else:
        losses = -mx.sym.pick(mx.sym.log_softmax(scores), label)
        problem.symbol = (mx.sym.MakeLoss(mx.sym.mean(losses)) if kind == 'operators' else
                          mx.sym.MakeLoss(mx.sym.expand_dims(losses, 1), normalization='batch'))
    return problem


@pytest.mark.parametrize('kind, loss_is_mean', [
    ('batch', None), ('valid', None), ('make_loss', None), ('batch', True), ('operators', True)])
def test_losses_that_are_means_have_a_mean_full_gradient(kind, loss_is_mean):
    problem = mean_loss(kind)
    module = problem.bound(loss_is_mean=loss_is_mean)
    for _ in range(2):
        module.update_full_grads(problem.iterator())
        problem.assert_full_gradient(module,
                                     full_gradient(problem, problem.weights, np.arange(37), 1))


@pytest.mark.parametrize('work_load_list', [None, [1, 3]])
@pytest.mark.parametrize('rows', [40, 37, 33, 32])
def test_means_of_several_devices_add_up(rows, work_load_list):
    """Module adds up the devices' means: twice the mean over all rows, each counted alike."""
    problem = Problem('softmax', rows=rows)
    problem.symbol = mean_loss('batch').symbol
    module = problem.bound(context=TWO_DEVICES, work_load_list=work_load_list)
    module.init_optimizer(kvstore='device')
    module.update_full_grads(problem.iterator())
    expected = full_gradient(problem, problem.weights, np.arange(rows), 2)
    problem.assert_full_gradient(module, expected)


def half_labelled(rows=37, ignored=-1):
    problem = Problem('softmax', rows=rows)
    labelled = np.random.RandomState(1).uniform(size=rows) < 0.5
    labelled[:12] = False  # a batch without any label, and one with few
    problem.targets[~labelled] = ignored
    problem.symbol = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc'),
        mx.sym.Variable('label'), normalization='valid', use_ignore=True, ignore_label=ignored)
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
    module.fit(problem.iterator(shuffle=True), num_epoch=200, arg_params=problem.arg_params(),
               eval_metric=[], optimizer_params={'learning_rate': 1., 'rescale_grad': 1.,
                                                 'wd': 0.1})
    weights = {name: value.asnumpy().astype('float64')
               for name, value in module.get_params()[0].items()}
    gradient = full_gradient(problem, weights, labelled, 1)
    gradient['fc_weight'] += 0.1 * weights['fc_weight']
    assert max(np.abs(value).max() for value in gradient.values()) < 1.01e-5


@pytest.mark.parametrize('kind', ['MakeLoss', 'label of an operation'])
def test_it_is_said_where_what_counts_is_not_known(kind):
    problem, _ = half_labelled()
    score = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    label = mx.sym.Variable('label')
    problem.symbol = (
        mx.sym.MakeLoss(-mx.sym.pick(mx.sym.log_softmax(score), label) * (label >= 0),
                        normalization='valid') if kind == 'MakeLoss' else
        mx.sym.SoftmaxOutput(score, label * 1, normalization='valid', use_ignore=True))
    module = problem.bound()
    with pytest.warns(UserWarning, match="normalization='valid' counts what only the loss knows"):
        module.update_full_grads(problem.iterator())
    module.update_full_grads(problem.iterator())


@pytest.mark.parametrize('kind', ['batch', 'operators'])
def test_training_with_a_mean_loss_is_svrg(kind):
    problem = mean_loss(kind)
    module = problem.module(2, loss_is_mean=True if kind == 'operators' else None)
    problem.fit(module, 6, optimizer_params={'learning_rate': 0.3, 'rescale_grad': 1.0})
    problem.assert_weights(module, problem.svrg(learning_rate=0.3).fit(6, 2))


def test_a_vector_of_losses_that_mxnet_takes_for_one_row_is_a_sum():
    """Its gradient is a sum for all that ``normalization='batch'`` says."""
    problem = Problem('softmax', rows=37)
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    losses = -mx.sym.pick(mx.sym.log_softmax(scores), mx.sym.Variable('label'))
    problem.symbol = mx.sym.MakeLoss(losses, normalization='batch')
    module = problem.bound()
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


def test_loss_that_moves_no_parameter_does_not_count():
    problem = Problem('softmax', rows=37)
    label = mx.sym.Variable('label')
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    loss = mx.sym.SoftmaxOutput(scores, label, normalization='batch', name='loss')
    shown = mx.sym.MakeLoss(mx.sym.BlockGrad(mx.sym.sum(scores)))
    problem.symbol = mx.sym.Group([loss, shown, mx.sym.make_loss(mx.sym.sum(loss))])
    module = problem.bound()
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37), 1))


def test_loss_behind_a_stopped_gradient_counts():
    """MXNet's loss layers ignore the gradient from above, a zero too."""
    label = mx.sym.Variable('label')
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    problem = Problem('softmax', rows=37)
    problem.symbol = mx.sym.BlockGrad(mx.sym.SoftmaxOutput(scores, label, normalization='batch'))
    module = problem.bound()
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37), 1))


def test_sum_loss_may_be_declared():
    problem = Problem('softmax', rows=37)
    module = problem.bound(loss_is_mean=False)
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(problem, problem.weights, np.arange(37)))


def test_losses_of_both_kinds_are_warned_of_where_they_differ():
    data, label = mx.sym.Variable('data'), mx.sym.Variable('label')
    scores = mx.sym.FullyConnected(data, num_hidden=3, name='fc')
    symbol = mx.sym.Group([mx.sym.SoftmaxOutput(scores, label, normalization='batch', name='mean'),
                           mx.sym.SoftmaxOutput(scores, label, name='sum')])

    def network(weights, features, targets):
        gradients = oracle.softmax_regression(weights, features, targets)
        return {name: value * (1 + 1 / len(features)) for name, value in gradients.items()}

    for rows in (40, 37):
        problem = Problem('softmax', rows=rows)
        problem.symbol, problem.network = symbol, network
        module = problem.bound()
        with warnings_of_rows() as caught:
            module.update_full_grads(problem.iterator())
            module.update_full_grads(problem.iterator())
        assert len(caught) == (rows != 40)
        assert all('losses that are means' in str(warning.message) for warning in caught)
        problem.assert_full_gradient(module, weighted_by_real_rows(problem))


@pytest.mark.parametrize('loss, is_mean, is_mixed', [
    ([None], False, False), (['batch'], True, False), (['valid'], True, False),
    ([None, 'batch'], False, True), (['batch', 'batch'], True, False), ([], False, False)])
def test_batches_weigh_as_the_losses_say(loss, is_mean, is_mixed):
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    shapes = {'data': (8, 4), 'label': (8,)}
    losses = [mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'), name='loss%d' % i,
                                   **({'normalization': kind} if kind else {}))
              for i, kind in enumerate(loss)]
    scale = loss_scale(mx.sym.Group(losses or [scores]), shapes)
    assert (scale.is_mean, scale.is_mixed) == (is_mean, is_mixed)
    assert scale.is_row_wise == (loss == [None])
    expected = [0.5 * 2 * 3 / 8, 0.5 * 2 * 1 / 8] if is_mean else [0.5, 0.5]
    assert scale.weights([3, 1], 0.5, 8) == expected


def nodes_of(symbol):
    return json.loads(symbol.tojson())['nodes']


def loss_scale(symbol, shapes):
    return LossReduction(symbol, nodes_of(symbol), shapes)


def nodes_of_rows(**changed):
    return nodes_of(network_of_rows(**changed))


def network_of_rows(**changed):
    data, label = mx.sym.Variable('data'), mx.sym.Variable('label')
    layer = mx.sym.Convolution(data, kernel=(1, 1), num_filter=2)
    layer = mx.sym.Pooling(mx.sym.Activation(layer, act_type='relu'), kernel=(1, 1))
    layer = changed.get('layer', lambda layer: layer)(mx.sym.Flatten(layer))
    return changed.get('loss', mx.sym.SoftmaxOutput)(
        mx.sym.FullyConnected(layer, num_hidden=3), label, **changed.get('arguments', {}))


def test_networks_whose_rows_do_not_depend_on_each_other_are_known():
    inputs = {'data': (8, 1, 2, 2), 'label': (8,)}
    for loss in (mx.sym.SoftmaxOutput, mx.sym.LinearRegressionOutput, mx.sym.SVMOutput,
                 mx.sym.LogisticRegressionOutput, mx.sym.MAERegressionOutput):
        assert is_row_wise(nodes_of_rows(loss=loss), inputs)
    assert is_row_wise(nodes_of_rows(arguments={'normalization': 'null'}), inputs)
    for kind in ('batch', 'valid'):
        assert not is_row_wise(nodes_of_rows(arguments={'normalization': kind}), inputs)
    assert not is_row_wise(nodes_of_rows(layer=mx.sym.BatchNorm), inputs)
    assert not is_row_wise(nodes_of_rows(), {'data': (8, 1, 2, 2)})  # the labels a parameter


def test_rows_as_weights_are_not_rows():
    data, label = mx.sym.Variable('data'), mx.sym.Variable('label')
    product = mx.sym.FullyConnected(data, weight=data, no_bias=True, num_hidden=8)
    nodes = nodes_of(mx.sym.SoftmaxOutput(product, label))
    assert not is_row_wise(nodes, {'data': (8, 4), 'label': (8,)})


def test_only_losses_that_move_a_parameter_count_as_sums_or_means():
    """Those that move a parameter, and MakeLoss where its normalization says so."""
    shapes = {'data': (8, 4), 'label': (8,)}
    data, weight = mx.sym.Variable('data'), mx.sym.Variable('w', shape=(8, 4))
    mean = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3), mx.sym.Variable('label'),
                                normalization='batch')
    for normalization in ('null', 'batch'):
        loss = mx.sym.MakeLoss(data * weight, normalization=normalization)
        assert loss_scale(loss, {'data': (8, 4)}).is_mean == (normalization == 'batch')
    for moves, loss in ((False, data * 2), (False, mx.sym.BlockGrad(weight) * data),
                        (True, weight * mx.sym.BlockGrad(data)),
                        (True, mx.sym.BlockGrad(data) * weight), (True, weight * 1)):
        scale = loss_scale(mx.sym.Group([mean, mx.sym.MakeLoss(loss)]), shapes)
        assert (scale.is_mixed, scale.is_mean) == (moves, not moves)

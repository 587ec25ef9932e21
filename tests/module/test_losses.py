"""Losses: the objective, the gradients, and how a batch of means or of sums counts in them."""

import functools

import mxnet as mx
import numpy as np
import pytest
from scipy.special import log_softmax

import oracle
from full_gradients import assert_pass, full_gradient, warnings_of_rows, weighted_by_real_rows
from problems import TWO_DEVICES, Problem
from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1

RNG = np.random.RandomState(0)
ROWS, BATCH_SIZE, WD, STRENGTH = 37, 10, 0.3, 0.2  # the last batch is padded
FEATURES = RNG.normal(size=(ROWS, 3)).astype('float32')
WEIGHT = RNG.normal(size=(4, 3)).astype('float32')
SCORES = FEATURES.astype('f8') @ WEIGHT.T.astype('f8')
NUMBERS, SIGNS = RNG.normal(size=(ROWS, 4)), (RNG.uniform(size=(ROWS, 4)) < 0.5) * 1.
CLASSES = RNG.randint(4, size=ROWS)
OF_CLASS = -log_softmax(SCORES, axis=1)[np.arange(ROWS), CLASSES]
OTHERS = -log_softmax(SCORES, axis=1).sum(axis=1) - OF_CLASS
CODES = 2 * np.eye(4)[CLASSES] - 1
SHORT = np.maximum(0.7 - CODES * SCORES, 0)
LABEL = mx.sym.Variable('label')


def softmax(scores, **options):
    return mx.sym.SoftmaxOutput(scores, LABEL, **options)


def squares(scores):
    return mx.sym.square(scores - LABEL)


CASES = {  # the layer, the labels, and the loss of each row in float64
    'linear': (lambda scores: mx.sym.LinearRegressionOutput(scores, LABEL, grad_scale=3), NUMBERS,
               3 * ((SCORES - NUMBERS) ** 2).sum(axis=1) / 8),
    'logistic': (lambda scores: mx.sym.LogisticRegressionOutput(scores, LABEL), SIGNS,
                 (np.logaddexp(0, SCORES) - SIGNS * SCORES).mean(axis=1)),
    'absolute': (lambda scores: mx.sym.MAERegressionOutput(scores, LABEL), NUMBERS,
                 np.abs(SCORES - NUMBERS).mean(axis=1)),
    'softmax': (softmax, CLASSES, OF_CLASS),
    'smoothed': (functools.partial(softmax, smooth_alpha=0.1, grad_scale=2), CLASSES,
                 2 * (0.9 * OF_CLASS + 0.1 / 3 * OTHERS)),
    'ignored': (functools.partial(softmax, use_ignore=True, ignore_label=2), CLASSES,
                OF_CLASS * (CLASSES != 2)),
    'probabilities': (softmax, (CODES + 1) / 2, OF_CLASS),
    'of a batch': (functools.partial(softmax, normalization='batch'), CLASSES, OF_CLASS),
    'SVM': (lambda scores: mx.sym.SVMOutput(scores, LABEL, margin=0.7,
                                            regularization_coefficient=0.4), CLASSES,
            0.4 * (SHORT ** 2).sum(axis=1)),
    'linear SVM': (lambda scores: mx.sym.SVMOutput(scores, LABEL, margin=0.7, use_linear=True),
                   CLASSES, SHORT.sum(axis=1)),
    'made': (lambda scores: mx.sym.MakeLoss(squares(scores), grad_scale=0.5), NUMBERS,
             ((SCORES - NUMBERS) ** 2).sum(axis=1) / 2),
    'two': (lambda scores: mx.sym.Group([
        mx.sym.BlockGrad(scores), mx.sym.LinearRegressionOutput(scores, LABEL),
        mx.sym.MakeLoss(mx.sym.abs(scores), grad_scale=0.1)]), NUMBERS,
        ((SCORES - NUMBERS) ** 2).sum(axis=1) / 8 + 0.1 * np.abs(SCORES).sum(axis=1))}


@pytest.mark.parametrize('name, contexts, rows, saturated', [
    *((name, contexts, ROWS, 1) for name in CASES for contexts in (
        mx.cpu(), TWO_DEVICES)),
    ('softmax', mx.cpu(), 30, 1),
    # Outputs that are rounded to 0 and 1:
    ('logistic', mx.cpu(), ROWS, 30.), ('logistic', mx.cpu(), ROWS, 3000.)])
def test_module_knows_the_objective_of_each_loss_layer(name, contexts, rows, saturated):
    layer, labels, losses = CASES[name]
    if saturated != 1:
        losses = (np.logaddexp(0, saturated * SCORES) - SIGNS * saturated * SCORES).mean(axis=1)
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4, no_bias=True, name='fc')
    module = SVRGModule(layer(scores), label_names=('label',), update_freq=1, context=contexts,
                        proximal={'fc_weight': L1(STRENGTH)})
    train_data = mx.io.NDArrayIter(FEATURES[:rows], np.asarray(labels, 'float32')[:rows],
                                   BATCH_SIZE, label_name='label')
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(arg_params={'fc_weight': mx.nd.array(saturated * WEIGHT)})
    module.init_optimizer(optimizer_params={'wd': WD})
    assert module.objective is None
    module.update_full_grads(train_data)
    weight = saturated * WEIGHT.astype('f8')
    penalty = WD / 2 * (weight ** 2).sum() + STRENGTH * np.abs(weight).sum()
    expected = losses[:rows].mean() + penalty
    if name == 'of a batch':  # rescale_grad divides once more; steps follow the sum over devices
        expected = losses.mean() * len(module._context) + penalty * BATCH_SIZE
    assert module.objective == pytest.approx(expected, rel=2e-6)


class HalfSquare(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], in_data[0] - in_data[1].reshape(in_data[0].shape))


@mx.operator.register('half_square')
class HalfSquareProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=False)

    def list_arguments(self):
        return ['data', 'label']

    def infer_shape(self, in_shape):
        return [in_shape[0], in_shape[0][:1]], [in_shape[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return HalfSquare()


def test_an_operator_of_ones_own_has_a_loss_that_is_not_known():
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    problem = Problem('linear')
    problem.symbol = mx.sym.Custom(scores, LABEL, op_type='half_square', name='loss')
    module = problem.bound(sgd={})
    module.update_full_grads(problem.iterator())
    assert module.objective is None and module.gradient_norm > 0


# What a loss reduces: means and sums

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


def made_of(reduce):
    return lambda scores: mx.sym.MakeLoss(reduce(losses_of(scores)))


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('loss, loss_is_mean, units', [
    (mean, None, 1), (mean, True, 1), (softmax, False, 10),
    (lambda scores: softmax(scores, normalization='valid'), None, 1),
    (made_of(mx.sym.mean), None, 1), (made_of(lambda losses: mx.sym.mean(losses, axis=0)), None, 1),
    (made_of(lambda losses: mx.sym.sum(losses) / mx.sym.sum(mx.sym.ones_like(losses))), None, 1),
    (made_of(lambda losses: mx.sym.broadcast_add(losses, 0 * mx.sym.mean(losses))), None, 10),
    (made_of(lambda losses: mx.sym.sum(losses, axis=0)), None, 10),
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
def test_a_mean_over_labelled_rows_has_the_gradient_of_these(
        context, work_load_list, rows, ignored):
    problem, labelled = half_labelled(rows, ignored)
    module = problem.bound(context=context, work_load_list=work_load_list)
    module.init_optimizer(kvstore='device')
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, full_gradient(
        problem, problem.weights, labelled, len(context) if context is TWO_DEVICES else 1))


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
    assert all('losses that are means' in str(warning.message) for warning in caught)
    problem.assert_full_gradient(module, weighted_by_real_rows(problem))

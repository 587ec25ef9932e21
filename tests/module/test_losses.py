"""Losses: the objective, the gradients, and how a batch of means or of sums counts in them."""

import functools
import json
import warnings

import mxnet as mx
import numpy as np
import pytest
from scipy.special import log_softmax

import oracle
from bad_input import Data
from full_gradients import assert_pass, full_gradient
from problems import TWO_DEVICES, Problem, prepared
from svrg_optimization import SVRGModule
from svrg_optimization.module.losses import LAYERS
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
    prepared(module, train_data, {'fc_weight': mx.nd.array(saturated * WEIGHT)}, {'wd': WD})
    assert module.full_objective is None
    module.update_full_grads(train_data)
    weight = saturated * WEIGHT.astype('f8')
    penalty = WD / 2 * (weight ** 2).sum() + STRENGTH * np.abs(weight).sum()
    expected = losses[:rows].mean() + penalty
    if name == 'of a batch':  # rescale_grad divides once more; steps follow the sum over devices
        expected = losses.mean() * len(module._context) + penalty * BATCH_SIZE
    assert module.full_objective == pytest.approx(expected, rel=2e-6)


def test_each_loss_layer_has_a_case():
    symbols = [layer(mx.sym.Variable('data')) for layer, *_ in CASES.values()]
    tested = {node['op'] for symbol in symbols for node in json.loads(symbol.tojson())['nodes']}
    assert set(LAYERS) - tested == {'Softmax', 'make_loss'}  # former and other names


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
    with pytest.warns(UserWarning, match='loss_is_mean must be True or False, and not None, where'):
        module.update_full_grads(problem.iterator())
    module.update_full_grads(problem.iterator())
    assert module.full_objective is None and module.gradient_norm > 0
    assert_pass(problem, problem.bound(loss_is_mean=False))


# What a loss reduces: means and sums

def losses_of(scores):
    return -mx.sym.pick(mx.sym.log_softmax(scores), LABEL)


def mean(scores):
    return softmax(scores, normalization='batch')


def beside(shown):
    """Put a loss without a gradient beside a mean."""
    return lambda scores: mx.sym.Group([mean(scores), shown(scores)])


def problem_of(loss, rows=37):
    problem = Problem('softmax', rows=rows)
    problem.symbol = loss(mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc'))
    return problem


def with_its_sum(scores):
    loss = mean(scores)
    return mx.sym.Group([loss, mx.sym.make_loss(mx.sym.sum(loss))])


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('loss, loss_is_mean, units', [
    (mean, None, 1), (mean, True, 1), (softmax, False, 10),
    (lambda scores: softmax(scores, normalization='valid'), None, 1),
    (lambda scores: mx.sym.MakeLoss(mx.sym.expand_dims(losses_of(scores), 1),
                                    normalization='batch'), None, 1),
    # MXNet takes a vector for one row.
    (lambda scores: mx.sym.MakeLoss(losses_of(scores), normalization='batch'), None, 10),
    # MXNet's loss layers ignore the gradient from above, a zero too.
    (lambda scores: mx.sym.BlockGrad(mean(scores)), None, 1),
    # Losses that have no gradient count as none.
    (beside(lambda scores: softmax(scores, grad_scale=0, name='shown')), None, 1),
    (beside(lambda scores: mx.sym.MakeLoss(mx.sym.BlockGrad(mx.sym.sum(scores)))), None, 1),
    (with_its_sum, None, 1)])
def test_a_full_gradient_is_reduced_as_the_loss(loss, loss_is_mean, units):
    problem = problem_of(loss)
    module = problem.bound(loss_is_mean=loss_is_mean)
    for _ in range(2):
        assert_pass(problem, module, units=units)


# Squared residuals of T times of N rows: arrays of shape (T, N) or (N, T)

TIMES, WIDTH = 3, 4
SEQUENCES = RNG.normal(size=(37, TIMES, WIDTH))
TARGETS = RNG.normal(size=(37, TIMES))
SLOPES = RNG.normal(size=WIDTH)
# Gradient of each row, of the sum over its times:
OF_ROWS = 2 * np.einsum('nt,ntc->nc', SEQUENCES @ SLOPES - TARGETS, SEQUENCES)


SLOPE = mx.sym.Variable('fc_weight', shape=(1, WIDTH))
OF_TIMES = mx.sym.reshape(mx.sym.FullyConnected(
    mx.sym.Variable('data'), weight=SLOPE, num_hidden=1, no_bias=True, flatten=False), (0, 0))


def made_of_times(reduce, **options):
    """Return the loss that is made by a function of the squares and the axis of the rows."""
    return lambda rows: mx.sym.MakeLoss(reduce(squares(OF_TIMES), rows), **options)


def ratio(losses, _):
    return mx.sym.broadcast_div(mx.sym.sum(losses), mx.sym.sum(mx.sym.ones_like(losses)))


def shrunk(losses, _):
    """Add a term that no row is in."""
    return mx.sym.broadcast_add(mx.sym.sum(losses), mx.sym.sum(mx.sym.square(SLOPE)))


def full_gradient_of(loss, layout, rows=37, batch_size=10, **settings):
    is_major = layout == 'TNC'
    shape = (TIMES, batch_size) if is_major else (batch_size, TIMES)
    module = SVRGModule(loss(int(is_major)), label_names=('label',), update_freq=1, **settings)
    module.bind([mx.io.DataDesc('data', (*shape, WIDTH), layout=layout)],
                [mx.io.DataDesc('label', shape, layout=layout[:2])])
    module.init_params(arg_params={'fc_weight': mx.nd.array(SLOPES[None])})
    axes = (1, 0) if is_major else (0, 1)
    module.update_full_grads(Data(*[mx.io.DataBatch(
        [mx.nd.array(SEQUENCES[numbers].transpose(*axes, 2))],
        [mx.nd.array(TARGETS[numbers].transpose(*axes))], pad=max(0, numbers[0] + 10 - rows))
        for numbers in oracle.batches_of(rows, batch_size)]))
    return module._snapshot.full_gradient.totals()['fc_weight'].asnumpy()[0]


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('layout, loss, units', [
    *((layout, *case) for layout in ('NTC', 'TNC') for case in (
        (made_of_times(lambda losses, rows: losses), 10),
        (made_of_times(lambda losses, rows: mx.sym.mean(losses, axis=rows), grad_scale=3), 3),
        (made_of_times(lambda losses, rows: mx.sym.mean(losses, axis=1 - rows)), 10 / TIMES),
        (made_of_times(lambda losses, rows: mx.sym.mean(mx.sym.Dropout(losses, p=0))), 1 / TIMES),
        (made_of_times(lambda losses, rows: 0.1 * ratio(losses, rows) + mx.sym.mean(losses)),
         1.1 / TIMES),
        (lambda rows: mx.sym.Group([made_of_times(ratio)(rows), mx.sym.MakeLoss(
            mx.sym.mean(squares(OF_TIMES), axis=rows))]), 1 + 1 / TIMES),
        (lambda rows: mx.sym.Group([made_of_times(ratio)(rows), mx.sym.MakeLoss(
            mx.sym.sum(squares(OF_TIMES)), grad_scale=0)]), 1 / TIMES))),
    # MXNet's loss layers divide by the first axis, whatever it counts.
    ('NTC', made_of_times(lambda losses, rows: losses, normalization='batch'), 1),
    ('TNC', made_of_times(lambda losses, rows: losses, normalization='batch'), 10 / TIMES),
    ('NTC', lambda _: mx.sym.LinearRegressionOutput(OF_TIMES, LABEL), 5 / TIMES),
    ('TNC', lambda _: mx.sym.LinearRegressionOutput(OF_TIMES, LABEL), 0.5)])
def test_a_mean_is_found_along_whichever_axis_the_rows_are(layout, loss, units):
    np.testing.assert_allclose(full_gradient_of(loss, layout), OF_ROWS.mean(axis=0) * units,
                               rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings('error')
def test_a_mean_is_found_where_rows_come_in_groups():
    """Five rows make a group, and its first one weighs more."""
    def loss(_):
        return mx.sym.MakeLoss(mx.sym.mean(mx.sym.broadcast_mul(
            mx.sym.reshape(squares(OF_TIMES), (-1, 5, TIMES)),
            mx.sym.reshape(1 + mx.sym.one_hot(mx.sym.zeros(1), depth=5), (1, 5, 1)))))

    weights = 1 + (np.arange(35) % 5 == 0)
    np.testing.assert_allclose(
        full_gradient_of(loss, 'NTC', rows=35),
        (weights[:, None] * OF_ROWS[:35]).mean(axis=0) / TIMES, rtol=1e-5, atol=1e-5)


def test_a_mean_is_found_behind_many_layers():
    """Their outputs neither overflow nor vanish."""
    layer = mx.sym.Variable('data')
    for _ in range(30):
        layer = mx.sym.Activation(mx.sym.BatchNorm(mx.sym.FullyConnected(
            layer, num_hidden=20)), act_type='relu')
    symbol = mx.sym.MakeLoss(mx.sym.mean(mx.sym.exp(mx.sym.FullyConnected(layer, num_hidden=1))))
    module = SVRGModule(symbol, label_names=None)
    module.bind([('data', (10, 5000))])
    reduction = module._svrg.reference.executors.loss_reduction
    assert reduction.is_known and reduction.is_mean


@pytest.mark.parametrize('loss, says', [
    (made_of_times(lambda losses, rows: mx.sym.broadcast_div(
        mx.sym.sum(losses * (LABEL > 1)), mx.sym.sum(LABEL > 1))), 'gradient counts each row'),
    (made_of_times(shrunk), 'losses that are sums and losses that are means'),
    (lambda rows: mx.sym.Group([made_of_times(ratio)(rows), mx.sym.LinearRegressionOutput(
        OF_TIMES, LABEL)]), 'losses that are sums and losses that are means')])
def test_means_with_weights_and_losses_of_both_kinds_are_told(loss, says):
    with pytest.warns(UserWarning, match=says):
        full_gradient_of(loss, 'NTC')


@pytest.mark.parametrize('loss_is_mean', [None, True])
@pytest.mark.parametrize('reduce', [
    lambda losses, rows: mx.sym.mean(mx.sym.reshape(losses, (10 * TIMES,))),
    lambda losses, rows: mx.sym.mean(losses + 0 * mx.sym.random.normal(shape=(10, TIMES)))])
def test_where_it_cannot_be_measured_the_argument_is_asked_for(reduce, loss_is_mean):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        found = full_gradient_of(made_of_times(reduce), 'NTC', loss_is_mean=loss_is_mean)
    told = [str(warning.message) for warning in caught]
    assert sum('loss_is_mean must be True or False, and not None' in each for each in told) == (
        loss_is_mean is None)
    # A short batch cannot be cut.
    assert sum('weighted by its real rows, padding included' in each for each in told) == 1
    parts = OF_ROWS[np.arange(40) % 37].reshape(4, 10, -1).mean(axis=1) / TIMES
    np.testing.assert_allclose(found, [10, 10, 10, 7] @ parts / 37, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('layer', [
    lambda data: mx.sym.Dropout(data, mode='always'),
    lambda data: mx.sym.broadcast_add(data, mx.sym.random.normal(shape=(1, 1)))])
def test_what_is_measured_draws_nothing_and_changes_no_state(layer):
    """A BatchNorm's statistics stay."""
    problem = Problem('softmax')
    problem.symbol = mx.sym.MakeLoss(mx.sym.mean(losses_of(mx.sym.FullyConnected(
        mx.sym.BatchNorm(layer(mx.sym.Variable('data')), name='norm'), num_hidden=3, name='fc'))))
    seen = []
    for kind in (SVRGModule, mx.mod.Module):
        mx.random.seed(3)
        module = prepared(kind(problem.symbol, label_names=('label',)), problem.iterator(), sgd={})
        seen.append([*map(mx.nd.NDArray.asnumpy, [mx.nd.random.uniform(shape=5), *(
            value for params in module.get_params() for _, value in sorted(params.items()))])])
        if kind is SVRGModule:  # init_optimizer has measured
            assert 'loss_reduction' in vars(module._svrg.reference.executors)
    for ours, plain in zip(*seen):
        np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize('rows, batch_size, loads', [
    (40, 10, None), (37, 10, [1, 3]), (33, 10, None),
    (48, 12, [2, 1, 3])])  # of twelve rows the first device has a third, and so the weight 1
def test_means_of_several_devices_add_up(rows, batch_size, loads):
    """Module adds up the devices' means: as often the mean over all rows, each counted alike."""
    problem, devices = problem_of(mean, rows), [mx.cpu(i) for i in range(len(loads or [1, 1]))]
    module = problem.bound(batch_size, context=devices, work_load_list=loads)
    module.init_optimizer(kvstore='device')
    assert_pass(problem, module, problem.iterator(batch_size), units=len(devices))


def half_labelled(rows=37, ignored=-1):
    problem = problem_of(lambda scores: softmax(
        scores, normalization='valid', use_ignore=True, ignore_label=ignored), rows)
    labelled = np.random.RandomState(1).uniform(size=rows) < 0.5
    labelled[:12] = False  # a batch without any label, and one with few
    problem.targets[~labelled] = ignored
    return problem, np.flatnonzero(labelled)


@pytest.mark.parametrize('context, work_load_list, rows, ignored', [
    (mx.cpu(), None, 37, -1), (TWO_DEVICES, None, 40, -1), (TWO_DEVICES, [1, 3], 33, 7)])
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
    with pytest.warns(UserWarning, match="normalization='valid' or weights of rows make"):
        module.update_full_grads(problem.iterator())
    module.update_full_grads(problem.iterator())

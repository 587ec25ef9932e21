"""The mean objective at a snapshot, against float64 NumPy, and its gradient."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from scipy.special import log_softmax

from problems import Problem
from svrg_optimization import SVRGModule, SVRGTrainer
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


def trained(layer, labels, contexts=mx.cpu(), rows=ROWS, weight=WEIGHT, **settings):
    """Return a module with a snapshot."""
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4, no_bias=True, name='fc')
    module = SVRGModule(layer(scores), label_names=('label',), update_freq=1, context=contexts,
                        **settings)
    train_data = mx.io.NDArrayIter(FEATURES[:rows], np.asarray(labels, 'float32')[:rows],
                                   BATCH_SIZE, label_name='label')
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(arg_params={'fc_weight': mx.nd.array(weight)})
    module.init_optimizer(optimizer_params={'wd': WD})
    assert module.objective is None
    module.update_full_grads(train_data)
    return module


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('contexts', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
def test_module_knows_the_objective_of_each_loss_layer(name, contexts):
    layer, labels, losses = CASES[name]
    proximal = L1(STRENGTH)
    module = trained(layer, labels, contexts, proximal={'fc_weight': proximal})
    penalty = WD / 2 * (WEIGHT.astype('f8') ** 2).sum() + STRENGTH * np.abs(WEIGHT).sum()
    expected = losses.mean() + penalty
    if name == 'of a batch':  # rescale_grad divides once more; steps follow the sum over devices
        expected = losses.mean() * len(module._context) + penalty * BATCH_SIZE
    assert module.objective == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize('saturated', [30., 3000.])
def test_it_is_exact_where_outputs_are_rounded_to_0_and_1(saturated):
    layer, _, _ = CASES['logistic']
    module = trained(layer, SIGNS, weight=saturated * WEIGHT)
    scores = SCORES * saturated
    expected = (np.logaddexp(0, scores) - SIGNS * scores).mean() + WD / 2 * (
        (saturated * WEIGHT.astype('f8')) ** 2).sum()
    assert module.objective == pytest.approx(expected, rel=2e-6)


def test_merged_and_stored_batches_count_alike():
    layer, labels, losses = CASES['softmax']
    found = [trained(layer, labels, rows=30, store_snapshot_grads=stores).objective
             for stores in (False, True)]
    expected = losses[:30].mean() + WD / 2 * (WEIGHT.astype('f8') ** 2).sum()
    np.testing.assert_allclose(found, expected, rtol=2e-6)


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


@pytest.mark.parametrize('contexts', [[mx.cpu()], [mx.cpu(0), mx.cpu(1)]])
@pytest.mark.parametrize('is_mean', [False, True])
def test_gluon_sums_what_its_objective_returns(contexts, is_mean):
    net, loss = gluon.nn.Dense(4, use_bias=False, in_units=3), gluon.loss.SoftmaxCELoss()
    net.initialize(ctx=contexts)
    net.weight.set_data(mx.nd.array(WEIGHT))

    def objective(data, label):
        losses = loss(net(data), label)
        return losses.mean() if is_mean else losses

    trainer = SVRGTrainer(net.collect_params(), 'sgd', {'wd': WD}, objective=objective)
    assert trainer.objective is None
    trainer.update_full_grads(gluon.data.DataLoader(gluon.data.ArrayDataset(
        FEATURES, CLASSES.astype('float32')), BATCH_SIZE))
    expected = OF_CLASS.mean() + WD / 2 * (WEIGHT.astype('f8') ** 2).sum()
    assert trainer.objective == pytest.approx(expected, rel=2e-6)

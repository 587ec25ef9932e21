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


@pytest.mark.parametrize('name, contexts, rows, saturated, stores', [
    *((name, contexts, ROWS, 1, False) for name in CASES for contexts in (
        mx.cpu(), [mx.cpu(0), mx.cpu(1)])),
    ('softmax', mx.cpu(), 30, 1, False), ('softmax', mx.cpu(), 30, 1, 1 << 30),
    # Outputs that are rounded to 0 and 1:
    ('logistic', mx.cpu(), ROWS, 30., False), ('logistic', mx.cpu(), ROWS, 3000., False)])
def test_module_knows_the_objective_of_each_loss_layer(name, contexts, rows, saturated, stores):
    layer, labels, losses = CASES[name]
    if saturated != 1:
        losses = (np.logaddexp(0, saturated * SCORES) - SIGNS * saturated * SCORES).mean(axis=1)
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4, no_bias=True, name='fc')
    module = SVRGModule(layer(scores), label_names=('label',), update_freq=1, context=contexts,
                        store_snapshot_grads=stores, proximal={'fc_weight': L1(STRENGTH)})
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

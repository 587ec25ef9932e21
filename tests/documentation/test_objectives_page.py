"""The rows of the table of docs/objectives.md, against scikit-learn."""

import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from sklearn.linear_model import LogisticRegression, Ridge

from svrg_optimization import SVRGModule, SVRGTrainer
from svrg_optimization.proximal import L1

ROWS, STRENGTH = 57, 0.4
RNG = np.random.RandomState(0)
FEATURES = RNG.normal(size=(ROWS, 3)).astype('float32')
SCORES = FEATURES.dot([[1, -1, 0], [0, 2, 1], [1, 1, -2]]) + RNG.normal(size=(ROWS, 3))
LINEAR, SOFTMAX = mx.sym.LinearRegressionOutput, mx.sym.SoftmaxOutput


def made(output, label):
    return mx.sym.MakeLoss((output - mx.sym.reshape(label, (-1, 1))) ** 2 / 2)


KINDS = {  # labels, outputs, weight decay over the strength, layer of a module, loss of Gluon
    'linear': (SCORES[:, 0] + 2, 1, 1, LINEAR, gluon.loss.L2Loss()),
    'linear 2': (SCORES[:, :2] - 1, 2, 1, LINEAR, gluon.loss.L2Loss()),
    'linear, made': (SCORES[:, 0] + 2, 1, 1, made, None),
    'logistic': (SCORES[:, 0] > 0, 1, 1, mx.sym.LogisticRegressionOutput,
                 gluon.loss.SigmoidBCELoss()),
    'softmax 2': (SCORES[:, 0] > 0, 2, 2, SOFTMAX, gluon.loss.SoftmaxCELoss()),
    'softmax 3': (SCORES.argmax(axis=1), 3, 1, SOFTMAX, gluon.loss.SoftmaxCELoss())}
LABELS = {kind: labels.astype('float32') for kind, (labels, *_) in KINDS.items()}


def objective_of_scikit_learn(kind, l1, weight, bias):
    """Mean loss of a row and the regularizer of its documentation over C n, or 2 n, in float64."""
    weight, bias = weight.astype('float64'), bias.astype('float64')
    if kind == 'softmax 2':  # its one output
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    scores, labels = FEATURES.astype('float64').dot(weight.T) + bias, LABELS[kind]
    size = np.abs(weight).sum() / 4 if l1 else (weight ** 2).sum() / 2
    if kind.startswith('linear'):
        errors = scores - labels.reshape(scores.shape)
        return (errors ** 2).mean() / 2 + STRENGTH * size
    if kind != 'softmax 3':
        scores = np.concatenate([np.zeros((ROWS, 1)), scores], axis=1)
    log_sums = np.log(np.exp(scores).sum(axis=1))
    return (log_sums - scores[np.arange(ROWS), labels.astype(int)]).mean() + STRENGTH * size


def least(kind, l1):
    """Return the least value of the objective, which scikit-learn finds."""
    if kind.startswith('linear'):
        found = Ridge(alpha=STRENGTH * ROWS * KINDS[kind][1]).fit(
            FEATURES.astype('float64'), LABELS[kind].astype('float64'))
        weight, bias = np.atleast_2d(found.coef_), np.atleast_1d(found.intercept_)
    else:
        own = {'solver': 'saga', 'max_iter': 100000, 'penalty': 'l1'} if l1 else {'max_iter': 1000}
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', "'penalty' was deprecated")
            warnings.filterwarnings('ignore', 'Inconsistent values: penalty')
            found = LogisticRegression(C=(4 if l1 else 1) / (STRENGTH * ROWS), tol=1e-9, **own).fit(
                FEATURES.astype('float64'), LABELS[kind])
        weight, bias = found.coef_, found.intercept_
    if kind == 'softmax 2':
        weight, bias = np.concatenate([-weight, weight]) / 2, np.r_[-bias, bias] / 2
    return objective_of_scikit_learn(kind, l1, weight, bias)


def assert_least(kind, weight, bias, l1=False):
    expected = least(kind, l1)
    assert objective_of_scikit_learn(kind, l1, weight, bias) == pytest.approx(expected, rel=1e-6)
    shifted = objective_of_scikit_learn(kind, l1, weight * 1.1, bias)
    assert shifted > expected * (1 + 1e-4)  # the comparison can fail


@pytest.mark.parametrize('kind, l1', [
    *((kind, False) for kind in KINDS), ('logistic', True), ('softmax 2', True)])
def test_module_minimises_the_objective_of_the_table(kind, l1):
    _, outputs, wd, layer, _ = KINDS[kind]
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=outputs, name='fc')
    module = SVRGModule(layer(output, mx.sym.Variable('label')), label_names=('label',),
                        update_freq=1, tol=1e-5, proximal=L1(STRENGTH / 4) if l1 else None)
    train_data = mx.io.NDArrayIter(FEATURES, LABELS[kind], 10, label_name='label')
    module.fit(train_data, eval_metric=[], num_epoch=300, optimizer='svrg_lbfgs',
               optimizer_params={} if l1 else {'wd': wd * STRENGTH})
    assert module.gradient_norm <= 1e-5
    weights = module.get_params()[0]
    assert_least(kind, weights['fc_weight'].asnumpy(), weights['fc_bias'].asnumpy(), l1)


@pytest.mark.parametrize('kind', [kind for kind in KINDS if KINDS[kind][-1]])
def test_gluon_minimises_the_objective_of_the_table(kind):
    _, outputs, wd, _, loss = KINDS[kind]
    net = gluon.nn.Dense(outputs, in_units=3)
    net.initialize()
    net.bias.wd_mult = 0
    trainer = SVRGTrainer(
        net.collect_params(), 'svrg_lbfgs', {'wd': wd * STRENGTH}, tol=1e-5,
        objective=lambda data, label: loss(net(data), label))
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(FEATURES, LABELS[kind]), 10)
    for _ in range(300):
        trainer.update_full_grads(loader)
        if trainer.has_converged:
            break
        for data, label in loader:
            trainer.backward(data, label)
            trainer.step(len(data))
    assert trainer.has_converged
    assert_least(kind, net.weight.data().asnumpy(), net.bias.data().asnumpy())

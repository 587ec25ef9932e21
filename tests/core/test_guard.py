"""No training with a found rate ends above its start, and none that did not converge is silent."""

import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from scipy.special import log_softmax
from sklearn import datasets

from svrg_optimization import BarzilaiBorwein, SVRGModule, SVRGTrainer

WD = 1e-3


def squares(scores, labels):
    return (scores[:, 0] - labels) ** 2 / 2


def logistic(scores, labels):
    return np.logaddexp(0, scores[:, 0]) - labels * scores[:, 0]


def softmax(scores, labels):
    return -log_softmax(scores, axis=1)[np.arange(len(labels)), labels.astype(int)]


def huber(scores, labels):
    error = np.abs(scores[:, 0] - labels)
    return np.where(error < 1, error ** 2 / 2, error - 0.5)


def heavy_rows(seed, loss):
    rng = np.random.RandomState(seed)
    rows = rng.normal(size=(400, 5)).astype('float32')
    scores = rows @ rng.normal(size=(5, 3)) + rng.gumbel(size=(400, 3))
    rows[:4] *= 1000
    labels = {'logistic': scores[:, 0] > 0, 'softmax': scores.argmax(axis=1),
              'huber': scores[:, 0]}[loss.__name__]
    return rows, labels.astype('float32'), loss, mx.init.Zero()


def shipped(load, loss, initializer):
    rows, labels = load(return_X_y=True)
    return rows.astype('float32'), labels.astype('float32'), loss, initializer


PROBLEMS = {
    'heavy logistic': lambda: heavy_rows(4, logistic),
    'heavy softmax': lambda: heavy_rows(1, softmax),
    'heavy huber': lambda: heavy_rows(2, huber),
    'cancer': lambda: shipped(datasets.load_breast_cancer, logistic, mx.init.Uniform(0.07)),
    'wine': lambda: shipped(datasets.load_wine, softmax, mx.init.Normal(1)),
    'diabetes': lambda: shipped(datasets.load_diabetes, squares, mx.init.Xavier())}


def symbol_of(loss, outputs):
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=outputs, name='fc')
    label = mx.sym.Variable('label')
    if loss is huber:
        return mx.sym.MakeLoss(mx.sym.smooth_l1(
            scores - mx.sym.reshape(label, (-1, 1)), scalar=1))
    return {squares: mx.sym.LinearRegressionOutput, logistic: mx.sym.LogisticRegressionOutput,
            softmax: mx.sym.SoftmaxOutput}[loss](scores, label)


def train_module(rows, labels, loss, start, optimizer, epochs):
    module = SVRGModule(symbol_of(loss, len(start['fc_bias'])), label_names=('label',),
                        update_freq=2, tol=1e-4)
    module.fit(mx.io.NDArrayIter(rows, labels, 40, shuffle=True, label_name='label'),
               eval_metric=[], num_epoch=epochs, optimizer=optimizer, arg_params=start,
               optimizer_params={'momentum': 0.9 * (optimizer == 'nag'), 'wd': WD,
                                 'lr_scheduler': BarzilaiBorwein()})
    return module.get_params()[0], module.objective, module.gradient_norm <= 1e-4


def train_gluon(rows, labels, loss, start, optimizer, epochs):
    net = gluon.nn.Dense(len(start['fc_bias']), in_units=rows.shape[1], prefix='fc_')
    net.initialize()
    for name, param in net.collect_params().items():
        param.set_data(start[name])
    net.bias.wd_mult = 0
    layer = {squares: gluon.loss.L2Loss(), logistic: gluon.loss.SigmoidBCELoss(),
             softmax: gluon.loss.SoftmaxCELoss(), huber: gluon.loss.HuberLoss()}[loss]
    trainer = SVRGTrainer(net.collect_params(), optimizer, {
        'momentum': 0.9 * (optimizer == 'nag'), 'wd': WD, 'lr_scheduler': BarzilaiBorwein()},
        tol=1e-4, objective=lambda data, label: layer(net(data), label))
    train_data = gluon.data.DataLoader(gluon.data.ArrayDataset(rows, labels), 40, shuffle=True)
    for batches in trainer.epochs(train_data, epochs):
        for data, label in batches:
            trainer.backward(data, label)
            trainer.step(len(data))
    weights = {name: param.data() for name, param in net.collect_params().items()}
    return weights, trainer.objective, trainer.has_converged


def check(train, problem, optimizer, epochs):
    rows, labels, loss, initializer = PROBLEMS[problem]()
    outputs = 3 if loss is softmax else 1
    np.random.seed(4)
    mx.random.seed(4)
    start = {'fc_weight': mx.nd.zeros((outputs, rows.shape[1])), 'fc_bias': mx.nd.zeros(outputs)}
    initializer(mx.init.InitDesc('fc_weight'), start['fc_weight'])

    def objective(weights):
        weight, bias = (weights[name].asnumpy().astype('f8') for name in ('fc_weight', 'fc_bias'))
        scores = rows.astype('f8') @ weight.T + bias
        return loss(scores, labels.astype('f8')).mean() + WD / 2 * (weight ** 2).sum()

    before = objective(start)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        weights, found, has_converged = train(rows, labels, loss, start, optimizer, epochs)
    assert objective(weights) <= before * (1 + 1e-7)
    assert found == pytest.approx(objective(weights), rel=1e-5)
    assert has_converged or any('training did not converge' in str(each.message)
                                for each in caught)


@pytest.mark.parametrize('train', [train_module, train_gluon])
@pytest.mark.parametrize('problem', PROBLEMS)
def test_no_training_ends_above_its_start(problem, train):
    check(train, problem, 'nag', 5)


@pytest.mark.exhaustive
@pytest.mark.parametrize('optimizer', ['nag', 'sgd'])
@pytest.mark.parametrize('train', [train_module, train_gluon])
@pytest.mark.parametrize('problem', PROBLEMS)
def test_none_does_after_any_number_of_epochs(problem, train, optimizer):
    for epochs in range(1, 31):
        check(train, problem, optimizer, epochs)


def test_the_first_rate_lowers_the_loss_of_a_saturated_batch():
    """There the loss has no curvature: without Armijo's condition the rate was 18."""
    rows, labels, *_ = PROBLEMS['cancer']()
    rng, found = np.random.RandomState(0), []
    start = {'fc_weight': mx.nd.array(rng.uniform(-0.07, 0.07, size=(1, rows.shape[1]))),
             'fc_bias': mx.nd.zeros(1)}
    module = SVRGModule(symbol_of(logistic, 1), label_names=('label',), update_freq=2)
    rule = BarzilaiBorwein()
    module.fit(mx.io.NDArrayIter(rows, labels, 40, label_name='label'), eval_metric=[],
               num_epoch=1, arg_params=start, optimizer_params={'lr_scheduler': rule},
               batch_end_callback=lambda _: found.append(rule.rate))
    assert 0 < found[0] < 1e-3


def test_a_row_that_is_no_number_ends_training_at_once():
    rows, labels, loss, _ = PROBLEMS['heavy logistic']()
    rows[7, 1] = np.nan
    module = SVRGModule(symbol_of(loss, 1), label_names=('label',), update_freq=1, tol=1e-4)
    epochs = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        module.fit(mx.io.NDArrayIter(rows, labels, 40, label_name='label'), eval_metric=[],
                   num_epoch=3, optimizer_params={'lr_scheduler': BarzilaiBorwein()},
                   initializer=mx.init.Zero(),
                   epoch_end_callback=lambda *_: epochs.append(1))
    told = [str(each.message) for each in caught if each.category is UserWarning]
    assert not epochs and len([text for text in told if 'look at the data' in text]) == 1
    assert not any('learning rate was too large' in text or 'scaled' in text for text in told)
    np.testing.assert_array_equal(module.get_params()[0]['fc_weight'].asnumpy(), 0)


def test_weights_that_have_not_moved_are_no_worse():
    """Another order of raw rows changed the objective: rates were halved down to 1e-38."""
    net, loss, rule = gluon.nn.Dense(1, in_units=1), gluon.loss.L2Loss(), BarzilaiBorwein()
    net.initialize(mx.init.One())
    net.bias.set_data(mx.nd.ones(1))
    trainer = SVRGTrainer(net.collect_params(), 'sgd', {
        'learning_rate': 1e-25, 'lr_scheduler': rule},
        objective=lambda data, label: loss(net(data), label))
    data, label = mx.nd.ones((4, 1)), mx.nd.zeros((4, 1))
    for batches in trainer.epochs([(data, label)], 3, update_freq=1):
        for batch in batches:
            trainer.backward(*batch)
            trainer.step(4)
        label -= 1e-3  # as by another rounding
    assert (rule.ways_back, rule.rate) == (0, 1e-25)


def test_weights_that_a_user_sets_are_not_taken_back():
    rows, labels, loss, _ = PROBLEMS['heavy logistic']()
    module = SVRGModule(symbol_of(loss, 1), label_names=('label',), update_freq=1)
    train_data, rule = mx.io.NDArrayIter(rows, labels, 40, label_name='label'), BarzilaiBorwein()
    given = {'fc_weight': mx.nd.ones((1, 5)) * 3, 'fc_bias': mx.nd.zeros(1)}

    def load(epoch, *_):
        if epoch == 1:
            module.set_params(given, {})

    seen = []
    module.fit(train_data, eval_metric=[], num_epoch=3, initializer=mx.init.Zero(),
               optimizer_params={'lr_scheduler': rule}, epoch_end_callback=load,
               batch_end_callback=lambda param: seen.append((param.epoch, module.objective)))
    scores = rows.astype('f8') @ np.full((5, 1), 3.)
    expected = logistic(scores, labels.astype('f8')).mean()
    found = next(objective for epoch, objective in seen if epoch == 2)
    assert found == pytest.approx(expected, rel=1e-5) and expected > 2 * seen[0][1]

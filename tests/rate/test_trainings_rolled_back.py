"""No training by svrg_lbfgs ends above its start, and none that did not converge is silent."""

import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from scipy.special import log_softmax
from sklearn import datasets

from blocks import train_epochs
from svrg_optimization import SVRGModule, SVRGTrainer
from svrg_optimization.rate import smooth

WD = 1e-3


@pytest.fixture
def without_jumps(monkeypatch):
    monkeypatch.setattr(smooth, '_JUMPS', 0)


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


def train_module(rows, labels, loss, start, momentum, epochs):
    module = SVRGModule(symbol_of(loss, len(start['fc_bias'])), label_names=('label',),
                        update_freq=2, tol=1e-4)
    module.fit(mx.io.NDArrayIter(rows, labels, 40, shuffle=True, label_name='label'),
               eval_metric=[], num_epoch=epochs, optimizer='svrg_lbfgs', arg_params=start,
               optimizer_params={'momentum': momentum, 'wd': WD})
    return module.get_params()[0], module.objective, module.gradient_norm <= 1e-4


def train_gluon(rows, labels, loss, start, momentum, epochs):
    net = gluon.nn.Dense(len(start['fc_bias']), in_units=rows.shape[1], prefix='fc_')
    net.initialize()
    for name, param in net.collect_params().items():
        param.set_data(start[name])
    net.bias.wd_mult = 0
    layer = {squares: gluon.loss.L2Loss(), logistic: gluon.loss.SigmoidBCELoss(),
             softmax: gluon.loss.SoftmaxCELoss(), huber: gluon.loss.HuberLoss()}[loss]
    trainer = SVRGTrainer(net.collect_params(), 'svrg_lbfgs', {'momentum': momentum, 'wd': WD},
                          tol=1e-4, objective=lambda data, label: layer(net(data), label))
    train_data = gluon.data.DataLoader(gluon.data.ArrayDataset(rows, labels), 40, shuffle=True)
    train_epochs(trainer, train_data, epochs)
    weights = {name: param.data() for name, param in net.collect_params().items()}
    return weights, trainer.objective, trainer.has_converged


def check(train, problem, momentum, epochs):
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
        weights, found, has_converged = train(rows, labels, loss, start, momentum, epochs)
    assert objective(weights) <= before * (1 + 1e-7)
    assert found == pytest.approx(objective(weights), rel=1e-5)
    assert has_converged or any('training did not converge' in str(each.message)
                                for each in caught)


@pytest.mark.parametrize('train', [train_module, train_gluon])
@pytest.mark.parametrize('problem', PROBLEMS)
def test_no_training_ends_above_its_start(problem, train):
    check(train, problem, 0.9, 5)


@pytest.mark.exhaustive
@pytest.mark.parametrize('momentum', [0.9, 0])
@pytest.mark.parametrize('train', [train_module, train_gluon])
@pytest.mark.parametrize('problem', PROBLEMS)
def test_none_does_after_any_number_of_epochs(problem, train, momentum):
    for epochs in range(1, 31):
        check(train, problem, momentum, epochs)


def test_a_row_that_is_no_number_ends_training_at_once():
    rows, labels, loss, _ = PROBLEMS['heavy logistic']()
    rows[7, 1] = np.nan
    module = SVRGModule(symbol_of(loss, 1), label_names=('label',), update_freq=1, tol=1e-4)
    epochs = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        module.fit(mx.io.NDArrayIter(rows, labels, 40, label_name='label'), eval_metric=[],
                   num_epoch=3, optimizer='svrg_lbfgs',
                   initializer=mx.init.Zero(),
                   epoch_end_callback=lambda *_: epochs.append(1))
    told = [str(each.message) for each in caught if each.category is UserWarning]
    assert not epochs and len([text for text in told if 'No step has been made' in text]) == 1
    np.testing.assert_array_equal(module.get_params()[0]['fc_weight'].asnumpy(), 0)


def two_snapshots(context=mx.cpu()):
    """Return a module between two snapshots, its rule, its data and its weights at the first."""
    rows, labels, loss, _ = PROBLEMS['heavy logistic']()
    module = SVRGModule(symbol_of(loss, 1), label_names=('label',), update_freq=1, context=context)
    train_data = mx.io.NDArrayIter(rows, labels, 40, label_name='label')
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(mx.init.Zero())
    module.init_optimizer(optimizer='svrg_lbfgs', kvstore=None if context == mx.cpu() else 'local')
    module.update_full_grads(train_data)
    start = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    return module, module._optimizer.lr_scheduler, train_data, start


def step_through(module, train_data):
    train_data.reset()
    for batch in train_data:
        module.forward_backward(batch)
        module.update()


@pytest.mark.parametrize('context', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
def test_training_goes_back_without_momentum_and_with_half_the_rate(context, without_jumps):
    module, rule, train_data, start = two_snapshots(context)
    norm, rate_before = module.gradient_norm, rule.rate
    rule.rate = 100.
    step_through(module, train_data)
    module.update_full_grads(train_data)
    assert (rule.slowdown, rule.num_rollbacks) == (2, 1) and rule.rate <= rate_before
    np.testing.assert_allclose(module.gradient_norm, norm, rtol=1e-6)
    updater = module._kvstore._updater if module._update_on_kvstore else module._updater
    assert not set(updater.states) & {0, 1, 2, 3, 'fc_weight', 'fc_bias'}
    for name, value in module.get_params()[0].items():
        np.testing.assert_array_equal(value.asnumpy(), start[name])
    for _ in range(20):
        step_through(module, train_data)
        module.update_full_grads(train_data)
    assert module.objective < 0.9 * np.log(2)


def test_weights_that_have_not_moved_are_no_worse():
    """Another order of raw rows changed the objective: rates were halved down to 1e-38."""
    module, rule, train_data, _ = two_snapshots()
    rule.rate = 1e-25
    step_through(module, train_data)
    train_data.reset()
    label = train_data.label[0][1]
    label[:] = label + 1e-3 * (1 - 2 * label)  # as by another rounding
    module.update_full_grads(train_data)
    assert rule.num_rollbacks == 0


def test_weights_that_no_step_has_made_are_kept(without_jumps):
    module, rule, train_data, start = two_snapshots()
    module.set_params({name: mx.nd.array(value + 7) for name, value in start.items()}, {})
    module.update_full_grads(train_data)
    assert rule.num_rollbacks == 0
    np.testing.assert_allclose(module.get_params()[0]['fc_weight'].asnumpy(),
                               start['fc_weight'] + 7)


def test_weights_that_a_user_sets_are_not_taken_back(without_jumps):
    rows, labels, loss, _ = PROBLEMS['heavy logistic']()
    module = SVRGModule(symbol_of(loss, 1), label_names=('label',), update_freq=1)
    train_data = mx.io.NDArrayIter(rows, labels, 40, label_name='label')
    given = {'fc_weight': mx.nd.ones((1, 5)) * 3, 'fc_bias': mx.nd.zeros(1)}

    def load(epoch, *_):
        if epoch == 1:
            module.set_params(given, {})

    seen = []
    module.fit(train_data, eval_metric=[], num_epoch=3, initializer=mx.init.Zero(),
               optimizer='svrg_lbfgs', epoch_end_callback=load,
               batch_end_callback=lambda param: seen.append((param.epoch, module.objective)))
    scores = rows.astype('f8') @ np.full((5, 1), 3.)
    expected = logistic(scores, labels.astype('f8')).mean()
    found = next(objective for epoch, objective in seen if epoch == 2)
    assert found == pytest.approx(expected, rel=1e-5) and expected > 2 * seen[0][1]

"""What both front ends have, by the same tests against float64."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from svrg_optimization import BarzilaiBorwein, SVRGModule, SVRGTrainer
from svrg_optimization.diagnostics import gradient_variance
from svrg_optimization.proximal import L1

ROWS, BATCH_SIZE, RATE, WD = 60, 10, 0.05, 0.1
_rng = np.random.RandomState(0)
FEATURES = _rng.normal(size=(ROWS, 4)).astype('float32')
TARGETS = (FEATURES.dot([1, -2, 3, 0]) + _rng.normal(size=ROWS)).astype('float32')


class OfModule:
    """Least squares without a bias, with SVRGModule."""

    rows_of_gradient = BATCH_SIZE  # gradients are sums over the rows of a batch

    def __init__(self, optimizer_params, **settings):
        output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True,
                                       name='fc')
        self.trains = SVRGModule(
            mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')),
            label_names=('label',), update_freq=1, **settings)
        self.data = mx.io.NDArrayIter(FEATURES, TARGETS, BATCH_SIZE, label_name='label')
        self.trains.bind(self.data.provide_data, self.data.provide_label)
        self.trains.init_params(mx.init.Zero())
        self.trains.init_optimizer(optimizer='sgd', optimizer_params=optimizer_params)

    def train_epoch(self):
        for batch in self.trains.training_batches(self.data):
            self.trains.forward_backward(batch)
            self.trains.update()

    @property
    def weight(self):
        return self.trains.get_params()[0]['fc_weight'].asnumpy().ravel()


class OfGluon:
    """The same with SVRGTrainer."""

    rows_of_gradient = 1

    def __init__(self, optimizer_params, **settings):
        net, loss = gluon.nn.Dense(1, use_bias=False, in_units=4), gluon.loss.L2Loss()
        net.initialize(mx.init.Zero())
        self.net, self.data = net, [
            (mx.nd.array(FEATURES[i:i + BATCH_SIZE]), mx.nd.array(TARGETS[i:i + BATCH_SIZE, None]))
            for i in range(0, ROWS, BATCH_SIZE)]
        self.trains = SVRGTrainer(net.collect_params(), 'sgd', optimizer_params, **settings,
                                  objective=lambda data, label: loss(net(data), label))

    def train_epoch(self):
        for data, label in self.trains.training_batches(self.data):
            self.trains.backward(data, label)
            self.trains.step(len(data))

    @property
    def weight(self):
        return self.net.weight.data().asnumpy().ravel()


both = pytest.mark.parametrize('front_end', [OfModule, OfGluon])


def gradient(weight, rows=slice(None)):
    features = FEATURES[rows].astype('float64')
    return features.T.dot(features.dot(weight) - TARGETS[rows]) / len(features)


def soft(weight, threshold):
    return np.sign(weight) * np.maximum(np.abs(weight) - threshold, 0)


@both
@pytest.mark.parametrize('alpha', [1, 0.3, 0])
@pytest.mark.parametrize('strength', [0, 0.2])
def test_steps_are_those_of_float64(front_end, alpha, strength):
    model = front_end({'learning_rate': RATE, 'wd': WD}, alpha=alpha,
                      proximal=L1(strength) if strength else None)
    weight = np.zeros(4)
    for _ in range(3):
        model.trains.update_full_grads(model.data)
        snapshot = weight
        model.train_epoch()
        for i in range(0, ROWS, BATCH_SIZE):
            rows = slice(i, i + BATCH_SIZE)
            step = gradient(weight, rows) - alpha * (gradient(snapshot, rows) - gradient(snapshot))
            weight = soft(weight - RATE * (step + WD * weight), RATE * strength)
    np.testing.assert_allclose(model.weight, weight, rtol=1e-5, atol=1e-6)


@both
@pytest.mark.parametrize('stored', [False, True])
@pytest.mark.parametrize('strength', [0, 0.2])
def test_the_rate_is_found_and_the_norm_is_that_of_the_gradient_mapping(front_end, stored,
                                                                        strength):
    np.random.seed(0)
    model = front_end({'lr_scheduler': BarzilaiBorwein(), 'wd': WD}, store_snapshot_grads=stored,
                      tol=1e-5, proximal=L1(strength) if strength else None)
    for _ in range(100):
        model.trains.update_full_grads(model.data)
        if model.trains.gradient_norm <= 1e-5:
            break
        model.train_epoch()
    weight = model.weight.astype('float64')
    stepped = soft(weight - gradient(weight) - WD * weight, strength)
    np.testing.assert_allclose(weight, stepped, atol=2e-5)
    assert np.abs(gradient(weight)).max() > 0.1


@both
def test_tol_is_compared_at_each_snapshot(front_end):
    model = front_end({'learning_rate': RATE})
    trains = model.trains
    for tol, expected in ((None, False), (1e3, True), (1e-3, False), (1e3, True), (None, False)):
        trains.tol = tol
        assert trains.tol == tol
        trains.update_full_grads(model.data)
        assert trains.has_converged is expected
    with pytest.raises(ValueError, match='tol must be None or a number above 0, not -1'):
        trains.tol = -1
    assert trains.tol is None


@both
@pytest.mark.parametrize('alpha', [1, 0.5, 0])
def test_the_variance_is_that_of_float64(front_end, alpha):
    model = front_end({'learning_rate': RATE})
    model.trains.update_full_grads(model.data)
    model.train_epoch()
    model.trains.alpha = alpha
    found = gradient_variance(model.trains, model.data)
    batches = [slice(i, i + BATCH_SIZE) for i in range(0, ROWS, BATCH_SIZE)]
    now, then = (front_end.rows_of_gradient * np.array([gradient(weight, rows) for rows in batches])
                 for weight in (model.weight.astype('float64'), np.zeros(4)))
    now, then = now - now.mean(axis=0), then - then.mean(axis=0)
    for value, expected in ((found.plain, now), (found.svrg, now - alpha * then)):
        assert value == pytest.approx((expected ** 2).sum() / len(batches), rel=1e-4)
    if alpha:
        assert found.best_alpha == pytest.approx((now * then).sum() / (then ** 2).sum(), rel=1e-4)
    else:
        assert np.isnan(found.best_alpha)

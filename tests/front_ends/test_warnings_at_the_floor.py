"""Training to the floor of the precision converges, and ends without a warning."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon.contrib.estimator import Estimator

from blocks import train_epochs
from oracle import softmax
from svrg_optimization import SVRGModule, SVRGTrainer
from svrg_optimization.gluon import SnapshotHandler, SVRGBatchProcessor
from svrg_optimization.proximal import L1

ROWS, COLUMNS, BATCH = 64, 5, 16  # whole batches, whose 1 / size is exact
RNG = np.random.RandomState(0)
FEATURES = RNG.normal(size=(ROWS, COLUMNS))
TRUTH, NOISE = RNG.normal(size=COLUMNS), RNG.normal(size=ROWS)
ALIKE = FEATURES + 2 * RNG.normal(size=(ROWS, 1))
HEAVY = FEATURES * np.where(np.arange(ROWS) % 8, 1, 4)[:, np.newaxis]

# Rows, targets, weight decay, strength of L1, constant rate.
PROBLEMS = {
    'each row fits': (FEATURES, FEATURES @ TRUTH, 0, 0, 0.1),
    'little signal': (FEATURES, NOISE, 0.125, 0, 0.1),
    'correlated columns': (ALIKE, ALIKE @ TRUTH + NOISE, 0.5, 0, 0.02),
    'heavy rows': (HEAVY, HEAVY @ TRUTH + NOISE, 0.5, 0, 0.02),
    'three classes': (FEATURES, RNG.randint(3, size=ROWS).astype(float), 0.125, 0, 0.5),
    'L1': (FEATURES, FEATURES @ TRUTH + NOISE, 0, 0.25, 0.1)}


def is_classes(targets):
    return set(targets) == {0, 1, 2}


def of_module(problem, dtype, tol, optimizer, params, epochs):
    features, targets, _, strength, _ = problem
    outputs = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3 if is_classes(
        targets) else 1, no_bias=True, name='fc')
    loss = mx.sym.SoftmaxOutput if is_classes(targets) else mx.sym.LinearRegressionOutput
    module = SVRGModule(loss(outputs, mx.sym.Variable('label')), label_names=('label',),
                        update_freq=1, tol=tol,
                        proximal={'fc_weight': L1(strength)} if strength else None)
    train_data = mx.io.NDArrayIter(mx.nd.array(features, dtype=dtype),
                                   mx.nd.array(targets, dtype=dtype), BATCH, label_name='label')
    module.fit(train_data, eval_metric=[], num_epoch=epochs, initializer=mx.init.Zero(),
               optimizer=optimizer, optimizer_params=params)
    return module, module.get_params()[0]['fc_weight'].asnumpy()


def trainer_of(problem, dtype, tol, optimizer, params, gives_output=False):
    _, targets, _, strength, _ = problem
    net = mx.gluon.nn.Dense(3 if is_classes(targets) else 1, in_units=COLUMNS, use_bias=False)
    net.cast(dtype)
    net.initialize(mx.init.Zero())
    loss = mx.gluon.loss.SoftmaxCELoss() if is_classes(targets) else mx.gluon.loss.L2Loss()

    def objective(data, label):
        output = net(data)
        return (loss(output, label), output) if gives_output else loss(output, label)

    return net, loss, SVRGTrainer(
        net.collect_params(), optimizer, params, tol=tol, objective=objective,
        proximal={net.weight.name: L1(strength)} if strength else None)


def of_trainer(problem, dtype, tol, optimizer, params, epochs):
    net, _, trainer = trainer_of(problem, dtype, tol, optimizer, params)
    batches = [[mx.nd.array(part[first:first + BATCH], dtype=dtype) for part in problem[:2]]
               for first in range(0, ROWS, BATCH)]
    train_epochs(trainer, batches, epochs)
    return trainer, net.weight.data().asnumpy()


def of_estimator(problem, dtype, tol, optimizer, params, epochs):
    net, loss, trainer = trainer_of(problem, dtype, tol, optimizer, params, gives_output=True)
    data = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(
        *(part.astype(dtype) for part in problem[:2])), BATCH)
    estimator = Estimator(net, loss, trainer=trainer, batch_processor=SVRGBatchProcessor(),
                          train_metrics=mx.metric.Loss('train'))
    estimator.logger.handlers = []
    estimator.fit(data, epochs=epochs, event_handlers=[SnapshotHandler(data, 1)])
    return trainer, net.weight.data().asnumpy()


def residual(problem, weight):
    """Return what vanishes at the optimum, in NumPy: the gradient, with L1 its mapping."""
    features, targets, decay, strength, _ = problem
    outputs = features @ weight.T
    errors = (softmax(outputs) - np.eye(3)[targets.astype(int)] if is_classes(targets)
              else outputs - targets.reshape(-1, 1))
    gradient = errors.T @ features / ROWS + decay * weight
    stepped = weight - gradient
    return weight - np.sign(stepped) * np.maximum(np.abs(stepped) - strength, 0)


@pytest.mark.parametrize('front_end', [
    of_module, of_trainer, pytest.param(of_estimator, marks=pytest.mark.slow)],
    ids=['Module', 'Gluon', 'Estimator'])
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('name, optimizer, tol', [
    *((name, 'svrg_lbfgs', tol) for name in PROBLEMS if name != 'L1' for tol in (None, 1e-30)),
    *((name, 'sgd', 1e-30) for name in PROBLEMS)])
def test_no_warning_comes_at_the_floor(front_end, dtype, optimizer, tol, name):
    """Warnings are errors in all tests."""
    problem = PROBLEMS[name]
    params = {'wd': problem[2]}
    if optimizer == 'sgd':
        params['learning_rate'] = problem[4]
    trained, weight = front_end(problem, dtype, tol, optimizer, params, 400)
    assert trained.has_converged
    error = np.abs(residual(problem, weight.astype('float64'))).max()
    assert error < (1e-5 if dtype == 'float32' else 1e-13)


@pytest.mark.parametrize('front_end', [of_module, of_trainer], ids=['Module', 'Gluon'])
@pytest.mark.parametrize('rate', [1e-9, 1e-3])
def test_slow_steps_are_not_the_floor(front_end, rate):
    with pytest.warns(UserWarning, match='did not converge'):
        trained, _ = front_end(PROBLEMS['little signal'], 'float32', 1e-8, 'sgd',
                               {'learning_rate': rate}, 20)
    assert not trained.has_converged

"""Converged means right, in any units, and right means converged: problems by ways."""

import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon.contrib.estimator import Estimator
from sklearn.linear_model import Lasso

from blocks import train_epochs
from oracle import softmax
from pairs import in_pairs
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


def of_module(problem, dtype, tol, optimizer, params, epochs, stype='default', bias=False):
    features, targets, _, strength, _ = problem
    if stype == 'csr':
        outputs = mx.sym.dot(mx.sym.Variable('data', stype=stype), mx.sym.Variable(
            'fc_weight', shape=(COLUMNS, 1)))
        outputs = mx.sym.broadcast_add(outputs, mx.sym.Variable(
            'fc_bias', shape=(1,))) if bias else outputs
    else:
        outputs = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3 if is_classes(
            targets) else 1, no_bias=not bias, name='fc')
    loss = mx.sym.SoftmaxOutput if is_classes(targets) else mx.sym.LinearRegressionOutput
    module = SVRGModule(loss(outputs, mx.sym.Variable('label')), label_names=('label',),
                        update_freq=1, tol=tol,
                        proximal={'fc_weight': L1(strength)} if strength else None)
    train_data = mx.io.NDArrayIter(
        mx.nd.array(features, dtype=dtype).tostype(stype), mx.nd.array(targets, dtype=dtype),
        params.pop('batch', BATCH), label_name='label',
        last_batch_handle='discard' if stype == 'csr' else 'pad')
    module.fit(train_data, eval_metric=[], num_epoch=epochs, optimizer=optimizer,
               optimizer_params=params, **({} if bias else {'initializer': mx.init.Zero()}))
    return module, module.get_params()[0]['fc_weight'].asnumpy()


def trainer_of(problem, dtype, tol, optimizer, params, gives_output=False, bias=False):
    _, targets, _, strength, _ = problem
    net = mx.gluon.nn.Dense(3 if is_classes(targets) else 1, in_units=COLUMNS, use_bias=bias)
    net.cast(dtype)
    net.initialize(mx.init.Uniform(0.01) if bias else mx.init.Zero())
    if bias:
        net.bias.wd_mult = 0  # as in Module
    loss = mx.gluon.loss.SoftmaxCELoss() if is_classes(targets) else mx.gluon.loss.L2Loss()

    def objective(data, label):
        output = net(data)
        return (loss(output, label), output) if gives_output else loss(output, label)

    return net, loss, SVRGTrainer(
        net.collect_params(), optimizer, params, tol=tol, objective=objective,
        proximal={net.weight.name: L1(strength)} if strength else None)


def of_trainer(problem, dtype, tol, optimizer, params, epochs, bias=False):
    batch = params.pop('batch', BATCH)
    net, _, trainer = trainer_of(problem, dtype, tol, optimizer, params, bias=bias)
    batches = [[mx.nd.array(part[first:first + batch], dtype=dtype) for part in problem[:2]]
               for first in range(0, len(problem[1]), batch)]
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
    assert trained.has_converged and trained.result.reason in ('at the floor', 'converged')
    error = np.abs(residual(problem, weight.astype('float64'))).max()
    assert error < (1e-5 if dtype == 'float32' else 1e-13)


@pytest.mark.parametrize('front_end', [of_module, of_trainer], ids=['Module', 'Gluon'])
@pytest.mark.parametrize('rate', [1e-9, 1e-3])
def test_slow_steps_are_not_the_floor(front_end, rate):
    with pytest.warns(UserWarning, match='did not converge'):
        trained, _ = front_end(PROBLEMS['little signal'], 'float32', 1e-8, 'sgd',
                               {'learning_rate': rate}, 20)
    assert not trained.has_converged


MANY = np.random.RandomState(1).normal(size=(400, COLUMNS))
ANSWERS = MANY @ TRUTH + np.random.RandomState(2).normal(size=400) / 2


def solution(rows, targets, decay=0., strength=0., bias=True):
    """Return the weights of ridge regression, or of the Lasso, in float64."""
    means = (rows.mean(axis=0), targets.mean()) if bias else (0, 0)
    rows, targets = rows - means[0], targets - means[1]
    if strength:
        unit = targets.std()
        return Lasso(strength / unit, fit_intercept=False, tol=1e-14, max_iter=10 ** 5).fit(
            rows, targets / unit).coef_ * unit
    return np.linalg.solve(rows.T @ rows / len(rows) + decay * np.eye(COLUMNS),
                           rows.T @ targets / len(rows))


WAYS = [(of_module, 'float32', {}), (of_module, 'float64', {}),
        (of_module, 'float32', {'stype': 'csr'}), (of_trainer, 'float32', {}),
        (of_trainer, 'float64', {})]
UNITS = [*((unit, 1) for unit in (1e-6, 1e-5, 1e-3, 1, 1e3, 1e6)), (1, 1e-3), (1, 1e3)]


@in_pairs({'way': WAYS, 'units': UNITS, 'optimizer, strength, shift': [
    ('svrg_lbfgs', 0, 0), ('svrg_lbfgs', 0, 100), ('svrg_lbfgs', 0.1, 0), ('sgd', 0, 0)]})
def test_converged_is_right_in_any_units(way, units, optimizer, strength, shift):
    """From random weights, which may be far larger than those of the optimum."""
    (front_end, dtype, arguments), (of_targets, of_rows) = way, units
    np.random.seed(0)
    of_rows = 1 if optimizer == 'sgd' else of_rows  # whose rate would be another one
    rows, targets = MANY * of_rows, (ANSWERS + shift) * of_targets
    strength *= of_targets * of_rows
    params = {'batch': 20, **({'learning_rate': 0.1} if optimizer == 'sgd' else {})}
    trained, weight = front_end((rows, targets, 0, strength, None), dtype, 1e-5, optimizer, params,
                                100, bias=True, **arguments)
    expected = solution(rows, targets, strength=strength)
    np.testing.assert_allclose(weight.ravel(), expected, atol=1e-4 * np.abs(expected).max())
    assert trained.result.has_converged and trained.result.epochs <= 36


@pytest.mark.parametrize('front_end', [of_module, of_trainer], ids=['Module', 'Gluon'])
@pytest.mark.parametrize('seed', [5, 19, 21])
def test_the_lasso_converges_from_any_start(front_end, seed):
    """A jump to where the gradient is noise is not undone."""
    mx.random.seed(seed)
    np.random.seed(seed)
    trained, weight = front_end((MANY, ANSWERS, 0, 0.1, None), 'float32', 1e-5, 'svrg_lbfgs',
                                {'batch': 20}, 100, bias=True)
    expected = solution(MANY, ANSWERS, strength=0.1)
    assert np.abs(weight.ravel() - expected).max() < 1e-4 * np.abs(expected).max()
    assert trained.has_converged and trained.result.passes <= 66


@pytest.mark.parametrize('front_end', [of_module, of_trainer], ids=['Module', 'Gluon'])
@pytest.mark.parametrize('strength', [0.1, 0.5])
def test_the_lasso_is_exact_in_float64(front_end, strength):
    """Near the optimum the loss and the penalty change by much more than their sum."""
    np.random.seed(0)
    mx.random.seed(0)
    trained, weight = front_end((MANY, ANSWERS, 0, strength, None), 'float64', 1e-12, 'svrg_lbfgs',
                                {'batch': 20}, 50, bias=True)
    assert np.abs(weight.ravel() - solution(MANY, ANSWERS, strength=strength)).max() < 1e-11
    assert trained.has_converged and trained.result.passes <= 40


@pytest.mark.parametrize('front_end', [of_module, of_trainer], ids=['Module', 'Gluon'])
def test_a_start_at_the_optimum_needs_no_curvature(front_end):
    """Warnings are errors in all tests. Two passes show that the gradient of 0 is no kink."""
    trained, weight = front_end((MANY, np.zeros(400), 0, 0.1, None), 'float32', 1e-5, 'svrg_lbfgs',
                                {'batch': 20}, 3)
    assert trained.result.reason == 'converged' and trained.result.passes <= 3
    assert not weight.any()


@pytest.mark.parametrize('column', range(COLUMNS))
@pytest.mark.parametrize('weight', [-0.5, -3.])
def test_a_jump_that_moves_nothing_is_the_last(column, weight):
    """One weight alone can be made better by jumps, for others leave 0 by steps."""
    module = SVRGModule(mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(
        mx.sym.Variable('data'), num_hidden=1, no_bias=True, name='fc'), mx.sym.Variable('label')),
        label_names=('label',), update_freq=1, proximal={'fc_weight': L1(0.1)})
    train_data = mx.io.NDArrayIter(MANY.astype('f'), ANSWERS.astype('f'), 20, label_name='label')
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(arg_params={
        'fc_weight': weight * mx.nd.one_hot(mx.nd.array([column]), COLUMNS)})
    module.init_optimizer(optimizer='svrg_lbfgs')
    module.update_full_grads(train_data)
    assert 1 < module.result.passes <= 12


@pytest.mark.parametrize('front_end', [of_module, of_trainer], ids=['Module', 'Gluon'])
@pytest.mark.parametrize('seed', range(10))
def test_ridge_in_float64_is_exact_for_any_decay_and_batch_size(front_end, seed):
    """MXNet rounds wd and 1 / batch_size to float32, which would move the optimum by 1e-8."""
    rng = np.random.RandomState(seed)
    decay, batch = 10 ** rng.uniform(-3, 0), int(rng.randint(3, 120))
    trained, weight = front_end((MANY, ANSWERS, decay, 0, None), 'float64', 1e-12, 'svrg_lbfgs',
                                {'wd': decay, 'batch': batch}, 200, bias=True)
    assert trained.has_converged
    assert np.abs(weight.ravel() - solution(MANY, ANSWERS, decay)).max() < 1e-11


@pytest.mark.parametrize('front_end', [of_module, of_trainer], ids=['Module', 'Gluon'])
@pytest.mark.parametrize('reason, rate, epochs', [
    ('epochs used up', 1e-3, 3), ('diverged', 2.5, 1), ('not finite', 1e5, 20),
    ('no step', 1e-50, 3)])
@pytest.mark.filterwarnings('ignore:the full gradient is not finite')
def test_the_result_says_why_training_ended(front_end, reason, rate, epochs):
    np.random.seed(0)
    with pytest.warns(UserWarning, match='training did not converge to tol=1e-05: ') as caught:
        trained, _ = front_end((MANY, ANSWERS, 0, 0, None), 'float32', 1e-5, 'sgd',
                               {'learning_rate': rate}, epochs, bias=True)
    result = trained.result
    assert result.reason == reason and not trained.has_converged
    assert str(result) in [str(one.message) for one in caught]
    assert (result.epochs < epochs) == (reason == 'no step')
    assert 0 < result.epochs < result.passes <= 2 * result.epochs + 1


def test_rounding_is_no_divergence():
    """Where training begins at the floor, the objective and the gradient go up and down."""
    np.random.seed(0)
    module, _ = of_module((MANY, ANSWERS, 0, 0, None), 'float32', None, 'nag',
                          {'learning_rate': 0.1, 'momentum': 0.9, 'batch': 20}, 40, bias=True)
    data = mx.io.NDArrayIter(MANY.astype('f'), ANSWERS.astype('f'), 20, label_name='label')
    for _ in range(8):
        module.fit(data, eval_metric=[], num_epoch=2)
        assert module.result.reason == 'epochs used up'


@pytest.mark.parametrize('front_end', [of_module, of_trainer], ids=['Module', 'Gluon'])
def test_nan_in_the_data_is_not_put_down_to_the_learning_rate(front_end):
    gaps = np.where(np.arange(COLUMNS) == 2, np.nan, MANY[:, :COLUMNS])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        front_end((gaps, ANSWERS, 0, 0, None), 'float32', 1e-5, 'svrg_lbfgs', {}, 3, bias=True)
    said = [str(one.message) for one in caught]
    assert 'the full gradient is not finite' in said[0] and not any('rate' in one for one in said)

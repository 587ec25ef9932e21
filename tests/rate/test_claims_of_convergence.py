"""'converged' and 'at the floor' are said of right weights only, and of all right ones.

Problems in any units by both front ends, beside solutions in float64.
"""

import warnings

import mxnet as mx
import numpy as np
import pytest
from sklearn.linear_model import Lasso

from linear_models import Problem, by_gluon, by_module
from newton import outputs_at_optimum
from oracle import linear_regression, soft_threshold, softmax_regression
from pairs import in_pairs
from svrg_optimization.proximal import L1

both = pytest.mark.parametrize('front_end', [by_module, by_gluon])
ROWS, COLUMNS, TOL = 64, 5, 1e-5
RNG = np.random.RandomState(0)
FEATURES = RNG.normal(size=(ROWS, COLUMNS))
TRUTH, NOISE = RNG.normal(size=COLUMNS), RNG.normal(size=ROWS)
ALIKE = FEATURES + 2 * RNG.normal(size=(ROWS, 1))
HEAVY = FEATURES * np.where(np.arange(ROWS) % 8, 1, 4)[:, np.newaxis]

# Loss, rows, targets, weight decay, strength of L1, constant rate. Batches are whole.
FLOORS = {
    'each row fits': ('squares', FEATURES, FEATURES @ TRUTH, 0, 0, 0.1),
    'little signal': ('squares', FEATURES, NOISE, 0.125, 0, 0.1),
    'correlated columns': ('squares', ALIKE, ALIKE @ TRUTH + NOISE, 0.5, 0, 0.02),
    'heavy rows': ('squares', HEAVY, HEAVY @ TRUTH + NOISE, 0.5, 0, 0.02),
    'three classes': ('softmax', FEATURES, RNG.randint(3, size=ROWS), 0.125, 0, 0.5),
    'L1': ('squares', FEATURES, FEATURES @ TRUTH + NOISE, 0, 0.25, 0.1)}


def residual(loss, rows, targets, wd, strength, weight):
    """Return what vanishes at the optimum, in NumPy: the gradient, with L1 its mapping."""
    network = {'softmax': softmax_regression, 'squares': linear_regression}[loss]
    summed = network({'fc_weight': weight, 'fc_bias': 0}, rows, targets)['fc_weight']
    return weight - soft_threshold(strength)(weight - summed / ROWS - wd * weight, 1)


@pytest.mark.parametrize('front_end, dtype', [
    (by_module, 'float64'), (by_gluon, 'float32'), *(
        pytest.param(*other, marks=pytest.mark.slow) for other in (
            (by_module, 'float32'), (by_gluon, 'float64')))])
@pytest.mark.parametrize('name, optimizer, tol', [
    *((name, 'newton_cg', tol) for name in FLOORS if name != 'L1' for tol in (None, 1e-30)),
    *((name, 'sgd', 1e-30) for name in ('each row fits', 'three classes', 'L1')),
    *(pytest.param(name, 'sgd', 1e-30, marks=pytest.mark.slow) for name in (
        'little signal', 'correlated columns', 'heavy rows'))])
@pytest.mark.filterwarnings('ignore:training did not converge')
def test_training_comes_to_the_floor(front_end, dtype, optimizer, tol, name):
    """The word is said with newton_cg, whose jumps show that nothing is better."""
    loss, rows, targets, wd, strength, rate = FLOORS[name]
    found = front_end(Problem(loss, rows, targets, wd, dtype, 16, bias=False), 400, tol, 1,
                      optimizer, {'learning_rate': rate} if optimizer == 'sgd' else {},
                      L1(strength) if strength else None, initializer=mx.init.Zero())
    assert found.by.result.has_converged or optimizer == 'sgd'
    error = np.abs(residual(loss, rows, targets, wd, strength, found.weight)).max()
    assert error < (1e-5 if dtype == 'float32' else 1e-13)


MANY = np.random.RandomState(1).normal(size=(400, COLUMNS))
ANSWERS = MANY @ TRUTH + np.random.RandomState(2).normal(size=400) / 2


def solution(rows, targets, wd=0., strength=0.):
    """Return the weights of ridge regression, or of the Lasso, in float64."""
    rows, targets = rows - rows.mean(axis=0), targets - targets.mean()
    if strength:
        unit = targets.std()
        return Lasso(strength / unit, fit_intercept=False, tol=1e-14, max_iter=10 ** 5).fit(
            rows, targets / unit).coef_ * unit
    return np.linalg.solve(rows.T @ rows / len(rows) + wd * np.eye(rows.shape[1]),
                           rows.T @ targets / len(rows))


def check_squares(front_end, rows, targets, tol, off, wd=0., strength=0., dtype='float32', batch=20,
                  optimizer='newton_cg', **kind):
    """Check that a training is said to have converged, and what its weights are.

    Returns the weights, those of the optimum and the result.
    """
    found = front_end(Problem('squares', rows, targets, wd, dtype, batch, **kind), 200, tol, 1,
                      optimizer, {'learning_rate': 0.1} if optimizer == 'sgd' else {},
                      L1(strength) if strength else None)
    expected = solution(rows, targets, wd, strength)
    assert found.by.has_converged
    np.testing.assert_allclose(found.weight[0], expected, rtol=0, atol=off * np.abs(expected).max())
    return found.weight[0], expected, found.by.result


@in_pairs({
    'front_end, dtype, stype': [
        (by_module, 'float32', 'default'), (by_module, 'float64', 'default'),
        (by_module, 'float32', 'csr'), (by_gluon, 'float32', 'default'),
        (by_gluon, 'float64', 'default')],
    'of_targets, of_rows': [*((unit, 1) for unit in (1e-6, 1e-5, 1e-3, 1, 1e3, 1e6)), (1, 1e-3),
                            (1, 1e3)],
    'optimizer, strength, shift': [('newton_cg', 0, 0), ('newton_cg', 0, 100),
                                   ('newton_cg', 0.1, 0), ('sgd', 0, 0)]})
def test_converged_is_right_in_any_units(front_end, dtype, stype, of_targets, of_rows, optimizer,
                                         strength, shift):
    """From random weights, which may be far larger than those of the optimum."""
    of_rows = 1 if optimizer == 'sgd' else of_rows  # whose rate would be another one
    *_, result = check_squares(
        front_end, MANY * of_rows, (ANSWERS + shift) * of_targets, TOL, 1e-4, dtype=dtype,
        strength=strength * of_targets * of_rows, optimizer=optimizer, stype=stype,
        dot=stype == 'csr')
    assert result.epochs <= 36


@both
@pytest.mark.parametrize('mean, strength, dtype, tol, seed, passes', [
    # A jump to where the gradient is noise is not undone:
    *((0, 0.1, 'float32', 1e-5, seed, 66) for seed in (5, 19, 21)),
    # Near the optimum the loss and the penalty change by much more than their sum, which then is
    # the rounding of the penalty:
    (0, 0.1, 'float64', 1e-12, 0, 30), (0, 0.5, 'float64', 1e-12, 0, 30),
    (5, 0.1, 'float64', 1e-5, 0, 40)])
def test_the_lasso_is_that_of_scikit_learn(front_end, mean, strength, dtype, tol, seed, passes):
    mx.random.seed(seed)
    np.random.seed(seed)
    weight, expected, result = check_squares(front_end, MANY + mean, ANSWERS, tol, 10 * tol,
                                             strength=strength, dtype=dtype)
    np.testing.assert_array_equal(weight == 0, expected == 0)
    assert result.passes <= passes


@both
@pytest.mark.parametrize('seed', range(5))
def test_ridge_in_float64_is_exact_for_any_decay_and_batch_size(front_end, seed):
    """MXNet rounds wd and 1 / batch_size to float32, which would move the optimum by 1e-8."""
    rng = np.random.RandomState(seed)
    wd, batch = 10 ** rng.uniform(-3, 0), int(rng.randint(3, 120))
    check_squares(front_end, MANY, ANSWERS, 1e-12, 8e-12, wd, dtype='float64', batch=batch)


@both
@pytest.mark.parametrize('reason, rate, epochs', [
    ('epochs used up', 1e-3, 3), ('epochs used up', 1e-9, 3), ('epochs used up', 2.5, 1),
    ('not finite', 1e5, 20), ('no step', 1e-50, 3)])
@pytest.mark.filterwarnings('ignore:the full gradient is not finite')
def test_the_result_says_why_training_ended(front_end, reason, rate, epochs):
    with pytest.warns(UserWarning, match='training did not converge to tol=1e-05: ') as caught:
        found = front_end(Problem('squares', MANY, ANSWERS, batch=20), epochs, TOL, 1, 'sgd',
                          {'learning_rate': rate})
    result = found.by.result
    assert result.reason == reason and not found.by.has_converged
    assert str(result) in [str(one.message) for one in caught]
    assert (result.epochs < epochs) == (reason == 'no step')
    assert 0 < result.epochs < result.passes <= 3 * result.epochs + 1


def test_rounding_is_no_divergence():
    """Where training begins at the floor, the objective and the gradient go up and down."""
    problem = Problem('squares', MANY, ANSWERS, batch=20)
    module = by_module(problem, 40, None, 1, 'nag', {'learning_rate': 0.1, 'momentum': 0.9}).by
    for _ in range(8):
        module.fit(problem.iterator(), eval_metric=[], num_epoch=2)
        assert module.result.reason == 'epochs used up'


@both
def test_rows_that_are_no_numbers_end_training_at_once(front_end):
    """And that is not put down to the learning rate."""
    gaps = np.where((np.arange(400) == 7)[:, np.newaxis], np.nan, MANY)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        found = front_end(Problem('squares', gaps, ANSWERS, batch=20), 3,
                          initializer=mx.init.Zero())
    said = [str(each.message) for each in caught if each.category is UserWarning]
    assert 'the full gradient is not finite' in said[0] and not any('rate' in one for one in said)
    assert sum('No step has been made' in one for one in said) == 1
    assert 'did not converge' in said[-1] and 'the initial weights (gradient nan' in said[-1]
    assert found.by.result.epochs == 1 and not found.weight.any()  # whose callbacks are called


RNG = np.random.RandomState(5)
NORMAL, CHANCE = RNG.normal(size=(1000, 4)), RNG.logistic(size=1000)


class Noisy(mx.io.NDArrayIter):
    """Rows with other noise in each pass."""

    def next(self):
        batch = super().next()
        batch.data = [with_noise(data) for data in batch.data]
        return batch


class Varying(mx.io.NDArrayIter):
    """Without its last rows in each third pass."""

    passes = 0

    def reset(self):
        self.passes += 1
        super().reset()

    def iter_next(self):
        return super().iter_next() and (self.passes % 3 > 0 or self.cursor < 300)


def with_noise(data):
    return data + 0.1 * mx.nd.array(np.random.normal(size=data.shape))


LEFT_OUT = Problem('squares', NORMAL[:330], NORMAL[:330, 0] + CHANCE[:330], shuffle=True)


@pytest.mark.parametrize('front_end, given, seed', [
    (by_module, {'data': Noisy(LEFT_OUT.rows, LEFT_OUT.targets, 30, label_name='label')}, 16),
    (by_module, {'data': LEFT_OUT.iterator(last_batch_handle='discard')}, 23),
    (by_module, {'data': Varying(LEFT_OUT.rows, LEFT_OUT.targets, 30, label_name='label')}, 0),
    (by_gluon, {'data': LEFT_OUT.loader(last_batch='discard')}, 5),
    (by_gluon, {'changed': with_noise, 'initializer': mx.init.Uniform()}, 3)])
@pytest.mark.filterwarnings(
    'ignore:training did not converge|tol may not be|the loss is not|random numbers of a layer')
def test_passes_of_other_functions_are_told(front_end, given, seed):
    """With these random numbers training was said to have converged to float32's precision."""
    np.random.seed(seed)
    mx.random.seed(seed)
    result = front_end(LEFT_OUT, **given).by.result
    assert not result.has_converged
    assert 'another objective' in str(result)


@both
@pytest.mark.parametrize('tol', [1e-5, 1e-6])
@pytest.mark.filterwarnings('ignore:training did not converge|tol may not be reached')
def test_what_a_softmax_does_not_see_does_not_drift(front_end, tol):
    """Biases have no decay, and what they have in common has no curvature: it was noise."""
    targets = (NORMAL[:300, :3] + RNG.gumbel(size=(300, 3))).argmax(axis=1)
    by = front_end(Problem('softmax', NORMAL[:300], targets, 1e-3, batch=30), tol=tol).by
    assert by.result.norm < 1e-5 and (by.has_converged or tol < TOL)


@both
@pytest.mark.parametrize('loss, scale', [('softmax', 1), ('softmax', 1e4), ('logistic', 1),
                                         ('squares', 1), ('squares', 1e4)])
def test_a_training_that_begins_where_another_has_ended_stays_there(front_end, loss, scale):
    """All gradients are rounding there: what the loss does not see is told by one of a batch."""
    rows = NORMAL[:300] * [scale, 1, 1 / scale, 1] + [scale, 0, 0, 1]
    outputs = NORMAL[:300, :3] + np.random.RandomState(5).gumbel(size=(300, 3))
    targets = {'softmax': outputs.argmax(axis=1), 'logistic': outputs[:, 0] > 0,
               'squares': outputs[:, 0]}[loss]
    problem = Problem(loss, rows, targets, 1e-3, batch=30)
    first = front_end(problem)
    again = front_end(problem, tol=1e-4, start={
        name: mx.nd.array(value) for name, value in (('fc_weight', first.weight),
                                                     ('fc_bias', first.bias))})
    assert first.by.has_converged and again.by.has_converged and again.by.result.passes <= 20
    found, expected = (rows @ each.weight.T + each.bias for each in (again, first))
    assert np.abs(found - expected).max() <= 1e-3 * np.ptp(expected)


@pytest.mark.parametrize('seed', [0, 100, 105])
def test_a_loss_that_is_not_the_integral_of_its_gradient_is_not_compared(seed):
    """With two of these seeds the first move goes past the lowest point, where a constant fits."""
    noise = np.random.RandomState(seed).gumbel(size=(1000, 3))
    targets = (NORMAL[:, :3] + noise).argmax(axis=1)
    fc = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    label = mx.sym.Variable('label')
    chosen = mx.sym.sum(mx.sym.softmax(fc) * mx.sym.one_hot(label, 3), axis=1)
    problem = Problem('softmax', NORMAL, targets, 1e-3)
    problem.symbol = lambda: mx.sym.MakeLoss(-chosen / mx.sym.BlockGrad(chosen))
    with pytest.warns(UserWarning, match='the loss is not the function whose gradient'):
        by, weight, bias = by_module(problem)
    assert by.has_converged
    outputs = NORMAL @ weight.T + bias
    expected = outputs_at_optimum('softmax', NORMAL, targets, 1e-3)
    outputs, expected = (each - each.mean(axis=1, keepdims=True) for each in (outputs, expected))
    assert np.abs(outputs - expected).max() < 1e-3 * np.abs(expected).max()

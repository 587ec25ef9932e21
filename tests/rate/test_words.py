"""The words at the end of a training: why it has ended, and what keeps it from convergence."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from linear_models import Problem, by_gluon, by_module
from newton import outputs_at_optimum

both = pytest.mark.parametrize('front_end', [by_module, by_gluon])
RNG = np.random.RandomState(5)
NORMAL, CHANCE = RNG.normal(size=(1000, 4)), RNG.logistic(size=1000)
SQUARES = Problem('squares', NORMAL[:330], NORMAL[:330, 0] + CHANCE[:330], shuffle=True)


@both
@pytest.mark.parametrize('reason, rate, epochs', [
    ('epochs used up', 1e-3, 3), ('epochs used up', 2.5, 1), ('not finite', 1e5, 20),
    ('no step', 1e-50, 3)])
@pytest.mark.filterwarnings('ignore:the full gradient is not finite')
def test_the_result_says_why_training_ended(front_end, reason, rate, epochs):
    with pytest.warns(UserWarning, match='training did not converge to tol=1e-05: ') as caught:
        found = front_end(SQUARES, epochs, 1e-5, 1, 'sgd', {'learning_rate': rate})
    result = found.by.result
    assert result.reason == reason and not found.by.has_converged
    assert str(result) in [str(one.message) for one in caught]
    assert (result.epochs < epochs) == (reason == 'no step')
    assert 0 < result.epochs < result.passes <= 3 * result.epochs + 1


@both
def test_rows_that_are_no_numbers_end_training_at_once(front_end):
    """And that is not put down to the learning rate."""
    gaps = np.where((np.arange(330) == 7)[:, np.newaxis], np.nan, SQUARES.rows)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        found = front_end(Problem('squares', gaps, SQUARES.targets), 3, initializer=mx.init.Zero())
    said = [str(each.message) for each in caught if each.category is UserWarning]
    assert 'the full gradient is not finite' in said[0] and not any('rate' in one for one in said)
    assert sum('No step has been made' in one for one in said) == 1
    assert 'did not converge' in said[-1] and 'the initial weights (gradient nan' in said[-1]
    assert found.by.result.epochs == 1 and not found.weight.any()  # whose callbacks are called


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


@pytest.mark.parametrize('front_end, given, seed', [
    (by_module, {'data': SQUARES.iterator(last_batch_handle='discard')}, 23),
    (by_module, {'data': Varying(SQUARES.rows, SQUARES.targets, 30, label_name='label')}, 0),
    (by_gluon, {'data': SQUARES.loader(last_batch='discard')}, 5),
    (by_gluon, {'changed': with_noise, 'initializer': mx.init.Uniform()}, 3)])
@pytest.mark.filterwarnings(
    'ignore:training did not converge|tol may not be|the loss is not|random numbers of a layer')
def test_passes_of_other_functions_are_told(front_end, given, seed):
    """With these random numbers training was said to have converged to float32's precision."""
    np.random.seed(seed)
    mx.random.seed(seed)
    result = front_end(SQUARES, 40, **given).by.result
    assert not result.has_converged
    assert 'another objective' in str(result)


@both
@pytest.mark.parametrize('loss, scale', [('softmax', 1e4), ('logistic', 1), ('squares', 1e4)])
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


@pytest.mark.parametrize('seed', [0, 100])
def test_a_loss_that_is_not_the_integral_of_its_gradient_is_not_compared(seed):
    """With one of these seeds the first move goes past the lowest point, where a constant fits."""
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

"""Data of which the dtype cannot tell all: outputs are right, or 'converged' is not said."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from svrg_optimization import SVRGModule

RNG = np.random.RandomState(0)
ONE, TWO, CHANCE = RNG.normal(size=(3, 300))
V, DENSE, SQUARES = mx.sym.Variable, mx.sym.FullyConnected, mx.sym.LinearRegressionOutput


def trained(symbol, data, labels, dtype='float64', batch=50, **settings):
    """Return a module that newton_cg has trained, and whether it says that it has converged."""
    module = SVRGModule(symbol, sorted(data), sorted(labels), tol=1e-5, **settings)
    iterator = mx.io.NDArrayIter(*({name: mx.nd.array(value, dtype=dtype)
                                    for name, value in each.items()} for each in (data, labels)),
                                 batch)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        module.fit(iterator, eval_metric=[], num_epoch=100, optimizer='newton_cg',
                   initializer=mx.init.Zero())
    return module, module.has_converged


def least_squares(rows, targets):
    design = np.column_stack([rows, np.ones(len(rows))])
    scales = np.linalg.norm(design, axis=0)
    return design @ (np.linalg.lstsq(design / scales, targets, rcond=1e-15)[0] / scales)


def powers(degree):
    column = RNG.uniform(size=300)
    return column[:, None] ** np.arange(1, degree + 1), np.sin(6 * column) + 0.05 * CHANCE


def near(gap):
    return np.column_stack([ONE, ONE + gap * TWO]), TWO + 0.1 * CHANCE


def beside(mean):
    return np.column_stack([mean + np.round(ONE), mean + np.round(TWO)]), ONE - TWO + 0.1 * CHANCE


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('rows, targets', [
    near(5e-6), near(1e-6), near(1e-3), powers(6), powers(8), powers(10), beside(1e5),
    beside(1e7), beside(1.7e9)])
def test_a_direction_that_hardly_varies_is_right_or_denied(rows, targets, dtype):
    rows, targets = (each.astype(dtype).astype('f8') for each in (rows, targets))
    module, has_converged = trained(
        SQUARES(DENSE(V('data'), num_hidden=1, name='fc'), V('y')), {'data': rows},
        {'y': targets}, dtype)
    weight, bias = (module.get_params()[0][name].asnumpy().astype('f8')
                    for name in ('fc_weight', 'fc_bias'))
    best = least_squares(rows, targets)
    off = np.linalg.norm(rows @ weight[0] + bias - best)
    assert not has_converged or off <= 0.003 * max(
        np.linalg.norm(best - best.mean()), 0.01 * np.linalg.norm(targets))


def test_what_float64_resolves_is_said():
    for rows, targets in near(1e-3), powers(6), beside(1e5):
        _, has_converged = trained(SQUARES(DENSE(V('data'), num_hidden=1), V('y')),
                                   {'data': rows}, {'y': targets})
        assert has_converged


def test_the_advice_names_columns():
    for (rows, targets), words in ((near(5e-6), 'columns 0 and 1 of fc_weight differ by'),
                                   (beside(1e7), 'of fc_weight varies by 1e-07 of its mean')):
        module, has_converged = trained(
            SQUARES(DENSE(V('data'), num_hidden=1, name='fc'), V('y')), {'data': rows},
            {'y': targets}, 'float32')
        assert not has_converged and words in str(module.result), str(module.result)


@pytest.mark.parametrize('shared', ['weight', 'bias'])
def test_layers_may_share_a_parameter(shared):
    """One slope with two intercepts, and two slopes with one intercept."""
    x, z, (y, t) = RNG.normal(size=(60, 3)) + 2, RNG.normal(size=(60, 3)), RNG.normal(size=(2, 60))
    both = {shared: V('both_' + shared)}
    layers = [DENSE(V(name), num_hidden=1, name=name, **both)
              for name in 'xz']
    module, has_converged = trained(mx.sym.Group([
        SQUARES(layer, V(name)) for layer, name in zip(layers, 'yt')]), {'x': x, 'z': z},
        {'y': y, 't': t}, 'float32', 20)
    one, zero = np.ones((60, 1)), np.zeros((60, 3))
    design = np.vstack([np.hstack([x, one, 0 * one]), np.hstack([z, 0 * one, one])]) if (
        shared == 'weight') else np.vstack([np.hstack([x, zero, one]), np.hstack([zero, z, one])])
    expected = np.linalg.lstsq(design, np.concatenate([y, t]), rcond=None)[0]
    names = ['both_weight', 'x_bias', 'z_bias'] if shared == 'weight' else [
        'x_weight', 'z_weight', 'both_bias']
    found = module.get_params()[0]
    assert has_converged
    np.testing.assert_allclose(np.concatenate([found[name].asnumpy().ravel() for name in names]),
                               expected, atol=1e-4)


def test_a_weight_with_its_transpose_is_refused():
    weight, part = V('tied_weight', shape=(2, 3)), mx.sym.slice_axis(V('z'), axis=1, begin=0, end=2)
    symbol = mx.sym.Group([SQUARES(mx.sym.dot(V('x'), weight, transpose_b=True), V('y')),
                           SQUARES(mx.sym.dot(part, weight), V('t'))])
    x, z = RNG.normal(size=(2, 60, 3))
    with pytest.raises(ValueError, match='transpose: tied_weight'):
        trained(symbol, {'x': x, 'z': z}, {'y': x[:, :2], 't': z}, 'float32', 20)


def test_padding_that_counts_denies_the_word():
    """Of one row in the last batch two devices cannot have a part each."""
    rows = RNG.normal(size=(101, 3))
    _, has_converged = trained(
        SQUARES(DENSE(V('data'), num_hidden=1, name='fc'), V('y')), {'data': rows},
        {'y': rows.sum(axis=1) + RNG.normal(size=101)}, batch=10,
        context=[mx.cpu(0), mx.cpu(1)])
    assert not has_converged


def test_an_objective_that_is_no_number_is_a_rise():
    """Poisson with the identity link, whose mean must be above 0."""
    rows = RNG.uniform(0.1, 1, (200, 2))
    mean = DENSE(V('data'), num_hidden=1, name='fc')
    loss = mx.sym.MakeLoss(mean - mx.sym.reshape(V('y'), (-1, 1)) * mx.sym.log(mean))
    module = SVRGModule(loss, label_names=['y'], tol=1e-5)
    data = mx.io.NDArrayIter(rows, {'y': RNG.poisson(rows @ [2., 3.] + 0.5)}, 50)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        module.fit(data, eval_metric=[], num_epoch=50, optimizer='newton_cg',
                   initializer=mx.init.One())
    assert np.isfinite(module.objective)
    assert all(np.isfinite(each.asnumpy()).all() for each in module.get_params()[0].values())

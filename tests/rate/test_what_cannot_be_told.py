"""Data of which the dtype cannot tell all: outputs are right, or 'converged' is not said."""

import warnings

import mxnet as mx
import numpy as np
import pytest
from scipy.special import log_softmax

from svrg_optimization import SVRGModule

RNG = np.random.RandomState(0)
ONE, TWO, CHANCE = RNG.normal(size=(3, 300))
V, DENSE, SQUARES = mx.sym.Variable, mx.sym.FullyConnected, mx.sym.LinearRegressionOutput


def trained(symbol, data, labels, dtype='float64', batch=50, tol=1e-5, wd=0., start=None,
            **settings):
    """Return a module that newton_cg has trained, and whether it says that it has converged."""
    module = SVRGModule(symbol, sorted(data), sorted(labels), tol=tol, **settings)
    iterator = mx.io.NDArrayIter(*({name: mx.nd.array(value, dtype=dtype)
                                    for name, value in each.items()} for each in (data, labels)),
                                 batch)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        module.fit(iterator, eval_metric=[], num_epoch=100, optimizer='newton_cg',
                   initializer=mx.init.Zero(), optimizer_params={'wd': wd}, arg_params=start)
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


# Of other models the gradient of the objective in float64, by differences, is 0 at the optimum.

def dense(rows, found, weight, bias):
    """Return the scores of a layer of one output."""
    return rows @ found[weight].ravel() + found[bias]


def halves(*errors):
    return sum(np.square(each).mean() for each in errors) / 2


def two_layers(*shares):
    """Return two layers that share parameters, and the names of their own."""
    names = [['both_' + each if each in shares else '%s_%s' % (layer, each)
              for each in ('weight', 'bias')] for layer in 'xz']
    variables = {name: V(name) for of_layer in names for name in of_layer}
    return [DENSE(V(layer), *map(variables.get, of_layer), num_hidden=1)
            for layer, of_layer in zip('xz', names)], names


def shared(part):
    """Return one slope with two intercepts, or two slopes with one intercept."""
    chance = np.random.RandomState(0)
    (x, z), (y, t) = chance.normal(size=(2, 60, 3)), chance.normal(size=(2, 60))
    x += 2
    layers, names = two_layers(part)
    return {'symbol': mx.sym.Group([SQUARES(layer, V(name)) for layer, name in zip(layers, 'yt')]),
            'data': {'x': x, 'z': z}, 'labels': {'y': y, 't': t}, 'batch': 20}, lambda found: (
        halves(dense(x, found, *names[0]) - y, dense(z, found, *names[1]) - t))


def added(sign):
    """Return two layers that are added: of their biases the loss sees the sum, or difference."""
    chance = np.random.RandomState(0)
    x, z = chance.normal(size=(2, 200, 3)) + 1
    y = x.sum(axis=1) - z[:, 0] + chance.normal(size=200)
    one, two = (DENSE(V(name), num_hidden=1, name=name) for name in 'xz')
    return {'symbol': SQUARES(one + two if sign == 1 else one - two, V('y')),
            'data': {'x': x, 'z': z}, 'labels': {'y': y}}, lambda found: halves(
        dense(x, found, 'x_weight', 'x_bias') + sign * dense(z, found, 'z_weight', 'z_bias') - y)


def siamese():
    """Return differences of one layer, whose bias cancels."""
    chance = np.random.RandomState(0)
    x, z = chance.normal(size=(2, 200, 3))
    y = ((x - z) @ [1, 2, -1] + chance.logistic(size=200) > 0) * 1.
    parameters = V('fc_weight'), V('fc_bias')
    one, two = (DENSE(V(name), *parameters, num_hidden=1) for name in 'xz')
    return {'symbol': mx.sym.LogisticRegressionOutput(one - two, V('y')),
            'data': {'x': x, 'z': z}, 'labels': {'y': y}}, lambda found: log_loss(
        (x - z) @ found['fc_weight'][0], y)


def log_loss(scores, classes):
    return (np.logaddexp(0, scores) - classes * scores).mean()


def few_rows(dtype):
    """Return an intercept of four rows, whose targets have a mean of 0: so has its gradient."""
    chance = np.random.RandomState(0)
    rows, few = chance.normal(size=(60, 3)) + 1, np.repeat([0., 1.], [56, 4])
    y = np.append(rows[:56].sum(axis=1) + chance.normal(size=56), [1, -1, 2, -2])
    inputs = V('data'), V('fc_weight')
    parts = [mx.sym.broadcast_mul(DENSE(*inputs, num_hidden=1, name=name), V(of))
             for name, of in (('one', 'many'), ('other', 'few'))]
    data = {'data': rows, 'many': 1 - few[:, None], 'few': few[:, None]}
    return {'symbol': SQUARES(parts[0] + parts[1], V('y')), 'data': data, 'labels': {'y': y},
            'dtype': dtype, 'batch': 4}, lambda found: halves(dense(rows, found, 'fc_weight', (
                'one_bias')) * (1 - few) + dense(rows, found, 'fc_weight', 'other_bias') * few - y)


def own_rate(multiplier):
    """Return a softmax whose weight has a rate of its own."""
    chance = np.random.RandomState(0)
    rows = chance.normal(size=(300, 4)) + 1
    y = np.digitize(rows @ [1, 2, -1, .5] + chance.logistic(size=300), [0, 3])
    scores = DENSE(V('data'), V('fc_weight', lr_mult=multiplier), V('fc_bias'), num_hidden=3)
    return {'symbol': mx.sym.SoftmaxOutput(scores, V('y')), 'data': {'data': rows},
            'labels': {'y': y}}, lambda found: -log_softmax(
        rows @ found['fc_weight'].T + found['fc_bias'], axis=1)[np.arange(300), y].mean()


def beside_softmax(factor):
    """Return a softmax and a regression of the same outputs, which counts less."""
    chance = np.random.RandomState(0)
    rows = chance.normal(size=(300, 2)) + 1
    y = (rows @ chance.normal(size=(2, 3)) + chance.gumbel(size=(300, 3))).argmax(axis=1)
    t = rows @ chance.normal(size=(2, 3)) + chance.normal(size=(300, 3))
    scores = DENSE(V('data'), num_hidden=3, name='fc')

    def loss(found):
        outputs = rows @ found['fc_weight'].T + found['fc_bias']
        return -log_softmax(outputs, axis=1)[np.arange(300), y].mean() + factor * halves(
            outputs - t)

    return {'symbol': mx.sym.Group([mx.sym.SoftmaxOutput(scores, V('y'), name='softmax'),
                                    SQUARES(scores, V('t'), grad_scale=factor)]),
            'data': {'data': rows}, 'labels': {'y': y, 't': t}}, loss


def ordinal(seed):
    """Return ordinal logits whose cutpoints are equal at 0, where the gradient is 1e12."""
    chance = np.random.RandomState(seed)
    rows = chance.normal(size=(200, 3))
    grades = np.eye(4)[np.digitize(rows @ [1, -1, .5] + chance.logistic(size=200), [-1, 0, 1.5])]
    above = mx.sym.sigmoid(mx.sym.broadcast_add(
        mx.sym.dot(V('data'), V('w_weight', shape=(3, 1))), V('c_bias', shape=(1, 3))))
    one = mx.sym.ones_like(mx.sym.slice_axis(above, axis=1, begin=0, end=1))
    each = mx.sym.concat(one, above, dim=1) - mx.sym.concat(above, 0 * one, dim=1)

    def loss(found):
        p = 1 / (1 + np.exp(-rows @ found['w_weight'] - found['c_bias']))
        parts = -np.diff(np.hstack([np.ones((200, 1)), p, np.zeros((200, 1))]))
        return -np.log((grades * parts).sum(axis=1)).mean()

    return {'symbol': mx.sym.MakeLoss(-mx.sym.sum(V('y') * mx.sym.log(each + 1e-12), axis=1)),
            'data': {'data': rows}, 'labels': {'y': grades}, 'batch': 20, 'tol': 1e-4, 'wd': 0.01,
            'start': {'w_weight': mx.nd.array(.01 * chance.normal(size=(3, 1))),
                      'c_bias': mx.nd.array([[1, 0, -1]])}}, loss


def rare_class(seed):
    chance = np.random.RandomState(seed)
    rows, y = chance.normal(size=(20000, 3)), np.zeros(20000)
    y[np.argsort(rows[:, 0] + chance.logistic(size=20000))[-10:]] = 1
    symbol = mx.sym.LogisticRegressionOutput(DENSE(V('data'), num_hidden=1, name='fc'), V('y'))
    return {'symbol': symbol, 'data': {'data': rows}, 'labels': {'y': y}, 'batch': 1000,
            'wd': 1e-4}, lambda found: log_loss(dense(rows, found, 'fc_weight', 'fc_bias'), y)


# Losses that are not convex.
CURVES = [lambda F, z: 1 - F.exp(-z * z / 2), lambda F, z: z * z / (1 + z * z),
          lambda F, z: F.tanh(z * z / 4)]


def not_convex(place):
    chance = np.random.RandomState(place)
    rows = chance.normal(size=(120, 3))
    y = rows @ chance.normal(size=3) + 0.3 * chance.normal(size=120)
    scores = mx.sym.reshape(DENSE(V('data'), num_hidden=1, name='fc'), (-1,))
    return {'symbol': mx.sym.MakeLoss(CURVES[place](mx.sym, scores - V('y'))),
            'data': {'data': rows}, 'labels': {'y': y}, 'batch': 12,
            'start': {'fc_weight': mx.nd.array(2 * chance.normal(size=(1, 3))),
                      'fc_bias': mx.nd.zeros(1)}}, lambda found: CURVES[place](
        np, dense(rows, found, 'fc_weight', 'fc_bias') - y).mean()


@pytest.mark.parametrize('make, given, least', [
    *((shared, part, 1e-5) for part in ('weight', 'bias')), (added, 1, 1e-5), (added, -1, 1e-5),
    (siamese, None, 1e-5), *((few_rows, dtype, 1e-6) for dtype in ('float32', 'float64')),
    (own_rate, 0.01, 1e-5), (own_rate, 100, 1e-5), (beside_softmax, 0.01, 1e-6),
    *((ordinal, seed, 1e-4) for seed in range(4)),
    *((rare_class, seed, 1e-8) for seed in range(4)),
    *((not_convex, place, 1e-5) for place in range(3))])
def test_models_of_other_forms_end_at_their_optimum(make, given, least):
    case, loss = make() if given is None else make(given)
    module, has_converged = trained(**{'dtype': 'float32', **case})
    found = {name: value.asnumpy().astype('f8') for name, value in module.get_params()[0].items()}
    assert has_converged, str(module.result)
    start = {name: value.asnumpy() for name, value in case.get('start', {}).items()}
    assert not start or loss(found) <= loss(start)
    for name, value in found.items():
        decay = case.get('wd', 0.) * name.endswith('weight')
        for place in np.ndindex(value.shape):
            by = np.zeros_like(value)
            by[place] = 1e-5
            losses = [loss({**found, name: value + each}) for each in (by, -by)]
            slope = (losses[0] - losses[1]) / 2e-5 + decay * value[place]
            assert abs(slope) < least, name


def test_a_loss_that_counts_little_beside_a_softmax_denies_the_word():
    """It sees what outputs have in common, and its gradient is the rounding of the other."""
    _, has_converged = trained(**beside_softmax(1e-6)[0], dtype='float32')
    assert not has_converged


@pytest.mark.parametrize('shares', [(), ('weight',), ('bias',), ('weight', 'bias')])
@pytest.mark.parametrize('unit, seed', [(0.01, 0), (0.001, 1), (0.001, 5)])
def test_each_output_has_a_spread_of_its_own(shares, unit, seed):
    """One of two outputs has inputs in small units, which decay."""
    chance = np.random.RandomState(seed)
    x, z = chance.normal(size=(2, 200, 2))
    z = unit * (z + 5)
    y, t = x.sum(axis=1) + chance.normal(size=200), z.sum(axis=1) - 1 + chance.normal(size=200)
    layers, names = two_layers(*shares)
    module, has_converged = trained(mx.sym.Group([
        mx.sym.MakeLoss(mx.sym.sqrt(1 + mx.sym.square(mx.sym.reshape(layer, (-1,)) - V(label))))
        for layer, label in zip(layers, 'yt')]), {'x': x, 'z': z}, {'y': y, 't': t}, 'float32',
        200, 1e-4, 0.01)
    places = {name: slice(2 * place, 2 * place + 1 + name.endswith('weight'))
              for place, name in enumerate(sorted({*names[0], *names[1]}))}
    designs, decays = np.zeros((2, 200, 2 * len(places))), np.zeros(2 * len(places))
    for design, rows, of_layer in zip(designs, (x, z), names):
        for name, columns in zip(of_layer, (rows, np.ones((200, 1)))):
            design[:, places[name]] = columns
    found = np.zeros(len(decays))
    for name, place in places.items():
        found[place] = module.get_params()[0][name].asnumpy().ravel()
        decays[place] = 0.01 * name.endswith('weight')
    best = found
    for _ in range(9):  # Newton's method
        errors = [design @ best - targets for design, targets in zip(designs, (y, t))]
        slope = decays * best + sum(design.T @ (error / np.sqrt(1 + error ** 2))
                                    for design, error in zip(designs, errors)) / 200
        curvature = np.diag(decays) + sum((design.T * (1 + error ** 2) ** -1.5) @ design
                                          for design, error in zip(designs, errors)) / 200
        best = best - np.linalg.lstsq(curvature, slope, rcond=1e-14)[0]
    for design in designs:
        outputs = design @ best
        off = np.linalg.norm(design @ (found - best)) / np.linalg.norm(outputs - outputs.mean())
        assert not has_converged or off < 1e-3


def test_a_file_whose_passes_wrap_round(tmp_path, recwarn):
    """CSVIter fills the last batch with the rows with which the next pass does not begin."""
    np.savetxt(tmp_path / 'x.csv', np.column_stack([ONE, TWO])[:287], delimiter=',')
    np.savetxt(tmp_path / 'y.csv', (ONE - TWO + CHANCE)[:287], delimiter=',')
    data = mx.io.CSVIter(data_csv=str(tmp_path / 'x.csv'), label_csv=str(tmp_path / 'y.csv'),
                         data_shape=(2,), label_shape=(1,), batch_size=50)
    module = SVRGModule(SQUARES(DENSE(V('data'), num_hidden=1), V('softmax_label')), tol=1e-5)
    module.fit(data, eval_metric=[], num_epoch=8, optimizer='newton_cg')
    assert not module.has_converged and 'round_batch=False' in str(module.result)
    assert not [each for each in recwarn if 'whose gradient' in str(each.message)]


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
    module, _ = trained(
        mx.sym.MakeLoss(mean - mx.sym.reshape(V('y'), (-1, 1)) * mx.sym.log(mean)), {'data': rows},
        {'y': RNG.poisson(rows @ [2., 3.] + 0.5)}, 'float32', start={
            'fc_weight': mx.nd.ones((1, 2)), 'fc_bias': mx.nd.zeros(1)})
    assert np.isfinite(module.full_objective)
    assert all(np.isfinite(each.asnumpy()).all() for each in module.get_params()[0].values())

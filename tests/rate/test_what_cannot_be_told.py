"""Data of which the dtype cannot tell all: outputs are right, or 'converged' is not said."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from svrg_optimization import SVRGModule, SVRGTrainer

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


@pytest.mark.parametrize('sign', [1, -1])
def test_of_biases_that_are_added_the_loss_sees_the_sum(sign):
    x, z = RNG.normal(size=(2, 200, 3)) + 1
    targets = x.sum(axis=1) - z[:, 0] + RNG.normal(size=200)
    one, two = (DENSE(V(name), num_hidden=1, name=name) for name in 'xz')
    module, has_converged = trained(SQUARES(one + two if sign == 1 else one - two, V('y')),
                                    {'x': x, 'z': z}, {'y': targets}, 'float32')
    found = {name: array.asnumpy().ravel() for name, array in module.get_params()[0].items()}
    best = least_squares(np.hstack([x, z]), targets)
    assert has_converged, str(module.result)
    np.testing.assert_allclose(
        x @ found['x_weight'] + found['x_bias'] + sign * (z @ found['z_weight'] + found['z_bias']),
        best, atol=1e-4)


def test_a_bias_that_cancels_is_not_seen():
    """A siamese network, whose optimum is that of a model of differences without a bias."""
    x, z = RNG.normal(size=(2, 200, 3))
    classes = ((x - z) @ [1, 2, -1] + RNG.logistic(size=200) > 0) * 1.
    shared = V('fc_weight'), V('fc_bias')
    one, two = (DENSE(V(name), *shared, num_hidden=1, name=name) for name in 'xz')
    module, has_converged = trained(mx.sym.LogisticRegressionOutput(one - two, V('y')),
                                    {'x': x, 'z': z}, {'y': classes}, 'float32')
    weights = module.get_params()[0]['fc_weight'].asnumpy()[0].astype('f8')
    slope = (x - z).T @ (1 / (1 + np.exp(-(x - z) @ weights)) - classes) / 200
    assert has_converged and abs(slope).max() < 1e-5, str(module.result)


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_a_bias_of_few_rows_is_seen(dtype):
    """An intercept of four rows, whose targets have a mean of 0: so has its gradient at first."""
    chance = np.random.RandomState(0)
    rows, few = chance.normal(size=(60, 3)) + 1, np.repeat([[0.], [1.]], [56, 4], axis=0)
    targets = np.append(rows[:56].sum(axis=1) + chance.normal(size=56), [1, -1, 2, -2])
    shared = V('data'), V('fc_weight')
    both = [mx.sym.broadcast_mul(DENSE(*shared, num_hidden=1, name=name), V(of))
            for name, of in (('one', 'many'), ('other', 'few'))]
    module, has_converged = trained(
        SQUARES(both[0] + both[1], V('y')), {'data': rows, 'many': 1 - few, 'few': few},
        {'y': targets}, dtype, 4)
    design = np.hstack([rows, 1 - few, few])
    found = module.get_params()[0]
    assert has_converged, str(module.result)
    np.testing.assert_allclose(
        np.hstack([found[name].asnumpy().ravel() for name in ('fc_weight', 'one_bias',
                                                              'other_bias')]),
        np.linalg.lstsq(design, targets, rcond=None)[0], atol=1e-4)


@pytest.mark.parametrize('multiplier', [0.01, 100])
def test_a_softmax_whose_bias_has_a_rate_of_its_own(multiplier):
    rows = RNG.normal(size=(300, 4)) + 1
    classes = np.digitize(rows @ [1, 2, -1, .5] + RNG.logistic(size=300), [0, 3]) * 1.
    scores = DENSE(V('data'), V('fc_weight', lr_mult=multiplier), V('fc_bias'), num_hidden=3)
    module, has_converged = trained(mx.sym.SoftmaxOutput(scores, V('y')), {'data': rows},
                                    {'y': classes}, 'float32')
    weights, bias = (module.get_params()[0][name].asnumpy().astype('f8')
                     for name in ('fc_weight', 'fc_bias'))
    odds = np.exp(rows @ weights.T + bias)
    error = odds / odds.sum(axis=1, keepdims=True) - np.eye(3)[classes.astype(int)]
    slopes = error.T @ np.column_stack([rows, np.ones(300)]) / 300
    assert has_converged and abs(slopes).max() < 1e-5, str(module.result)


@pytest.mark.parametrize('factor, is_told', [(1e-2, True), (1e-6, False), (1e-7, False)])
def test_what_a_softmax_does_not_see_another_loss_may_see(factor, is_told):
    """A regression on the outputs of a softmax, which counts little."""
    rows = RNG.normal(size=(300, 2)) + 1
    classes = (rows @ RNG.normal(size=(2, 3)) + RNG.gumbel(size=(300, 3))).argmax(axis=1)
    targets = rows @ RNG.normal(size=(2, 3)) + RNG.normal(size=(300, 3))
    scores = DENSE(V('data'), num_hidden=3, name='fc')
    module, has_converged = trained(mx.sym.Group([
        mx.sym.SoftmaxOutput(scores, V('y'), name='softmax'),
        SQUARES(scores, V('t'), grad_scale=factor)]), {'data': rows},
        {'y': classes, 't': targets}, 'float32')
    assert has_converged is is_told, str(module.result)
    weights, bias = (module.get_params()[0][name].asnumpy().astype('f8')
                     for name in ('fc_weight', 'fc_bias'))
    outputs = rows @ weights.T + bias
    odds = np.exp(outputs)
    error = (odds / odds.sum(axis=1, keepdims=True) - np.eye(3)[classes]
             + factor / 3 * (outputs - targets))
    slopes = error.T @ np.column_stack([rows, np.ones(300)]) / 300
    assert not is_told or abs(slopes).max() < 1e-6


def test_biases_that_are_added_in_gluon():
    x, z = (RNG.normal(size=(2, 200, 3)) + 1).astype('f4')
    targets = (x.sum(axis=1) - z[:, 0] + RNG.normal(size=200)).astype('f4')
    layers, loss_of = [mx.gluon.nn.Dense(1, in_units=3) for _ in 'xz'], mx.gluon.loss.L2Loss()
    parameters = mx.gluon.ParameterDict()
    for layer in layers:
        layer.initialize(mx.init.Zero())
        parameters.update(layer.collect_params())
    trainer = SVRGTrainer(parameters, 'newton_cg', {}, tol=1e-5, objective=lambda x, z, y: loss_of(
        layers[0](x) + layers[1](z), y))
    data = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, z, targets), 50)
    for _ in trainer.epochs(data, 50):
        pass
    weights, biases = zip(*((layer.weight.data().asnumpy()[0], layer.bias.data().asscalar())
                            for layer in layers))
    assert trainer.has_converged, str(trainer.result)
    np.testing.assert_allclose(x @ weights[0] + z @ weights[1] + sum(biases),
                               least_squares(np.hstack([x, z]), targets), atol=1e-4)


@pytest.mark.parametrize('seed', range(4))
def test_cutpoints_that_are_equal_at_first_hide_nothing(seed):
    """Ordinal logits, whose gradient is 1e12 where all weights are 0."""
    chance = np.random.RandomState(seed)
    rows = chance.normal(size=(200, 3))
    grades = np.eye(4)[np.digitize(rows @ [1, -1, .5] + chance.logistic(size=200), [-1, 0, 1.5])]
    above = mx.sym.sigmoid(mx.sym.broadcast_add(
        mx.sym.dot(V('data'), V('w_weight', shape=(3, 1))), V('c_bias', shape=(1, 3))))
    one = mx.sym.ones_like(mx.sym.slice_axis(above, axis=1, begin=0, end=1))
    each = mx.sym.concat(one, above, dim=1) - mx.sym.concat(above, 0 * one, dim=1)
    module = SVRGModule(mx.sym.MakeLoss(-mx.sym.sum(V('y') * mx.sym.log(each + 1e-12), axis=1)),
                        label_names=['y'], tol=1e-4)
    module.fit(mx.io.NDArrayIter(rows, {'y': grades}, 20), eval_metric=[], num_epoch=50,
               optimizer='newton_cg', optimizer_params={'wd': .01}, initializer=None,
               arg_params={'w_weight': mx.nd.array(.01 * chance.normal(size=(3, 1))),
                           'c_bias': mx.nd.array([[1, 0, -1]])})
    weights, cuts = (module.get_params()[0][name].asnumpy().astype('f8')
                     for name in ('w_weight', 'c_bias'))
    at, none = np.hstack([weights.ravel(), cuts.ravel()]), np.zeros((200, 1))

    def objective(numbers):
        p = 1 / (1 + np.exp(-(rows @ numbers[:3])[:, None] - numbers[3:]))
        parts = np.hstack([none + 1, p]) - np.hstack([p, none])
        return -np.log((grades * parts).sum(axis=1)).mean() + .005 * numbers[:3] @ numbers[:3]

    slopes = [(objective(at + by) - objective(at - by)) / 2e-5 for by in 1e-5 * np.eye(6)]
    assert module.has_converged and np.abs(slopes).max() < 1e-4, str(module.result)


@pytest.mark.parametrize('seed', range(4))
def test_a_rare_class_has_its_optimum(seed):
    chance = np.random.RandomState(seed)
    rows = chance.normal(size=(20000, 3))
    classes = np.zeros(20000)
    classes[np.argsort(rows[:, 0] + chance.logistic(size=20000))[-10:]] = 1
    module = SVRGModule(mx.sym.LogisticRegressionOutput(
        DENSE(V('data'), num_hidden=1, name='fc'), V('y')), label_names=['y'], tol=1e-5)
    module.fit(mx.io.NDArrayIter(rows, {'y': classes}, 1000), eval_metric=[], num_epoch=50,
               optimizer='newton_cg', optimizer_params={'wd': 1e-4})
    weights, bias = (each.asnumpy().astype('f8').ravel() for each in (
        module.get_params()[0]['fc_weight'], module.get_params()[0]['fc_bias']))
    error = 1 / (1 + np.exp(-rows @ weights - bias)) - classes
    slopes = np.append(rows.T @ error / 20000 + 1e-4 * weights, error.mean())
    assert module.has_converged and np.abs(slopes).max() < 1e-8, str(module.result)


@pytest.mark.parametrize('mean', [1e4, 1e5, 1e6, 1e7])
def test_targets_whose_mean_hides_their_spread(mean):
    rows = RNG.normal(size=(300, 5)).astype('f4')
    spread = rows @ [1., 2, 3, 4, 5]
    targets = (7.4 * mean + spread + 0.01 * RNG.normal(size=300)).astype('f4').astype('f8')
    module, has_converged = trained(SQUARES(DENSE(V('data'), num_hidden=1, name='fc'), V('y')),
                                    {'data': rows}, {'y': targets}, 'float32')
    weights, bias = (module.get_params()[0][name].asnumpy().astype('f8').ravel()
                     for name in ('fc_weight', 'fc_bias'))
    middle = targets.mean()
    best = least_squares(rows.astype('f8'), targets - middle)
    off = rows @ weights + (bias - middle) - best
    assert not has_converged or np.linalg.norm(off) <= 1e-3 * np.linalg.norm(best - best.mean())
    error = np.square(rows @ weights + (bias - middle) - (targets - middle)).mean() / 2
    assert abs(module.result.objective - error) <= module.result.rounding
    assert '+-' in str(module.result)


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
    loss = mx.sym.MakeLoss(mean - mx.sym.reshape(V('y'), (-1, 1)) * mx.sym.log(mean))
    module = SVRGModule(loss, label_names=['y'], tol=1e-5)
    data = mx.io.NDArrayIter(rows, {'y': RNG.poisson(rows @ [2., 3.] + 0.5)}, 50)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        module.fit(data, eval_metric=[], num_epoch=50, optimizer='newton_cg',
                   initializer=mx.init.One())
    assert np.isfinite(module.full_objective)
    assert all(np.isfinite(each.asnumpy()).all() for each in module.get_params()[0].values())

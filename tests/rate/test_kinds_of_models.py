"""What is said of models whose inputs, weights of rows or losses are not those of a plain layer.

Each kind by both front ends, beside solutions in float64. What is called converged is right.
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from blocks import train_epochs
from linear_models import LOSSES, Problem, made
from linear_models import by_gluon as plain_by_gluon
from linear_models import by_module as plain_by_module
from newton import outputs_at_optimum
from pairs import in_pairs
from svrg_optimization import SVRGModule, SVRGTrainer
from svrg_optimization.proximal import L1

TOL, ROWS, BATCH = 1e-5, 400, 50
RNG = np.random.RandomState(3)
PLAIN = RNG.normal(size=(ROWS, 6))
TABLES = {
    'plain': PLAIN,
    'people': np.column_stack([
        RNG.randint(18, 90, ROWS), RNG.lognormal(10, 0.7, ROWS), RNG.lognormal(7, 1, ROWS),
        RNG.randint(0, 30, ROWS), RNG.randint(1, 9, ROWS), RNG.lognormal(0, 1, ROWS)]),
    'scales': PLAIN * np.logspace(-3, 4, 6) + np.logspace(-2, 4, 6)}
CHANCE = RNG.logistic(size=ROWS)

# What a layer is given, of symbols or arrays of two inputs.
SEEN = {
    'concat': lambda F, one, two: F.concat(one, two, dim=1),
    'divided': lambda F, one, two: F.concat(one / 255, two / 255, dim=1),
    'BlockGrad': lambda F, one, two: F.BlockGrad(F.concat(one, two, dim=1)),
    'reversed': lambda F, one, two: F.reverse(F.concat(one, two, dim=1), axis=1),
    'clipped': lambda F, one, two: F.concat(F.clip(one, -1e3, 1e3), F.clip(two, -1e3, 1e3), dim=1),
    'squared': lambda F, one, two: F.concat(one, F.square(two), dim=1)}


def by_module(kind, loss, columns, targets, wd, weights):
    one, two, label = (mx.sym.Variable(name) for name in ('one', 'two', 'label'))
    classes = int(targets.max()) + 1 if loss == 'softmax' else 1
    scores = mx.sym.FullyConnected(SEEN[kind](mx.sym, one, two), num_hidden=classes, name='fc')
    data = dict(zip(('one', 'two'), columns))
    if weights is None:
        losses = LOSSES[loss][0](scores, label)
    else:
        data['of_rows'] = weights
        score = scores if loss == 'softmax' else mx.sym.reshape(scores, (-1,))
        losses = mx.sym.MakeLoss(mx.sym.Variable('of_rows') * {
            'softmax': lambda: -mx.sym.pick(mx.sym.log_softmax(score), label, axis=1),
            'squares': lambda: mx.sym.square(score - label) / 2,
            'logistic': lambda: mx.sym.Activation(
                score, act_type='softrelu') - label * score}[loss]())
    module = SVRGModule(losses, data_names=sorted(data), label_names=('label',), update_freq=2,
                        tol=TOL)
    module.fit(mx.io.NDArrayIter(data, {'label': targets}, BATCH), eval_metric=[], num_epoch=60,
               optimizer='newton_cg', optimizer_params={'wd': wd},
               initializer=mx.init.Uniform(0.01))
    return module, module.get_params()[0]


def by_gluon(kind, loss, columns, targets, wd, weights):
    net = gluon.nn.Dense(int(targets.max()) + 1 if loss == 'softmax' else 1, in_units=sum(
        each.shape[1] for each in columns), prefix='fc_')
    net.initialize(mx.init.Uniform(0.01))
    net.bias.wd_mult = 0.
    trainer = SVRGTrainer(
        net.collect_params(), 'newton_cg', {'wd': wd}, tol=TOL,
        loss_fn=lambda one, two, label, *weight: LOSSES[loss][1](
            net(SEEN[kind](mx.nd, one, two)), label, *weight))
    arrays = [mx.nd.array(each) for each in (*columns, targets, *(
        () if weights is None else (weights[:, np.newaxis],)))]
    train_epochs(trainer, [tuple(each[at:at + BATCH] for each in arrays)
                           for at in range(0, ROWS, BATCH)], 60, 2)
    return trainer, {name: param.data() for name, param in net.collect_params().items()}


def rows_seen(kind, rows):
    return SEEN[kind](mx.nd, *(mx.nd.array(each.astype('f4'), dtype='f8') for each in (
        rows[:, :2], rows[:, 2:]))).asnumpy()


def targets_of(loss, rows):
    deviation = rows.std(axis=0)
    scores = (rows - rows.mean(axis=0)) / np.where(deviation > 0, deviation, 1) @ [
        1, -0.5, 0.3, 0, 0.2, -0.4]
    return {'squares': 3 + scores + CHANCE / 3, 'logistic': (scores + CHANCE > 0) * 1.,
            'softmax': np.digitize(scores + CHANCE, [-0.7, 0.7]) * 1.}[loss]


def has_converged(front_end, kind, loss, rows, wd, weights=None, corrupt=None):
    """Check that a model is right if it is called converged, and tell whether it is."""
    rows, kept = rows.copy(), slice(None) if weights is None else weights > 0
    targets = targets_of(loss, rows_seen(kind, rows))
    if corrupt is not None:
        rows[weights == 0] = corrupt
    by, found = front_end(kind, loss, (rows[:, :2], rows[:, 2:]), targets, wd, weights)
    seen, targets = rows_seen(kind, rows)[kept], targets[kept].astype('f4').astype('f8')
    expected = outputs_at_optimum(loss, seen, targets, wd * ROWS / len(seen))
    weight, bias = (found[name].asnumpy().astype('f8') for name in ('fc_weight', 'fc_bias'))
    outputs = seen @ weight.T + bias
    if loss == 'softmax':  # does not see what all outputs have in common
        outputs, expected = (each - each.mean(axis=1, keepdims=True)
                             for each in (outputs, expected))
    off = np.linalg.norm(outputs - expected) / np.linalg.norm(expected - expected.mean(axis=0))
    assert not by.has_converged or off < 10 * TOL
    return by.has_converged


@in_pairs({'front_end': [by_module, by_gluon], 'kind': list(SEEN), 'table': list(TABLES),
           'loss': ['squares', 'logistic', 'softmax']})
@pytest.mark.filterwarnings('ignore:training did not converge')
def test_the_metric_sees_through_what_has_no_parameters(front_end, kind, loss, table):
    """Float32 does not always resolve columns whose squares differ by 1e14, or that are clipped."""
    found = has_converged(front_end, kind, loss, TABLES[table], 0. if loss == 'squares' else 1e-6)
    assert found or (kind in ('clipped', 'squared') and table != 'plain')


@in_pairs({'front_end': [by_module, by_gluon], 'table': list(TABLES), 'corrupt': [100., 1e6],
           'loss': ['squares', 'logistic', 'softmax']})
def test_rows_of_no_weight_say_nothing_of_the_columns(front_end, table, loss, corrupt):
    """Though their values are far from all others."""
    weights = (np.arange(ROWS) % 5 > 0) * 1.
    assert has_converged(front_end, 'concat', loss, TABLES[table], 1e-4, weights, corrupt)


both = pytest.mark.parametrize('front_end', [plain_by_module, plain_by_gluon])
FEATURES = np.random.RandomState(0).normal(size=(300, 4))


@pytest.fixture
def losses(monkeypatch):
    for name, loss in {
            'absolute': lambda F, z, y: F.abs(z - y),
            'quantile': lambda F, z, y: F.maximum(0.8 * (y - z), 0.2 * (z - y)),
            'hinge': lambda F, z, y: F.relu(1 - z * (2 * y - 1)),
            'squared hinge': lambda F, z, y: F.square(F.relu(1 - z * (2 * y - 1)))}.items():
        monkeypatch.setitem(LOSSES, name, made(loss))


@both
@pytest.mark.parametrize('shuffle', [False, True])
def test_the_optimum_may_be_0(front_end, shuffle):
    """Where targets are the residuals of a regression."""
    rows = FEATURES * [1, 10, 0.1, 3] + 1
    inputs, targets = np.column_stack([rows, np.ones(300)]), rows @ [1, 2, 3, 4] + CHANCE[:300]
    targets -= inputs @ np.linalg.lstsq(inputs, targets, rcond=None)[0]
    found = front_end(Problem('squares', rows, targets, shuffle=shuffle), 30)
    assert found.by.result.reason == 'at the floor' and found.by.result.epochs <= 10
    assert np.abs(rows @ found.weight[0] + found.bias).max() < 1e-5


@both
@pytest.mark.filterwarnings('ignore:training did not converge')
def test_without_an_end_l1_is_not_told_of_weight_decay(front_end):
    rows = np.random.RandomState(0).normal(size=(30, 50))
    found = front_end(Problem('logistic', rows, (rows[:, 0] > 0) * 1., batch=10), 6, 1e-9,
                      proximal=L1(1e-3)).by.result
    assert not found.has_converged and 'decay' not in str(found)


@both
@pytest.mark.parametrize('loss', ['absolute', 'quantile'])
@pytest.mark.filterwarnings('ignore:training did not converge')
def test_a_loss_with_a_kink_ends_in_words(losses, front_end, loss):
    """Most targets are equal, as those of rain are."""
    rain = np.maximum(np.random.RandomState(0).normal(size=300) - 1.5, 0)
    found = front_end(Problem(loss, FEATURES, rain), 30)
    assert np.isfinite(found.weight).all() and np.isfinite(found.by.result.objective)


@both
@pytest.mark.parametrize('loss', ['hinge', 'squared hinge'])
def test_a_gradient_of_0_is_told(losses, front_end, loss):
    """That of a saturated loss rounds to 0, too: it is not said that there is no optimum."""
    targets = (FEATURES @ [1, 2, 3, 4] > 0) * 1.
    rows = FEATURES + (2 * targets - 1)[:, np.newaxis] * [0.1, 0.2, 0.3, 0.4]
    with pytest.warns(UserWarning, match='the gradient is 0, as at the optimum of a hinge loss'):
        result = front_end(Problem(loss, rows, targets), 60).by.result
    assert result.objective == result.norm == 0 and result.epochs < 60


@pytest.mark.parametrize('front_end, seed', [
    (plain_by_module, 0), (plain_by_module, 1), (plain_by_gluon, 1), (plain_by_gluon, 2)])
@pytest.mark.filterwarnings('ignore:training did not converge')
def test_outputs_that_no_class_has_are_told(front_end, seed):
    """Their biases fall for ever."""
    class Six(Problem):
        outputs = 6

    rng = np.random.RandomState(seed)
    scores = FEATURES @ rng.normal(size=(4, 4)) + rng.gumbel(size=(300, 4))
    result = front_end(Six('softmax', FEATURES, scores.argmax(axis=1) * 1., 1e-3), 30).by.result
    assert not result.has_converged and 'more epochs' not in str(result)


@both
@pytest.mark.parametrize('seed', range(3))
@pytest.mark.filterwarnings('ignore:training did not converge')
def test_a_column_that_hides_the_intercept(front_end, seed):
    """The rate that 1 to 1000 allows moves the intercept by 1e-6 of its way in an epoch."""
    column = np.linspace(1, 1000, 200)[:, np.newaxis]
    targets = 3 * column[:, 0] + 14 + np.random.RandomState(seed).normal(size=200)
    found = front_end(Problem('squares', column, targets), 60, optimizer='sgd',
                      params={'learning_rate': 1e-7})
    assert not found.by.has_converged and abs(found.bias - 14) > 1

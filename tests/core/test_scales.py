"""BarzilaiBorwein(scaled=True): steps that are scaled by the columns of the inputs."""

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd

from svrg_optimization import BarzilaiBorwein, SVRGBucketingModule, SVRGModule, SVRGTrainer
from svrg_optimization.proximal import (
    L1,
    Box,
    GroupLasso,
    ProximalOperator,
)
from svrg_optimization.rate.scales import Scales

WD, ROWS, BATCH = 1e-3, 203, 20
RNG = np.random.RandomState(0)
UNITS = np.logspace(-3, 3, 5)
STANDARD = RNG.normal(size=(ROWS, 5)) + 0.5
FEATURES = (STANDARD * UNITS).astype('float32')
FEATURES[::3, 2] = 0
LABELS = (STANDARD.dot(RNG.normal(size=5)) + RNG.logistic(size=ROWS) > 0).astype('float32')
EXACT = FEATURES.astype('float64')
D = 1 / ((EXACT ** 2).sum(0) / (EXACT != 0).sum(0) + WD)


def optimum():
    """Newton's method on the logistic loss, with columns of one scale; the bias is the last."""
    inputs = np.column_stack([EXACT * np.sqrt(D), np.ones(ROWS)])
    decay, weights = np.append(WD * D, 0), np.zeros(6)
    for _ in range(50):
        chances = 1 / (1 + np.exp(-inputs.dot(weights)))
        gradient = inputs.T.dot(chances - LABELS) / ROWS + decay * weights
        hessian = (inputs.T * chances * (1 - chances)).dot(inputs) / ROWS + np.diag(decay)
        weights -= np.linalg.solve(hessian, gradient)
    return weights


def in_one_scale(weight, bias):
    return np.append(weight.asnumpy().ravel().astype('float64') / np.sqrt(D), bias.asnumpy())


def module_of(rule, optimizer='nag', epochs=60, begin=0, loaded=None, tol=1e-5, wd=WD,
              features=FEATURES, **arguments):
    fit = {name: arguments.pop(name) for name in ('kvstore',) if name in arguments}
    data = mx.sym.Reshape(mx.sym.Variable('data'), shape=(0, -1))
    output = mx.sym.FullyConnected(data, num_hidden=1, name='fc')
    symbol = mx.sym.LogisticRegressionOutput(output, mx.sym.Variable('label'))
    module = loaded or SVRGModule(symbol, label_names=('label',), update_freq=2, tol=tol,
                                  **arguments)
    module.fit(mx.io.NDArrayIter(features, LABELS, BATCH, label_name='label'), eval_metric=[],
               optimizer=optimizer, initializer=mx.init.Zero(), begin_epoch=begin,
               optimizer_params={'momentum': 0. if 'proximal' in arguments else 0.9, 'wd': wd,
                                 'lr_scheduler': rule},
               num_epoch=epochs, **fit)
    return module


def weights_of(module):
    params = module.get_params()[0]
    return params['fc_weight'], params['fc_bias']


def trainer_of(rule, optimizer='nag', hybridizes=False, prefix='net_', tol=1e-5,
               context=mx.cpu(), **arguments):
    net = gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(gluon.nn.Flatten(), gluon.nn.Dense(1, in_units=5))
    net.initialize(mx.init.Zero(), ctx=context)
    net[1].bias.set_data(nd.array([0.1]))  # the loss has another gradient where scores are 0
    net[1].bias.wd_mult = 0
    if hybridizes:
        net.hybridize()
    loss = gluon.loss.SigmoidBCELoss()
    return net[1], SVRGTrainer(
        net.collect_params(), optimizer, {'momentum': 0.9, 'wd': WD, 'lr_scheduler': rule},
        objective=lambda data, label: loss(net(data), label), tol=tol, **arguments)


def train(trainer, epochs=60, begin=0, features=FEATURES, labels=LABELS):
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(features, labels.astype('float32')), BATCH)
    for batches in trainer.epochs(data, epochs, begin_epoch=begin):
        for batch in batches:
            trainer.backward(*batch)
            trainer.step(sum(map(len, batch[0])) if isinstance(batch[0], list) else len(batch[0]))


@pytest.mark.parametrize('optimizer', ['sgd', 'nag'])
def test_steps_with_momentum_and_decay(optimizer):
    weight, gradient = RNG.normal(size=(2, 5)), RNG.normal(size=(2, 5))
    taken = mx.optimizer.create(optimizer, learning_rate=0.1, momentum=0.9, wd=WD,
                                rescale_grad=0.5, param_idx2name={0: 'w_weight'})
    plain = copy.deepcopy(taken)
    scales = Scales({'w_weight': D[None]})
    ours = nd.array(weight, dtype='float64')
    state = taken.create_state(0, ours)
    # The same on the weights divided by the root of D, without decay by the optimizer.
    plain.wd, root = 0, np.sqrt(D)
    other = nd.array(weight / root, dtype='float64')
    other_state = plain.create_state(0, other)
    for _ in range(3):
        direction = (gradient + WD / 0.5 * other.asnumpy() * root) * root
        with scales.applied(taken, [0], [ours], [nd.array(gradient, dtype='float64')]) as (step,):
            taken.update(0, ours, step, state)
        plain.update(0, other, nd.array(direction, dtype='float64'), other_state)
    np.testing.assert_allclose(ours.asnumpy(), other.asnumpy() * root, rtol=1e-12)
    assert taken._get_wds([0]) == [WD]


@pytest.mark.parametrize('given', [
    {}, {'optimizer': 'sgd'}, {'kvstore': None}, {'context': [mx.cpu(0), mx.cpu(1)]}])
def test_module_finds_the_optimum_on_raw_columns(given):
    rule = BarzilaiBorwein(scaled=True)
    module = module_of(rule, **given)
    assert module.has_converged
    np.testing.assert_allclose(rule.column_scales.by_name['fc_weight'], D[None], rtol=1e-6)
    np.testing.assert_allclose(in_one_scale(*weights_of(module)), optimum(),
                               atol=1e-4 * np.abs(optimum()).max())


@pytest.mark.parametrize('given', [
    {}, {'hybridizes': True}, {'context': [mx.cpu(0), mx.cpu(1)]}])
def test_gluon_finds_the_optimum_on_raw_columns(given):
    rule = BarzilaiBorwein(scaled=True)
    dense, trainer = trainer_of(rule, **given)
    train(trainer)
    assert trainer.has_converged
    np.testing.assert_allclose(rule.column_scales.by_name[dense.weight.name], D[None], rtol=1e-6)
    np.testing.assert_allclose(in_one_scale(
        dense.weight.list_data()[-1], dense.bias.list_data()[-1]), optimum(),
                               atol=1e-4 * np.abs(optimum()).max())


def soft(weight, threshold):
    return np.sign(weight) * np.maximum(np.abs(weight) - threshold, 0)


def shorter(weight, threshold, axis):
    return weight * (1 - threshold / np.maximum(np.linalg.norm(
        weight, axis=axis, keepdims=True), threshold))


OPERATORS = {
    'L1': (L1(1e-2), lambda w, rate: soft(w, rate * 1e-2)),
    'Box': (Box(-1, 0.5), lambda w, rate: np.clip(w, -1, 0.5)),
    'bounded': (L1(1e-2, -1, 0.5),
                lambda w, rate: np.clip(soft(w, rate * 1e-2), -1, 0.5)),
    'groups of columns': (GroupLasso(2e-2, axis=1), lambda w, rate: shorter(w, rate * 2e-2, 0)),
    'groups of rows': (GroupLasso(2e-2, axis=0), lambda w, rate: shorter(w, rate * 2e-2, 1))}


@pytest.mark.parametrize('name, front_end', [
    ('L1', SVRGModule), ('L1', SVRGTrainer), ('groups of columns', SVRGModule),
    *(pytest.param(name, SVRGModule, marks=pytest.mark.slow) for name in OPERATORS
      if name not in ('L1', 'groups of columns')),
    pytest.param('groups of columns', SVRGTrainer, marks=pytest.mark.slow)])
def test_proximal_solutions_on_raw_columns(name, front_end):
    """A step of the scaled proximal gradient in float64 leaves the solution where it is."""
    operator, prox = OPERATORS[name]
    units = np.logspace(-0.2, 0.2, 5) if name == 'groups of rows' else UNITS
    features = (STANDARD * units).astype('float32')
    rng = np.random.RandomState(1)
    classes = (STANDARD @ rng.normal(size=(5, 3)) + rng.gumbel(size=(ROWS, 3))).argmax(axis=1)
    exact, rule = features.astype('float64'), BarzilaiBorwein(scaled=True)
    if front_end is SVRGModule:
        symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(
            mx.sym.Variable('data'), num_hidden=3, name='fc'), mx.sym.Variable('label'))
        module = SVRGModule(symbol, label_names=('label',), update_freq=2, tol=1e-5,
                            proximal={'fc_weight': operator})
        module.fit(mx.io.NDArrayIter(features, classes, BATCH, label_name='label'), num_epoch=300,
                   eval_metric=[], initializer=mx.init.Zero(),
                   optimizer_params={'lr_scheduler': rule})
        weight, bias = weights_of(module)
    else:
        net = gluon.nn.Dense(3, in_units=5, prefix='fc_')
        net.initialize(mx.init.Zero())
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        module = SVRGTrainer(net.collect_params(), 'sgd', {'lr_scheduler': rule}, tol=1e-5,
                             objective=lambda data, label: loss(net(data), label),
                             proximal={'fc_weight': operator})
        train(module, 300, features=features, labels=classes)
        weight, bias = net.weight.data(), net.bias.data()
    assert module.has_converged
    scales = 1 / (exact ** 2).mean(axis=0)
    if name == 'groups of rows':
        scales = 1 / (exact ** 2).mean()
    np.testing.assert_allclose(rule.column_scales.by_name['fc_weight'].ravel(), scales, rtol=1e-5)
    weight, bias = (value.asnumpy().astype('float64') for value in (weight, bias))
    scores = np.exp(exact @ weight.T + bias)
    error = (scores / scores.sum(axis=1, keepdims=True) - np.eye(3)[classes]) / ROWS
    stepped = prox(weight - 0.1 * scales * (error.T @ exact), 0.1 * scales)
    assert np.abs((weight - stepped) / 0.1 / np.sqrt(scales)).max() < 2e-5
    assert np.abs(error.sum(axis=0)).max() < 2e-5 and weight.any()
    if name != 'groups of rows':
        assert np.isin(weight, [0, -1, 0.5]).any()


def test_gradient_mapping_of_scaled_steps():
    """Its largest component, times the root of D, in float64."""
    rule, strength = BarzilaiBorwein(scaled=True), 1e-2
    module = module_of(rule, 'sgd', epochs=2, tol=None, proximal=L1(strength))
    module.update_full_grads(mx.io.NDArrayIter(FEATURES, LABELS, BATCH, label_name='label'))
    weight, bias = (value.asnumpy().ravel().astype('float64') for value in weights_of(module))
    error = (1 / (1 + np.exp(-EXACT @ weight - bias)) - LABELS) / ROWS
    rates = rule.rate * D
    stepped = soft(weight - rates * (EXACT.T @ error + WD * weight), rates * strength)
    mapping = np.abs((weight - stepped) / rates * np.sqrt(D)).max()
    assert mapping > abs(error.sum()) and (stepped == 0).any()
    np.testing.assert_allclose(module.gradient_norm, mapping, rtol=1e-4)


class OwnOperator(ProximalOperator):
    def prox(self, weight, step_size):
        assert isinstance(step_size, float)

    def value(self, weight):
        return 0.


def fit_plain(symbol, data, rule, epochs=1, **arguments):
    module = SVRGModule(symbol, label_names=('label',), update_freq=2, **arguments)
    module.fit(data, eval_metric=[], num_epoch=epochs, initializer=mx.init.Zero(),
               optimizer_params={'lr_scheduler': rule, 'multi_precision': True})
    return module


def test_weights_that_are_not_scaled_are_told():
    data, label = mx.sym.Variable('data'), mx.sym.Variable('label')
    dense = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(
        data, num_hidden=1, name='fc'), label)
    half = mx.sym.LinearRegressionOutput(mx.sym.sum(mx.sym.broadcast_mul(data, mx.sym.Variable(
        'half_weight', shape=(1, 5))), axis=1), label)
    none = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(
        data * 2, num_hidden=1, name='fc'), label)
    for symbol, dtype, arguments, name in (
            (dense, 'float32', {'proximal': {'fc_weight': OwnOperator()}}, 'fc_weight'),
            (half, 'float16', {}, 'any weight'), (none, 'float32', {}, 'any weight')):
        train_data = mx.io.NDArrayIter(nd.array(STANDARD, dtype=dtype), nd.array(
            LABELS, dtype=dtype), BATCH, label_name='label')
        rule = BarzilaiBorwein(scaled=True)
        with pytest.warns(UserWarning, match='does not scale the steps of %s:' % name):
            fit_plain(symbol, train_data, rule, **arguments)
        assert not rule.column_scales.by_name


def test_sparse_inputs_are_as_dense_ones():
    weights, whole = [], EXACT[:ROWS // BATCH * BATCH]
    for stype in 'csr', 'default':
        rule = BarzilaiBorwein(scaled=True)
        output = mx.sym.dot(mx.sym.Variable('data', stype=stype), mx.sym.Variable(
            'weight', shape=(5, 1)))
        symbol = mx.sym.LogisticRegressionOutput(output, mx.sym.Variable('label'))
        data = mx.io.NDArrayIter(nd.array(FEATURES).tostype(stype), LABELS, BATCH,
                                 label_name='label', last_batch_handle='discard')
        module = fit_plain(symbol, data, rule, 6)
        np.testing.assert_allclose(rule.column_scales.by_name['weight'].ravel(),
                                   1 / ((whole ** 2).sum(0) / (whole != 0).sum(0)), rtol=1e-6)
        weights.append(module.get_params()[0]['weight'].asnumpy().ravel() * UNITS)
    assert weights[0].any()
    np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-5)


def test_buckets_have_the_columns_of_all():
    """Two buckets, of one row a sequence and of two, whose columns are the same."""
    def sym_gen(length):
        rows = mx.sym.reshape(mx.sym.Variable('data'), (-1, 5))
        output = mx.sym.FullyConnected(rows, num_hidden=1, name='fc')
        return (mx.sym.LogisticRegressionOutput(output, mx.sym.reshape(
            mx.sym.Variable('label'), (-1, 1))), ('data',), ('label',))

    class Buckets:
        default_bucket_key, batch_size = 2, 4
        provide_data, provide_label = [('data', (4, 2, 5))], [('label', (4, 2))]

        def __iter__(self):
            for begin in range(0, 200, 12):
                for length, rows in ((2, slice(begin, begin + 8)),
                                     (1, slice(begin + 8, begin + 12))):
                    if rows.stop <= 200:
                        shapes = (4, length, 5), (4, length)
                        yield mx.io.DataBatch(
                            [nd.array(FEATURES[rows].reshape(shapes[0]))],
                            [nd.array(LABELS[rows].reshape(shapes[1]))], 0, bucket_key=length,
                            provide_data=[('data', shapes[0])],
                            provide_label=[('label', shapes[1])])

        def reset(self):
            pass

    rule = BarzilaiBorwein(scaled=True)
    module = SVRGBucketingModule(sym_gen, 2, update_freq=2, tol=1e-4)
    module.fit(Buckets(), eval_metric=[], num_epoch=100, initializer=mx.init.Zero(),
               optimizer='nag', optimizer_params={'lr_scheduler': rule, 'momentum': 0.9})
    assert module.has_converged
    rows = EXACT[:200]
    np.testing.assert_allclose(rule.column_scales.by_name['fc_weight'][0],
                               1 / ((rows ** 2).sum(0) / (rows != 0).sum(0)), rtol=1e-5)


def test_padding_and_fixed_weights_are_left_out():
    class Padded:
        batch_size, provide_data = BATCH, [('data', (BATCH, 5))]
        provide_label = [('label', (BATCH,))]

        def __iter__(self):
            for begin, padding in (0, 0), (20, 7), (40, 20):
                features = FEATURES[begin:begin + BATCH].copy()
                features[BATCH - padding:] = np.nan
                yield mx.io.DataBatch([nd.array(features)], [nd.array(
                    LABELS[begin:begin + BATCH])], padding)

        def reset(self):
            pass

    hidden = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=2, name='hidden')
    symbol = mx.sym.LogisticRegressionOutput(mx.sym.FullyConnected(
        mx.sym.tanh(hidden), num_hidden=1), mx.sym.Variable('label'))
    for fixed in [], ['hidden_weight']:
        rule = BarzilaiBorwein(scaled=True)
        module = SVRGModule(symbol, label_names=('label',), update_freq=2, fixed_param_names=fixed)
        module.bind(Padded.provide_data, Padded.provide_label)
        module.init_params(mx.init.Normal(0.1))
        module.init_optimizer(optimizer_params={'lr_scheduler': rule})
        if fixed:
            with pytest.warns(UserWarning, match='does not scale the steps of any weight'):
                module.update_full_grads(Padded())
            assert not rule.column_scales
        else:
            module.update_full_grads(Padded())
            rows = EXACT[:33]
            np.testing.assert_allclose(rule.column_scales.by_name['hidden_weight'][0],
                                       1 / ((rows ** 2).sum(0) / (rows != 0).sum(0)), rtol=1e-6)


def test_borrowed_optimizer():
    lender = module_of(BarzilaiBorwein(scaled=True), epochs=2, tol=None, kvstore=None)
    data, modules = mx.sym.Variable('data'), []
    for name in 'fc', 'other':
        output = mx.sym.FullyConnected(data, num_hidden=1, name=name)
        module = SVRGModule(mx.sym.LogisticRegressionOutput(output, mx.sym.Variable('label')),
                            label_names=('label',), update_freq=2)
        module.bind([('data', (BATCH, 5))], [('label', (BATCH,))])
        module.init_params()
        modules.append(module)
    modules[0].borrow_optimizer(lender)
    assert modules[0].optimizer_initialized
    with pytest.raises(ValueError, match='shared_module must have the same parameters'):
        modules[1].borrow_optimizer(lender)


def test_tolerance_does_not_depend_on_the_units():
    norms = []
    for factor in 1, 1000:
        module = module_of(BarzilaiBorwein(scaled=True), epochs=0, tol=None, wd=0,
                           features=FEATURES * np.float32(factor))
        module.update_full_grads(mx.io.NDArrayIter(FEATURES * np.float32(factor), LABELS, BATCH,
                                                   label_name='label'))
        norms.append(module.gradient_norm)
    scaled = EXACT / np.sqrt((EXACT ** 2).sum(0) / (EXACT != 0).sum(0))
    error = (0.5 - LABELS) / ROWS
    np.testing.assert_allclose(norms, max(np.abs(error @ scaled).max(), abs(error.sum())),
                               rtol=1e-5)


def test_tolerance_on_standard_columns_is_that_without_scales():
    features, norms = STANDARD - STANDARD.mean(axis=0), []
    features = (features / features.std(axis=0)).astype('float32')
    for scaled in False, True:
        module = module_of(BarzilaiBorwein(scaled=scaled), epochs=0, tol=None, features=features)
        module.update_full_grads(mx.io.NDArrayIter(features, LABELS, BATCH, label_name='label'))
        norms.append(module.gradient_norm)
    np.testing.assert_allclose(norms[1] * np.sqrt(1 + WD), norms[0], rtol=1e-5)


def test_other_data_leave_the_scales():
    rule = BarzilaiBorwein(scaled=True)
    module = module_of(rule, epochs=2, tol=None)
    before = rule.column_scales.by_name['fc_weight'].copy()
    module_of(rule, epochs=4, begin=2, loaded=module, features=3 * FEATURES)
    np.testing.assert_array_equal(rule.column_scales.by_name['fc_weight'], before)


def test_module_resumes_on_the_same_bits(tmp_path):
    whole = weights_of(module_of(BarzilaiBorwein(scaled=True), epochs=6, tol=None))
    rule = BarzilaiBorwein(scaled=True)
    prefix = str(tmp_path / 'run')
    module_of(rule, epochs=4, tol=None).save_checkpoint(prefix, 4, save_optimizer_states=True)
    loaded = SVRGModule.load(prefix, 4, load_optimizer_states=True, label_names=('label',),
                             update_freq=2)
    resumed = weights_of(module_of(BarzilaiBorwein(scaled=True), epochs=6, tol=None, begin=4,
                                   loaded=loaded))
    for array, expected in zip(resumed, whole):
        np.testing.assert_array_equal(array.asnumpy(), expected.asnumpy())


def test_trainer_resumes_on_the_same_bits(tmp_path):
    dense, trainer = trainer_of(BarzilaiBorwein(scaled=True), tol=None)
    train(trainer, 6)
    half, before = trainer_of(BarzilaiBorwein(scaled=True), prefix='net1_', tol=None)
    train(before, 4)
    before.save_states(str(tmp_path / 'states'))
    resumed, after = trainer_of(BarzilaiBorwein(scaled=True), prefix='net2_', tol=None)
    for param, value in ((resumed.weight, half.weight), (resumed.bias, half.bias)):
        param.set_data(value.data())
    after.load_states(str(tmp_path / 'states'))
    train(after, 6, begin=4)
    np.testing.assert_array_equal(resumed.weight.data().asnumpy(), dense.weight.data().asnumpy())

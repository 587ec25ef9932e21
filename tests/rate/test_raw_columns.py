"""Raw columns: 'svrg_lbfgs' finds the optimum in the metric of the inputs, by both front ends."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd

from blocks import train_epochs
from svrg_lbfgs import inverse_of
from svrg_optimization import SVRGBucketingModule, SVRGModule, SVRGTrainer
from svrg_optimization.rate import metric, secant_pairs, smooth

WD, ROWS, BATCH = 1e-3, 203, 20
RNG = np.random.RandomState(0)
TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
STANDARD = RNG.normal(size=(ROWS, 5)) + 0.5
TURNED = STANDARD * np.logspace(0, -3, 5) @ np.linalg.qr(RNG.normal(size=(5, 5)))[0]
FEATURES = {'units': STANDARD * np.logspace(-3, 3, 5), 'turned': TURNED, 'far': STANDARD + 100}
LABELS = (STANDARD @ RNG.normal(size=5) + RNG.logistic(size=ROWS) > 0).astype('float32')
EXACT = {kind: rows.astype('float32').astype('float64') for kind, rows in FEATURES.items()}


def optimum(rows, labels=LABELS, wd=WD, bias=True):
    """Newton's method on the logistic loss with columns of one scale; return scores."""
    lengths = np.append(np.sqrt((rows ** 2).mean(axis=0)), 1)
    inputs = np.column_stack([rows, np.ones(len(rows))]) / lengths
    inputs, lengths = (inputs, lengths) if bias else (inputs[:, :-1], lengths[:-1])
    decay = wd / lengths ** 2 * np.append(np.ones(rows.shape[1]), 0)[:len(lengths)]
    weights = np.zeros(len(lengths))
    for _ in range(60):
        chances = 1 / (1 + np.exp(-inputs @ weights))
        hessian = (inputs.T * chances * (1 - chances)) @ inputs / len(rows) + np.diag(decay)
        weights -= np.linalg.solve(hessian, inputs.T @ (chances - labels) / len(rows)
                                   + decay * weights)
    return inputs @ weights


def assert_optimal(rows, weight, bias, expected):
    scores = rows @ weight.asnumpy().ravel().astype('float64') + (
        bias.asnumpy() if bias is not None else 0)
    np.testing.assert_allclose(scores, expected, atol=2e-4 * np.abs(expected).max())


def iterator(kind, stype='default', dtype='float32', labels=LABELS):
    return mx.io.NDArrayIter(nd.array(FEATURES[kind], dtype=dtype).tostype(stype), nd.array(
        labels, dtype=dtype), BATCH, label_name='label')


def module_of(kind, epochs=60, begin=0, loaded=None, momentum=None, tol=1e-6, **arguments):
    kvstore = arguments.pop('kvstore', 'local')
    data = mx.sym.Reshape(mx.sym.Variable('data'), shape=(0, -1))
    output = mx.sym.FullyConnected(data, num_hidden=1, name='fc')
    symbol = mx.sym.LogisticRegressionOutput(output, mx.sym.Variable('label'))
    module = loaded or SVRGModule(symbol, label_names=('label',), update_freq=2, tol=tol,
                                  **arguments)
    module.fit(iterator(kind), eval_metric=[], optimizer='svrg_lbfgs', kvstore=kvstore,
               initializer=mx.init.Zero(), begin_epoch=begin, num_epoch=epochs,
               optimizer_params={'wd': WD, **({} if momentum is None else {'momentum': momentum})})
    return module


def weights_of(module):
    params = module.get_params()[0]
    return params['fc_weight'], params['fc_bias']


def trainer_of(momentum=0.9, hybridizes=False, prefix='net_', tol=1e-6, context=mx.cpu(),
               dtype='float32', **arguments):
    net = gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(gluon.nn.Flatten(), gluon.nn.Dense(1, in_units=5))
    net.cast(dtype)
    net.initialize(mx.init.Zero(), ctx=context)
    net[1].bias.set_data(nd.array([0.1], dtype=dtype))  # where scores are 0 the loss has a kink
    net[1].bias.wd_mult = 0
    if hybridizes:
        net.hybridize()
    loss = gluon.loss.SigmoidBCELoss()
    return net[1], SVRGTrainer(net.collect_params(), 'svrg_lbfgs', {'momentum': momentum, 'wd': WD},
                               objective=lambda data, label: loss(net(data), label), tol=tol,
                               **arguments)


def train(trainer, kind, epochs=60, begin=0):
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(
        FEATURES[kind].astype('float32'), LABELS), BATCH)
    train_epochs(trainer, data, epochs, begin_epoch=begin)


@pytest.mark.parametrize('kind', FEATURES)
@pytest.mark.parametrize('given', [
    {}, {'momentum': 0}, {'kvstore': None, 'store_snapshot_grads': 1 << 30},
    {'context': TWO_DEVICES}], ids=str)
def test_module_finds_the_optimum(kind, given):
    module = module_of(kind, **given)
    assert module.has_converged
    assert_optimal(EXACT[kind], *weights_of(module), optimum(EXACT[kind]))


@pytest.mark.parametrize('kind', FEATURES)
@pytest.mark.parametrize('given', [
    {}, {'momentum': 0}, {'hybridizes': True}, {'context': TWO_DEVICES}], ids=str)
def test_gluon_finds_the_optimum(kind, given):
    dense, trainer = trainer_of(**given)
    train(trainer, kind)
    assert trainer.has_converged
    assert_optimal(EXACT[kind], dense.weight.data(mx.cpu(0)), dense.bias.data(mx.cpu(0)),
                   optimum(EXACT[kind]))


def test_weights_that_explode_are_no_rounding():
    """A column has rare large values, and scores are far from 0 once a step has gone too far."""
    rng = np.random.RandomState(0)
    rows = np.column_stack([
        np.where(rng.uniform(size=1000) < 0.1, rng.uniform(3000, 1e5, 1000), 0),
        rng.uniform(17, 90, 1000), *(np.eye(count)[np.minimum(rng.geometric(
            0.3, 1000) - 1, count - 1)] for count in (8, 15, 6))]).astype('float32')
    scores = (rows - rows.mean(axis=0)) / rows.std(axis=0).clip(1e-9) @ rng.normal(size=31) / 3
    labels = (scores + rng.logistic(size=1000) > 0).astype('float32')
    module = SVRGModule(mx.sym.LogisticRegressionOutput(mx.sym.FullyConnected(
        mx.sym.Variable('data'), num_hidden=1), mx.sym.Variable('label')),
        label_names=('label',), update_freq=2)
    module.fit(mx.io.NDArrayIter(rows, labels, 50, label_name='label'), eval_metric=[],
               num_epoch=100, initializer=mx.init.Zero(), optimizer='svrg_lbfgs')
    scores = optimum(rows.astype('float64'), labels, 1e-9)
    assert module.objective < (np.logaddexp(0, scores) - labels * scores).mean() + 1e-5


@pytest.mark.parametrize('stype, weight', [('csr', 'default'), ('csr', 'row_sparse'),
                                           ('default', 'default')])
@pytest.mark.parametrize('has_bias', [False, True])
def test_sparse_inputs_and_weights(stype, weight, has_bias):
    scores = mx.sym.dot(mx.sym.Variable('data', stype=stype), mx.sym.Variable(
        'weight', shape=(5, 1), stype=weight))
    if has_bias:
        scores = mx.sym.broadcast_add(scores, mx.sym.Variable('bias', shape=(1,)))
    symbol = mx.sym.LogisticRegressionOutput(scores, mx.sym.Variable('label'))
    module = SVRGModule(symbol, label_names=('label',), update_freq=2, tol=1e-6)
    data = mx.io.NDArrayIter(nd.array(FEATURES['units']).tostype(stype), LABELS, BATCH,
                             label_name='label', last_batch_handle='discard')
    module.fit(data, eval_metric=[], num_epoch=100, initializer=mx.init.Zero(),
               optimizer='svrg_lbfgs')
    whole = FEATURES['units'].astype('float32').astype('float64')[:ROWS // BATCH * BATCH]
    assert module.has_converged
    params = module.get_params()[0]
    assert_optimal(whole, params['weight'].tostype('default'), params.get('bias'),
                   optimum(whole, LABELS[:len(whole)], 0, bias=has_bias))


def test_float16_weights():
    """MXNet's FullyConnected is not for them on CPUs, so they have a metric of 1 here."""
    rows = STANDARD.astype('float16')
    targets = (rows.astype('float64') @ np.arange(1, 6)).astype('float16')
    weight = gluon.Parameter('w_weight', shape=(1, 5), dtype='float16', init='zeros')
    weight.initialize()
    loss = gluon.loss.L2Loss()
    trainer = SVRGTrainer([weight], 'svrg_lbfgs', {'multi_precision': True}, objective=lambda x, y:
                          loss(nd.sum(nd.broadcast_mul(x, weight.data()), axis=1), y))
    data = [[nd.array(values[i:i + 29], dtype='float16') for values in (rows, targets)]
            for i in range(0, ROWS, 29)]
    for batches in trainer.epochs(data, 20):
        for batch in batches:
            trainer.backward(*batch)
            trainer.step(29)
    np.testing.assert_allclose(weight.data().asnumpy()[0], np.arange(1, 6), rtol=2e-3)


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
            for begin in range(0, 192, 12):
                for length, rows in ((2, slice(begin, begin + 8)),
                                     (1, slice(begin + 8, begin + 12))):
                    shapes = (4, length, 5), (4, length)
                    yield mx.io.DataBatch(
                        [nd.array(FEATURES['units'][rows].reshape(shapes[0]))],
                        [nd.array(LABELS[rows].reshape(shapes[1]))], 0, bucket_key=length,
                        provide_data=[('data', shapes[0])], provide_label=[('label', shapes[1])])

        def reset(self):
            pass

    module = SVRGBucketingModule(sym_gen, 2, update_freq=2, tol=1e-6)
    module.fit(Buckets(), eval_metric=[], num_epoch=60, initializer=mx.init.Zero(),
               optimizer='svrg_lbfgs')
    assert module.has_converged
    rows = EXACT['units'][:192]
    assert_optimal(rows, *weights_of(module), optimum(rows, LABELS[:192], 0))


def test_padding_and_fixed_weights_are_left_out():
    """The first snapshot's second moment is of the rows without padding."""
    class Padded:
        batch_size, provide_data = BATCH, [('data', (BATCH, 5))]
        provide_label = [('label', (BATCH,))]

        def __iter__(self):
            for begin, padding in (0, 0), (20, 7), (40, 20):
                features = STANDARD[begin:begin + BATCH].astype('float32')
                features[BATCH - padding:] = np.nan
                yield mx.io.DataBatch([nd.array(features)], [nd.array(
                    LABELS[begin:begin + BATCH])], padding)

        def reset(self):
            pass

    hidden = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=2, name='hidden')
    symbol = mx.sym.LogisticRegressionOutput(mx.sym.FullyConnected(
        mx.sym.tanh(hidden), num_hidden=1), mx.sym.Variable('label'))
    for fixed in [], ['hidden_weight'], ['hidden_bias']:
        module = SVRGModule(symbol, label_names=('label',), update_freq=2, fixed_param_names=fixed)
        module.bind(Padded.provide_data, Padded.provide_label)
        module.init_params(mx.init.Normal(0.1))
        module.init_optimizer(optimizer='svrg_lbfgs')
        module.update_full_grads(Padded())
        blocks = module._optimizer.lr_scheduler.metric.blocks
        if fixed == ['hidden_weight']:
            assert not blocks
            continue
        inputs = np.column_stack([STANDARD[:33], np.ones(33)])[:, :5 if fixed else 6]
        np.testing.assert_allclose(inverse_of(blocks[0]), np.linalg.inv(inputs.T @ inputs / 33),
                                   rtol=1e-5)


def test_many_columns_have_the_diagonal(monkeypatch):
    monkeypatch.setattr(metric, 'COLUMNS', 256)
    rows = RNG.normal(size=(60, 300)) * 10. ** RNG.uniform(-2, 2, 300)
    targets = (rows / np.abs(rows).mean(axis=0)) @ RNG.normal(size=300)
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    module = SVRGModule(mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')),
                        label_names=('label',), update_freq=2)
    module.fit(mx.io.NDArrayIter(rows, targets, 20, label_name='label'), eval_metric=[],
               optimizer='svrg_lbfgs', num_epoch=60, initializer=mx.init.Zero())
    block, = module._optimizer.lr_scheduler.metric.blocks
    np.testing.assert_allclose(block.factor, 1 / np.float32(rows).std(axis=0), rtol=1e-5)
    assert module.objective < 1e-5 * (targets ** 2).mean() / 2


@pytest.mark.parametrize('room', [1 << 24, 100])
def test_a_network_too_large_for_pairs_has_no_metric(room, monkeypatch):
    monkeypatch.setattr(secant_pairs, '_BYTES', room)
    hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4))
    output = mx.sym.FullyConnected(hidden, num_hidden=1, name='fc')
    module = SVRGModule(mx.sym.LogisticRegressionOutput(output, mx.sym.Variable('label')),
                        label_names=('label',), update_freq=1)
    module.fit(iterator('turned'), eval_metric=[], optimizer='svrg_lbfgs', num_epoch=3,
               initializer=mx.init.Xavier())
    rule = module._optimizer.lr_scheduler
    assert (len(rule.metric.blocks), bool(len(rule.regime.pairs))) == (room > 100, room > 100)
    assert 0 < module.objective < 0.65


@pytest.mark.parametrize('wd', [0, 0.1])
def test_the_norm_does_not_depend_on_the_units(monkeypatch, wd):
    """Each component is divided by the root of the mean square of its column, with the decay."""
    monkeypatch.setattr(smooth, '_JUMPS', 0)
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    for factor in 1, 1000:
        rows = (STANDARD * factor).astype('float32')
        module = SVRGModule(mx.sym.LogisticRegressionOutput(output, mx.sym.Variable('label')),
                            label_names=('label',), update_freq=2)
        data = mx.io.NDArrayIter(rows, LABELS, BATCH, label_name='label')
        module.bind(data.provide_data, data.provide_label)
        module.init_params(mx.init.Zero())
        module.init_optimizer(optimizer='svrg_lbfgs', optimizer_params={'wd': wd})
        module.update_full_grads(data)
        error = (0.5 - LABELS) / ROWS
        scaled = error @ (rows / np.sqrt((rows.astype('f8') ** 2).mean(axis=0) + wd))
        np.testing.assert_allclose(module.gradient_norm, max(np.abs(scaled).max(),
                                                             abs(error.sum())), rtol=1e-5)


def test_a_second_fit_measures_other_data():
    module = module_of('units', epochs=4, tol=None)
    for _ in range(2):
        module_of('far', epochs=60, loaded=module)
    moments = module._optimizer.lr_scheduler.metric.blocks[0].moments
    np.testing.assert_allclose(moments.mean, EXACT['far'].mean(axis=0), rtol=1e-6)
    assert_optimal(EXACT['far'], *weights_of(module), optimum(EXACT['far']))


def test_a_borrowed_optimizer_needs_the_same_parameters():
    lender = module_of('units', epochs=2, tol=None, kvstore=None)
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

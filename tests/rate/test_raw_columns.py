"""Raw columns: 'newton_cg' finds the optimum in the metric of the inputs, by both front ends."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd

from bad_input import Data
from dense_metric import inverse_of
from linear_models import Problem, by_gluon, by_module
from newton import outputs_at_optimum
from problems import TWO_DEVICES
from svrg_optimization import SVRGBucketingModule, SVRGModule
from svrg_optimization.rate import moments

WD, ROWS, BATCH = 1e-3, 203, 20
RNG = np.random.RandomState(0)
STANDARD = RNG.normal(size=(ROWS, 5)) + 0.5
TURNED = STANDARD * np.logspace(0, -3, 5) @ np.linalg.qr(RNG.normal(size=(5, 5)))[0]
FEATURES = {'units': STANDARD * np.logspace(-3, 3, 5), 'turned': TURNED, 'far': STANDARD + 100}
LABELS = (STANDARD @ RNG.normal(size=5) + RNG.logistic(size=ROWS) > 0).astype('float32')
EXACT = {kind: rows.astype('float32').astype('float64') for kind, rows in FEATURES.items()}


def problem_of(kind, **given):
    return Problem('logistic', FEATURES[kind], LABELS, **{'wd': WD, 'batch': BATCH, **given})


def start(bias=0.):
    return {'fc_weight': nd.zeros((1, 5)), 'fc_bias': nd.array([bias])}


def assert_optimal(outputs, rows, wd=WD, bias=True):
    expected = outputs_at_optimum('logistic', rows, LABELS[:len(rows)], wd, bias).ravel()
    np.testing.assert_allclose(outputs.ravel(), expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize('kind', FEATURES)
@pytest.mark.parametrize('front_end, given', [
    *((by_module, given) for given in (
        {}, {'kvstore': None},
        {'context': TWO_DEVICES})),
    *((by_gluon, {'start': start(0.1), **given}) for given in (  # at 0 the loss has a kink
        {}, {'hybridizes': True}, {'context': TWO_DEVICES}))])
def test_the_optimum_is_found(kind, front_end, given):
    found = front_end(problem_of(kind), 60, 1e-6, **{'start': start(), **given})
    assert found.by.has_converged
    assert_optimal(EXACT[kind] @ found.weight.T + found.bias, EXACT[kind])


def test_weights_that_explode_are_no_rounding():
    """A column has rare large values, and scores are far from 0 once a step has gone too far."""
    rng = np.random.RandomState(0)
    rows = np.column_stack([
        np.where(rng.uniform(size=1000) < 0.1, rng.uniform(3000, 1e5, 1000), 0),
        rng.uniform(17, 90, 1000), *(np.eye(count)[np.minimum(rng.geometric(
            0.3, 1000) - 1, count - 1)] for count in (8, 15, 6))]).astype('float32')
    scores = (rows - rows.mean(axis=0)) / rows.std(axis=0).clip(1e-9) @ rng.normal(size=31) / 3
    labels = (scores + rng.logistic(size=1000) > 0).astype('float32')
    module = by_module(Problem('logistic', rows, labels), tol=None,
                       initializer=mx.init.Zero()).by
    scores = outputs_at_optimum('logistic', rows.astype('float64'), labels, 1e-9)[:, 0]
    assert module.objective < (np.logaddexp(0, scores) - labels * scores).mean() + 1e-5


@pytest.mark.parametrize('stype, weight, wd', [
    ('csr', 'default', 0), ('csr', 'row_sparse', 0), ('csr', 'row_sparse', WD),
    ('default', 'default', 0)])
@pytest.mark.parametrize('has_bias', [False, True])
def test_sparse_inputs_and_weights(stype, weight, wd, has_bias):
    problem = problem_of('units', wd=wd, stype=stype, dot=True, weight_stype=weight, bias=has_bias)
    found = by_module(problem, 100, 1e-6, initializer=mx.init.Zero(),
                      data=problem.iterator(last_batch_handle='discard'))
    whole = EXACT['units'][:ROWS // BATCH * BATCH]
    assert found.by.has_converged
    assert_optimal(whole @ found.weight.T + found.bias, whole, wd, has_bias)


@pytest.mark.exact_data
def test_buckets_have_the_columns_of_all():
    """Two buckets, of one row a sequence and of two, whose columns are the same."""
    def sym_gen(length):
        rows = mx.sym.reshape(mx.sym.Variable('data'), (-1, 5))
        output = mx.sym.FullyConnected(rows, num_hidden=1, name='fc')
        return (mx.sym.LogisticRegressionOutput(output, mx.sym.reshape(
            mx.sym.Variable('label'), (-1, 1))), ('data',), ('label',))

    class Buckets(Data):
        default_bucket_key, batch_size = 2, 4
        provide_data, provide_label = [('data', (4, 2, 5))], [('label', (4, 2))]

    batches = []
    for begin in range(0, 192, 12):
        for length, rows in (2, slice(begin, begin + 8)), (1, slice(begin + 8, begin + 12)):
            shapes = (4, length, 5), (4, length)
            batches.append(mx.io.DataBatch(
                [nd.array(FEATURES['units'][rows].reshape(shapes[0]))],
                [nd.array(LABELS[rows].reshape(shapes[1]))], 0, bucket_key=length,
                provide_data=[('data', shapes[0])], provide_label=[('label', shapes[1])]))
    module = SVRGBucketingModule(sym_gen, 2, update_freq=2, tol=1e-6)
    module.fit(Buckets(*batches), eval_metric=[], num_epoch=60, initializer=mx.init.Zero(),
               optimizer='newton_cg')
    assert module.has_converged
    weights = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    rows = EXACT['units'][:192]
    assert_optimal(rows @ weights['fc_weight'].T + weights['fc_bias'], rows, 0)


@pytest.mark.exact_data
def test_padding_and_fixed_weights_are_left_out():
    """The first snapshot's second moment is of the rows without padding."""
    batches = []
    for begin, padding in (0, 0), (20, 7), (40, 20):
        rows = slice(begin, begin + BATCH)
        features = STANDARD[rows].astype('float32')
        features[BATCH - padding:] = np.nan
        batches.append(mx.io.DataBatch([nd.array(features)], [nd.array(LABELS[rows])], padding))
    symbol = problem_of('units').symbol()
    for fixed in [], ['fc_weight'], ['fc_bias']:
        module = SVRGModule(symbol, label_names=('label',), fixed_param_names=fixed)
        module.bind([('data', (BATCH, 5))], [('label', (BATCH,))])
        module.init_params(mx.init.Normal(0.1))
        module.init_optimizer(optimizer='newton_cg')
        module.update_full_grads(Data(*batches))
        blocks = module._svrg.training.learned.metric.blocks
        if fixed == ['fc_weight']:
            assert not blocks
            continue
        inputs = np.column_stack([STANDARD[:33], np.ones(33)])[:, :5 if fixed else 6]
        np.testing.assert_allclose(inverse_of(blocks[0]), np.linalg.inv(inputs.T @ inputs / 33),
                                   rtol=1e-5)


def test_many_columns_have_the_diagonal(monkeypatch):
    monkeypatch.setattr(moments, 'COLUMNS', 256)
    rows = RNG.normal(size=(60, 300)) * 10. ** RNG.uniform(-2, 2, 300)
    targets = (rows / np.abs(rows).mean(axis=0)) @ RNG.normal(size=300)
    module = by_module(Problem('squares', rows, targets, batch=20), 60, None,
                       initializer=mx.init.Zero()).by
    block, = module._svrg.training.learned.metric.blocks
    np.testing.assert_allclose(block.factor, 1 / np.float32(rows).std(axis=0), rtol=1e-5)
    assert module.objective < 1e-5 * (targets ** 2).mean() / 2


def test_a_second_fit_measures_other_data():
    module = by_module(problem_of('units'), 4, None, start=start()).by
    for _ in range(2):
        module.fit(problem_of('far').iterator(), eval_metric=[], num_epoch=60)
    moments = module._svrg.training.learned.metric.blocks[0].moments
    np.testing.assert_allclose(moments.mean, EXACT['far'].mean(axis=0), rtol=1e-6)
    weights = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    assert_optimal(EXACT['far'] @ weights['fc_weight'].T.astype('f8') + weights['fc_bias'],
                   EXACT['far'])


def test_a_borrowed_optimizer_needs_the_same_parameters():
    lender = by_module(problem_of('units'), 2, None, kvstore=None).by
    fits, other = problem_of('units'), problem_of('units', bias=False)
    modules = [SVRGModule(each.symbol(), label_names=('label',)) for each in (fits, other)]
    for module in modules:
        module.bind([('data', (BATCH, 5))], [('label', (BATCH,))])
        module.init_params()
    modules[0].borrow_optimizer(lender)
    assert modules[0].optimizer_initialized
    with pytest.raises(ValueError, match='shared_module must have the same parameters'):
        modules[1].borrow_optimizer(lender)

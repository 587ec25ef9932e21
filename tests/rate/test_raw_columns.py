"""Raw columns: 'newton_cg' finds the optimum in the metric of the inputs, by both front ends."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd

from bad_input import Data
from dense_metric import inverse_of
from linear_models import Problem, by_module
from newton import outputs_at_optimum
from svrg_optimization import SVRGBucketingModule, SVRGModule
from svrg_optimization.rate import moments

WD, ROWS, BATCH = 1e-3, 203, 20
RNG = np.random.RandomState(0)
STANDARD = RNG.normal(size=(ROWS, 5)) + 0.5
FEATURES = {'units': STANDARD * np.logspace(-3, 3, 5), 'far': STANDARD + 100}
LABELS = (STANDARD @ RNG.normal(size=5) + RNG.logistic(size=ROWS) > 0).astype('float32')
EXACT = {kind: rows.astype('float32').astype('float64') for kind, rows in FEATURES.items()}


def problem_of(kind, **given):
    return Problem('logistic', FEATURES[kind], LABELS, **{'wd': WD, 'batch': BATCH, **given})


def assert_optimal(outputs, rows, wd=WD, bias=True):
    expected = outputs_at_optimum('logistic', rows, LABELS[:len(rows)], wd, bias).ravel()
    np.testing.assert_allclose(outputs.ravel(), expected, atol=2e-4 * np.abs(expected).max())


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
    monkeypatch.setattr(moments, 'COLUMNS', 50)
    rows = RNG.normal(size=(60, 300)) * 10. ** RNG.uniform(-2, 2, 300)
    targets = (rows / np.abs(rows).mean(axis=0)) @ RNG.normal(size=300)
    module = by_module(Problem('squares', rows, targets, batch=20), 60, None,
                       initializer=mx.init.Zero()).by
    block, = module._svrg.training.learned.metric.blocks
    np.testing.assert_allclose(block.scale, 1 / np.float32(rows).std(axis=0), rtol=1e-5)
    assert module.objective < 1e-5 * (targets ** 2).mean() / 2


def test_a_second_fit_measures_other_data():
    module = by_module(problem_of('units'), 4, None).by
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

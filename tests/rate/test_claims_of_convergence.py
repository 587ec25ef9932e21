"""'converged' and 'at the floor' are said of right weights only, by both front ends.

All trainings begin with the default initializer, and columns are as they come.
"""

import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from sklearn.linear_model import Lasso

from newton import outputs_at_optimum
from svrg_optimization import SVRGModule, SVRGTrainer
from svrg_optimization.proximal import L1

TOL = 1e-5
EXPECTED = 'training did not converge|tol may not be reached'


def loss_of(library, loss, outputs, labels):
    """Return the loss of each row, by symbols or by arrays."""
    outputs = library.reshape(outputs, (-1,))
    labels = library.reshape(labels, (-1,))
    return {'poisson': lambda: library.exp(outputs) - labels * outputs,
            'huber': lambda: library.smooth_l1(outputs - labels, scalar=1)}[loss]()


def by_module(train_data, loss, outputs, dtype, wd=0., epochs=100, tol=TOL, proximal=None,
              initializer=mx.init.Uniform(0.01), **params):
    symbol, label = mx.sym.FullyConnected(
        mx.sym.Variable('data'), num_hidden=outputs, name='fc'), mx.sym.Variable('label')
    layer = {'softmax': mx.sym.SoftmaxOutput, 'squares': mx.sym.LinearRegressionOutput,
             'logistic': mx.sym.LogisticRegressionOutput}.get(loss)
    symbol = layer(symbol, label) if layer else mx.sym.MakeLoss(
        loss_of(mx.sym, loss, symbol, label))
    module = SVRGModule(symbol, label_names=('label',), tol=tol,
                        proximal=proximal and {'fc_weight': proximal})
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', EXPECTED)
        module.fit(train_data, eval_metric=[], num_epoch=epochs, optimizer='svrg_lbfgs',
                   initializer=initializer, optimizer_params={'wd': wd, **params})
    found = module.get_params()[0]
    return module.result, found['fc_weight'].asnumpy(), found['fc_bias'].asnumpy()


def by_trainer(train_data, loss, outputs, dtype, wd=0., epochs=100, tol=TOL, proximal=None,
               changed=lambda data: data, initializer=mx.init.Uniform(), **params):
    net = gluon.nn.Dense(outputs, in_units=train_data.columns)
    net.initialize(initializer)
    net.cast(dtype)
    net.bias.wd_mult = 0  # as in Module
    block = {'softmax': gluon.loss.SoftmaxCELoss, 'squares': gluon.loss.L2Loss,
             'logistic': gluon.loss.SigmoidBCELoss}.get(loss, lambda: None)()
    trainer = SVRGTrainer(
        net.collect_params(), 'svrg_lbfgs', {'wd': wd, **params}, tol=tol,
        proximal=proximal and {net.weight.name: proximal},
        objective=lambda data, label: block(net(changed(data)), label) if block else loss_of(
            mx.nd, loss, net(changed(data)), label))
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', EXPECTED)
        for batches in trainer.epochs(train_data, epochs):
            for data, label in batches:
                trainer.backward(data, label)
                trainer.step(len(data))
    return trainer.result, net.weight.data().asnumpy(), net.bias.data().asnumpy()


def data_of(front_end, rows, targets, batch, dtype, **given):
    rows, targets = (mx.nd.array(each, dtype=dtype) for each in (rows, targets))
    if front_end is by_module:
        return mx.io.NDArrayIter(rows, targets, batch, label_name='label', **given)
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(rows, targets), batch,
                                   shuffle=True, **given)
    loader.columns = rows.shape[1]
    return loader


RNG = np.random.RandomState(5)
NORMAL, CHANCE = RNG.normal(size=(1000, 4)), RNG.logistic(size=1000)


def beside(column, loss='logistic', wd=1e-6, dtype='float32'):
    """Return a problem of a column that moves the targets, beside three plain ones."""
    rows = np.column_stack([column, NORMAL[:, 1:]])
    scores = (column - column.mean()) / column.std() + NORMAL[:, 1:] @ [1., -0.5, 0.]
    targets = (scores + CHANCE > 0) * 1. if loss != 'squares' else scores + NORMAL[:, 0]
    return loss, rows, targets, wd, dtype


# Loss, rows, targets, decay, dtype.
KINDS = {
    'dates in ms': beside(1.6e12 + 8.64e7 * np.arange(1000), 'softmax', 1e-3),
    'dates in s': beside(1.6e9 * (1 + 0.02 * RNG.normal(size=1000))),
    'yyyymmdd': beside(RNG.randint(2000, 2024, 1000) * 1e4 + RNG.randint(1, 13, 1000) * 100.
                       + RNG.randint(1, 29, 1000)),
    'revenue': beside(1e9 * RNG.lognormal(0, 2, size=1000)),
    'phone numbers': beside(RNG.randint(10 ** 9, 10 ** 10, 1000).astype(float)),
    'years': beside(RNG.randint(2007, 2010, 1000).astype(float), 'squares', 0.),
    'mean 1000': beside(1000 + RNG.normal(size=1000)),
    'mean 10000': beside(10000 + RNG.normal(size=1000), 'squares'),
    'mean 1e6 in float64': beside(1e6 + RNG.normal(size=1000), 'squares', 0., 'float64'),
    'a constant': ('squares', np.column_stack([np.full(1000, 1e6), NORMAL]), NORMAL[:, 0], 0.,
                   'float32'),
    'large counts': ('poisson', NORMAL, RNG.poisson(np.exp(7 + NORMAL[:, 0] / 3)) * 1., 0.,
                     'float32'),
    'a far start': ('huber', NORMAL, NORMAL @ [1., 2, 3, 4] + 1000 + CHANCE, 1e-4, 'float64'),
    'strong decay': ('squares', NORMAL, NORMAL @ [1., 2, 3, 4] + CHANCE, 1000., 'float32'),
    '400 columns': ('logistic', RNG.normal(size=(1000, 400)) + 2, (CHANCE > 0) * 1., 1e-2,
                    'float32')}


@pytest.mark.parametrize('front_end', [by_module, by_trainer])
@pytest.mark.parametrize('kind', KINDS)
def test_the_outputs_are_right_or_the_word_is_not_said(front_end, kind):
    loss, rows, targets, wd, dtype = KINDS[kind]
    np.random.seed(0)
    mx.random.seed(0)
    result, weight, bias = front_end(data_of(front_end, rows, targets, 50, dtype), loss,
                                     2 if loss == 'softmax' else 1, dtype, wd)
    rows, weight = rows.astype(dtype).astype('f8'), weight.astype('f8')
    found = rows @ weight.T + bias
    expected = outputs_at_optimum(loss, rows, targets.astype(dtype).astype('f8'), wd)
    if loss == 'softmax':  # does not see what all outputs have in common
        found, expected, weight = (each - each.mean(axis=axis, keepdims=True) for each, axis in (
            (found, 1), (expected, 1), (weight, 0)))
    spread = np.sqrt(((expected - expected.mean(axis=0)) ** 2).sum())
    off = np.sqrt(((found - expected) ** 2).sum()) / spread
    rounding = 0.3 * np.finfo(dtype).eps * np.sqrt(
        ((rows ** 2).sum(axis=0) * weight ** 2).sum() + len(rows) * (bias ** 2).sum()) / spread
    if result.has_converged:
        assert off < max(10 * TOL, 10 * min(rounding, 1e-3))
    else:  # float32 hardly resolves it
        assert kind in ('dates in ms', 'yyyymmdd', 'mean 1000', 'mean 10000', 'revenue')


@pytest.mark.parametrize('front_end', [by_module, by_trainer])
@pytest.mark.parametrize('loss, targets', [
    ('logistic', (NORMAL[:, 0] > 0) * 1.), ('logistic', np.ones(1000)),
    ('logistic', np.zeros(1000)), ('softmax', (NORMAL[:, 0] > 0) * 1.),
    ('softmax', np.zeros(1000))])
@pytest.mark.parametrize('initializer', [mx.init.Uniform(0.01), mx.init.Zero()],
                         ids=['uniform', 'zero'])
def test_where_there_is_no_optimum_that_is_said(front_end, loss, targets, initializer):
    outputs = 2 if loss == 'softmax' else 1
    data = data_of(front_end, NORMAL, targets, 50, 'float32')
    result, *_ = front_end(data, loss, outputs, 'float32', initializer=initializer)
    assert not result.has_converged
    has_kink = front_end is by_trainer and not result.epochs  # SigmoidBCELoss is flat at 0
    assert has_kink <= (loss == 'logistic' and not targets.any())
    if front_end is by_module or loss == 'logistic':  # Gluon rounds slopes of softmax to 1e-6
        assert ('other initial weights' if has_kink else
                'without weight decay there is no optimum') in str(result)


class Noisy(mx.io.NDArrayIter):
    """Rows with other noise in each pass."""

    def next(self):
        batch = super().next()
        batch.data = [data + mx.nd.random.normal(0, 0.1, data.shape) for data in batch.data]
        return batch


def with_noise(data):
    return data + 0.1 * mx.nd.array(np.random.normal(size=data.shape))


@pytest.mark.parametrize('kind', ['noise', 'rows left out', 'rows left out of a loader',
                                  'noise in the objective'])
def test_passes_of_other_functions_are_told(kind):
    np.random.seed(0)
    mx.random.seed(0)
    rows, targets = NORMAL[:330].astype('f'), (NORMAL[:330, 0] + CHANCE[:330]).astype('f')
    if kind == 'noise':
        data = Noisy(rows, targets, 30, label_name='label')
        result, *_ = by_module(data, 'squares', 1, 'float32')
    elif kind == 'rows left out':
        data = mx.io.NDArrayIter(rows, targets, 50, shuffle=True, label_name='label',
                                 last_batch_handle='discard')
        result, *_ = by_module(data, 'squares', 1, 'float32')
    else:
        is_left_out = kind == 'rows left out of a loader'
        data = data_of(by_trainer, rows, targets, 50, 'float32',
                       **{'last_batch': 'discard'} if is_left_out else {})
        result, *_ = by_trainer(data, 'squares', 1, 'float32', **(
            {} if is_left_out else {'changed': with_noise}))
    assert result.reason == 'epochs used up'
    assert 'sampling, discarded rows, augmentation' in str(result)


@pytest.mark.parametrize('front_end', [by_module, by_trainer])
def test_the_lasso_on_columns_off_their_mean(front_end):
    np.random.seed(0)
    mx.random.seed(0)
    rows, targets = NORMAL[:400] + 5, NORMAL[:400] @ [1., 0.5, 0, 0] + CHANCE[:400]
    result, weight, _ = front_end(data_of(front_end, rows, targets, 40, 'float64'), 'squares', 1,
                                  'float64', proximal=L1(0.1))
    expected = Lasso(0.1, tol=1e-14).fit(rows, targets).coef_
    assert result.has_converged
    np.testing.assert_array_equal(weight.ravel() == 0, expected == 0)
    np.testing.assert_allclose(weight.ravel(), expected, atol=10 * TOL * abs(expected).max())


@pytest.mark.parametrize('front_end', [by_module, by_trainer])
@pytest.mark.parametrize('tol', [1e-5, 1e-6])
def test_what_a_softmax_does_not_see_does_not_drift(front_end, tol):
    """Biases have no decay, and what they have in common has no curvature: it was noise."""
    np.random.seed(0)
    mx.random.seed(0)
    targets = (NORMAL[:300, :3] + RNG.gumbel(size=(300, 3))).argmax(axis=1)
    result, *_ = front_end(data_of(front_end, NORMAL[:300], targets, 30, 'float32'), 'softmax', 3,
                           'float32', 1e-3, tol=tol)
    assert result.norm < 1e-5 and (result.has_converged or tol < TOL)


def test_a_loss_that_is_not_the_integral_of_its_gradient_is_not_compared():
    targets = (NORMAL[:, :3] + RNG.gumbel(size=(1000, 3))).argmax(axis=1)
    fc = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    label = mx.sym.Variable('label')
    chosen = mx.sym.sum(mx.sym.softmax(fc) * mx.sym.one_hot(label, 3), axis=1)
    module = SVRGModule(mx.sym.MakeLoss(-chosen / mx.sym.BlockGrad(chosen)),
                        label_names=('label',), tol=TOL)
    data = mx.io.NDArrayIter(NORMAL.astype('f'), targets.astype('f'), 50, label_name='label')
    with pytest.warns(UserWarning, match='the loss is not the function whose gradient'):
        module.fit(data, eval_metric=[], num_epoch=100, optimizer='svrg_lbfgs',
                   optimizer_params={'wd': 1e-3})
    assert module.has_converged
    found = module.get_params()[0]
    outputs = NORMAL @ found['fc_weight'].asnumpy().T + found['fc_bias'].asnumpy()
    expected = outputs_at_optimum('softmax', NORMAL, targets, 1e-3)
    outputs, expected = (each - each.mean(axis=1, keepdims=True) for each in (outputs, expected))
    assert np.abs(outputs - expected).max() < 1e-3 * np.abs(expected).max()

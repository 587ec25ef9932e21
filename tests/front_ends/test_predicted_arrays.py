"""SVRGModule predicts arrays of any number of rows, and trains on afterwards."""

import mxnet as mx
import numpy as np
import pytest

from svrg_optimization import SVRGModule


def network(dropout=False):
    data = mx.sym.Variable('data')
    scores = mx.sym.FullyConnected(mx.sym.Dropout(data, p=0.5) if dropout else data,
                                   num_hidden=3, name='fc')
    return mx.sym.SoftmaxOutput(scores, name='softmax')


def trained(symbol, **options):
    rows = np.random.RandomState(0).normal(size=(60, 4))
    train_data = mx.io.NDArrayIter(rows, np.arange(60) % 3, 20, shuffle=True)
    module = SVRGModule(symbol, update_freq=2, **options)
    fit(module, train_data)
    return module, train_data


def fit(module, train_data):
    module.fit(train_data, num_epoch=3, eval_metric=[], optimizer_params={'learning_rate': 0.1})


def softmax_of(module, rows):
    """Return the probabilities in float64."""
    weight, bias = (module.get_params()[0]['fc_' + name].asnumpy().astype(float)
                    for name in ('weight', 'bias'))
    powers = np.exp(rows @ weight.T + bias)
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize('kind, context, dropout', [
    (np.asarray, mx.cpu(), True), (mx.nd.array, [mx.cpu(0), mx.cpu(1)], False),
    (mx.nd.sparse.csr_matrix, mx.cpu(), False)])
def test_each_row_has_its_probabilities(kind, context, dropout):
    module, train_data = trained(network(dropout), context=context)
    rows = np.random.RandomState(1).normal(size=(50, 4))
    for count in (20, 1, 7, 50, 40):
        found = module.predict(kind(rows[:count])).asnumpy()
        np.testing.assert_allclose(found, softmax_of(module, rows[:count]), atol=1e-6)
    assert len(module.predict(rows, num_batch=1)) == 20
    assert [len(each) for each in module.predict(rows, always_output_list=True)] == [50]
    assert module.data_shapes[0].shape == (20, 4)
    fit(module, train_data)


@pytest.mark.parametrize('array', [np.ones((7, 5)), np.ones(4), np.ones((0, 4))])
def test_an_array_of_another_shape_is_refused_and_training_goes_on(array):
    module, train_data = trained(network())
    with pytest.raises(ValueError, match=r'^eval_data must have the shape \(rows, 4\) with one'):
        module.predict(array)
    fit(module, train_data)


def test_several_inputs_need_an_iterator():
    both = mx.sym.concat(mx.sym.Variable('first'), mx.sym.Variable('second'))
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(both, num_hidden=3), name='softmax')
    module = SVRGModule(symbol, data_names=('first', 'second'), update_freq=1)
    module.bind([('first', (20, 4)), ('second', (20, 2))], [('softmax_label', (20,))])
    module.init_params()
    with pytest.raises(ValueError, match='^eval_data must be an iterator'):
        module.predict(np.ones((7, 4)))

"""What the pages say of `tol`: how near it comes to the least objective on real data."""

import mxnet as mx
import numpy as np
import pytest
from sklearn.datasets import load_wine

from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1


def scaled(rows):
    deviation = rows.std(axis=0)
    deviation[rows.max(axis=0) == rows.min(axis=0)] = 1
    return ((rows - rows.mean(axis=0)) / deviation).astype('float32')


def train(rows, labels, l1, tol):
    """Return the objective for C=1 at the end of a training."""
    np.random.seed(0)
    mx.random.seed(0)
    strength = 1 / len(rows)
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), name='fc', num_hidden=1)
    module = SVRGModule(mx.sym.LogisticRegressionOutput(scores, name='softmax'), update_freq=2,
                        tol=tol, proximal=L1(strength) if l1 else None)
    module.fit(mx.io.NDArrayIter(rows, labels.astype('float32'), 32, shuffle=True),
               eval_metric=[], num_epoch=1000, optimizer='svrg_lbfgs',
               optimizer_params={} if l1 else {'wd': strength})
    assert module.gradient_norm <= tol
    weight, bias = (module.get_params()[0][name].asnumpy().astype('float64')
                    for name in ('fc_weight', 'fc_bias'))
    margins = rows.astype('float64').dot(weight[0]) + bias
    losses = np.logaddexp(0, margins) - labels * margins
    size = np.abs(weight).sum() if l1 else (weight ** 2).sum() / 2
    return losses.mean() + strength * size


@pytest.mark.parametrize('l1', [False, True], ids=['L2', 'L1'])
@pytest.mark.parametrize('tol, within', [(1e-5, 1e-6), (1e-6, 2e-7)])
def test_how_near_tol_comes_with_two_classes(tol, within, l1):
    rows, labels = load_wine(return_X_y=True)
    rows, labels = scaled(rows[labels < 2]), labels[labels < 2]
    objective, best = (train(rows, labels, l1, each) for each in (tol, 2e-7))
    assert objective - best < within * best

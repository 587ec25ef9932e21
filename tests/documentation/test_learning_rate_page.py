"""What the pages say of `tol`: how near it comes to the least objective on real data."""

import mxnet as mx
import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine

from svrg_optimization import BarzilaiBorwein, SVRGModule
from svrg_optimization.proximal import L1


def scaled(rows):
    deviation = rows.std(axis=0)
    deviation[rows.max(axis=0) == rows.min(axis=0)] = 1
    return ((rows - rows.mean(axis=0)) / deviation).astype('float32')


def train(rows, labels, l1, tol):
    """Return the objective for C=1 at the end of a training, and how many epochs it took."""
    np.random.seed(0)
    mx.random.seed(0)
    classes, strength, epochs = labels.max() + 1, 1 / len(rows), []
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), name='fc',
                                   num_hidden=classes if classes > 2 else 1)
    layer = mx.sym.SoftmaxOutput if classes > 2 else mx.sym.LogisticRegressionOutput
    module = SVRGModule(layer(scores, name='softmax'), update_freq=2, tol=tol,
                        proximal=L1(strength) if l1 else None)
    module.fit(mx.io.NDArrayIter(rows, labels.astype('float32'), 32, shuffle=True),
               eval_metric=[], num_epoch=1000, optimizer='sgd' if l1 else 'nag',
               optimizer_params={'lr_scheduler': BarzilaiBorwein(), **(
                   {} if l1 else {'momentum': 0.9, 'wd': strength})},
               epoch_end_callback=lambda epoch, *_: epochs.append(epoch))
    assert module.gradient_norm <= tol
    weight, bias = (module.get_params()[0][name].asnumpy().astype('float64')
                    for name in ('fc_weight', 'fc_bias'))
    margins = rows.astype('float64').dot(weight.T) + bias
    if classes == 2:
        margins = np.hstack([np.zeros_like(margins), margins])
    losses = np.logaddexp.reduce(margins, axis=1) - margins[np.arange(len(rows)), labels]
    size = np.abs(weight).sum() if l1 else (weight ** 2).sum() / 2
    return losses.mean() + strength * size, len(epochs)


@pytest.mark.parametrize('l1', [False, True], ids=['L2', 'L1'])
@pytest.mark.parametrize('tol, within', [(1e-5, 1e-6), (1e-6, 2e-7)])
def test_how_near_tol_comes_with_two_classes(tol, within, l1):
    rows, labels = load_wine(return_X_y=True)
    rows, labels = scaled(rows[labels < 2]), labels[labels < 2]
    (objective, _), (best, _) = (train(rows, labels, l1, each) for each in (tol, 2e-7))
    assert objective - best < within * best


@pytest.mark.parametrize('l1', [
    pytest.param(False, id='L2', marks=pytest.mark.slow),
    pytest.param(True, id='L1', marks=pytest.mark.exhaustive)])
def test_how_near_tol_comes_with_ten_classes(l1):
    """With L1 this takes some hundred epochs, as the page on proximal operators says too."""
    rows, labels = load_digits(return_X_y=True)
    rows = scaled(rows)
    (objective, epochs), (best, _) = (train(rows, labels, l1, tol) for tol in (1e-6, 4e-7))
    assert objective - best < 2e-7 * best
    assert not l1 or 200 < epochs < 1000

"""What the page on proximal operators says of L1 with many classes."""

import mxnet as mx
import numpy as np
import pytest
from sklearn.datasets import load_digits

from svrg_optimization import BarzilaiBorwein, SVRGModule
from svrg_optimization.proximal import L1


@pytest.mark.slow
def test_l1_with_ten_classes_is_within_1e_6_of_the_optimum():
    """The epochs and the tol that the page names; the optimum is that of a smaller tol."""
    images, digits = load_digits(return_X_y=True)
    deviation = images.std(axis=0)
    deviation[images.max(axis=0) == images.min(axis=0)] = 1
    rows = ((images - images.mean(axis=0)) / deviation).astype('float32')
    labels, strength = digits.astype('float32'), 10 / len(rows)
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=10, name='fc')
    symbol = mx.sym.SoftmaxOutput(scores, name='softmax')

    def least(tol):
        np.random.seed(0)
        mx.random.seed(0)
        epochs = []
        module = SVRGModule(symbol, update_freq=2, tol=tol, proximal=L1(strength))
        module.fit(mx.io.NDArrayIter(rows, labels, 32, shuffle=True), eval_metric=[],
                   optimizer='sgd', optimizer_params={'lr_scheduler': BarzilaiBorwein()},
                   num_epoch=1000, epoch_end_callback=lambda epoch, *_: epochs.append(epoch))
        assert module.gradient_norm <= tol
        weight, bias = (value.asnumpy().astype('float64')
                        for _, value in sorted(module.get_params()[0].items(), reverse=True))
        margins = rows.astype('float64').dot(weight.T) + bias
        margins -= margins.max(axis=1, keepdims=True)
        losses = np.log(np.exp(margins).sum(axis=1)) - margins[np.arange(len(rows)), digits]
        return losses.mean() + strength * np.abs(weight).sum(), len(epochs)

    objective, epochs = least(1e-6)
    assert epochs > 200
    best, _ = least(4e-7)
    assert objective - best < 1e-6 * best

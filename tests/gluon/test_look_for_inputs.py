"""The look for the inputs of a Gluon network."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from blocks import Blocks, weights_of


class Detector(gluon.nn.HybridBlock):
    """A network that returns its outputs only while it is recorded, as YOLO3 of GluonCV."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def hybrid_forward(self, F, x):  # noqa: N803
        is_recorded = mx.autograd.is_recording() and mx.autograd.is_training()
        return self.body(x) if is_recorded else (F.zeros((1,)), self.body(x))


@pytest.mark.parametrize('hybridized', [None, {}])
@pytest.mark.filterwarnings('ignore:tol cannot be checked')
def test_the_look_for_inputs_changes_neither_statistics_nor_random_numbers(hybridized):
    def pass_of(**given):
        problem, losses = Blocks('softmax'), []
        net = problem.net(extra=[gluon.nn.Dropout(0.5), gluon.nn.BatchNorm(in_channels=4)])
        detector, loss = Detector(net), problem.loss()
        if hybridized is not None:
            detector.hybridize(**hybridized)

        def objective(data, label):
            losses.append(loss(detector(data), label))
            return losses[-1]

        mx.random.seed(1)
        problem.trainer(net, settings={'learning_rate': 0.1}, loss_fn=objective, **given
                        ).update_full_grads(problem.loader())
        return [loss.asnumpy() for loss in losses[:4]] + [
            value for name, value in weights_of(net).items() if 'running' in name]

    for found, expected in zip(pass_of(tol=1e-9), pass_of()):
        np.testing.assert_array_equal(found, expected)

"""SVRGTrainer and sequences in both layouts, as those of gluon.rnn, against float64."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import oracle
from blocks import as_blocks_take, assert_weights, weights_of
from svrg_optimization.gluon import SVRGTrainer

STEPS, FEATURES, BATCH = 3, 4, 4
SGD = {'learning_rate': 0.4, 'momentum': 0.5, 'wd': 0.01}


class Sequences:
    """Sequences, with their float64 twin. Arrays begin with the sequences, as in NTC."""

    def __init__(self, layout, loss, sequences):
        rng = np.random.RandomState(0)
        self.axis, self.loss = layout.index('N'), loss
        self.net = gluon.nn.Dense(1, flatten=False, in_units=FEATURES, prefix='fc_')
        self.features = rng.normal(size=(sequences, STEPS, FEATURES))
        self.targets = rng.normal(size=(sequences, 1) if loss == 'last' else (sequences, STEPS, 1))
        self.batches = [np.arange(begin, min(begin + BATCH, sequences))
                        for begin in range(0, sequences, BATCH)]

    def initialize(self, contexts):
        self.net.initialize(mx.init.Normal(0.5), ctx=contexts)
        return oracle.Svrg(self.gradients, weights_of(self.net), self.features, self.targets,
                           BATCH, oracle.Sgd(decayed=('weight', 'bias'), **SGD))

    def objective(self, data, target):
        predicted = self.net(data)
        if self.loss == 'last':
            return gluon.loss.L2Loss()(predicted[:, -1] if self.axis == 0 else predicted[-1],
                                       target)
        if self.loss == 'words':
            return ((predicted - target) ** 2).mean(axis=2) / 2
        if mx.util.is_np_array():  # where Gluon's losses disregard batch_axis
            loss = ((predicted - target) ** 2).mean(axis=(1 - self.axis, 2)) / 2
        else:
            loss = gluon.loss.L2Loss(batch_axis=self.axis)(predicted, target)
        return loss.mean() if self.loss == 'mean' else loss

    def batch(self, rows):
        """Return the NDArrays of some sequences, in the layout."""
        arrays = self.features[rows], self.targets[rows]
        return [as_blocks_take(array.swapaxes(0, self.axis) if array.ndim == 3 else array)
                for array in arrays]

    @property
    def axes(self):
        return [self.axis, 0] if self.loss == 'last' else self.axis

    def gradients(self, weights, features, targets):
        """Return the gradients of the sum of the losses of sequences."""
        if self.loss == 'last':
            features = features[:, -1]
        return {name: value / targets[0].size for name, value in oracle.linear_regression(
            weights, features.reshape(-1, FEATURES), targets).items()}


@pytest.mark.parametrize('layout', ['TNC', 'NTC'])
@pytest.mark.parametrize('loss, devices, sequences', [
    ('rows', 1, 9), ('rows', 2, 8), ('rows', 2, 11), ('mean', 1, 11), ('mean', 2, 10),
    ('words', 1, 10), ('words', 2, 11), ('last', 1, 9), ('last', 2, 11)])
def test_training_is_svrg(layout, loss, devices, sequences):
    """The last batch is whole, or has one, two or three sequences."""
    problem = Sequences(layout, loss, sequences)
    contexts = [mx.cpu(number) for number in range(devices)]
    svrg = problem.initialize(contexts)
    trainer = SVRGTrainer(problem.net.collect_params(), 'sgd', SGD, objective=problem.objective,
                          batch_axis=problem.axes)
    data = [problem.batch(rows) for rows in problem.batches]
    for epoch in range(3):
        if epoch % 2 == 0:
            trainer.update_full_grads(data)
            svrg.take_snapshot()
        for rows, batch in zip(problem.batches, trainer.training_batches(data)):
            trainer.backward(*batch)
            trainer.step({'mean': devices, 'words': STEPS * len(rows)}.get(loss, len(rows)))
            svrg.optimizer.rescale = 1 / len(rows)
            svrg.step(rows)
    assert_weights(problem.net, svrg.weights)

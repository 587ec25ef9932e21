"""The algorithm on a front end of a few lines: an objective of a dict of arrays."""

import logging

import numpy as np
from mxnet import nd

import oracle
from svrg_optimization._warn_once import WarnOnce
from svrg_optimization.core.front_end import BatchesOfPass, Reference, TrainedModel, Workers
from svrg_optimization.core.full_gradient import BatchGradient, Sum
from svrg_optimization.core.optimality import MeanGradient
from svrg_optimization.core.settings import Settings
from svrg_optimization.core.svrg import SVRG, Step
from svrg_optimization.rate import algorithm
from svrg_optimization.rate.run import Run
from svrg_optimization.rate.training import Training

RATE = 0.02
RNG = np.random.RandomState(0)
FEATURES = RNG.normal(size=(23, 3))
TARGETS = FEATURES.dot([1, -2, 3]) + RNG.normal(size=23)

BATCHES = [np.arange(begin, min(begin + 5, 23)) for begin in range(0, 23, 5)]


def gradient(weights, rows):
    """Gradient of half the sum of the squared errors of some rows."""
    w, features = weights['w'][0], nd.array(FEATURES[rows], dtype='float64')
    error = nd.dot(features, w) - nd.array(TARGETS[rows], dtype='float64')
    return {'w': [nd.dot(features, error, transpose_a=True)]}


class OneWeight(Reference):
    def __init__(self):
        self.arrays = {'w': [nd.zeros(3, dtype='float64')]}

    def weights(self):
        return self.arrays

    def values_of(self, model):
        return model.weights

    def new_sum(self):
        return Sum(self.arrays, devices=1, batch_size=1)

    def gradient(self, model, batch, *args, **kwargs):
        return BatchGradient(gradient(self.arrays, batch), len(batch), len(batch))


class Batches(BatchesOfPass):
    def batches(self, at_once=None):
        return iter(self.train_data)


class Model(TrainedModel):
    def __init__(self):
        super().__init__(self)
        self.weights = {'w': [nd.zeros(3, dtype='float64')]}

    def mean_gradient(self):
        return MeanGradient(lambda mu: 1 / mu.batch_size, {'w': 1.}, {'w': 0.})


def train(epochs):
    model, svrg = Model(), SVRG(OneWeight(), Settings(), WarnOnce(), Training())
    run = Run(svrg, model, logging, BATCHES,
              lambda: algorithm.take(svrg, model, Batches(BATCHES), Workers()))
    for epoch in range(epochs):
        if not run.begin_epoch(epoch, is_scheduled=True):
            break
        for rows in BATCHES:
            svrg.step = Step()
            gradients = gradient(model.weights, rows)
            svrg.correct(model, gradients, rows)
            weight = model.weights['w'][0]
            weight -= RATE / 5 * gradients['w'][0]
            svrg.end_step()
        run.end_epoch()
    return model.weights['w'][0].asnumpy()


def test_steps_are_those_of_the_paper():
    def network(weights, features, targets):
        return {'w': features.T @ (features @ weights['w'] - targets)}

    expected = oracle.Svrg(network, {'w': np.zeros(3)}, FEATURES, TARGETS, 5,
                           oracle.Sgd(learning_rate=RATE, rescale=1 / 5))
    np.testing.assert_allclose(train(3), expected.fit(3, 1, batches=BATCHES)['w'], rtol=1e-12)

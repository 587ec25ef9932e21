"""The algorithm on a front end of a few lines: an objective of a dict of arrays."""

import logging

import numpy as np
import pytest
from mxnet import nd

from svrg_optimization._warn_once import WarnOnce
from svrg_optimization.core.front_end import (
    BatchesOfPass,
    Reference,
    TrainedModel,
    Workers,
)
from svrg_optimization.core.full_gradient import BatchGradient, Sum
from svrg_optimization.core.optimality import MeanGradient
from svrg_optimization.core.settings import Settings
from svrg_optimization.core.svrg import SVRG, Step
from svrg_optimization.rate import algorithm
from svrg_optimization.rate.objective import Objective
from svrg_optimization.rate.run import Run
from svrg_optimization.rate.training import Training

WD, RATE = 0.1, 0.02
RNG = np.random.RandomState(0)
FEATURES = RNG.normal(size=(23, 3))
TARGETS = FEATURES.dot([1, -2, 3]) + RNG.normal(size=23)


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

    def kept(self, batch):
        return batch


class Model(TrainedModel):
    def __init__(self):
        super().__init__(self)
        self.weights = {'w': [nd.zeros(3, dtype='float64')]}

    def mean_gradient(self):
        return MeanGradient(lambda mu: 1 / mu.batch_size, {'w': 1.}, {'w': WD})

    def go_to(self, weights):
        weights['w'][0].copyto(self.weights['w'][0])


def train(epochs):
    """Return the weights and the gradient's norm at a last snapshot."""
    model, svrg = Model(), SVRG(OneWeight(), Settings(), WarnOnce(), Training())
    batches = [np.arange(begin, min(begin + 5, 23)) for begin in range(0, 23, 5)]

    def take():
        algorithm.take(svrg, model, Batches(batches), Workers())

    run = Run(svrg, model, logging, batches, take)
    for epoch in range(epochs):
        if not run.begin_epoch(epoch, is_scheduled=True):
            break
        for rows in batches:
            svrg.step = Step()
            gradients = gradient(model.weights, rows)
            svrg.correct(model, gradients, rows)
            weight = model.weights['w'][0]
            weight -= RATE * (gradients['w'][0] / len(rows) + WD * weight)
            svrg.end_step()
        run.end_epoch()
    take()
    return model.weights['w'][0].asnumpy(), Objective(svrg, model).norm


def test_steps_are_those_of_the_paper():
    expected = np.zeros(3)
    for _ in range(3):
        snapshot = expected.copy()
        mean = FEATURES.T.dot(FEATURES.dot(snapshot) - TARGETS) / 23
        for begin in range(0, 23, 5):
            rows = slice(begin, begin + 5)
            difference = FEATURES[rows].T.dot(FEATURES[rows].dot(expected - snapshot))
            expected = expected - RATE * (
                difference / len(FEATURES[rows]) + mean + WD * expected)
    weights, norm = train(3)
    np.testing.assert_allclose(weights, expected, rtol=1e-12)
    whole = FEATURES.T.dot(FEATURES.dot(expected) - TARGETS) / 23 + WD * expected
    assert norm == pytest.approx(np.abs(whole).max(), rel=1e-10)

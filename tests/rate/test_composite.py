"""Paths to the minimum of a quadratic model with an operator, against float64."""

from types import SimpleNamespace

import mxnet as mx
import numpy as np

import oracle
from dense_metric import block_of, by_bfgs, dense, metric_of, of_all_outputs
from own_operators import Cap
from pairs import in_pairs
from svrg_optimization.core.optimality import Point
from svrg_optimization.proximal import L1, Box, GroupLasso
from svrg_optimization.rate.composite import minimum_of_model
from svrg_optimization.rate.learned import Learned
from svrg_optimization.rate.secant_pairs import SecantPairs

COLUMNS, OUTPUTS, ROWS = 5, 2, 60
RNG = np.random.RandomState(0)
INPUTS = RNG.normal(size=(ROWS, COLUMNS)) * [1, 2, 0.5, 1, 3] + 5
GAMMA = 0.7


def metric_at(inputs, axis=1, joined=True, multiplier=1., outputs=OUTPUTS):
    return metric_of(block_of(inputs, (0., 0.)[:1 + joined], axis), multiplier, outputs)


def dense_of(metric, inputs):
    return of_all_outputs(metric, dense(inputs, (0., 0.)[:len(metric.blocks[0].names)]))


class Model:
    """The model q at random weights."""

    def __init__(self, operator, prox, axis=1, joined=True, pairs=0):
        self.inputs, self.prox = INPUTS - 5 * (not joined), prox
        self.metric = metric = metric_at(self.inputs, axis, joined, 2.)
        self.operator, pairs_of_model = operator, SecantPairs(metric.size, GAMMA, 10)
        rng, self.hessian = np.random.RandomState(1), dense_of(metric, self.inputs) / GAMMA
        moves, root = rng.normal(size=(pairs, metric.size)), np.linalg.cholesky(self.hessian)
        truth = root @ np.diag(rng.uniform(0.3, 3, metric.size)) @ root.T
        self.hessian = by_bfgs(self.hessian, [(move, truth @ move) for move in moves])
        for move in moves:
            pairs_of_model.add(metric.whiten(move), metric.pull(truth @ move))
        pairs_of_model.gamma = GAMMA
        self.at, aim = rng.normal(size=(2, metric.size))
        self.gradient = self.hessian @ (self.at - aim)
        self.learned = Learned(metric=metric, pairs=pairs_of_model, dtype='float64', point=Point(
            self.at, self.gradient, self.gradient, 0., 0., 0., 1., ROWS))
        self.moved = []

    def value(self, vector):
        by = vector - self.at
        weight = mx.nd.array(self.metric.arrays(vector)['weight'], dtype='float64')
        return self.gradient @ by + by @ self.hessian @ by / 2 + (
            self.operator.value(weight))

    # What an Objective does

    mean_gradient = property(lambda self: SimpleNamespace(proximal={'weight': self.operator}))

    def agree(self, *numbers):
        return numbers if len(numbers) > 1 else numbers[0]

    def point_at(self, metric, move=None):
        """Return the Point of the model, which is curved as its first matrix."""
        self.moved.append(move)
        by = metric.push(move)
        return Point(self.at + by, self.gradient + self.hessian @ by, 0., 0., 0., 0., 1., ROWS)

    # The minimum

    def applied(self, vector, step):
        arrays = self.metric.arrays(vector)
        return self.metric.vector({**arrays, 'weight': self.prox(arrays['weight'], step)})

    def minimum(self):
        return oracle.proximal_minimum(
            lambda at: self.gradient + self.hessian @ (at - self.at), self.applied, self.at,
            1 / np.linalg.eigvalsh(self.hessian)[-1], 4000)


OPERATORS = {
    'L1': (L1(0.5), oracle.soft_threshold(0.5)),
    'rows': (GroupLasso(1., 0), oracle.block_threshold(1., 0)),
    'columns': (GroupLasso(2., 1), oracle.block_threshold(2., 1)),
    'last axis': (GroupLasso(2., -1), oracle.block_threshold(2., 1)),
    'bounds': (Box(-0.25, 0.25), oracle.box(-0.25, 0.25)),
    "one's own": (Cap(0.25), oracle.box(-np.inf, 0.25))}


@in_pairs({'kind': list(OPERATORS), 'axis': [0, 1], 'joined': [True, False], 'pairs': [0, 3]})
def test_a_path_ends_at_the_minimum_of_the_model(kind, axis, joined, pairs):
    """Inputs have means of 5, which a bias that is joined takes up."""
    model = Model(*OPERATORS[kind], axis, joined, pairs)
    path = minimum_of_model(model, model.learned)  # a first product has the curvature
    expected, found = model.minimum(), path.end
    least = model.value(expected)
    begin = model.value(model.applied(model.at, 0.))
    assert model.value(found) - least <= 1e-5 * (begin - least)
    np.testing.assert_array_equal(model.metric.arrays(found)['weight'] == 0,
                                  model.metric.arrays(expected)['weight'] == 0)
    np.testing.assert_allclose(path.move, model.metric.whiten(found - model.at), rtol=1e-9)
    assert path.is_exact and len(model.moved) == (not pairs)

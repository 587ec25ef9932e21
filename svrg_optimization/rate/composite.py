r"""The path with proximal operators: a line to the minimum of a model of the objective,

.. math:: q(v) = g^T (v - w) + \frac{1}{2} (v - w)^T B (v - w) + R(v),

where B is the inverse of the matrix of SecantPairs, and R the sum of the operators' functions.
FISTA [1]_ finds it, with the operators in the diagonal of the metric.

References
----------
.. [1] A. Beck and M. Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear
   Inverse Problems", SIAM Journal on Imaging Sciences 2(1), 2009.
"""

import math

import mxnet as mx
import numpy as np

from ..core.arrays import precision_of
from ..proximal import is_ours
from .constants import EXACT, ITERATIONS, POWER
from .metric import Metric
from .nearby import Nearby
from .path import Path


def minimum_of_model(objective, learned):
    """Return the Path from the latest snapshot.

    Without any pair, a first product has the curvature along the gradient.
    """
    metric, point, pairs = learned.metric, learned.point, learned.pairs
    gradient = metric.pull(point.gradient)
    if not pairs and objective.agree(np.linalg.norm(gradient)) > 0:
        nearby = Nearby(objective, learned)
        move, change = nearby.product(gradient, 1 / pairs.gamma)
        if move @ change > 0:
            pairs.add(move, change)
        learned.rows_differ |= nearby.rows_differ
    end = _minimum(metric, pairs, point, objective.mean_gradient.proximal)
    move = metric.whiten(end - point.weights)
    line = np.array([0 * move, move])
    return Path(line, 0 * line, line[:0], move, move, bool(np.isfinite(move).all()), end)


def _minimum(metric, pairs, point, proximal):
    """Return the weights at the minimum of the model.

    About the means of the columns the biases are variables of their own, which the operators leave
    alone.
    """
    inverse_times = pairs.inverse()
    about = Metric(metric.shapes, metric.multipliers,
                   [block.about_zero() for block in metric.blocks])
    begin, slope = metric.whiten(point.weights), metric.pull(point.gradient)
    diagonal = _diagonal(about, proximal)
    root = np.sqrt(diagonal)
    trial = np.random.RandomState(0).normal(size=metric.size)
    for _ in range(POWER):
        trial = about.unpull(inverse_times(about.whiten(
            trial / np.linalg.norm(trial * root)))) / diagonal
    step = 1 / (1.1 * np.linalg.norm(trial * root) * diagonal)
    at = ahead = about.push(begin)
    momentum, residuals = 1., []
    for _ in range(ITERATIONS):
        gradient = about.unpull(slope + inverse_times(about.whiten(ahead) - begin))
        before, former = ahead, at
        at = _proximal_step(about, proximal, ahead - step * gradient, step)
        moved = at - former
        if (ahead - at) * diagonal @ moved > 0:  # the model rises
            momentum = 1.
        after = (1 + math.sqrt(1 + 4 * momentum ** 2)) / 2
        ahead, momentum = at + (momentum - 1) / after * moved, after
        residuals.append(np.linalg.norm((before - at) * root))
        if residuals[-1] <= max(EXACT * residuals[0], precision_of(float) * np.linalg.norm(
                at * root)):
            break
    joined = metric.arrays(metric.push(about.whiten(at)))
    biases = {name: joined[name] for block in metric.blocks for name in block.names[1:]}
    return metric.vector({**about.arrays(at), **biases})


def _diagonal(about, proximal):
    """Return D for the steps of FISTA, one number where an operator needs the same step."""
    found, scales = about.diagonal(1.), {}
    for name, shape in about.shapes.items():
        scale, operator = np.broadcast_to(found.get(name, 1.), shape), proximal.get(name)
        if operator is not None:
            axes = operator._axes_of_one_step(len(shape)) if is_ours(operator) else None
            scale = np.broadcast_to(scale.max(axis=axes, keepdims=True), shape)
        scales[name] = scale / about.roots[name] ** 2
    return about.vector(scales)


def _proximal_step(about, proximal, stepped, step):
    """Return the weights after the operators; those of this package overwrite `stepped`."""
    arrays, steps = about.arrays(stepped), about.arrays(step)
    for name, operator in proximal.items():
        if name in arrays and is_ours(operator):
            operator.prox(arrays[name], steps[name])
        elif name in arrays:
            array = mx.nd.array(arrays[name], dtype='float64')
            operator.prox(array, float(steps[name].max()))
            arrays[name] = array.asnumpy()
    return about.vector(arrays)

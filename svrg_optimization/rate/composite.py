"""The regime of proximal operators: moves to the minimum of a model."""

import math

import mxnet as mx
import numpy as np

from ..core.arrays import precision_of
from ..proximal import GroupLasso, is_ours
from .constants import EXACT, ITERATIONS, LATEST, POWER
from .metric import Metric
from .regime import Regime


class Composite(Regime):
    r"""Moves to the minimum of

    .. math:: q(v) = g^T (v - w) + \frac{1}{2} (v - w)^T B (v - w) + R(v),

    where B is the inverse of the matrix of SecantPairs, in the whole metric. FISTA [1]_ finds it,
    with the operator of R in the diagonal metric D.

    References
    ----------
    .. [1] A. Beck and M. Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear
       Inverse Problems", SIAM Journal on Imaging Sciences 2(1), 2009.
    """

    most_pairs = LATEST  # older ones are of weights that have become 0 since, or are no longer

    def way(self, point):
        """Return the way from a Point to the minimum of the model, in the variables; its end."""
        end = self._minimum(point)
        return self.metric.whiten(end - point.weights), end

    def _minimum(self, point):
        # About the means of the columns the biases are variables of their own, which the
        # operators leave alone.
        metric, inverse_times = self.metric, self._curved().inverse()
        about = Metric(metric.shapes, metric.multipliers,
                       [block.about_zero() for block in metric.blocks])
        begin, slope = metric.whiten(point.weights), metric.pull(point.gradient)
        diagonal = self._diagonal(about)
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
            at = self._proximal_step(about, ahead - step * gradient, step)
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

    def _diagonal(self, about):
        """Return D for the steps of FISTA, one number where an operator needs the same step."""
        found, scales = about.diagonal(1.), {}
        for name, shape in about.shapes.items():
            scale, operator = np.broadcast_to(found.get(name, 1.), shape), self.proximal.get(name)
            if isinstance(operator, GroupLasso):
                scale = np.broadcast_to(scale.max(axis=tuple(
                    each for each in range(len(shape)) if each != operator.axis % len(shape)),
                    keepdims=True), shape)
            elif operator is not None and not is_ours(operator):
                scale = np.full(shape, scale.max())
            scales[name] = scale / about.roots[name] ** 2
        return about.vector(scales)

    def _proximal_step(self, about, stepped, step):
        """Return the weights after the operators; those of this package overwrite `stepped`."""
        arrays, steps = about.arrays(stepped), about.arrays(step)
        for name, operator in self.proximal.items():
            if name in arrays and is_ours(operator):
                operator.prox(arrays[name], steps[name])
            elif name in arrays:
                array = mx.nd.array(arrays[name], dtype='float64')
                operator.prox(array, float(steps[name].max()))
                arrays[name] = array.asnumpy()
        return about.vector(arrays)

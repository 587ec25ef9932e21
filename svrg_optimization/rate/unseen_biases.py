"""Biases that the loss does not see, such as the difference of two that are added.

The gradient along them is 0, and stays so far away. That tells them from those of classes that are
separable, along which the loss is only flat.
"""

import itertools

import numpy as np

from ..core.arrays import precision_of
from .metric import ROUNDED


def find_unseen_biases(objective, metric, dtype):
    """Let a metric know along which biases, or sums and differences of two, the loss is constant.

    Or what all outputs have in common in a bias, as with a softmax. Of parameters that decay, or that an operator sees, there is none. A random move of all of them
    must leave the gradient of a batch as it is.
    """
    mean_gradient, weights = objective.mean_gradient, {block.names[0] for block in metric.blocks}
    biases = [name for name in metric.shapes
              if name not in weights and not mean_gradient.decays[name]]
    here = objective.point_of_batch(metric) if biases and weights else None

    def slopes_of(point):  # in the variables, as columns may have any units
        return metric.arrays(metric.pull_unseen(point.slopes))

    sizes = {name: np.linalg.norm(part) for name, part in slopes_of(here).items()} if here else {}
    least = min(map(sizes.get, weights)) if here else 0.
    if mean_gradient.proximal or objective.agree(not least > 0):
        return
    precision = ROUNDED * precision_of(dtype)
    candidates = [({name: 1.}, least) for name in biases] + [
        ({one: 1., other: -sign}, sizes[one])
        for one, other in itertools.combinations(biases, 2)
        if metric.shapes[one] == metric.shapes[other] for sign in (1., -1.)]
    gradients = [slopes_of(point) for point in (here, objective.point(metric))]

    def is_zero(sum_of, size):
        return all(np.linalg.norm(sum_of(gradient)) <= precision * size for gradient in gradients)

    is_seen = objective.agree(
        *(not is_zero(lambda gradient: sum(
            factor * gradient[name] for name, factor in factors.items()), size)
          for factors, size in candidates),
        *(not is_zero(lambda gradient: gradient[name].sum(), sizes[name]) for name in biases))
    metric.set_unseen(
        [factors for (factors, _), seen in zip(candidates, is_seen) if not seen],
        [name for name, seen in zip(biases, is_seen[len(candidates):]) if not seen])
    move = np.random.RandomState(0).normal(size=metric.size)
    move = (metric.spread(here.weights) + np.linalg.norm(metric.pull(here.gradient))
            / objective.units) * (move - metric.seen_by_loss(move))
    there, of_here = slopes_of(objective.point_of_batch(metric, move)), gradients[0]
    if objective.agree(any(
            not np.linalg.norm(there[name] - of_here[name]) <= precision * max(size, least)
            for name, size in sizes.items())):
        metric.set_unseen()

"""Biases that the loss does not see, such as the difference of two that are added.

The gradient along them is 0, and stays so far away. That tells them from those of classes that are
separable, along which the loss is only flat. Rows that no batch has shown may tell otherwise later:
where a snapshot finds a gradient along them, they all are seen.
"""

import itertools

import numpy as np

from ..core.arrays import precision_of
from .metric import ROUNDED


def find_unseen_biases(objective, metric, dtype):
    """Let a metric know along which sums of biases the loss is constant.

    Those are a bias, the sum or difference of two, and what all outputs have in common in one, as
    with a softmax. Of parameters that decay, or that an operator sees, there is none. A random move
    of all that are found must leave the gradient as it is.
    """
    mean_gradient, weights = objective.mean_gradient, {block.names[0] for block in metric.blocks}
    biases = [name for name in metric.shapes
              if name not in weights and not mean_gradient.decays[name]]
    here = objective.point_of_batch(metric) if biases and weights else None
    of_batch = _slopes(metric, here) if here else {}
    sizes = {name: np.linalg.norm(part) for name, part in of_batch.items()}
    least = min(map(sizes.get, weights)) if here else 0.
    if mean_gradient.proximal or objective.agree(not least > 0):
        return
    of_all, precision = _slopes(metric, objective.point(metric)), ROUNDED * precision_of(dtype)
    exact = precision_of(dtype) / 2  # such sums are of the same numbers, but for their order
    one = [{name: 1.} for name in biases]
    two = [{name: 1., other: sign} for name, other in itertools.combinations(biases, 2)
           if metric.shapes[name] == metric.shapes[other] for sign in (1., -1.)]
    own = [name for name in biases if not any(  # a block knows of its own
        block.is_invariant and name in block.names for block in metric.blocks)]
    limits = np.array([0. for _ in one] + [exact * sizes[next(iter(each))] for each in two]
                      + [precision * sizes[name] for name in own])
    is_seen = objective.agree(*np.any([
        ~(np.array([*(np.linalg.norm(sum(factor * part[name] for name, factor in each.items()))
                      for each in one + two),
                    *(abs(part[name].sum()) for name in own)]) <= limits)
        for part in (of_batch, of_all)], axis=0), 1.)
    unseen = [each for each, seen in zip([*one, *two, *own], is_seen) if not seen]
    if not unseen or not objective.rewind():
        return
    metric.set_unseen([each for each in unseen if each not in own],
                      [each for each in unseen if each in own])
    move = np.random.RandomState(0).normal(size=metric.size)
    far = metric.spread(here.weights) + (
        np.linalg.norm(metric.pull(here.gradient)) / objective.units)
    there = _slopes(metric, objective.point_at(metric, far * (move - metric.seen_by_loss(move))))
    if objective.agree(any(
            not np.linalg.norm(there[name] - part) <= precision * max(sizes[name], least)
            for name, part in of_all.items())):
        metric.set_unseen()


def _slopes(metric, point):
    """Map each parameter to its gradient in the variables, since columns may have any units."""
    return metric.arrays(metric.pull_unseen(point.slopes))

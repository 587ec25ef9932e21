"""What the loss does not see: what the outputs of a softmax have in common, and sums of biases.

The gradient along it is 0, and stays so far away. That tells it from directions of classes that are
separable, along which the loss is only flat, and from what another loss sees that counts little
beside a softmax. Rows that no batch has shown may tell otherwise later: where a snapshot finds a
gradient along sums of biases, they all are seen.
"""

import itertools

import numpy as np

from ..core.arrays import precision_of
from .constants import ROUGHLY, SLIGHT
from .metric import ROUNDED


def find_unseen(objective, metric, dtype):
    """Let a metric know what the loss does not see, at its first snapshot."""
    here = objective.point_of_batch(metric) if metric.blocks else None
    find_invariant(objective, metric, True, here)
    _find_biases(objective, metric, dtype, here)
    if objective.agree(here is not None and _sees_far_away(objective, metric, dtype, here)):
        metric.see_all()


def find_invariant(objective, metric, is_first=False, of_batch=None):
    """Find blocks that are invariant; near an optimum only the gradient of a batch tells."""
    has_operator = bool(objective.mean_gradient.proximal)
    for point in filter(None, (of_batch, objective.point(metric))):
        metric.find_invariant(point.slopes, is_first, has_operator)
        is_first = False


def _sees_far_away(objective, metric, dtype, here):
    """Tell whether the gradient along what is not seen differs on both sides of a Point.

    They are as far as rounding of the outputs allows. Errors of a loss are alike on both sides.
    """
    move = np.random.RandomState(0).normal(size=metric.size)
    move = move - metric.seen_by_loss(move)
    if not move.any():
        return False
    far = metric.spread(here.weights) + (
        np.linalg.norm(metric.pull(here.gradient)) / objective.units)
    for by in np.geomspace(1 / SLIGHT, 1, 4):  # nearer where a loss has no value so far away
        one, other = (metric.pull_unseen(objective.point_of_batch(
            metric, side * by * far / np.linalg.norm(move) * move).slopes) for side in (1, -1))
        if np.isfinite(one).all() and np.isfinite(other).all():
            break
    change = (one - other) / 2
    return not np.linalg.norm(change - metric.seen_by_loss(change)) <= (
        ROUGHLY * precision_of(dtype) * np.linalg.norm(metric.sizes(here.slopes)))


def _find_biases(objective, metric, dtype, here):
    """Let a metric know along which sums of biases the loss is constant.

    Those are a bias, the sum or difference of two, and what all outputs have in common in one, as
    with a softmax. Of parameters that decay, or that an operator sees, there is none. A random move
    of all that are found must leave the gradient as it is.
    """
    mean_gradient, weights = objective.mean_gradient, {block.names[0] for block in metric.blocks}
    biases = [name for name in metric.shapes
              if name not in weights and not mean_gradient.decays[name]]
    of_batch = _slopes(metric, here) if here and biases else {}
    sizes = {name: np.linalg.norm(part) for name, part in of_batch.items()}
    least = min(map(sizes.get, weights)) if of_batch else 0.
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

"""The regime of a smooth objective: a metric, what moves have taught in it, and the way by H."""

import math
from typing import NamedTuple

import numpy as np

from ..core.arrays import precision_of
from .constants import PAIRS, ROUGHLY
from .secant_pairs import SecantPairs

UNKNOWN = 1.  # gamma where nothing can be measured: a curvature of 1, as that of squares


class Move(NamedTuple):
    r"""A move s of the variables, with the change y of the gradient, where the loss sees them.

    The numbers are :math:`s^T s`, :math:`s^T y` and :math:`y^T y`, and of the whole move
    :math:`g^T s` and :math:`g'^T s` with the gradients before and after it; and the length of g.
    Workers agree on them.
    """

    move: np.ndarray = np.zeros(0)
    change: np.ndarray = np.zeros(0)
    length: float = 0.
    product: float = 0.
    square: float = 0.
    before: float = 0.
    after: float = 0.
    slope: float = 0.

    @classmethod
    def between(cls, metric, before, now, agree):
        """Return the Move from one Point to another."""
        whole = metric.whiten(now.weights - before.weights)
        slopes = [metric.pull(each.gradient) for each in (before, now)]
        move = metric.seen_by_loss(whole)
        change = metric.seen_by_loss(slopes[1] - slopes[0])
        return cls(move, change, *agree(
            move @ move, move @ change, change @ change, *(whole @ slope for slope in slopes),
            np.linalg.norm(slopes[0])))


class Regime:
    """A metric, and what is learned in it: gamma and pairs, whose matrix H shows the way.

    Parameters
    ----------
    metric : Metric
        The variables.
    dtype : str
        'float32' or 'float64', that of the weights.
    is_whole : bool
        Whether the metric is that of all outputs, so that distances are known. Otherwise nothing
        is learned.

    Attributes
    ----------
    proximal : dict of str to operator
        The proximal operators.
    pairs : SecantPairs
        With gamma.
    """

    most_pairs = PAIRS

    def __init__(self, metric, dtype, is_whole=True):
        self.metric, self.dtype, self.is_whole, self.proximal = metric, dtype, is_whole, {}
        self.pairs = SecantPairs(metric.size if is_whole else 0, self.most_pairs)

    def way(self, point):
        """Return the way from a Point to the optimum as H has it, in the variables; its end.

        Of what the loss does not see a decay leaves nothing.
        """
        metric, variables = self.metric, self.metric.whiten(point.weights)
        way = -self._curved().times(metric.seen_by_loss(metric.pull(point.gradient)))
        way = metric.seen_by_loss(way) - (variables - metric.seen_by_loss(variables))
        return way, point.weights + metric.push(way)

    def _curved(self):
        """Return the pairs, without a gamma those of a curvature that is not known."""
        if self.pairs.gamma:
            return self.pairs
        pairs = SecantPairs(self.metric.size)
        pairs.gamma = UNKNOWN
        return pairs

    def learn(self, move, has_fallen=False):
        """Learn from a Move whose curvature is more than rounding.

        Where the objective has fallen and the gradient has not changed, gamma grows.
        """
        pairs, flat = self.pairs, math.sqrt(
            precision_of(self.dtype) * move.length * move.square)
        if flat < move.product < math.inf:
            pairs.add(move.move, move.change)
            pairs.gamma = 1 / max([move.square / move.product, *pairs.squares()])
        elif has_fallen and abs(move.product) <= flat:
            self.lengthen()

    def lengthen(self):
        """Let ways be longer after a move along which only the objective has fallen."""
        self.pairs.gamma = ROUGHLY * (self.pairs.gamma or UNKNOWN)

    def shorten(self):
        """Let ways be shorter after one that went much too far, from which nothing is learned."""
        gamma = self.pairs.gamma or UNKNOWN
        self.forget_pairs()
        self.pairs.gamma = gamma / ROUGHLY

    def forget_pairs(self):
        """Forget gamma and the pairs."""
        self.pairs = SecantPairs(self.pairs.moves.shape[1], self.most_pairs)

    def follow(self, decays):
        """Let the decays in the metric be times the gamma of now."""
        metric, former = self.metric.with_decays(decays, self.pairs.gamma or 0.), self.metric
        if self.pairs.gamma and metric is not former:
            self.pairs.transform(lambda move: metric.whiten(former.push(move)),
                                 lambda change: metric.pull(former.unpull(change)))
            self.metric = metric

    def sees(self, vector, weights):
        """Return variables without the directions that say nothing of the distance at weights.

        Inputs do not vary along them, the loss does not see them, or an operator holds a weight.
        """
        metric = self.metric
        if self.proximal:
            free = metric.vector({name: (array != 0) | (name not in self.proximal)
                                  for name, array in metric.arrays(weights).items()})
            vector = metric.whiten(metric.without_shifts(metric.push(vector), free.astype(float)))
        return metric.resolved(metric.seen_by_loss(vector))

"""The regime of layers such as Dropout and BatchNorm, and of large networks: a rate alone."""

import math

from .regime import UNKNOWN, Regime


class Random(Regime):
    r"""Steps with the rate :math:`\eta = \gamma (1 - \beta)`, in a metric if all layers have one.

    If `has_noise`, each pass finds another objective, so that gamma is measured on a batch of each
    snapshot. It doubles at most, since a batch may be flat by chance. Otherwise the moves from one
    snapshot to the next have it.
    """

    has_pairs, has_noise = False, True

    def learn(self, move, *told):
        """Learn from a Move as all regimes do; a smaller curvature is joined to the former one."""
        former = self.pairs.gamma
        super().learn(move, *told)
        if self.has_noise and former:
            self.pairs.gamma = min(self.pairs.gamma, 2 / (1 / former + 1 / self.pairs.gamma))

    def rate(self, momentum, steps, batches):
        """Return the rate without a slowdown."""
        return (1 - momentum) * (self.pairs.gamma or UNKNOWN)

    def way(self, point):
        """Return the way from a Point to the optimum, in the variables, and no end to jump to."""
        return -self.metric.pull(point.gradient) * (self.pairs.gamma or math.nan), None

"""The regime of a smooth objective: preconditioned steps, and jumps of L-BFGS at snapshots."""

import math

from .constants import JUMPS, TIME_CONSTANTS
from .regime import UNKNOWN, Regime


class Smooth(Regime):
    r"""Steps :math:`w \leftarrow w - \eta D^{-1} g` with nag's momentum :math:`\beta`, and jumps.

    D is the metric M without the covariances of columns, which would take longer in each step than
    the gradient of a batch. Jumps at a snapshot, steps of L-BFGS with the full gradient and the
    rate 1, take a pass each. Their matrix H is that of SecantPairs, in the variables of M. The rate
    is

    .. math:: \eta = \gamma \min\left(\frac{4 (1 - \beta)}{m},
              \frac{1 + \beta}{1 + 2 \beta} \frac{1}{b}\right),

    where m is the number of steps between snapshots and b is that of batches in a pass. The first
    bound lets m steps take four time constants. The second is half of what keeps nag stable: M over
    gamma is about the Hessian of the mean, and that of a batch is at most b times as large, since
    it is one term of a mean over b batches.
    """

    most_jumps = JUMPS

    def rate(self, momentum, steps, batches):
        """Return the rate without a slowdown."""
        return (self.pairs.gamma or UNKNOWN) * min(
            TIME_CONSTANTS * (1 - momentum) / steps,
            (1 + momentum) / (1 + 2 * momentum) / batches)

    def way(self, point):
        """Return the way from a Point to the optimum as H has it, in the variables; its end.

        Of what the loss does not see a decay leaves nothing.
        """
        metric, variables = self.metric, self.metric.whiten(point.weights)
        gradient = metric.seen_by_loss(metric.pull(point.gradient))
        way = -self.pairs.times(gradient) if self.pairs.gamma else gradient * math.nan
        way = metric.seen_by_loss(way) - (variables - metric.seen_by_loss(variables))
        return way, point.weights + metric.push(way)

"""The regime of a smooth objective: preconditioned steps, and jumps of L-BFGS at snapshots."""

import math
from typing import NamedTuple

import numpy as np

from .rollback import ROUNDING
from .secant_pairs import SecantPairs

_JUMPS = 5
_TIME_CONSTANTS = 4  # from one snapshot to the next
_STABLE = 1.5  # times (1 + momentum) / (1 + 2 momentum); nag is unstable from 2 on
UNKNOWN = 0.1  # gamma where nothing can be measured
_LONGER = 10.  # by which gamma grows along a move without curvature; less after too long ones


class Move(NamedTuple):
    r"""A move s of the variables, with the change y of the gradient, where the loss sees them.

    The numbers are :math:`s^T s`, :math:`s^T y` and :math:`y^T y`; of the whole move
    :math:`g^T s` and :math:`g'^T s` with the gradients before and after it; and the length of g'.
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
    def between(cls, metric, before, now):
        """Return the Move from one Point to another."""
        whole = metric.whiten(now.weights - before.weights)
        slopes = [metric.pull(each.gradient) for each in (before, now)]
        move = metric.seen_by_loss(whole)
        change = metric.seen_by_loss(metric.pull(now.gradient - before.gradient))
        return cls(move, change, float(move @ move), float(move @ change), float(change @ change),
                   *(float(whole @ slope) for slope in slopes), float(np.linalg.norm(slopes[1])))

    def numbers(self):
        """List the numbers."""
        return list(self[2:])

    @property
    def is_past(self):
        """Whether it has gone past the lowest point of its line: a constant fits its slopes."""
        return self.before * self.after < 0

    def explains(self, difference, slack, rounding):
        """Tell whether the gradients explain by how much the objective has changed.

        For a convex one that lies between both slopes, for others nearly so after a short move.
        The `slack` is relative to the slopes. If the change is not known, nothing speaks against.
        """
        slopes = self.before, self.after
        slack = slack * max(map(abs, slopes)) + rounding
        return not (difference < min(slopes) - slack or difference > max(slopes) + slack)


class Regime:
    """What the three regimes have in common: gamma and pairs, learned in a metric.

    Parameters
    ----------
    metric : Metric
        The variables.
    dtype : str
        'float32' or 'float64', that of steps.
    proximal : dict of str to operator
        The proximal operators.

    Attributes
    ----------
    steps : Metric
        That of steps, the diagonal of `metric`.
    steepest : float
        Largest curvature so far, the inverse of gamma.
    jumps : int
        Most jumps at a snapshot.
    """

    has_noise, residual, steepest, jumps = False, None, 0., 0

    def __init__(self, metric, dtype, proximal=()):
        self.dtype, self.proximal = dtype, dict(proximal)
        self.pairs = SecantPairs(metric.size)
        self._measure_in(metric)

    def _measure_in(self, metric):
        self.metric, self.steps = metric, metric.as_diagonal(self.proximal)

    def learn(self, move, rounding=0., has_failed=False, has_fallen=False):
        """Learn from a Move, unless its change of the gradient is rounding, of `rounding` or of g'.

        After a failed one gamma gets no larger. Where the objective has fallen and the gradient
        has not changed, it grows.
        """
        pairs, precision, changed = self.pairs, np.finfo(self.dtype).eps, math.sqrt(move.square)
        flat = math.sqrt(precision * move.length) * changed
        is_flat = changed <= ROUNDING * precision * move.slope or abs(move.product) <= flat
        if is_flat and has_fallen and not has_failed:
            pairs.gamma = _LONGER * (pairs.gamma or UNKNOWN)
        elif not is_flat and flat < move.product < math.inf and (
                changed > ROUNDING * self.steepest * rounding):
            gamma = move.product / move.square
            pairs.gamma = min(gamma, pairs.gamma) if has_failed and pairs.gamma else gamma
            self.steepest = max(self.steepest, 1 / gamma)
            pairs.add(move.move, move.change)

    def forget(self):
        """Forget the pairs after a move that went much too far, and make gamma smaller."""
        gamma = self.pairs.gamma or UNKNOWN
        self.pairs = SecantPairs(self.metric.size if self.pairs.room else 0)
        self.pairs.gamma = gamma / _LONGER

    def follow(self, decays):
        """Let the decays in the metric be times the gamma of now."""
        metric, former = self.metric.with_decays(decays, self.pairs.gamma or 0.), self.metric
        if self.pairs.gamma and metric is not former:
            self.pairs.transform(lambda move: metric.whiten(former.push(move)),
                                 lambda change: metric.pull(former.unpull(change)))
            self._measure_in(metric)


class Smooth(Regime):
    r"""Steps :math:`w \leftarrow w - \eta D^{-1} g` with nag's momentum :math:`\beta`, and jumps.

    D is the metric M without the covariances of columns, which would take longer in each step than
    the gradient of a batch. Up to five jumps at a snapshot, steps of L-BFGS with the full gradient
    and the rate 1, take a pass each. Their matrix H is that of SecantPairs, in the variables of M.
    The rate is

    .. math:: \eta = \gamma \min\left(\frac{4 (1 - \beta)}{m},
              \frac{3}{4} \frac{2 (1 + \beta)}{1 + 2 \beta} \frac{1}{b}\right),

    where m is the number of steps between snapshots and b is that of batches in a pass. The first
    bound lets m steps take four time constants. The second keeps nag stable: M over gamma is about
    the Hessian of the mean, and that of a batch is at most b times as large, since it is one term
    of a mean over b batches.
    """

    def __init__(self, metric, dtype):
        super().__init__(metric, dtype)
        self.jumps = _JUMPS if self.pairs.room else 0

    def rate(self, momentum, steps, batches):
        """Return the rate without a slowdown."""
        return (self.pairs.gamma or UNKNOWN) * min(
            _TIME_CONSTANTS * (1 - momentum) / steps,
            _STABLE * (1 + momentum) / (1 + 2 * momentum) / batches)

    def way(self, point):
        """Return the way from a Point to the optimum as H has it, in the variables; its end.

        Of what the loss does not see a decay leaves nothing.
        """
        metric, variables = self.metric, self.metric.whiten(point.weights)
        gradient = metric.seen_by_loss(metric.pull(point.gradient))
        way = -self.pairs.times(gradient) if self.pairs.gamma else gradient * math.nan
        way = metric.seen_by_loss(way) - (variables - metric.seen_by_loss(variables))
        return way, point.weights + metric.push(way)

"""What snapshots have taught: the state of rate/. `saved.py` has its form in a file."""

import dataclasses
import math
from typing import Any, NamedTuple, Optional

import numpy as np

from ..core.arrays import precision_of
from ..core.optimality import Point
from .constants import ROUGHLY, SLIGHT
from .regime import Regime


class Noise(NamedTuple):
    """Norms of the gradient of a batch, of which rounding is a part: each has half the precision.

    A saturated loss has small gradients, whose rounding is that of what cancels in them: that of
    the gradient at weights of 0.

    Attributes
    ----------
    of_batch, of_zero : float
        At the snapshot, and there or at weights of 0, whichever is larger.
    """

    of_batch: float = 0.
    of_zero: float = 0.

    @classmethod
    def measured(cls, objective, regime):
        """Return that of the drawn batch, None if it is all padding."""
        metric, here = regime.metric, objective.point_of_batch(regime.metric)
        if here is None:
            return None
        there = here if not regime.is_whole else objective.point_of_batch(
            metric, -metric.whiten(here.weights))
        sizes = [float(np.linalg.norm(metric.pull(each.gradient))) for each in (here, there)]
        return cls(sizes[0], max(filter(math.isfinite, sizes), default=0.))

    def of_mean(self, dtype):
        """Return by how much rounding may change a mean gradient."""
        return ROUGHLY * precision_of(dtype) / 2 * self.of_zero


@dataclasses.dataclass
class Learned:
    """What is learned, by `learning.py` and from checks.

    Attributes
    ----------
    is_fresh : bool
        Whether the next snapshot begins a regime.
    rows_differ : bool
        Whether some passes had another number of rows than the one before, or others.
    largest : float
        Largest objective so far, whose rounding may be in all that comes later.
    noise : Noise
        Of the gradients.
    smallest : float
        The smallest curvature beside that of the regime's pairs, as the latest check has found it.
    next_check : int
        The snapshot before which the next check is made only if its word is likely: a check that
        has failed takes as many passes as there are snapshots in between.
    regime : Regime or Composite, or None
        The metric, and curvatures in it; None before the first snapshot.
    point : Point
        The latest snapshot. No file has it, nor what follows.
    way, end : numpy.ndarray
        The way from there to the optimum, as the regime has it, in the variables of the metric;
        the weights at its end.
    """

    is_fresh: bool = True
    rows_differ: bool = False
    largest: float = 0.
    noise: Noise = Noise()
    smallest: float = 1.
    next_check: int = 0
    regime: Optional[Regime] = None
    point: Optional[Point] = None
    way: Any = None
    end: Any = None

    def forget(self):
        """Let the next snapshot measure everything anew, since the weights or data are others."""
        self.is_fresh, self.smallest, self.next_check, self.largest = True, 1., 0, 0.
        self.rows_differ = False

    @property
    def knows_distance(self):
        """Whether the metric is that of the outputs, and the way is known."""
        regime = self.regime
        return bool(regime.is_whole and regime.pairs.gamma and np.isfinite(self.way).all())

    def flat_part(self):
        """Name the parameter along which the way goes, if there is hardly a curvature."""
        if self.regime is None or not self.knows_distance or not self.way.any():
            return ''
        pairs, way = self.regime.pairs, self.way
        curvature = way @ pairs.inverse()(way) / (way @ way)
        return self.regime.metric.largest_part(way) if curvature * pairs.gamma < SLIGHT else ''

    def learn_check(self, check, number):
        """Learn from a Check at the snapshot of a number."""
        pairs = self.regime.pairs
        self.noise, self.smallest = check.noise, check.smallest
        self.next_check = number + check.passes
        if check.flattest is not None:
            pairs.flat = check.flattest
        for pair in check.pairs:
            pairs.add(*pair)
        if check.pairs:
            self.set_way(self.point)

    def set_way(self, point):
        """Find the way to the optimum from the Point where training is now."""
        self.point = point
        self.way, self.end = self.regime.way(point)

"""What snapshots have taught: the state of rate/. `saved.py` has its form in a file."""

import dataclasses
import math
from typing import NamedTuple, Optional

import numpy as np

from ..core.arrays import precision_of
from ..core.optimality import Point
from .constants import ROUGHLY, SLIGHT
from .metric import Metric
from .path import Path
from .secant_pairs import SecantPairs


class Noise(NamedTuple):
    """The gradient of a batch, of whose size half the precision is rounding.

    A saturated loss has small gradients, whose rounding is that of what cancels in them. That has
    the size of the gradient where all rows have the mean output, and of what rounding of this
    output changes: by chance in each row, unless all have the same. Errors of a loss may all have
    one sign. What a softmax shows of them, where outputs have something in common, is at least as
    large in other directions.

    Attributes
    ----------
    of_batch : float
        Norm of that gradient, in the variables.
    rounding : float
        Rounding of a gradient.
    of_outputs : numpy.ndarray
        The size of what cancels in that of each output.
    are_alike : numpy.ndarray
        For which outputs all rows have the same, but for rounding.
    """

    of_batch: float = 0.
    rounding: float = 0.
    of_outputs: np.ndarray = np.zeros(1)
    are_alike: np.ndarray = np.zeros(1, bool)

    @classmethod
    def measured(cls, objective, metric, dtype, now, before, gamma):
        """Return that of the drawn batch at the Point `now`; the one before if it is padding.

        `gamma` is that of the pairs.
        """
        here = objective.point_of_batch(metric)
        if here is None:
            return before
        epsilon, at = precision_of(dtype), metric.whiten(here.weights)
        about_mean = metric.of_rows(at)
        mean, there = at - about_mean, objective.point_of_batch(metric, -about_mean)
        rounded, spread = epsilon * np.linalg.norm(mean), np.linalg.norm(about_mean)
        share = max(rounded / max(rounded, spread) if rounded else 0., 1 / math.sqrt(now.rows))
        of_outputs = share / gamma * metric.lengths_of_outputs(mean) + metric.lengths_of_outputs(
            np.nan_to_num(metric.pull(there.gradient), posinf=0., neginf=0.))
        of_batch, size = (float(np.linalg.norm(part(here.gradient)))
                          for part in (metric.pull, metric.sizes))
        if not math.isfinite(size):
            return before
        of_batch, rounding = objective.agree(of_batch, max(
            max(size, np.linalg.norm(of_outputs)) * epsilon / 2,
            float(np.linalg.norm(metric.pull_unseen(now.unseen)))))
        are_alike = metric.spreads_of_outputs(now.weights) <= ROUGHLY * gamma * rounding
        if are_alike.any():
            alike = objective.point_of_batch(metric, metric.scaled_by_outputs(
                -about_mean, are_alike.astype(float)))
            is_lower = not alike.objective - here.objective <= epsilon * abs(here.objective)
            are_alike = are_alike & (not objective.agree(is_lower))
        return cls(of_batch, rounding, of_outputs, are_alike)


@dataclasses.dataclass
class Learned:
    """What is learned, by `learning.py` and `newton_cg.py`.

    Attributes
    ----------
    is_fresh : bool
        Whether the next snapshot begins anew.
    rows_differ : bool
        Whether some passes had another number of rows than the one before, or others.
    largest : float
        Largest objective so far, whose rounding may be in all that comes later.
    noise : Noise
        Of the gradients.
    metric : Metric or None
        The variables; None where distances are not known.
    dtype : str
        'float32' or 'float64', that of the weights; '' without a metric.
    pairs : SecantPairs or None
        Directions and their products with the Hessian.
    radius : float or None
        That of the trust region; None before the first path.
    path : Path or None
        That from the weights of now.
    is_stuck : bool
        Whether no point of it lowers the objective.
    next_check : int
        The snapshot before which no path is looked for, beside other optimizers.
    point : Point or None
        The latest snapshot. No file has it.
    """

    is_fresh: bool = True
    rows_differ: bool = False
    largest: float = 0.
    noise: Noise = Noise()
    metric: Optional[Metric] = None
    dtype: str = 'float32'
    pairs: Optional[SecantPairs] = None
    radius: Optional[float] = None
    path: Optional[Path] = None
    is_stuck: bool = False
    next_check: int = 0
    point: Optional[Point] = None

    def begin(self, metric, dtype, units, room):
        """Begin with other variables, of which nothing is known."""
        self.metric, self.dtype, self.is_fresh = metric, dtype, False
        self.rows_differ, self.largest, self.noise, self.next_check = False, 0., Noise(), 0
        self.point = None
        self.forget_curvature(units, room)

    def forget_curvature(self, units, room=None):
        """Forget the pairs and what follows from them; `units` as of an Objective."""
        self.radius, self.path, self.is_stuck = None, None, False
        if self.metric is not None:
            self.pairs = SecantPairs(
                self.metric.size, 1 / units, self.pairs.room if room is None else room)

    def forget(self):
        """Let the next snapshot begin anew, since the weights or data are others."""
        self.is_fresh = True

    @property
    def rounding(self):
        """By how much rounding of weights and gradient moves the outputs, about."""
        return self.metric.rounding(self.point.weights, self.dtype) + (
            self.pairs.gamma * self.noise.rounding)

    def rounding_of_objective(self, point):
        """Return by how much rounding of the outputs may change the objective of a Point."""
        outputs = self.metric.rounding(point.weights, self.dtype)
        return outputs * (self.noise.of_batch + outputs / self.pairs.gamma)

    @property
    def sizes(self):
        """Sizes of the outputs, of which distances are parts.

        Where all rows have the same output, what moves it by less than its rounding is nothing.
        What cancels between weights says nothing of it.
        """
        metric, weights, noise = self.metric, self.point.weights, self.noise
        spreads = metric.spreads_of_outputs(weights)
        rounding = precision_of(self.dtype) * np.linalg.norm(
            metric.whiten(weights)) + self.pairs.gamma * noise.rounding
        return np.where(noise.are_alike, ROUGHLY * rounding / SLIGHT, spreads)

    def relative(self, move):
        """Return how long a move is beside the size of each output, the largest of all."""
        with np.errstate(all='ignore'):
            lengths = self.metric.lengths_of_outputs(move)
            found = np.where(lengths == 0, 0., lengths / self.sizes).max()
        return float(found) if np.isfinite(found) else math.inf

    @property
    def flat_part(self):
        """The parameter along which the path goes, if there is hardly a curvature; or ''."""
        path = self.path
        return self.metric.largest_part(path.move) if path is not None and path.end is None and (
            path.curvature * self.pairs.gamma < SLIGHT) else ''

    def falls_along(self, name):
        """Tell whether the gradient of a parameter is more than rounding."""
        gradient = self.metric.pull(self.point.gradient)
        return np.linalg.norm(self.metric.arrays(gradient)[name]) > (
            ROUGHLY * self.rounding / self.pairs.gamma)

    def columns_that_rounding_hides(self):
        """Name the columns along which rounding weighs most, where they are nearly dependent."""
        return self.metric.hardest_columns(self.point.gradient, self.dtype) if (
            self.point is not None and np.isfinite(self.point.gradient).all()) else ''

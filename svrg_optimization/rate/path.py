"""The path from the weights of now towards the optimum of a model, and the trial points on it."""

import math
from typing import NamedTuple, Optional

import numpy as np


class Path(NamedTuple):
    """A path in the variables of the metric: corners, and how the model's gradient changes there.

    Attributes
    ----------
    points, changes : numpy.ndarray
        The corners as moves from the weights of now, and the changes of the gradient; 0 first.
    ray : numpy.ndarray
        No row, or a direction without a positive curvature from the last corner on, and the change
        along it.
    move : numpy.ndarray
        The whole move to the optimum of the model.
    estimated : numpy.ndarray
        The part of it that no product has shown, but the pairs.
    is_exact : bool
        Whether the optimum of the model was found.
    end : numpy.ndarray or None
        The weights there, if operators have made some of them 0.
    """

    points: np.ndarray
    changes: np.ndarray
    ray: np.ndarray
    move: np.ndarray
    estimated: np.ndarray
    is_exact: bool
    end: Optional[np.ndarray] = None

    @property
    def curvature(self):
        """The curvature along the path, 0 with a ray, inf if the path has no length."""
        move, change = self.points[-1], self.changes[-1]
        if len(self.ray):
            return 0.
        return float(change @ move / (move @ move)) if move.any() else math.inf

    def products(self):
        """List the directions of the path, and their products with the Hessian."""
        return [(move, change) for move, change in zip(
            np.diff(self.points, axis=0), np.diff(self.changes, axis=0)) if move.any()]

    def at(self, radius):
        """Return the move at which the path leaves a radius, or its end; the change there."""
        move, change = self.points[0], self.changes[0]
        for there, changed in zip(self.points[1:], self.changes[1:]):
            if np.linalg.norm(there) > radius:
                return _crossing(move, change, there - move, changed - change, radius)
            move, change = there, changed
        return _crossing(move, change, *self.ray, radius) if len(self.ray) else (move, change)


def _crossing(move, change, along, changing, radius):
    """Return where a line leaves a radius, and the change there."""
    length = np.linalg.norm(along)
    along, changing = along / length, changing / length
    part = move @ along
    by = math.sqrt(max(part * part + radius * radius - move @ move, 0.)) - part
    return move + by * along, change + by * changing


class Trial(NamedTuple):
    """A point of the path.

    Attributes
    ----------
    weights : numpy.ndarray
        Of the parameters that are updated.
    fall : float
        By how much the model is lower there; 0 with operators, where that is not asked.
    length : float
        Of the move in the variables.
    is_hidden : bool
        Whether rounding of weights and gradients may hide the move.
    """

    weights: np.ndarray
    fall: float
    length: float
    is_hidden: bool = False


def trial_at(path, radius, metric, point):
    """Return the Trial of a path from a Point at a radius."""
    move, change = path.at(radius)
    length = float(np.linalg.norm(move))
    if path.end is not None:
        is_end = np.array_equal(move, path.move)
        return Trial(path.end if is_end else point.weights + metric.push(move), 0., length)
    # Of what the loss does not see a decay leaves nothing.
    unseen, slope = metric.unseen_by_loss(point.weights), metric.pull(point.gradient)
    gradient = metric.seen_by_loss(slope)
    fall = -(gradient @ move + change @ move / 2) + (slope - gradient) @ unseen / 2
    return Trial(point.weights + metric.push(move - unseen), fall, length)

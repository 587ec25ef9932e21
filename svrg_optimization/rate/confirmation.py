"""What another pass says of a snapshot that may be at the optimum."""

import math

import numpy as np

from .regime import Move

_LENGTH = 30  # times what rounding moves the outputs by: the move of a check
_STEEPEST = 10  # times the largest curvature that is known: above it a change is noise
_FAR = 0.01  # relative to the outputs: a distance at which they may saturate
_SATURATED = 1e-3  # a curvature, beside the largest one so far
_OTHER = 0.1  # relative: the change of a gradient at the same weights, with another function
_KINK = 0.75  # of the change after a move, that after half of it
_NOISE = 5  # checks that find noise, after which a training makes no more


class Confirmation:
    """The checks of a Way, in which H has no part; each takes a pass over the data.

    `a_pass` is read again, and all workers decide alike.
    """

    def __init__(self, svrg, trained, way, a_pass, workers):
        self._svrg, self._trained, self._way = svrg, trained, way
        self._a_pass, self._workers = a_pass, workers
        self._changed = 0.  # by which the move of `is_within` has changed the gradient

    def is_within(self, most):
        r"""Tell whether the optimum is at most at some length.

        The check measures the gradient after a small move s along :math:`-M^{-1} g`, with a
        proximal operator along the way. If it changes by y, the optimum along the line is at
        :math:`\|g\| s^T s / s^T y`, which is a lower bound of the distance. If y is longer than
        any curvature makes it, the passes are not of one function. A gradient of 0 may be that of
        a kink, as of Gluon's SigmoidBCELoss at outputs of 0: half of a random move then changes it
        by as much.
        """
        way, training, rule = self._way, self._svrg.training, self._trained.rule
        metric, has_operator = way.metric, bool(self._trained.mean_gradient().proximal)
        # What only a decay sees has a curvature near 0, and moves no output.
        slope = metric.seen_by_loss(metric.pull(way.point.gradient))
        along = way.move if has_operator else -slope
        is_random = not along.any()
        if is_random:
            along = np.random.RandomState(0).normal(size=along.size)
        along = along / np.linalg.norm(along) * (max(most, _LENGTH * way.rounding) or 1.)
        there = self._measured(along) if training.noisy < _NOISE else None
        if there is None:
            return False
        move = Move.between(metric, way.point, there)
        *numbers, far = self._workers.allreduce_max([*move.numbers(), (
            np.linalg.norm(way.move if has_operator else slope * move.length / move.product)
            if move.product > 0 else math.inf)])
        move = Move(*move[:2], *numbers)
        self._changed = math.sqrt(move.square)
        if is_random:
            half = self._measured(along / 2)
            if half is None or self._change(half) > _KINK * self._changed:
                training.is_stuck = half is not None
                return False
        if not move.square <= _STEEPEST * (way.steepest or math.inf) * move.product:
            training.noisy += 1
            return False
        if rule is not None:
            rule.regime.learn(move, way.rounding)
            # Where outputs saturate, nothing is left of the curvature.
            if (way.distance > _FAR or way.has_vanished) and move.product < _SATURATED * (
                    rule.regime.steepest * move.length):
                training.only_grows |= way.has_vanished
                return False
        return far <= most

    def is_repeatable(self):
        """Tell whether another pass finds the same gradient, if the data can be read again.

        After `is_within` it must differ by less than half of what the small move has changed.
        """
        way, there = self._way, self._measured()
        if there is None:
            return True
        most = self._changed / 2 or _OTHER * np.linalg.norm(way.metric.pull(
            way.point.gradient)) + _LENGTH * way.rounding * (way.steepest or 1.)
        return bool(self._change(there) <= most)

    def _measured(self, move=None):
        """Return the Point that another pass finds at the snapshot, or at a move from it.

        It is None if the data cannot be read again.
        """
        again = self._a_pass.again()
        if again is None:
            return None
        self._svrg.training.checks += 1
        with self._svrg.nearby(self._trained, again, self._workers, self._way.metric) as point_of:
            return point_of(move=move)

    def _change(self, there):
        """Return the length of the change of the gradient to another Point."""
        change, = self._workers.allreduce_max([np.linalg.norm(self._way.metric.pull(
            there.gradient - self._way.point.gradient))])
        return change

"""Convergence: what a snapshot has found, and how far the optimum is."""

import math

import numpy as np

from ..core.arrays import dense
from ..core.result import Result
from ..data.iterators import leaves_out_other_rows
from .metric import Metric
from .rollback import PreviousSnapshot
from .smooth import Move

# Distances that are rounding, times what the outputs move by if each weight moves by its precision:
# where one snapshot has got no closer, where several or many have not, and where no step moves a
# weight. _ASKED: how many have not when another pass is asked for its gradient.
_FLOOR, _FLOOR_OF_SEVERAL, _FLOOR_OF_MANY, _FLOOR_OF_NO_STEP = 0.5, 1., 2., 10.
_SEVERAL, _MANY, _ASKED = 3, 6, (3, 6, 9, 12)
_CLOSE = 0.5  # the part of tol from which on it is said at first: H shows some directions late
_SHORT = 0.01  # relative to the outputs
_LENGTH = 30  # the same, for the move of a check
_STEEPEST = 10  # times the largest curvature that pairs have: above it a change is noise
_SATURATED = 1e-3  # a curvature, beside the largest one so far
_OTHER = 0.1  # relative: the change of a gradient at the same weights, with another function
# Beside the first one, a loss that has vanished; and slopes along the outputs beside what is left.
_VANISHED, _FLATTEST_TAIL, _STEEPEST_TAIL = 1e-2, 0.3, 100
_KINK = 0.75  # of the change after a move, that after half of it
_NOISE = 5  # checks that find noise, after which a training makes no more


def take(svrg, trained, a_pass, workers):
    """Take a snapshot; if the optimizer has a rule, let it set the rate.

    If the objective is above that of the snapshot before, a rule may go back to that one
    instead, with a smaller rate.

    Parameters
    ----------
    svrg : SVRG
        The snapshot of the model.
    trained : TrainedModel
        The model.
    a_pass, workers
        As in ``SVRG.take_snapshot``.

    Returns
    -------
    Result
    """
    with np.errstate(all='ignore'):  # numbers that are not finite are told in words
        return _take(svrg, trained, a_pass, workers)


def _take(svrg, trained, a_pass, workers):
    rule, snapshot, training, tol = trained.rule, svrg.snapshot, svrg.training, svrg.settings.tol
    rolled_back, training.is_stuck = False, False
    if rule is None:
        before = PreviousSnapshot(svrg) if tol and snapshot.is_active else None
        svrg.take_snapshot(trained.model, a_pass, workers)
        if before is not None:
            learn_curvature(svrg, trained.mean_gradient(), before)
    else:
        rolled_back = rule.take_snapshot(svrg, trained, a_pass, workers)
    norm, far, reason = gradient_norm(svrg, trained), math.inf, None
    if not math.isfinite(norm):
        reason = 'not finite'
    elif tol is not None or rule is not None:
        far, reason = _found(svrg, trained, a_pass, workers, rolled_back)
    if reason is None and training.is_repeatable is not False:
        reason = 'rolled back' if rolled_back else 'no step' if training.is_stuck else None
    training.result = Result(
        reason, objective(svrg, trained), norm, far if math.isfinite(far) else None,
        training.epochs, training.epochs + training.checks
        + snapshot.num_taken - training.taken_before)
    training.first_result = training.first_result or training.result
    snapshot.has_converged = training.result.has_converged
    return training.result


def _found(svrg, trained, a_pass, workers, rolled_back):
    """Return the distance, and 'converged' or 'at the floor' if another pass confirms it."""
    snapshot, training, tol = svrg.snapshot, svrg.training, svrg.settings.tol
    way, reason = Way(svrg, trained), None
    far, = workers.allreduce_max([way.distance])
    training.only_grows = way.only_grows
    comes_closer = not rolled_back and far < snapshot.distance / 2
    snapshot.num_stays = 0 if comes_closer else snapshot.num_stays + 1
    snapshot.distance = min(far, snapshot.distance)
    stays = snapshot.num_stays >= _SEVERAL
    floor = way.rounding * (
        _FLOOR_OF_NO_STEP if training.is_stuck else _FLOOR_OF_MANY
        if snapshot.num_stays >= _MANY else _FLOOR_OF_SEVERAL if stays else _FLOOR)
    is_far, is_above, is_other = workers.allreduce_max([
        way.only_grows or not way.distance <= (1. if stays else _CLOSE) * (tol or 0.),
        not way.length <= min(floor, way.most), leaves_out_other_rows(a_pass.train_data)])
    if is_other:
        training.is_repeatable = False
    if training.is_repeatable is False:
        return far, None
    if not (is_far or rolled_back):
        reason = 'converged'
    elif not is_above and snapshot.num_stays:
        reason = 'at the floor'
    if reason and not way.is_confirmed(a_pass, workers, max((tol or 0.) * way.size, floor)):
        reason = None
    # At a floor gamma may be of noise, which a small move does not show.
    asks = training.is_repeatable is None and reason == 'at the floor'
    if asks or tol is not None and snapshot.num_stays in _ASKED:
        training.is_repeatable = way.is_found_again(a_pass, workers)
        reason = reason if training.is_repeatable else None
    return far, reason


def learn_curvature(svrg, mean_gradient, before):
    r"""Learn the curvature :math:`\|\Delta G\| / \|\Delta w\|` since the snapshot before.

    Training is stuck if steps have moved no weight.
    """
    metric, weights = _identity(svrg, mean_gradient), svrg.reference.weights()
    (w, g), (former_w, former_g) = (
        [metric.vector(each) for each in (
            {name: dense(arrays[name][0]) for name in metric.shapes},
            mean_gradient.mapping(full_gradient, arrays))]
        for full_gradient, arrays in ((svrg.snapshot.full_gradient, weights),
                                      (before.full_gradient, before.weights)))
    moved, changed = np.linalg.norm(w - former_w), np.linalg.norm(g - former_g)
    units = [mean_gradient.per_row(each) for each in (
        svrg.snapshot.full_gradient, before.full_gradient)]
    if before.steps and not svrg.reference.noise_sources():
        svrg.training.is_stuck = not moved and mean_gradient.rate != 0
        if moved and changed and math.isclose(*units, rel_tol=1e-6):
            svrg.snapshot.curvature = changed / moved


class Way:
    r"""The way from a snapshot to the optimum, as it is estimated, in variables of a Metric.

    Their norm is that of the outputs of a linear model. With 'svrg_lbfgs' the regime has the way.
    With another optimizer it is :math:`-G / \lambda`, with the gradient or the gradient mapping G
    and the curvature :math:`\lambda` between the last two snapshots that differ.

    Attributes
    ----------
    length : float
        Its length; infinite if it is not known.
    size : float
        Spread of the outputs.
    distance : float
        The length relative to this spread.
    rounding : float
        Length by which the outputs move if each weight moves by its precision.
    most : float
        Largest length that may be rounding.
    point : Point
        The snapshot.
    has_vanished, only_grows : bool
        Whether the loss is nearly 0 beside the largest, without a decay; and whether it is, and
        falls as outputs grow.
    """

    def __init__(self, svrg, trained):
        self._svrg, self._trained, rule = svrg, trained, trained.rule
        self._changed = 0.
        mean_gradient = trained.mean_gradient()
        self._proximal, weights = bool(mean_gradient.proximal), svrg.reference.weights()
        self._metric = metric = rule.metric if rule else _identity(svrg, mean_gradient)
        self.point = point = mean_gradient.point(metric, svrg.snapshot.full_gradient, weights)
        slopes, lost, shortfall, slowness = mean_gradient.mapping(
            svrg.snapshot.full_gradient, weights), 0., 1., 1.
        if not metric.vector(slopes).any():
            self._way = np.zeros(metric.size)
        elif rule is not None:
            self._way, gamma = rule.way, rule.regime.pairs.gamma or math.nan
            lost, shortfall, slowness = (
                gamma * metric.lost(point.gradient), rule.shortfall, rule.slowness)
        else:
            self._way = -metric.vector(slopes) / (svrg.snapshot.curvature or math.nan)
        self.size = metric.spread(point.weights)
        self.rounding = metric.rounding(point.weights, mean_gradient.dtype(weights))
        self.most = _SHORT * metric.spread(point.weights, about_zero=True)
        length = shortfall * math.hypot(np.linalg.norm(self._way), lost)
        self.length = length if math.isfinite(length) else math.inf
        self.distance = 0. if not length else (
            slowness * self.length / self.size if self.size else math.inf)
        first = svrg.training.first_result
        self._look_at_tail(rule.largest if rule else point.units * (
            first.objective if first and first.objective else math.nan))

    def _look_at_tail(self, largest):
        """Find out whether the loss has vanished beside the largest, and falls as outputs grow.

        Where a loss is exponential in the margin, its slope along the outputs is the margin times
        the loss. Near an optimum it is much smaller, and larger where the loss there is 0.
        """
        point, precision = self.point, np.finfo(self._trained.mean_gradient().dtype(
            self._svrg.reference.weights())).eps
        rest, slope = (abs(point.objective) + 10 * precision * largest,
                       -point.gradient @ point.weights)
        has_vanished = rest < _VANISHED * largest
        # With a decay there is an optimum, unless only the biases grow.
        self.has_vanished = bool(has_vanished and not any(
            self._trained.mean_gradient().decays.values()))
        self.only_grows = bool(has_vanished
                               and _FLATTEST_TAIL * rest <= slope <= _STEEPEST_TAIL * rest)

    def is_found_again(self, a_pass, workers):
        """Tell whether another pass finds the same gradient, if the data can be read again.

        If it was confirmed, it must differ by less than half of what the small move has changed.
        """
        again = a_pass.again()
        if again is None:
            return True
        self._svrg.training.checks += 1
        there = self._measured(again, workers)
        most = self._changed / 2 or _OTHER * np.linalg.norm(self._metric.pull(
            self.point.gradient)) + _LENGTH * self.rounding * (self._steepest() or 1.)
        is_other, = workers.allreduce_max([not np.linalg.norm(self._metric.pull(
            there.gradient - self.point.gradient)) <= most])
        return not is_other

    def _steepest(self):
        """Return the largest curvature that pairs have, 0 or None if it is not known."""
        rule = self._trained.rule
        return self._svrg.snapshot.curvature if rule is None else max([
            1 / (rule.regime.pairs.gamma or math.inf), *rule.regime.pairs.squares()])

    def _measured(self, a_pass, workers, move=None):
        """Return the Point that a pass finds at the snapshot, or at a move from it."""
        svrg, mean_gradient = self._svrg, self._trained.mean_gradient()
        weights = svrg.reference.weights()
        with svrg.nearby(self._trained.model, a_pass, workers, lambda full_gradient: (
                mean_gradient.point(self._metric, full_gradient, weights))) as point_of:
            return point_of(None, move)

    def is_confirmed(self, a_pass, workers, most):
        r"""Tell whether another pass, in which H has no part, finds at most some length.

        It measures the gradient after a small move s along :math:`-M^{-1} g`, with a proximal
        operator along the way. If it changes by y, the optimum along the line is at
        :math:`\|g\| s^T s / s^T y`, which is a lower bound of the distance. If y is longer than
        any curvature makes it, the passes are not of one function. A gradient of 0 may be that of
        a kink, as of Gluon's SigmoidBCELoss at outputs of 0: half of a random move then changes it
        by as much.
        """
        metric, point, training = self._metric, self.point, self._svrg.training
        again = a_pass.again() if training.noisy < _NOISE else None
        if again is None:
            return False
        # What only a decay sees has a curvature near 0, and moves no output.
        slope = metric.seen_by_loss(metric.pull(point.gradient))
        way = self._way if self._proximal else -slope
        is_random = not way.any()
        if is_random:
            way = np.random.RandomState(0).normal(size=way.size)
        way = way / np.linalg.norm(way) * (max(most, _LENGTH * self.rounding) or 1.)
        training.checks += 1
        there = self._measured(again, workers, metric.arrays(metric.push(way)))
        move, rule = Move.between(metric, point, there), self._trained.rule
        *numbers, far = workers.allreduce_max([*move.numbers(), (
            np.linalg.norm(self._way if self._proximal else slope * move.length / move.product)
            if move.product > 0 else math.inf)])
        move = Move(*move[:2], *numbers)
        self._changed = math.sqrt(move.square)
        if is_random and self._has_kink(way, self._changed, a_pass.again(), workers):
            training.is_stuck = True
            return False
        if not move.square <= _STEEPEST * (self._steepest() or math.inf) * move.product:
            training.noisy += 1
            return False
        if rule is not None:
            rule.regime.learn(move, self.rounding)
            # Where outputs saturate, nothing is left of the curvature.
            if (self.distance > _SHORT or self.has_vanished) and move.product < _SATURATED * (
                    rule.regime.steepest * move.length):
                training.only_grows = self.has_vanished
                return False
        return far <= most

    def _has_kink(self, way, changed, a_pass, workers):
        """Tell whether half of a move changes a gradient nearly by as much."""
        self._svrg.training.checks += 1
        there = self._measured(a_pass, workers, self._metric.arrays(self._metric.push(way / 2)))
        half, = workers.allreduce_max([np.linalg.norm(self._metric.pull(
            there.gradient - self.point.gradient))])
        return half > _KINK * changed


def _identity(svrg, mean_gradient):
    """Return the Metric that is the identity in the parameters themselves."""
    weights = svrg.reference.weights()
    names = mean_gradient.updated(weights)
    return Metric({name: weights[name][0].shape for name in names}, dict.fromkeys(names, 1.))


def gradient_norm(svrg, trained):
    """Return the norm of the mean gradient at the snapshot, None without one."""
    snapshot = svrg.snapshot
    if not snapshot.is_active:
        return None
    return trained.mean_gradient().norm(snapshot.full_gradient, svrg.reference.weights())


def objective(svrg, trained):
    """Return the mean objective at the snapshot, None without one or if it is not known."""
    snapshot = svrg.snapshot
    if not snapshot.is_active:
        return None
    return trained.mean_gradient().objective(snapshot.full_gradient, svrg.reference.weights())

"""Convergence: what a snapshot has found, and how far the optimum is."""

import math

import numpy as np

from ..core.arrays import dense, precision_of
from ..core.result import Result
from ..data.iterators import leaves_out_other_rows
from .confirmation import Confirmation
from .metric import Metric
from .rollback import PreviousSnapshot

# Distances that are rounding, times what the outputs move by if each weight moves by its precision:
# where one snapshot has got no closer, where several or many have not, and where no step moves a
# weight. _ASKED: how many have not when another pass is asked for its gradient.
_FLOOR, _FLOOR_OF_SEVERAL, _FLOOR_OF_MANY, _FLOOR_OF_NO_STEP = 0.5, 1., 2., 10.
_SEVERAL, _MANY, _ASKED = 3, 6, (3, 6, 9, 12)
_CLOSE = 0.5  # the part of tol from which on it is said at first: H shows some directions late
_SHORT = 0.01  # relative to the outputs
# Beside the first one, a loss that has vanished; and slopes along the outputs beside what is left.
_VANISHED, _FLATTEST_TAIL, _STEEPEST_TAIL = 1e-2, 0.3, 100


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
    check = Confirmation(svrg, trained, way, a_pass, workers)
    if reason and not check.is_within(max((tol or 0.) * way.size, floor)):
        reason = None
    # At a floor gamma may be of noise, which a small move does not show.
    asks = training.is_repeatable is None and reason == 'at the floor'
    if asks or tol is not None and snapshot.num_stays in _ASKED:
        training.is_repeatable = check.is_repeatable()
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
    move : numpy.ndarray
        The way.
    metric : Metric
        That of the variables.
    steepest : float
        Largest curvature that is known, 0 if none is.
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
        rule, mean_gradient = trained.rule, trained.mean_gradient()
        snapshot, weights = svrg.snapshot, svrg.reference.weights()
        dtype = mean_gradient.dtype(weights)
        self.metric = metric = rule.metric if rule else _identity(svrg, mean_gradient)
        self.point = point = mean_gradient.point(metric, snapshot.full_gradient, weights)
        slopes = metric.vector(mean_gradient.mapping(snapshot.full_gradient, weights))
        self.steepest, lost, shortfall, slowness = snapshot.curvature, 0., 1., 1.
        if rule is None:
            self.move = -slopes / (snapshot.curvature or math.nan)
        else:
            pairs, ways = rule.regime.pairs, rule.regime.ways
            self.steepest = max([1 / (pairs.gamma or math.inf), *pairs.squares()])
            self.move, lost = ways.latest, (pairs.gamma or math.nan) * metric.lost(point.gradient)
            shortfall, slowness = ways.shortfall, ways.slowness
        if not slopes.any():
            self.move, lost, shortfall, slowness = np.zeros(metric.size), 0., 1., 1.
        self.size = metric.spread(point.weights)
        self.rounding = metric.rounding(point.weights, dtype)
        self.most = _SHORT * metric.spread(point.weights, about_zero=True)
        length = shortfall * math.hypot(np.linalg.norm(self.move), lost)
        self.length = length if math.isfinite(length) else math.inf
        self.distance = 0. if not length else (
            slowness * self.length / self.size if self.size else math.inf)
        first = svrg.training.first_result
        self._look_at_tail(mean_gradient, precision_of(dtype), rule.regime.largest if rule else (
            point.units * (first.objective if first and first.objective else math.nan)))

    def _look_at_tail(self, mean_gradient, precision, largest):
        """Find out whether the loss has vanished beside the largest, and falls as outputs grow.

        Where a loss is exponential in the margin, its slope along the outputs is the margin times
        the loss. Near an optimum it is much smaller, and larger where the loss there is 0.
        """
        rest, slope = (abs(self.point.objective) + 10 * precision * largest,
                       -self.point.gradient @ self.point.weights)
        has_vanished = rest < _VANISHED * largest
        # With a decay there is an optimum, unless only the biases grow.
        self.has_vanished = bool(has_vanished and not any(mean_gradient.decays.values()))
        self.only_grows = bool(has_vanished
                               and _FLATTEST_TAIL * rest <= slope <= _STEEPEST_TAIL * rest)


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

"""What is learned at a snapshot: take it, compare it, go back if it is worse, and set the rate.

Preconditioned SVRG that needs no tuning is due to Z. Frangella, P. Rathore, S. Zhao and M. Udell,
"PROMISE: Preconditioned Stochastic Optimization Methods by Incorporating Scalable Curvature
Estimates", JMLR 25(346), 2024.
"""

import math

import numpy as np

from ..core.arrays import is_row_sparse, precision_of
from .composite import Composite
from .constants import ROUGHLY
from .learned import Noise
from .metric import Metric, blocks_of
from .random import Random
from .regime import Move
from .rollback import Compared, change, is_worse
from .secant_pairs import room_for
from .smooth import Smooth

_RATES = 1e-30, 1e30  # which float32 has


def learn(objective, learned, before, is_resumed=False, has_jumped=False):
    r"""Take a snapshot and learn from it; tell whether training went back to the one before.

    The first snapshot begins a regime, and a random batch gives the first :math:`\gamma`: along
    :math:`-M^{-1} g`, with the length at which the outputs move by about 1. Each later one gives
    the move since the one before. If the objective is above that of the snapshot before, training
    goes back there. Each return halves the rate, and each other snapshot doubles it again, up to
    that of the regime. The failed move counts, too.

    Parameters
    ----------
    objective : Objective
        What is minimised.
    learned : Learned
        Is changed.
    before : Kept or None
        The snapshot before.
    is_resumed : bool
        Whether that is of a file, and may be of other data.
    has_jumped : bool
        Whether a jump has led to this one, and no steps.
    """
    with objective.stale_on_error(learned.forget):
        if _take(objective, learned, before, is_resumed, has_jumped):
            before = None
        found = _compare(objective, learned, before)
        is_undone = objective.sets_rate and is_worse(found, has_jumped)
        if is_undone:
            objective.go_back(before)
        if not has_jumped:
            learned.is_stuck = bool(found.steps and not found.move.length)
            learned.num_rollbacks += is_undone
        _learn_curvature(objective, learned, found, is_undone)
        _set_way(objective, learned, found.former if is_undone else found.now)
        _set_rate(objective, learned, found, is_undone)
        learned.is_fresh = found.restarts
        return is_undone


def _take(objective, learned, before, is_resumed, has_jumped):
    """Take a snapshot; tell whether it has begun a regime."""
    mean_gradient = objective.mean_gradient
    shapes = {name: weight.shape for name, weight in objective.weights.items()}
    negative = {name: value for name, value in mean_gradient.multipliers.items() if value < 0}
    if negative and objective.sets_rate:
        raise ValueError('lr_mult must be 0 or more with svrg_lbfgs, and not %s' % negative)
    multipliers = {name: abs(mean_gradient.multipliers[name]) for name in shapes}
    is_fresh = bool(objective.agree(
        learned.is_fresh or not fits(learned.regime, objective, shapes, multipliers)))
    may_be_undone = objective.sets_rate and not is_fresh and before is not None and (
        before.steps > 0 or has_jumped)
    moments = objective.take_snapshot(is_fresh or is_resumed, may_be_undone)
    if not is_fresh and is_resumed:
        is_fresh = not learned.regime.metric.is_of(moments)  # on other data
    if is_fresh:
        learned.regime = begun(objective, shapes, multipliers, moments)
    learned.regime.proximal = mean_gradient.proximal
    _find_invariant(objective, learned.regime.metric, is_fresh)
    return is_fresh


def fits(regime, objective, shapes, multipliers):
    """Tell whether a regime is one for the parameters, the operators and the layers of now.

    A first step may have shown that layers draw random numbers, and a resumed run may have
    operators that the saved one had not, or none.
    """
    has_operators = bool(objective.mean_gradient.proximal)
    return (regime.metric.shapes, regime.metric.multipliers) == (shapes, multipliers) and (
        isinstance(regime, Composite) is has_operators) and not (
            isinstance(regime, Smooth) and objective.noise_sources)


def begun(objective, shapes, multipliers, moments):
    """Return the regime that an objective needs, in the metric of the inputs."""
    mean_gradient, weights = objective.mean_gradient, objective.weights
    dtype = np.result_type(np.float32, *(weight.dtype for weight in weights.values())).name
    is_random, is_smooth = bool(objective.noise_sources), mean_gradient.is_smooth
    has_room = room_for(sum(map(math.prod, shapes.values()))) > 0 and not any(
        is_row_sparse(weights[name]) for name in mean_gradient.proximal if name in weights)
    is_whole = set(shapes) <= {name for layer in moments for name in layer[:2]}
    # In a network the metric of the first layer alone makes training slower.
    blocks = blocks_of(moments, mean_gradient, shapes, 1 / objective.units, dtype) if (
        is_whole or has_room and is_smooth and not is_random) else []
    metric = Metric(shapes, multipliers, blocks)
    if not is_smooth:
        regime = Composite(metric, dtype, mean_gradient.proximal)
        regime.jumps *= has_room
    elif is_random or not (has_room or blocks):
        regime = Random(metric, dtype)
        regime.has_noise = is_random
    else:
        regime = Smooth(metric, dtype)
    regime.is_whole = is_whole and has_room and not is_random
    return regime


def _find_invariant(objective, metric, is_fresh):
    """Find what the loss does not see; near an optimum only gradients of batches tell."""
    of_batch = objective.point_of_batch(metric) if is_fresh and metric.blocks else None
    for point in filter(None, (of_batch, objective.point(metric))):
        metric.find_invariant(point.slopes, is_fresh, bool(objective.mean_gradient.proximal))
        is_fresh = False


def _compare(objective, learned, before):
    """Return the Compared of the snapshot; learn of its rows and of the size of the objective."""
    regime, metric = learned.regime, learned.regime.metric
    former, now = before and objective.point(metric, before), objective.point(metric)
    restarts = former is not None and not math.isclose(former.units, now.units, rel_tol=1e-6)
    if restarts:  # in other units
        former = None
        regime.forget_pairs()
    learned.largest = max([learned.largest, *(
        abs(each.objective) for each in (former, now) if each and math.isfinite(each.objective))])
    move = Move() if former is None else Move.between(metric, former, now, objective.agree)
    rounding, rise = rounding_of_objective(learned, now), -math.inf
    if move.length and not regime.has_noise:
        rise = change(former, now, move, rounding, regime.is_whole and (
            not objective.leaves_out_rows) and objective.warn_once)
    elif not np.isfinite(now.gradient).all():
        rise = math.inf
    steps, batches, rise, rows_differ = objective.agree(
        before.steps if former else 0, objective.batches, rise,
        former is not None and former.rows != now.rows)
    learned.rows_differ |= bool(rows_differ) or objective.leaves_out_rows
    return Compared(former, now, move, rise, rounding, steps, batches, restarts)


def rounding_of_objective(learned, now):
    """Return by how much rounding may change the objective: of its sum, and of the outputs."""
    regime = learned.regime
    of_outputs = regime.metric.rounding(now.weights, regime.dtype)
    return ROUGHLY * precision_of(regime.dtype) * learned.largest + of_outputs * (
        learned.noise.of_batch + of_outputs / (regime.pairs.gamma or math.inf))


def _learn_curvature(objective, learned, found, is_undone):
    """Learn from the move that has led to the snapshot, and from a random batch."""
    regime, move = learned.regime, found.move
    if is_undone and found.rise > ROUGHLY * abs(move.before):  # it went much too far
        regime.shorten()
    elif move.length and not regime.has_noise:
        if _is_seen(objective, learned, move):
            regime.learn(move, found.rise < 0 and not is_undone)
        elif found.rise < -found.rounding:  # a slope without a curvature
            regime.lengthen()
    if (regime.pairs.gamma is None or regime.has_noise) and not is_undone:
        move = move_of_batch(objective, regime.metric, found.now.gradient)
        learned.noise = Noise(move.slope, move.slope)
        regime.learn(move)
    regime.follow(objective.mean_gradient.decays)


def _is_seen(objective, learned, move):
    """Tell whether a move has changed the slope along it by more than rounding."""
    def is_seen():
        return bool(objective.agree(abs(move.product) > learned.noise.of_mean(
            learned.regime.dtype) * math.sqrt(move.length)))

    if not is_seen():  # beside that of the batch of an earlier snapshot
        learned.noise = Noise.measured(objective, learned.regime) or learned.noise
    return is_seen()


def move_of_batch(objective, metric, gradient):
    """Return the Move along which a random batch tells its curvature, an empty one of padding.

    It goes along the gradient or, if that is 0, any vector, so far that the outputs move by about
    1.
    """
    along = -metric.pull(gradient)
    if not along.any():
        along = np.random.RandomState(0).normal(size=along.size)
    size = np.linalg.norm(along)
    here = objective.point_of_batch(metric, draws=True) if 0 < size < math.inf else None
    if here is None:
        return Move()
    there = objective.point_of_batch(metric, along / size, draws=False)
    return Move.between(metric, here, there, objective.agree)


def _set_way(objective, learned, point):
    """Find the way to the optimum from the Point where training is now."""
    learned.point = point
    learned.way, learned.end = learned.regime.way(point)
    learned.length = objective.agree(np.linalg.norm(learned.way))


def _set_rate(objective, learned, found, is_undone):
    """Set the rate for as many steps as there were, for two epochs where there were none yet."""
    regime, momentum = learned.regime, objective.mean_gradient.momentum
    if found.steps:
        regime.slowdown = max(1., regime.slowdown * (2 if is_undone else 0.5))
    learned.steps = int(found.steps) or learned.steps or 2 * int(found.batches)
    learned.rate = float(np.clip(regime.rate(
        momentum, learned.steps, max(found.batches, 1)) / regime.slowdown, *_RATES))

"""What is learned at a snapshot: take it, compare it, go back if a move has made it worse."""

import math

import numpy as np

from ..core.arrays import is_row_sparse, precision_of
from .comparison import Compared, change, is_worse
from .composite import Composite
from .constants import ROUGHLY
from .learned import Noise
from .metric import Metric, blocks_of
from .regime import Move, Regime
from .secant_pairs import room_for

_NOT_WHOLE = ('newton_cg is for models all of whose updated parameters multiply inputs, without '
              "random layers, and not for this one%s: choose 'sgd' with a learning_rate")


def learn(objective, learned, before, is_resumed=False, is_trial=False):
    r"""Take a snapshot and learn from it; tell whether training went back to the one before.

    The first snapshot begins a regime, and a random batch gives the first :math:`\gamma`: along
    :math:`-M^{-1} g`, with the length at which the outputs move by about 1. Each later one gives
    the move since the one before. After a trial, if the objective is above that of the snapshot
    before, training goes back there. The failed move counts, too.

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
    is_trial : bool
        Whether a move has led to this one that may be undone.
    """
    with objective.stale_on_error(learned.forget):
        if _take(objective, learned, before, is_resumed, is_trial):
            before = None
        learned.is_fresh = False
        learned.rows_differ |= objective.leaves_out_rows or bool(objective.agree(
            before is not None and objective.has_other_rows(before)))
        if not learned.regime.is_whole or objective.noise_sources:
            return False
        found = _compare(objective, learned, before)
        is_undone = is_trial and is_worse(found)
        if is_undone:
            objective.go_back(before)
        _learn_curvature(objective, learned, found, is_undone)
        learned.set_way(found.former if is_undone else found.now)
        learned.is_fresh = found.restarts
        return is_undone


def _take(objective, learned, before, is_resumed, is_trial):
    """Take a snapshot; tell whether it has begun a regime."""
    is_fresh = bool(objective.agree(
        learned.is_fresh or not fits(learned.regime, objective)))
    moments = objective.take_snapshot(is_fresh or is_resumed, is_trial)
    if not is_fresh and is_resumed:
        is_fresh = not learned.regime.metric.is_of(moments)  # on other data
    if is_fresh:
        learned.regime = begun(objective, moments)
    learned.regime.proximal = objective.mean_gradient.proximal
    _find_invariant(objective, learned.regime.metric, is_fresh)
    if objective.moves and (objective.noise_sources or not learned.regime.is_whole):
        raise ValueError(_NOT_WHOLE % ''.join(
            [' with ' + ', '.join(objective.noise_sources)] * bool(objective.noise_sources)))
    return is_fresh


def shapes_and_multipliers(objective):
    """Return what a metric is of: the shape of each parameter, and what its rate is times."""
    multipliers = objective.mean_gradient.multipliers
    negative = {name: value for name, value in multipliers.items() if value < 0}
    if negative and objective.moves:
        raise ValueError('lr_mult must be 0 or more with newton_cg, and not %s' % negative)
    shapes = {name: weight.shape for name, weight in objective.weights.items()}
    return shapes, {name: abs(multipliers[name]) for name in shapes}


def fits(regime, objective):
    """Tell whether a regime, or None, is one for the parameters and the operators of now.

    A resumed run may have operators that the saved one had not, or none.
    """
    return regime is not None and (
        regime.metric.shapes, regime.metric.multipliers) == shapes_and_multipliers(objective) and (
            isinstance(regime, Composite) is bool(objective.mean_gradient.proximal))


def begun(objective, moments):
    """Return the regime that an objective needs, in the metric of the inputs."""
    mean_gradient, weights = objective.mean_gradient, objective.weights
    shapes, multipliers = shapes_and_multipliers(objective)
    dtype = np.result_type(np.float32, *(weight.dtype for weight in weights.values())).name
    has_room = room_for(sum(map(math.prod, shapes.values()))) > 0 and not any(
        is_row_sparse(weights[name]) for name in mean_gradient.proximal if name in weights)
    is_whole = has_room and not objective.noise_sources and set(shapes) <= {
        name for layer in moments for name in layer[:2]}
    blocks = blocks_of(moments, mean_gradient, shapes, 1 / objective.units, dtype) if (
        is_whole) else []
    return (Regime if mean_gradient.is_smooth else Composite)(
        Metric(shapes, multipliers, blocks), dtype, is_whole)


def _find_invariant(objective, metric, is_fresh):
    """Find what the loss does not see; near an optimum only gradients of batches tell.

    Gluon's layers tell at the first batch whether they draw random numbers.
    """
    of_batch = objective.point_of_batch(metric, draws=True) if (
        is_fresh and metric.blocks) else None
    for point in filter(None, (of_batch, objective.point(metric))):
        metric.find_invariant(point.slopes, is_fresh, bool(objective.mean_gradient.proximal))
        is_fresh = False


def _compare(objective, learned, before):
    """Return the Compared of the snapshot; learn of the size of the objective."""
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
    if move.length:
        rise = change(former, now, move, rounding,
                      None if objective.leaves_out_rows else objective.warn_once)
    elif not np.isfinite(now.gradient).all():
        rise = math.inf
    return Compared(former, now, move, objective.agree(rise), rounding, restarts)


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
    elif move.length:
        if _is_seen(objective, learned, move):
            regime.learn(move, found.rise < 0 and not is_undone)
        elif found.rise < -found.rounding:  # a slope without a curvature
            regime.lengthen()
    if regime.pairs.gamma is None and not is_undone:
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
    here = objective.point_of_batch(metric) if 0 < size < math.inf else None
    if here is None:
        return Move()
    there = objective.point_of_batch(metric, along / size)
    return Move.between(metric, here, there, objective.agree)

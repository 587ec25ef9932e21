"""What is learned at a snapshot: take it, compare it, and go back if a trial is not lower."""

import collections
import math

import numpy as np

from ..core.arrays import is_row_sparse, precision_of
from .comparison import Compared, Move, change, is_worse
from .constants import ROUGHLY, SLIGHT
from .learned import Noise
from .metric import Metric, blocks_of
from .path import Trial
from .secant_pairs import SecantPairs, room_for
from .unseen import find_invariant, find_unseen


def learn(objective, learned, before, is_resumed=False, trial=None):
    """Take a snapshot and learn from it; return it as Compared, None where nothing is known.

    The first snapshot begins with a metric. If a trial is not lower than the snapshot before,
    training goes back there.

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
    trial : Trial or None
        The point of the path that has led to this one.
    """
    with objective.stale_on_error(learned.forget):
        if _take(objective, learned, before, is_resumed, trial):
            before = None
        learned.rows_differ |= objective.leaves_out_rows
        if learned.metric is None:
            return None
        former = learned.largest, learned.noise
        found = _compared(objective, learned, before)
        if trial is not None and is_worse(found, trial):
            found = found._replace(is_undone=True)
            objective.go_back(before)
            learned.largest, learned.noise = former
        learned.point = found.former if found.is_undone else found.now
        went_too_far = found.is_undone and found.rise > ROUGHLY * abs(found.move.before)
        if not (went_too_far or trial and trial.is_hidden):
            _learn_pair(learned, found.move)
        return found


def tried(objective, learned, trial):
    """Take a snapshot at a Trial, and go back if it is not lower; return it as Compared.

    None if rounding leaves the weights where they are, or the data cannot be read again.
    """
    before = objective.kept()
    try:
        if not objective.rewind() or not objective.go_to(learned.metric, trial.weights):
            return None
        return learn(objective, learned, before, trial=trial)
    except BaseException:  # nobody has seen whether the objective is lower there
        objective.go_back(before)
        learned.forget()
        raise


def begin_nearer_zero(objective, learned):
    """Begin near weights of 0 if the objective is less there: of a batch, then of all rows.

    Where a random start saturates the loss it is nearly linear, and the path is long. At 0 itself
    gradients of losses such as gluon's SigmoidBCELoss are wrong.
    """
    metric, at = learned.metric, learned.point.weights
    outputs = metric.whiten(at)
    near = -outputs * max(0., 1 - SLIGHT / (np.linalg.norm(outputs) or 1.))
    here, there = (objective.point_of_batch(metric, move) for move in (None, near))
    if here is not None and objective.agree(here.objective + here.penalty - there.objective
                                            - there.penalty - abs(there.objective)) > 0:
        tried(objective, learned, Trial(at + metric.push(near), 0., 0.))
        learned.forget_curvature(objective.units)  # of a loss that is hardly curved


def _take(objective, learned, before, is_resumed, trial):
    """Take a snapshot; tell whether it has begun anew."""
    is_fresh = bool(objective.agree(learned.is_fresh or not fits(learned, objective)))
    moments = objective.take_snapshot(is_fresh or is_resumed, trial is not None)
    if not is_fresh and is_resumed:  # of other data?
        is_fresh = learned.metric is not None and not learned.metric.is_of(moments)
    if is_fresh:
        _begin(objective, learned, moments)
    if learned.metric is not None:
        if is_fresh:
            find_unseen(objective, learned.metric, learned.dtype)
        else:
            find_invariant(objective, learned.metric)
    return is_fresh


def fits(learned, objective):
    """Tell whether what is learned is of the parameters, multipliers and operators of now."""
    metric, mean_gradient = learned.metric, objective.mean_gradient
    if metric is None:
        return True
    return not objective.noise_sources and (
        metric.shapes, metric.multipliers) == _shapes_and_multipliers(objective) and (
            learned.path is None or (learned.path.end is not None) is bool(mean_gradient.proximal))


def _shapes_and_multipliers(objective):
    multipliers = objective.mean_gradient.multipliers
    shapes = {name: weight.shape for name, weight in objective.weights.items()}
    return shapes, {name: abs(multipliers[name]) for name in shapes}


def _begin(objective, learned, moments):
    """Begin with the metric of the inputs, or with none where distances are not known.

    Raises
    ------
    ValueError
        If 'newton_cg' has no metric.
    """
    mean_gradient, weights = objective.mean_gradient, objective.weights
    shapes, multipliers = _shapes_and_multipliers(objective)
    size, dtypes = sum(map(math.prod, shapes.values())), [each.dtype for each in weights.values()]
    room = room_for(size)
    others = set(shapes) - objective.names_of_layers
    several = [name for name, count in collections.Counter(
        layer.weight for layer in moments).items() if count > 1]
    sparse = [name for name in mean_gradient.proximal
              if name in weights and is_row_sparse(weights[name])]
    lacking = (
        (objective.noise_sources, 'it has %s' % ', '.join(objective.noise_sources)),
        (others, 'it has hidden layers, or others that are not linear: no input is multiplied by '
                 '%s' % ', '.join(sorted(others))),
        (several, 'a weight is used with its transpose: %s' % ', '.join(several)),
        (np.float16 in dtypes, 'weights are float16'),
        (sparse, 'row_sparse weights have proximal operators: %s' % ', '.join(sparse)),
        (size and not room, '%d weights are too many for their pairs' % size))
    reasons = [why for applies, why in lacking if applies]
    negative = {name: value for name, value in mean_gradient.multipliers.items() if value < 0}
    if objective.moves and negative:
        raise ValueError('lr_mult must be 0 or more with newton_cg, and not %s' % negative)
    if objective.moves and reasons:
        raise ValueError("newton_cg is for linear models, without random layers, and not for this "
                         "one: %s. Choose 'sgd' with a learning_rate" % '; '.join(reasons))
    if reasons:
        objective.warn_once('tol cannot be checked, so that all epochs are trained: distances from '
                            'the optimum are known for linear models, and here %s'
                            % '; '.join(reasons))
        learned.begin(None, '', objective.units, 0)
        return
    dtype = np.result_type(np.float32, *dtypes).name
    learned.begin(Metric(shapes, multipliers, blocks_of(
        moments, mean_gradient, shapes, 1 / objective.units, dtype)), dtype, objective.units, room)


def _compared(objective, learned, before):
    """Return the Compared of the snapshot; learn of its rows and of rounding."""
    metric = learned.metric
    former, now = before and objective.point(metric, before), objective.point(metric)
    if former and not math.isclose(former.units, now.units, rel_tol=1e-6):
        former = None  # in other units
        learned.forget_curvature(objective.units)
    learned.rows_differ |= bool(objective.agree(former is not None and former.rows != now.rows))
    learned.largest = max([learned.largest, *(
        abs(each.objective) for each in (former, now) if each and math.isfinite(each.objective))])
    learned.noise = Noise.measured(objective, metric, learned.dtype, now, learned.noise,
                                   learned.pairs.gamma)
    unseen = metric.along_unseen(now.gradient)
    if objective.agree(unseen - ROUGHLY * learned.noise.rounding) > 0:  # it is seen
        metric.set_unseen()
        learned.pairs = SecantPairs(metric.size, learned.pairs.gamma, learned.pairs.room)
    move = Move() if former is None else Move.between(metric, former, now, objective.agree)
    rise = -math.inf
    if move.length:
        def slope_in_the_middle():
            if not objective.rewind():
                return None
            whole = metric.whiten(now.weights - former.weights)
            there = objective.point_at(metric, -whole / 2)
            return float(objective.agree(whole @ metric.pull(there.gradient)))

        rounding = ROUGHLY * precision_of(learned.dtype) * learned.largest
        rise = change(former, now, move, rounding + learned.rounding_of_objective(now), (
            None if learned.rows_differ else slope_in_the_middle), objective.warn_once)
    elif not np.isfinite(now.gradient).all():
        rise = math.inf
    return Compared(former, now, move, objective.agree(rise))


def _learn_pair(learned, move):
    """Learn from a Move whose curvature is more than rounding."""
    flat = math.sqrt(precision_of(learned.dtype) * move.length * move.square)
    if flat < move.product < math.inf:
        learned.pairs.add(move.move, move.change)

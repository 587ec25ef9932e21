"""A snapshot with a BarzilaiBorwein: the rate, the guard by the objective, the jump."""

import math

import numpy as np
from mxnet import ndarray as nd

from ..core.arrays import dense, flat
from ..core.snapshots import Before, is_above_floor
from .rule import Change
from .sampled_batch import BatchNearby, SampledBatch, dot
from .scales import Columns

# What objectives may differ by, relative to them: by rounding, times the dtype's precision, and
# by chance where each pass finds another one, as with Dropout.
_ROUNDING, _CHANCE = 25, 0.1


def take_guarded_snapshot(rule, svrg, trained, source, workers):
    """Do what ``Rule.take_snapshot`` says, for a BarzilaiBorwein."""
    live, gradient = trained.live, trained.mean_gradient()
    negative = {name: value for name, value in gradient.multipliers.items() if value < 0}
    if negative:
        raise ValueError('lr_mult must be 0 or more with BarzilaiBorwein, and not %s' % negative)
    before = Before(svrg) if svrg.snapshot.is_active else None
    columns = Columns(svrg.reference, source) if rule.scaled and rule.rate is None else None
    sample = SampledBatch(source, svrg.snapshot.num_taken, columns and columns.add)
    former = svrg.snapshot.full_gradient
    try:
        svrg.take_snapshot(live, sample, workers)
        full_gradient, weights = svrg.snapshot.full_gradient, svrg.reference.weights()
        if columns:
            rule.column_scales, others = columns.scales(gradient, full_gradient, workers)
            gradient = trained.mean_gradient()
            if others or not rule.column_scales.by_name:
                svrg.warn_once('BarzilaiBorwein(scaled=True) does not scale the steps of %s: it is '
                               'for dense float32 and float64 weights that an input is multiplied '
                               "by, and for this package's proximal operators"
                               % (', '.join(others) or 'any weight'))
        norm = gradient.norm(full_gradient, weights)
        value = gradient.smooth_objective(full_gradient, weights)
        move = _Move(gradient, before, full_gradient, weights) if before else None
        nearby = BatchNearby(svrg, live, gradient, sample, workers)
        measures = (rule.bounded or not rule.is_begun) and svrg.reference.is_repeatable
        is_random = bool(svrg.reference.disturbances())
        # Workers decide alike: each with the largest of all workers' numbers.
        norm, curvature, steps, begins_anew, is_above, *change = workers.largest([
            norm, nearby.curvature() if measures else 0., move.steps if move else 0,
            float(rule.begins_anew), float(is_above_floor(svrg, gradient, before)),
            *(move.change(rule, norm, value, is_random) if move else Change())])
        change, svrg.snapshot.is_at_floor = Change(*change), not is_above
        if begins_anew:  # somebody has set the weights of a worker
            rule.begin_anew()
        if steps and not svrg.snapshot.is_at_floor and rule.is_worse(change, norm):
            go_back(svrg, before, trained)
            rule.slow_down()
            return True
        is_first = not rule.is_begun
        rule.accept(change, norm, value)
        rule.advance(change, steps, curvature,
                     move.units if move else 1, gradient.momentum)
        if is_first and measures:
            halvings, = workers.largest([nearby.halvings(rule(None) * (1 + gradient.momentum))])
            rule.rate /= 2 ** halvings
        if move and rule.bounded and gradient.is_smooth and not is_random:
            # Alone, jumps may differ by rounding, as the steps after them do.
            svrg.snapshot.jump = _jump(
                rule.moves, move, change, gradient, gradient.of(full_gradient, weights),
                workers.within_process() if workers.step_alone else workers)
    except BaseException:
        if svrg.snapshot.full_gradient is not former:
            svrg.snapshot.is_stale = True  # the next one sets the rate
            rule.begin_anew()
        raise
    if not (curvature or rule.curvature or rule.base_lr):
        svrg.warn_once('the curvature of the objective cannot be measured at the first snapshot: '
                       'the first learning rate is %g' % rule(None), 'no curvature')
    return False


class _Move:
    """What has changed from the snapshot before to a new one.

    Parameters
    ----------
    gradient : MeanGradient
        What the optimizer makes of a gradient.
    before : Before
        The snapshot before.
    full_gradient, weights
        The new one.

    Attributes
    ----------
    steps : int
        Number of steps between them.
    units : float
        Factor from the scale of the gradient before to that of the new one.
    moved, changed : dict of str to NDArray
        Changes of the weights and of the gradient.
    """

    def __init__(self, gradient, before, full_gradient, weights):
        self._gradient, self._before, self.steps = gradient, before, before.steps
        self._now = full_gradient, weights
        units = gradient.units(full_gradient, before.full_gradient)
        self.units = 1 if math.isclose(units, 1, rel_tol=1e-6) else units
        self.moved = {name: dense(weights[name][0]) - dense(before.weights[name][0])
                      for name in gradient.updated(full_gradient)}
        self.changed = gradient.change(full_gradient, before.full_gradient, self.moved)

    def change(self, rule, norm, value, is_random):
        """Return the Change.

        Parameters are scaled by the root of their multiplier of the rate, so that all
        have the same rate.

        Parameters
        ----------
        rule : BarzilaiBorwein
            What knows how large gradient and objective have been.
        norm : float
            Norm of the gradient.
        value : float
            The objective without the proximal operators' value; NaN if it is not known.
        is_random : bool
            Whether another pass would find another objective.
        """
        gradient, here = self._gradient, self._gradient.of(*self._now)
        squared = product = changed = along = 0.
        for name, by in self.moved.items():
            own, multiplier = (dot(by, gradient.scaled(name, by, power=-1)),
                               gradient.multipliers[name])
            if own:  # a parameter that is never updated says nothing
                squared += own / multiplier
                product += dot(by, self.changed[name])
                changed += multiplier * dot(self.changed[name], gradient.scaled(
                    name, self.changed[name]))
                along += dot(by, here[name])
        objective = self._of_objective(along, product, rule, norm, value, is_random)
        if not squared:  # another order of the rows has changed it
            objective = min(objective, 0.)
        return Change(squared, product, changed, objective)

    def _of_objective(self, along, product, rule, norm, value, is_random):
        """Return the change of the objective; -inf if the two cannot be compared.

        Where both are known it is their difference, if that is more than rounding. If it
        is less, (g + g') · Δw / 2 is exact for a quadratic objective. If one is not known,
        g' · Δw is an upper bound for a convex one. At a gradient of rounding errors
        neither tells which objective is the smaller one.
        """
        gradient, before = self._gradient, self._before
        penalties = [gradient.regularizer(weights) for weights in (before.weights, self._now[1])]
        if not (self.units == 1 and math.isfinite(penalties[0])):
            return -math.inf
        penalty = penalties[1] - penalties[0]
        former = gradient.smooth_objective(before.full_gradient, before.weights)
        if math.isnan(former) or math.isnan(value):
            return 0. if rule.is_noise(norm) else along + penalty
        size = max(abs(former), abs(value))
        precision = _ROUNDING * max((np.finfo(array.dtype).eps for array in self.moved.values()),
                                    default=0)
        if is_random:
            precision = _CHANCE * rule.slowdown  # or all others would be above a lucky one
        elif rule.is_noise(norm):
            size = max(size, rule.largest_objective)
        if not (math.isfinite(value) and abs(value - former) <= precision * size):
            return value - former + penalty
        return 0. if is_random or rule.is_noise(norm) else along - product / 2 + penalty


def _jump(moves, move, change, mean_gradient, gradient, workers):
    """Return where the steps from a snapshot begin, as the way from there; None if there.

    Parameters
    ----------
    moves : Moves
        The moves so far, to which this one is added.
    move, change : _Move, Change
        The move to the snapshot, and its scalar products.
    mean_gradient : MeanGradient
        What the optimizer makes of a gradient.
    gradient : dict of str to NDArray
        Gradient there.
    workers : Workers
        Workers, who jump alike.
    """
    if not moves.room_for(move.moved.values()):
        return None
    if move.units != 1:
        moves.clear()
    if move.steps and change.is_curved:
        moves.add(flat(move.moved), flat(move.changed))
    scales = flat({name: mean_gradient.scaled(
        name, nd.ones_like(array) * mean_gradient.multipliers[name] ** -0.5, power=-0.5)
                   for name, array in gradient.items()})
    return moves.jump(flat(gradient), scales, workers.largest)


def go_back(svrg, before, trained):
    """Set a model and its snapshot to a Before.

    Stored batches stay; their gradients are of another snapshot, and no step takes them.
    """
    svrg.snapshot.replace(None)  # until it is whole again
    svrg.reference.set_values(before.weights)
    trained.go_to(before.weights)
    svrg.snapshot.replace(before.full_gradient)

"""The learning rate that a rule takes from snapshots, and the way back to the best of them."""

import math

import numpy as np

from ..step_size import Change, KeptSnapshot
from .arrays import dense
from .front_end import BatchesOfPass

_SHIFT = 1e-3  # of the weights, relative to their norm, along which curvature is measured
_ITERATIONS = 2  # of the power method that measures it


class SampledBatch(BatchesOfPass):
    """A pass, and afterwards one batch of it, each as likely as any other.

    Parameters
    ----------
    source : BatchesOfPass
        The pass.
    seed : int
        Seed of the choice. NumPy's own generator stays as it is.

    Attributes
    ----------
    batch : object
        The batch.
    """

    def __init__(self, source, seed):
        super().__init__(source.train_data, source.count)
        self.states, self.batch, self._source = source.states, None, source
        self._generator = np.random.RandomState(seed)

    def batches(self, **how):
        """Yield the batches; keep one, by reservoir sampling, and the states before it."""
        for number, batch in enumerate(self._source.batches(**how), 1):
            if self._generator.randint(number) == 0:
                self.batch, states = self._source.kept(batch), self.states
            yield batch
        if self.batch is not None:
            self.states = states

    def is_whole(self, yielded):
        """As that of the pass."""
        return self._source.is_whole(yielded)

    def kept(self, batch):
        """As that of the pass."""
        return self._source.kept(batch)


class _Before:
    """The snapshot that the next one replaces, and the number of steps from it."""

    def __init__(self, svrg):
        self.weights, self.full_gradient = svrg.at.copy_of_values(), svrg.snapshot.full_gradient
        self.steps = svrg.snapshot.num_update - svrg.snapshot.taken_at


def take_snapshot(svrg, trained, source, workers, done=None):
    """Take a snapshot; where the optimizer has a BarzilaiBorwein, let it set the rate there.

    If the snapshot is worse than the best one so far, training goes back to that
    one instead, with a smaller rate.

    Parameters
    ----------
    svrg : SVRG
        The snapshot of the model.
    trained : TrainedModel
        The model.
    source, workers, done
        As in ``SVRG.take_snapshot``.

    Warns
    -----
    UserWarning
        Without a BarzilaiBorwein, if training diverges.
    """
    if trained.rule is not None:
        _take_snapshot_and_rate(svrg, trained, source, workers, done)
        return
    svrg.take_snapshot(trained.live, source, workers, done)
    svrg.divergence.look_at(gradient_norm(svrg, trained), svrg.at.weights(), trained,
                            svrg.warn_once)


def gradient_norm(svrg, trained):
    """Return the norm of the mean gradient at the snapshot, None without one."""
    snapshot = svrg.snapshot
    if not snapshot.is_active:
        return None
    return trained.mean_gradient().norm(snapshot.full_gradient, svrg.at.weights())


def _take_snapshot_and_rate(svrg, trained, source, workers, done):
    live, rule, gradient = trained.live, trained.rule, trained.mean_gradient()
    negative = {name: value for name, value in gradient.multipliers.items() if value < 0}
    if negative:
        raise ValueError('lr_mult must be 0 or more with BarzilaiBorwein, and not %s' % negative)
    before = _Before(svrg) if svrg.snapshot.is_active else None
    sample = SampledBatch(source, svrg.snapshot.num_taken)
    former = svrg.snapshot.full_gradient
    try:
        svrg.take_snapshot(live, sample, workers, done)
        full_gradient, weights = svrg.snapshot.full_gradient, svrg.at.weights()
        change = _change(gradient, before, full_gradient, weights) if before else Change()
        curvature = 0.
        if rule.measures_curvature and svrg.at.is_repeatable:
            curvature = _curvature(svrg, live, gradient, sample, workers)
        # Workers decide alike: each with the largest of all workers' numbers.
        norm, curvature, *change = workers.largest(
            [gradient.norm(full_gradient, weights), curvature, *change])
        best = rule.look_at(Change(*change), norm, _best(rule.best, before, gradient, norm))
        if best is not None:
            _go_back(svrg, best, trained)
            rule.slow_down()
            return
        units = gradient.units(full_gradient, before.full_gradient) if before else 1
        rule.advance(Change(*change), before.steps if before else 0, curvature, units,
                     gradient.momentum)
    except BaseException:
        if svrg.snapshot.full_gradient is not former:
            svrg.snapshot.is_stale = True  # the next one sets the rate
            rule.begin_fit()
        raise
    if not (curvature or rule.curvature or rule.base_lr):
        svrg.warn_once('the curvature of the objective cannot be measured at the first snapshot: '
                       'the first learning rate is %g' % rule(None), 'no curvature')


def end_at_best(svrg, trained, norm):
    """Go back to the best snapshot if the objective of the last one, with this norm, is above."""
    rule, best = trained.rule, trained.rule.best
    if best is not None and rule.objective > best.objective and not rule.is_noise(norm):
        _go_back(svrg, best, trained)
        rule.slow_down()


def _best(best, before, gradient, norm):
    """Return the best snapshot with its weights, the one before or an earlier one; or None."""
    if best is not None and best.weights is not None:
        return best
    if before is None or not before.steps:
        return None  # nothing, or somebody else, has moved the weights
    if best is None:  # the first snapshot of a fit
        return None if math.isfinite(norm) else KeptSnapshot(
            0., 0., before.weights, before.full_gradient)
    if math.isnan(best.norm):  # a resumed run
        best = best._replace(norm=gradient.norm(before.full_gradient, before.weights))
    return best._replace(weights=before.weights, full_gradient=before.full_gradient)


def _change(gradient, before, full_gradient, weights):
    """Return the Change from one snapshot to the next.

    That of the objective is (g + g') · Δw / 2, exact where the gradient is linear.
    Parameters are scaled by the root of their multiplier of the rate, so that all
    have the same rate.
    """
    units = gradient.units(full_gradient, before.full_gradient)
    moved = {name: dense(weights[name][0]) - dense(before.weights[name][0])
             for name in gradient.updated(full_gradient)}
    changes = gradient.change(full_gradient, before.full_gradient, moved)
    here = gradient.of(full_gradient, weights)
    squared = product = changed = along = 0.
    for name, by in moved.items():
        own, multiplier = _dot(by, by), gradient.multipliers[name]
        if own:  # a parameter that is never updated says nothing
            squared += own / multiplier
            product += _dot(by, changes[name])
            changed += multiplier * _dot(changes[name], changes[name])
            along += _dot(by, here[name])
    regularizer = gradient.regularizer(before.weights)
    objective = along - product / 2 + gradient.regularizer(weights) - regularizer
    is_known = before.steps and units == 1 and math.isfinite(regularizer)
    return Change(squared, product, changed, objective if is_known else -math.inf)


def _curvature(svrg, live, gradient, sample, workers):
    """Return the largest curvature of a batch at the snapshot; 0 if it cannot be measured.

    It is found by the power method on differences of the batch's gradients,
    which begins with the gradient itself.
    """
    largest = 0.
    if not gradient.multipliers:  # nothing is updated
        return largest
    sample.is_repeated = True
    with svrg.gradients_nearby(live, sample, workers.within_process()) as gradient_of:
        weights = svrg.at.weights()
        lengths = {name: 1 / each for name, each in gradient.multipliers.items()}
        # A shorter way would be lost in the rounding of float16.
        coarsest = max(np.finfo(weights[name][0].dtype).eps for name in lengths)
        distance = max(_SHIFT, math.sqrt(coarsest)) * max(1., _length(
            {name: dense(weights[name][0]) for name in lengths}, lengths))
        here = gradient_of(sample.batch)
        if here is None:
            return 0.
        sample.draws_random_numbers = False
        direction = gradient.of(here, weights)
        for _ in range(_ITERATIONS):
            along = {name: array * gradient.multipliers[name]
                     for name, array in direction.items()}
            length = _length(along, lengths)
            if not 0 < length < math.inf:
                break
            shift = {name: array * (distance / length) for name, array in along.items()}
            direction = gradient.change(here, gradient_of(sample.batch, shift), shift)
            curvature = _length(direction, gradient.multipliers) / distance
            if not math.isfinite(curvature):
                break
            largest = max(largest, curvature)
    return largest


def _go_back(svrg, best, trained):
    """Set a model and its snapshot to the best snapshot.

    Stored batches stay; their gradients are of another snapshot, and no step takes them.
    """
    svrg.snapshot.replace(None)  # until it is whole again
    svrg.at.set_values(best.weights)
    trained.go_to(best.weights)
    svrg.snapshot.replace(best.full_gradient)


def _dot(first, second):
    """Return the scalar product of two arrays, summed in float64."""
    return float((first.astype('float64') * second.astype('float64')).sum().asscalar())


def _length(arrays, multipliers):
    """Return the Euclidean norm of arrays by name, whose squares have multipliers."""
    return math.sqrt(sum(multipliers[name] * _dot(array, array)
                         for name, array in arrays.items()))

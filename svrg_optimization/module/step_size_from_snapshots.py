"""Learning rate that a BarzilaiBorwein takes from snapshots."""

import math
from types import SimpleNamespace

import numpy as np

from ..core.arrays import dense
from ..core.divergence import length_of
from ..data.iterators import rewind_for_pass
from ..data.passes import Pass
from ..step_size import BarzilaiBorwein
from . import executor_group
from .optimality import MeanGradient
from .optimizer_states import begin_anew

_FAR = 1000  # times the weights of the snapshot
_SHIFT = 1e-3  # of the weights, relative to their norm, along which curvature is measured


class _AstrayError(Exception):
    """The full gradient has grown too much, or is not finite: the rate was too large."""


def step_size_rule_of(module):
    """Return the BarzilaiBorwein of a module's optimizer, None if it has none."""
    scheduler = module._optimizer.lr_scheduler if module.optimizer_initialized else None
    return scheduler if isinstance(scheduler, BarzilaiBorwein) else None


def take_snapshot_and_rate(module, batches_of_a_step, source, reduction, done=None, at_of=None):
    """Take a snapshot, and let the BarzilaiBorwein of the module set the rate there.

    If the rate before was far too large, the module goes back to the snapshot
    before instead, with a smaller rate.

    Parameters
    ----------
    module : SVRGModule
        Module being trained, whose optimizer has such a rule.
    batches_of_a_step : int
        Number of batches whose gradients make up one step.
    source, reduction, done, at_of
        As in ``SVRG.take_snapshot``.
    """
    svrg, rule = module._svrg, step_size_rule_of(module)
    snapshot, weights = svrg.snapshot, executor_group.parameters(svrg.at.module)
    gradient = MeanGradient(module, batches_of_a_step)
    before = _Before(snapshot, weights) if snapshot.is_active and rule.is_begun else None
    data_again = rewind_for_pass(source.train_data, is_rewound=True)

    def check(mu):
        norms.append(length_of(gradient.of(mu, weights).values()))
        if before and before.steps and rule.is_astray(norms[-1]):
            raise _AstrayError

    norms = []
    try:
        svrg.take_snapshot(module, source, reduction, done, at_of, check)
    except _AstrayError:
        svrg.store.drop()
        go_back(module)
        return
    rule.note(norms[-1])
    if before:
        _advance(module, gradient, before)
    elif not rule.is_begun:
        data_again()
        _begin(module, gradient, _again(svrg, source), reduction, at_of)
    if svrg.epoch is not None and (before or rule.rate is not None):
        module.logger.info('Epoch[%d] Learning rate=%g', svrg.epoch, rule(None))


class _Before:
    """A snapshot that the next one replaces, and the number of steps from it."""

    def __init__(self, snapshot, weights):
        self.full_gradient = snapshot.full_gradient
        self.steps = snapshot.num_update - snapshot.taken_at
        self.weights = {name: arrays[0].copy() for name, arrays in weights.items()}


def _advance(module, gradient, before):
    """Set the rate from the changes between two snapshots."""
    svrg, full_gradient = module._svrg, module._svrg.snapshot.full_gradient
    weights = executor_group.parameters(svrg.at.module)
    units = before.full_gradient.units_for(full_gradient.batch_size)
    moved = {name: dense(weights[name][0]) - dense(before.weights[name])
             for name in gradient.decays_of(full_gradient)}
    changes = gradient.change(full_gradient, before.full_gradient, moved, units)
    step_size_rule_of(module).advance(list(moved.values()), list(changes.values()), before.steps,
                                      units, _momentum(module))


def _begin(module, gradient, source, reduction, at_of):
    """Set the first rate, by one more pass over the data."""
    svrg, rule = module._svrg, step_size_rule_of(module)
    try:
        curvature = _curvature(module, gradient, source, reduction, at_of)
    except BaseException:
        svrg.snapshot.is_stale = True  # the next one gives the rate
        raise
    rule.begin(curvature, _momentum(module))
    if not curvature:
        svrg.warn_once('the curvature of the objective cannot be measured at the first '
                       'snapshot: the first learning rate is %g' % rule(None))


def _momentum(module):
    return getattr(module._optimizer, 'momentum', 0)


def _again(svrg, source):
    """Return the batches of a pass for one more: the stored ones if there are any."""
    stored = svrg.store.batches
    if stored:  # the last one may have been cut
        return SimpleNamespace(train_data=stored, count=None, batches=lambda *_: iter(stored))
    return Pass(source.train_data) if source.is_of_training else source


def _curvature(module, gradient, source, reduction, at_of):
    """Return the curvature of the mean objective along its gradient at the snapshot.

    It takes one more pass. It is 0 if it cannot be measured.
    """
    svrg, full_gradient = module._svrg, module._svrg.snapshot.full_gradient
    if svrg.at.is_random:
        return 0.
    weights = executor_group.parameters(svrg.at.module)
    direction = gradient.of(full_gradient, weights)
    norm = length_of(direction.values())
    if not 0 < norm < math.inf:
        return 0.
    # A shorter way would be lost in the rounding of float16.
    coarsest = max(np.finfo(weights[name][0].dtype).eps for name in direction)
    distance = max(_SHIFT, math.sqrt(coarsest)) * max(
        1., length_of(dense(weights[name][0]) for name in direction))
    shift = {name: array * (distance / norm) for name, array in direction.items()}
    nearby = svrg.full_gradient_nearby(shift, module, source, reduction, at_of)
    curvature = length_of(gradient.change(full_gradient, nearby, shift).values()) / distance
    return curvature if math.isfinite(curvature) else 0.


def go_back(module):
    """Set a module to its snapshot, without momentum and with a smaller rate."""
    svrg, rule = module._svrg, step_size_rule_of(module)
    executor_group.copy_all(executor_group.weights(svrg.at.module),
                            executor_group.weights(module))
    executor_group.weights_have_moved(module)
    begin_anew(module, executor_group.parameters(module))
    svrg.snapshot.taken_at = svrg.snapshot.num_update
    rule.slow_down()
    svrg.warn_once('the learning rate was too large: training goes on from the snapshot before, '
                   'with a rate of %g' % rule(None), 'went astray')


def go_back_if_astray(module):
    """Set a module to its snapshot if the steps since have led far away from it."""
    svrg, rule = module._svrg, step_size_rule_of(module)
    if rule is None or not svrg.snapshot.is_active:
        return
    here, there = (length_of(dense(arrays[0]) for arrays in executor_group.parameters(of).values())
                   for of in (module, svrg.at.module))
    if not here <= _FAR * max(1., there):
        go_back(module)

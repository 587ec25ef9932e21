"""Learning rate that a BarzilaiBorwein takes from two snapshots."""

import contextlib

from ..core.arrays import dense
from ..step_size import BarzilaiBorwein
from . import executor_group
from .optimizer_states import kvstore_of_weights, weight_decays


def step_size_rule_of(module):
    """Return the BarzilaiBorwein of a module's optimizer, None if it has none."""
    scheduler = module._optimizer.lr_scheduler if module.optimizer_initialized else None
    return scheduler if isinstance(scheduler, BarzilaiBorwein) else None


@contextlib.contextmanager
def step_size_advanced(module, svrg, batches_of_a_step):
    """Let a BarzilaiBorwein set the next rate from the snapshots before and after the block.

    Parameters
    ----------
    module : mxnet.module.Module
        Module being trained.
    svrg : SVRG
        Its snapshot, which the block replaces. The rate is logged in its epoch.
    batches_of_a_step : int
        Number of batches whose gradients make up one step.
    """
    snapshot = svrg.snapshot
    rule = step_size_rule_of(module)
    if rule is None or not snapshot.is_active:
        yield
        return
    weights = executor_group.parameters(svrg.at.module)
    before = {name: arrays[0].copy() for name, arrays in weights.items()}
    full_before, steps = snapshot.full_gradient, snapshot.num_update - snapshot.taken_at
    optimizer = module._optimizer
    momentum = getattr(optimizer, 'momentum', 0)
    yield
    full_gradient = snapshot.full_gradient
    totals, totals_before = full_gradient.totals(), full_before.totals()
    decays = weight_decays(optimizer, list(totals), kvstore_of_weights(module) is None)
    moved = {name: dense(weights[name][0]) - dense(before[name]) for name in totals}
    units = full_before.units_for(full_gradient.batch_size)
    scale = optimizer.rescale_grad * batches_of_a_step
    rule.advance(list(moved.values()), [
        scale * (totals[name] - units * totals_before[name]) + decays[name] * moved[name]
        for name in totals], steps, units, momentum)
    if svrg.epoch is not None:
        module.logger.info('Epoch[%d] Learning rate=%g', svrg.epoch, rule(None))

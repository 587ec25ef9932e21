"""Learning rate that a BarzilaiBorwein takes from two snapshots."""

import contextlib

from ..kvstore.kinds import batches_of_a_step, kvstore_of, kvstore_of_weights
from ..mxnet_bridge import executor_group
from ..mxnet_bridge.optimizer_states import weight_decays
from ..mxnet_bridge.storage import dense
from ..step_size import BarzilaiBorwein


def step_size_rule_of(module):
    """Return the BarzilaiBorwein of a module's optimizer, None if it has none."""
    scheduler = module._optimizer.lr_scheduler if module.optimizer_initialized else None
    return scheduler if isinstance(scheduler, BarzilaiBorwein) else None


@contextlib.contextmanager
def step_size_advanced(module, snapshot, snapshot_module, epoch):
    """Let a BarzilaiBorwein set the next rate from the snapshots before and after the block.

    Parameters
    ----------
    module : mxnet.module.Module
        Module being trained.
    snapshot : Snapshot
        Its snapshot, which the block replaces.
    snapshot_module : SnapshotModule
        Module at the snapshot.
    epoch : int or None
        Epoch of ``fit``, in which the rate is logged.
    """
    rule = step_size_rule_of(module)
    if rule is None or not snapshot.is_active:
        yield
        return
    weights = executor_group.parameters(snapshot_module.module)
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
    scale = optimizer.rescale_grad * batches_of_a_step(kvstore_of(module))
    rule.advance(list(moved.values()), [
        scale * (totals[name] - units * totals_before[name]) + decays[name] * moved[name]
        for name in totals], steps, units, momentum)
    if epoch is not None:
        module.logger.info('Epoch[%d] Learning rate=%g', epoch, rule(None))

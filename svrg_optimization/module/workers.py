"""A module among the workers that train it: what they share, count and compare."""

from ..core.exclusions import check_together
from ..core.front_end import Workers
from ..data.iterators import rows_left_over, rows_of_batch
from ..kvstore.kinds import features_of, is_asynchronous, is_distributed, is_synchronous
from ..kvstore.workers import OverDevices, OverWorkers, broadcast, wait_for_all_workers
from ..mxnet_repair.kvstore import compresses
from ..svrg_optimizer import _SVRGOptimizer, agreed, update_counts
from . import executor_group


def counts_of_updates(module):
    """Return the optimizer's update counts; compute them if servers have it."""
    if not servers_hold_states(module):
        return update_counts(module._optimizer)
    counts, num_update_at_start = module._counts_at_start
    steps = module._snapshot.num_update - num_update_at_start
    if is_asynchronous(module._kvstore):
        steps *= module._kvstore.num_workers  # each worker's push is an update
    begin = module._optimizer.begin_num_update
    return {'num_update': counts['num_update'] + steps,
            'counts': {name: counts['counts'].get(name, begin) + steps
                       for name in module._trainable}}


def check_plan(module, train_data, epochs, takes_snapshots, takes_snapshot):
    """Raise a ValueError on all workers if ``fit`` would hang or go wrong on some of them.

    Workers also need the same number of batches. A pass over the training
    data compares these numbers. If ``fit`` does not begin with such a pass, the batches
    are counted here, unless `full_grad_batches` is set, which is to save such passes.
    """
    kvstore, svrg, workers = module._kvstore, module._svrg, workers_of(module)
    if not is_distributed(kvstore):
        return
    settings, servers_update = svrg.settings, kvstore_of_weights(module) is not None
    plan = {**settings.agreed(svrg.snapshot.num_taken), 'begin_epoch': epochs.start,
            'num_epoch': epochs.stop, 'a snapshot when fit begins': takes_snapshot}
    if not servers_update:
        plan.update(agreed(module._optimizer))
    if is_synchronous(kvstore):
        plan.update({
            'the batch size of train_data': rows_of_batch(train_data, module.data_shapes),
            'rescale_grad of the optimizer (0 where servers update)':
                0 if servers_update else module._optimizer.rescale_grad,
            "rows left over with last_batch_handle='roll_over'": rows_left_over(train_data)})
    workers.check_same(plan)
    if takes_snapshots:
        check_together(settings.features(), features_of(kvstore, servers_update))
    samples = takes_snapshots and settings.full_grad_batches is not None
    if is_synchronous(kvstore) and not takes_snapshot and not samples:
        workers.check_batches(train_data)


def synchronize(module):
    """Set all workers to the same weights, before a pass.

    It raises a ValueError on all if they update the weights with different optimizers.
    """
    kvstore = module._kvstore
    if not is_distributed(kvstore):
        return
    if is_asynchronous(kvstore):
        wait_for_all_workers(kvstore)
    if kvstore_of_weights(module) is not None:
        executor_group.pull_dense_weights(kvstore, module)
    else:
        workers_of(module).check_same(agreed(module._optimizer))
        broadcast(kvstore, executor_group.parameters(module))
        executor_group.mark_host_copies_stale(module)


def workers_of(module, trains_on_pass=False):
    """Return the Workers over which the full gradient of a module is summed.

    A KVStore with compression would quantize it. The KVStore of an optimizer
    that was borrowed from a plain Module has no keys for it.
    """
    kvstore, keys = module._kvstore, module._keys
    if is_distributed(kvstore):
        return OverWorkers(kvstore, keys, trains_on_pass, keys.created)
    has_keys = kvstore is not None and isinstance(module._optimizer, _SVRGOptimizer)
    if has_keys and not (module._compression_params
                         or compresses(kvstore, keys.first, module._context)):
        return OverDevices(kvstore, keys)
    return OverDevices() if kvstore is not None else Workers()


def kvstore_of_weights(module):
    """Return the KVStore that updates the weights of a module, None if none does."""
    return module._kvstore if module._update_on_kvstore else None


def servers_hold_states(module):
    """Tell whether the states of a module's optimizer are on servers."""
    return is_distributed(kvstore_of_weights(module))

"""State of one module in a KVStore, and its exchanges with the other workers."""

from ..core.front_end import Workers
from ..data.iterators import rows_left_over, rows_of_batch
from ..kvstore import agreement
from ..kvstore.kinds import is_asynchronous, is_distributed, is_synchronous
from ..kvstore.operations import broadcast, wait_for_all_workers
from ..kvstore.workers import OverDevices, OverWorkers
from ..svrg_optimizer import agreed, update_counts
from . import executor_group


class Membership:
    """Keys of a module in a KVStore, and its counts when it joined.

    The module itself is an argument of the methods.
    """

    def __init__(self, keys):
        self.keys, self.created = keys, set()  # those of them that are created late
        self.counts_at_start = None  # of the optimizer, and of the snapshot

    def update_counts(self, module, num_update, names):
        """Return the optimizer's update counts; compute those of `names` if it is on servers."""
        if not servers_hold_states(module):
            return update_counts(module._optimizer)
        counts, num_update_at_start = self.counts_at_start
        steps = num_update - num_update_at_start
        if is_asynchronous(module._kvstore):
            steps *= module._kvstore.num_workers  # each worker's push is an update
        begin = module._optimizer.begin_num_update
        return {'num_update': counts['num_update'] + steps,
                'counts': {name: counts['counts'].get(name, begin) + steps for name in names}}

    def check_plan(self, module, train_data, svrg, epochs, takes_snapshots, takes_snapshot):
        """Raise a ValueError on all workers if ``fit`` would hang or go wrong on some of them.

        Workers also need the same number of batches. A pass over the training
        data compares these numbers. If ``fit`` does not begin with such a pass, the batches
        are counted here, unless `full_grad_batches` is set, which is to save such passes.
        """
        kvstore, settings = module._kvstore, svrg.settings
        if not is_distributed(kvstore):
            return
        plan = {**settings.agreed(svrg.snapshot.num_taken), 'begin_epoch': epochs.start,
                'num_epoch': epochs.stop, 'a snapshot when fit begins': takes_snapshot}
        if kvstore_of_weights(module) is None:
            plan.update(agreed(module._optimizer))
        if is_synchronous(kvstore):
            rescale_grad = 0 if kvstore_of_weights(module) else module._optimizer.rescale_grad
            plan.update({
                'the batch size of train_data': rows_of_batch(train_data, module.data_shapes),
                'rescale_grad of the optimizer (0 where servers update)': rescale_grad,
                "rows left over with last_batch_handle='roll_over'": rows_left_over(train_data)})
        agreement.check_same(kvstore, self.keys.gathered, plan)
        if takes_snapshots:
            agreement.check_waits(kvstore, settings.tol)
        samples = takes_snapshots and settings.full_grad_batches is not None
        if is_synchronous(kvstore) and not takes_snapshot and not samples:
            agreement.check_batch_counts(kvstore, agreement.batches_of_each(
                kvstore, self.keys.gathered, train_data))


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
        agreement.check_same(kvstore, module._membership.keys.gathered, agreed(module._optimizer))
        broadcast(kvstore, executor_group.parameters(module))
        executor_group.mark_host_copies_stale(module)


def workers_of(module, trains_on_pass=False):
    """Return the Workers over which the full gradient of a module is summed."""
    kvstore, membership = module._kvstore, module._membership
    if is_distributed(kvstore):
        return OverWorkers(kvstore, membership.keys, trains_on_pass, membership.created)
    return OverDevices() if kvstore is not None else Workers()


def kvstore_of_weights(module):
    """Return the KVStore that updates the weights of a module, None if none does."""
    return module._kvstore if module._update_on_kvstore else None


def servers_hold_states(module):
    """Tell whether the states of a module's optimizer are on servers."""
    return is_distributed(kvstore_of_weights(module))

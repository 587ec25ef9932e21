"""State of one module in a KVStore, and its exchanges with the other workers."""

from ..data.iterators import rows_left_over, rows_of_batch
from ..module.optimizer_states import kvstore_of, kvstore_of_weights, update_counts
from .agreement import (
    Plan,
    check_batch_counts,
    check_plans,
    count_batches,
    largest_of_workers,
    synchronize_weights,
)
from .kinds import is_asynchronous, is_distributed, is_synchronous


class Membership:
    """Keys of a module in a KVStore, and its counts when it joined.

    The module itself is an argument of the methods.

    Parameters
    ----------
    keys : KVStoreKeys
        Keys of the module.

    Attributes
    ----------
    keys : KVStoreKeys
        Keys of the module.
    """

    def __init__(self, keys):
        self.keys = keys
        self._counts_at_start = self._synchronized_at = self._plan = None

    def begin_counting(self, optimizer, num_update):
        """Note the update counts of an optimizer that is installed after `num_update` updates."""
        self._counts_at_start = update_counts(optimizer), num_update

    def update_counts(self, module, num_update, names):
        """Return the optimizer's update counts; compute them if it is on the servers.

        Parameters
        ----------
        module : mxnet.module.Module
            Module with an optimizer.
        num_update : int
            Number of updates of the module so far.
        names : list of str
            Parameters that are updated.

        Returns
        -------
        dict
            As `update_counts` in module/optimizer_states.py.
        """
        if not servers_hold_states(module):
            return update_counts(module._optimizer)
        counts, num_update_at_start = self._counts_at_start
        steps = num_update - num_update_at_start
        if is_asynchronous(kvstore_of(module)):
            steps *= kvstore_of(module).num_workers  # each worker's push is an update
        begin = module._optimizer.begin_num_update
        return {'num_update': counts['num_update'] + steps,
                'by_name': {name: counts['by_name'].get(name, begin) + steps for name in names}}

    def check_plan(self, module, train_data, svrg, takes_snapshots, takes_snapshot, stores_again):
        """Raise a ValueError on all workers if ``fit`` would hang or go wrong on some of them.

        Workers also need the same number of batches. A pass over the training
        data compares it. If ``fit`` does not begin with such a pass, the batches
        are counted here, unless full gradients are sampled: counting would take
        the pass that sampling saves. If ``fit`` failed only on this worker and is
        called again, the plan is not sent again, since the other workers are
        already in their pass.

        Parameters
        ----------
        module : mxnet.module.Module
            Module that is trained by ``fit``.
        train_data : DataIter
            Its data.
        svrg : SVRG
            Its schedule, snapshot and epoch.
        takes_snapshots : bool
            Whether ``fit`` takes snapshots at all.
        takes_snapshot : bool
            Whether this epoch begins with a snapshot.
        stores_again : bool
            Whether it begins with a pass that stores batches for the snapshot
            before.
        """
        kvstore = kvstore_of(module)
        if not is_distributed(kvstore):
            return
        schedule = svrg.schedule
        sampled = takes_snapshots and (
            schedule.batches_after(svrg.snapshot.num_taken) or 0,
            schedule.updates_per_snapshot or 0, schedule.full_grad_data is not None,
            schedule.tol or 0)
        plan = Plan(rows_of_batch(train_data, module.data_shapes),
                    0 if kvstore_of_weights(module) else module._optimizer.rescale_grad,
                    schedule.update_freq if takes_snapshots else 0, svrg.epoch, takes_snapshot,
                    stores_again, rows_left_over(train_data), *(sampled or ()))
        if self._plan != plan:
            check_plans(kvstore, self.keys.tally, plan)
            self._plan = plan
        if not (takes_snapshot or stores_again):
            self.forget_agreement()
            is_sampled = plan.full_grad_batches or plan.has_full_grad_data
            if is_synchronous(kvstore) and not is_sampled:
                check_batch_counts(kvstore, count_batches(kvstore, self.keys.tally, train_data))

    def largest(self, module, number):
        """Return the largest of the numbers of all workers, so that they decide alike."""
        kvstore = kvstore_of(module)
        return largest_of_workers(kvstore, self.keys.tally, number)[0] if is_distributed(
            kvstore) else number

    def synchronize(self, module, num_update):
        """Set all workers to the same weights, once before a pass after `num_update` updates.

        If the pass failed only on this worker and is tried again, the worker
        must not wait for the others again.
        """
        kvstore = kvstore_of(module)
        if is_distributed(kvstore) and self._synchronized_at != num_update:
            synchronize_weights(kvstore, module, kvstore_of_weights(module) is not None)
            self._synchronized_at = num_update

    def forget_agreement(self):
        """Forget the plan and the synchronization, once all workers are past them."""
        self._synchronized_at = self._plan = None


def servers_hold_states(module):
    """Tell whether the states of a module's optimizer are on servers."""
    return is_distributed(kvstore_of_weights(module))

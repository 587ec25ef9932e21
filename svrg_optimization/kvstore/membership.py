"""State of one module in a KVStore."""

from .agreement import check_plans, synchronize_weights


class Membership:
    """Keys of a module in a KVStore, and its counts when it joined.

    Parameters
    ----------
    keys : KVStoreKeys
        Keys of the module.

    Attributes
    ----------
    keys : KVStoreKeys
        Keys of the module.
    counts_at_start : tuple of (dict, int), or None
        Update counts of the optimizer and the number of updates of the module
        when the optimizer was installed.
    """

    def __init__(self, keys):
        self.keys = keys
        self.counts_at_start = None
        self._synchronized_at = self._plan = None

    def check_plan(self, kvstore, plan):
        """Compare the plans of all workers, once before a pass.

        If ``fit`` failed only on this worker and is called again, the plan must
        not be sent again: the other workers are already in their pass.
        """
        if self._plan != plan:
            check_plans(kvstore, self.keys.tally, plan)
            self._plan = plan

    def synchronize(self, kvstore, module, servers_update, num_update):
        """Set all workers to the same weights, once before a pass after `num_update` updates.

        If the pass failed only on this worker and is tried again, the worker
        must not wait for the others again.
        """
        if self._synchronized_at != num_update:
            synchronize_weights(kvstore, module, servers_update)
            self._synchronized_at = num_update

    def allow_next(self):
        """Allow the next plan and the next synchronization, once all workers are past these."""
        self._synchronized_at = self._plan = None

"""What one module has in a KVStore."""

from .agreement import check_plans, synchronize_weights


class Membership:
    """Keys of a module in a KVStore, and what was counted when it joined.

    Parameters
    ----------
    keys : KVStoreKeys

    Attributes
    ----------
    keys : KVStoreKeys
    counts_at_start : tuple of (dict, int), or None
        The optimizer's counts of updates and the module's, at that time.
    """

    def __init__(self, keys):
        self.keys = keys
        self.counts_at_start = None
        self._synchronized_at = self._plan = None

    def check_plan(self, kvstore, plan):
        """Tell the other workers what ``fit`` is about to do here, once before a pass.

        A ``fit`` that failed on this worker alone, and is called again, must
        not tell it once more: the others are in their pass.
        """
        if self._plan != plan:
            check_plans(kvstore, self.keys.tally, plan)
            self._plan = plan

    def synchronize(self, kvstore, module, servers_update, num_update):
        """Bring all workers to the same weights, for a pass after so many updates.

        A pass that failed on this worker alone, and is tried again, must not
        wait for the others once more.
        """
        if self._synchronized_at != num_update:
            synchronize_weights(kvstore, module, servers_update)
            self._synchronized_at = num_update

    def begin_anew(self):
        """Forget what was told and synchronized, when the workers' pass or epoch goes on."""
        self._synchronized_at = self._plan = None

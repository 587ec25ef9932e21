"""Workers that update the weights themselves, together or each of them alone."""

from mxnet.kvstore import KVStoreBase

from ..core.arrays import summed
from .kinds import LOCAL_STEPS, is_asynchronous, is_distributed, kind_of


def check_local_steps(local_steps, kvstore, sparse=()):
    """Raise a ValueError if workers cannot make their steps alone.

    `sparse` are the parameters that are row_sparse or have such gradients.
    """
    if not local_steps:
        return
    if is_asynchronous(kvstore):
        raise ValueError("kvstore must be synchronous with local_steps, as 'dist_sync' is, since "
                         'workers wait for each other at a snapshot, and not %r' % kind_of(kvstore))
    if is_distributed(kvstore) and sparse:
        raise ValueError('local_steps must be False where parameters or their gradients are '
                         'row_sparse, as %s' % ', '.join(sparse))


class WorkersUpdate(KVStoreBase):
    """A synchronous distributed KVStore whose workers update the weights, not its servers."""

    def __init__(self, kvstore):
        self._kvstore = kvstore

    def __getattr__(self, name):
        return getattr(self._kvstore, name)

    # KVStoreBase has these, so Python does not call __getattr__ for them.
    type = property(lambda store: store._kvstore.type)
    rank = property(lambda store: store._kvstore.rank)
    num_workers = property(lambda store: store._kvstore.num_workers)
    broadcast = property(lambda store: store._kvstore.broadcast)
    pushpull = property(lambda store: store._kvstore.pushpull)
    is_capable = staticmethod(lambda capability: False)  # it updates no weights


class LocalSteps(WorkersUpdate):
    """A distributed KVStore whose workers step alone.

    `pushpull`, which Module and Trainer call only for the gradients of a step, sums over the
    devices of this process. All other operations reach the other workers.
    """

    @property
    def type(self):
        """Kind, without the "_sync" that makes Module divide by the rows of all workers."""
        return self._kvstore.type.replace('_sync', '') + LOCAL_STEPS

    def pushpull(self, key, value, out=None, priority=0):
        """Sum over the devices of this process."""
        total = summed(value)
        for array in value if out is None else out:
            if array is not total:
                total.copyto(array)

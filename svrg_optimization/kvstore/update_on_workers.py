"""A KVStore whose workers update the weights themselves."""

from mxnet.kvstore import KVStoreBase


class UpdateOnWorkers(KVStoreBase):
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

"""Horovod: workers that sum without servers, behind the operations of a KVStore."""

import atexit
import itertools
import sys

from mxnet import nd
from mxnet.kvstore import KVStoreBase

from ..core.arrays import summed
from .kinds import HOROVOD, kind_of

_numbers = itertools.count()


def is_wrapped(optimizer):
    """Tell whether an optimizer is Horovod's wrapper of another one."""
    hvd = sys.modules.get('horovod.mxnet')
    return hvd is not None and isinstance(optimizer, hvd.DistributedOptimizer)


def with_horovod(kvstore, optimizer):
    """Return the KVStore to train with, Horovod's in place of its name.

    It raises a ValueError if the optimizer is Horovod's wrapper, or if Horovod is not installed.
    """
    if is_wrapped(optimizer):
        raise ValueError("optimizer must not be a DistributedOptimizer, which would sum over the "
                         "workers twice: give the optimizer itself, and kvstore='horovod'")
    if kind_of(kvstore) != HOROVOD:
        return kvstore
    if not isinstance(kvstore, str):
        raise ValueError('kvstore must be the name %r, not a KVStore of mx.kv.create(%r), which '
                         'knows of no other process' % (HOROVOD, HOROVOD))
    return Horovod()


class Horovod(KVStoreBase):
    """All workers of Horovod.

    A push sums its array in place. The sum is kept until it is pulled.
    """

    type = HOROVOD + '_dist_sync'  # MXNet looks for "dist" and "_sync"

    def __init__(self):
        try:
            import horovod.mxnet as hvd  # noqa: PLC0415
        except ImportError as error:
            raise ValueError('kvstore %r needs Horovod, built for MXNet (HOROVOD_WITH_MXNET=1): %s'
                             % (HOROVOD, error)) from error
        if not hvd.is_initialized():
            raise ValueError('kvstore %r needs horovod.mxnet.init() before it' % HOROVOD)
        atexit.register(nd.waitall)  # before Horovod's own, which drops what is not summed yet
        self._hvd, self._values, self._number = hvd, {}, None

    @property
    def rank(self):
        """Number of this worker."""
        return self._hvd.rank()

    @property
    def num_workers(self):
        """Number of workers."""
        return self._hvd.size()

    @staticmethod
    def is_capable(capability):
        """Tell that it updates no weights."""
        return False

    def _name(self, key):
        if self._number is None:  # only after all checks do all workers have the same count
            self._number = next(_numbers)
        return 'svrg%d:%s' % (self._number, key)

    def init(self, key, value):
        """Create a key, or a list of keys, with the values of rank 0."""
        for one, its in zip(key, value) if isinstance(key, list) else [(key, value)]:
            self._values[one] = self._hvd.broadcast(its, 0, name=self._name(one))

    def push(self, key, value, priority=0):
        """Sum one array per device over all devices and workers."""
        total = summed(value if isinstance(value, list) else [value])
        self._values[key] = self._hvd.allreduce_(
            total, op=self._hvd.Sum, name=self._name(key), priority=priority)

    def pull(self, key, out=None, priority=0, ignore_sparse=True):
        """Set the array of each device to what was pushed."""
        value = self._values.pop(key)
        for array in out if isinstance(out, list) else [out]:
            if array is not value:
                value.copyto(array)

    def pushpull(self, key, value, out=None, priority=0):
        """Push and pull."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out)

    def broadcast(self, key, value, out, priority=0):
        """Set the array of each device to the value of rank 0."""
        self.init(key, value)
        self.pull(key, out)

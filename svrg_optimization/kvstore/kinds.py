"""Kinds of KVStore, and what each does."""

import os

from mxnet.model import _create_kvstore

from ..core.exclusions import SERVERS

HOROVOD = 'horovod'


def kind_of(kvstore):
    """Return the kind of a KVStore or of its name, '' for None."""
    return kvstore if isinstance(kvstore, str) else getattr(kvstore, 'type', '')


def is_distributed(kvstore):
    """Tell whether a KVStore, or one of this name, connects several processes."""
    return 'dist' in kind_of(kvstore)


def has_servers(kvstore):
    """Tell whether the processes that a KVStore connects include parameter servers."""
    return is_distributed(kvstore) and HOROVOD not in kind_of(kvstore)


def is_asynchronous(kvstore):
    """Tell whether servers apply the push of each worker separately."""
    return is_distributed(kvstore) and '_async' in kind_of(kvstore)


def is_synchronous(kvstore):
    """Tell whether servers apply the pushes of all workers together, as 'dist' does too."""
    return is_distributed(kvstore) and not is_asynchronous(kvstore)


def will_update(kvstore, devices, arg_params):
    """Tell whether Module will let a KVStore, or one of this name, update the weights."""
    if isinstance(kvstore, str) and is_distributed(kvstore):
        return bool(int(os.getenv('MXNET_UPDATE_ON_KVSTORE', '1')))
    # A KVStore made from a name here only shows how Module will decide.
    return _create_kvstore(kvstore, devices, arg_params)[1]


def features_of(kvstore, updates=False):
    """Return what `check_together` takes of a KVStore, and whether it updates the weights."""
    kind, connects = kind_of(kvstore), is_distributed(kvstore)
    return {'a distributed kvstore': connects and kind,
            'an asynchronous kvstore': is_asynchronous(kvstore) and kind,
            'Horovod': connects and not has_servers(kvstore),
            SERVERS: connects and updates and kind,
            'MXNET_UPDATE_ON_KVSTORE=0': connects and not updates and '0',
            'a kvstore that updates no weights': kvstore is not None and not updates}


def warn_of_devices(kvstore, devices, warn_once):
    """Warn where nothing sums the gradients of several devices."""
    if kvstore is None and devices > 1:
        warn_once('with kvstore=None each of the %d devices trains alone, and weights drift '
                  "apart: the kvstores 'local' and 'device' sum the gradients" % devices)

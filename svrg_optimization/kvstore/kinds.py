"""Kinds of KVStore: what each does, and which combinations MXNet cannot handle."""

import os

from mxnet.model import _create_kvstore

from ..core.requirements import COMPRESSED

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


def check_waits(kvstore, tol):
    """Raise a ValueError for a `tol` if the workers do not wait for each other in a step."""
    if tol is not None and is_asynchronous(kvstore):
        raise ValueError('tol must be None with the kvstore %r, whose workers do not wait for '
                         'each other, and not %g' % (kind_of(kvstore), tol))


def warn_of_devices(kvstore, devices, warn_once):
    """Warn where nothing sums the gradients of several devices."""
    if kvstore is None and devices > 1:
        warn_once('with kvstore=None each of the %d devices trains alone, and weights drift '
                  "apart: the kvstores 'local' and 'device' sum the gradients" % devices)


def check_usable(kvstore, updates, devices, compression_params, sparse_weights, sparse_gradients,
                 loads_states):
    """Raise a ValueError if MXNet's KVStore would abort, hang or give wrong results.

    `updates` tells whether the KVStore updates the weights. The sparse ones are lists of names.
    """
    kind, sparse = kind_of(kvstore), sparse_weights + sparse_gradients
    distributed, names = is_distributed(kvstore), ', '.join(sparse)
    if distributed and compression_params:
        raise ValueError('compression_params must be None with the distributed kvstore %r, not %r: '
                         '%s' % (kind, compression_params, COMPRESSED))
    if is_asynchronous(kvstore) and not updates:
        raise ValueError('kvstore %r needs MXNET_UPDATE_ON_KVSTORE=1: its servers must update the '
                         'weights' % kind)
    if distributed and sparse and not has_servers(kvstore):
        raise ValueError("kvstore must not be Horovod's where parameters or their gradients are "
                         'row_sparse, as %s: it sums dense arrays' % names)
    if distributed and sparse_gradients:
        raise ValueError('kvstore must not be distributed (%r) where dense parameters have '
                         'row_sparse gradients, as %s has' % (kind, ', '.join(sparse_gradients)))
    if sparse and kvstore is not None and not updates and (distributed or devices > 1):
        raise ValueError('row_sparse gradients on several devices or workers need a kvstore that '
                         'updates the weights (MXNET_UPDATE_ON_KVSTORE=1, and no array of more '
                         'than 2**24 elements), and %s would be wrong without' % names)
    if distributed and updates and loads_states:
        raise ValueError('load_optimizer_states must be False where the servers of the kvstore %r '
                         'hold the states: with MXNET_UPDATE_ON_KVSTORE=0 workers hold them' % kind)

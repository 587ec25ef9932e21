"""The keys that modules have in a KVStore."""

import weakref

from .svrg_optimizer import full_gradient_keys, unused_key

_tenants = weakref.WeakKeyDictionary()


class KVStoreKeys:
    """What a module calls its values in a KVStore.

    Parameters
    ----------
    param_names : list of str
        All parameters of the module, in its order.
    trainable : iterable of str
        Those that have a full gradient.
    counted : iterable of str
        Those of which workers count how often each row occurs.
    taken : iterable of str
        Keys that the KVStore has already.

    Attributes
    ----------
    params : list of str
        The parameters, which are called by their names.
    full : dict of str to str
        From parameter to its full gradient.
    row_counts : dict of str to str
        From counted parameter to how often each of its rows occurs.
    tally : str
        What the workers tell each other of their passes.
    first : str
        Created before all others, to learn the servers' numbers.
    """

    def __init__(self, param_names, trainable, counted=(), taken=()):
        self.params = list(param_names)
        taken = {*taken, *param_names}
        self.full = full_gradient_keys(trainable, taken)
        taken.update(self.full.values())
        self.row_counts = {name: unused_key(name, '_rows', taken) for name in counted}
        taken.update(self.row_counts.values())
        self.tally = unused_key('svrg', '_tally', taken)
        self.first = unused_key('svrg', '_first', taken)

    @property
    def assigned(self):
        """The keys whose values are summed and not stepped, in the order of their creation."""
        return [*self.full.values(), *self.row_counts.values(), self.tally]

    @property
    def on_servers(self):
        """All keys, in the order of their creation."""
        return [self.first, *self.params, *self.assigned]


class Tenant:
    """A module that has keys in a KVStore.

    Parameters
    ----------
    keys : KVStoreKeys
    optimizer : _SVRGOptimizer
    snapshot : Snapshot
        The module's; it counts the updates.
    """

    def __init__(self, keys, optimizer, snapshot):
        self.keys = keys
        self.optimizer = optimizer
        self._snapshot = weakref.ref(snapshot)
        self._updates_before = snapshot.num_update

    @property
    def has_stepped(self):
        """Whether a module that is still in use has updated its weights."""
        snapshot = self._snapshot()
        return snapshot is not None and snapshot.num_update > self._updates_before


def tenants_of(kvstore):
    """List the modules that have keys in a KVStore; the list may be added to."""
    return _tenants.setdefault(kvstore, [])


def known_kvstores():
    """List the KVStores in use in which modules have keys."""
    return list(_tenants)


def keys_in(kvstore):
    """Collect the keys that modules have in a KVStore."""
    return {key for tenant in tenants_of(kvstore) for key in tenant.keys.on_servers}


def check_room(kvstore, param_names, updates):
    """Raise a ValueError where a KVStore cannot take the keys of one more module.

    Parameters
    ----------
    kvstore : mxnet.kvstore.KVStore
    param_names : list of str
        That module's parameters.
    updates : bool
        Whether it updates the weights.
    """
    tenants = tenants_of(kvstore)
    duplicates = keys_in(kvstore).intersection(param_names)
    if duplicates:
        raise ValueError('kvstore already holds a module with the keys %s: give this module a '
                         'kvstore of its own, or other parameter names'
                         % ', '.join(sorted(duplicates)))
    if not updates:
        return
    if any(tenant.has_stepped for tenant in tenants):
        raise ValueError('kvstore already updates the weights of a module that has begun its '
                         'training, and would lose the states of its optimizer: call '
                         'init_optimizer of all modules before the first step, or set '
                         'MXNET_UPDATE_ON_KVSTORE=0')
    if not tenants and getattr(kvstore, '_updater', None) is not None:
        raise _foreign_keys()


def check_number_of_first_key(kvstore, number):
    """Raise a ValueError where others than SVRG modules have keys, whose updates would be lost."""
    if number != sum(len(tenant.keys.on_servers) for tenant in tenants_of(kvstore)):
        raise _foreign_keys()


def _foreign_keys():
    return ValueError('kvstore must not update the weights of a plain Module as well: it has one '
                      'optimizer for all its keys')

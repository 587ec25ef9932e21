"""The keys that modules have in a KVStore."""

import functools
import weakref

from .kvstores import is_distributed, number_of_new_key
from .svrg_optimizer import _SVRGOptimizer, full_gradient_keys, unused_key


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
    first : str, optional
        The first key, where it has been created.

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

    def __init__(self, param_names, trainable, counted=(), taken=(), first=None):
        self.params = list(param_names)
        taken = {*taken, *param_names}
        self.full = full_gradient_keys(trainable, taken)
        taken.update(self.full.values())
        self.row_counts = {name: unused_key(name, '_rows', taken) for name in counted}
        taken.update(self.row_counts.values())
        self.tally = unused_key('svrg', '_tally', taken)
        self.first = first or unused_key('svrg', '_first', taken)

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
    updates : bool
        Whether the KVStore updates the weights.
    """

    def __init__(self, keys, optimizer, snapshot, updates):
        self.keys = keys
        self.optimizer = optimizer
        self.updates = updates
        self._snapshot = weakref.ref(snapshot)
        self._updates_before = snapshot.num_update

    @property
    def has_stepped(self):
        """Whether a module that is still in use has updated its weights."""
        snapshot = self._snapshot()
        return snapshot is not None and snapshot.num_update > self._updates_before


class Tenants:
    """The modules that have keys in one KVStore.

    Attributes
    ----------
    modules : list of Tenant
    compresses : bool or None
        Whether the KVStore compresses gradients, once that is known.
    """

    def __init__(self):
        self.modules = []
        self.compresses = None
        self._first = None

    @property
    def keys(self):
        """The keys of all of them, and one that awaits the next."""
        keys = {key for tenant in self.modules for key in tenant.keys.on_servers}
        return keys | {self._first[0]} if self._first else keys

    def check_room(self, kvstore, param_names, updates):
        """Raise a ValueError where the KVStore cannot take the keys of one more module.

        Parameters
        ----------
        kvstore : mxnet.kvstore.KVStore
        param_names : list of str
            That module's parameters.
        updates : bool
            Whether the KVStore would update its weights.
        """
        duplicates = self.keys.intersection(param_names)
        if duplicates:
            raise ValueError('kvstore already holds a module with the keys %s: %s' % (
                ', '.join(sorted(duplicates)),
                'give another module other parameter names; the optimizer of this one, once '
                'installed, stays for the whole job, as the keys on the servers do'
                if is_distributed(kvstore) else
                'give this module a kvstore of its own, or other parameter names'))
        if any(tenant.updates != updates for tenant in self.modules):
            raise ValueError('kvstore must update the weights of all modules or of none: '
                             'MXNET_UPDATE_ON_KVSTORE is %d now, and was %d when it took another '
                             'module' % (updates, not updates))
        if not updates:
            return
        if any(tenant.has_stepped for tenant in self.modules):
            raise ValueError('kvstore already updates the weights of a module that has begun its '
                             'training, and would lose the states of its optimizer: call '
                             'init_optimizer of all modules before the first step, or set '
                             'MXNET_UPDATE_ON_KVSTORE=0')
        if not self.modules and getattr(kvstore, '_updater', None) is not None:
            raise _foreign_keys()

    def keys_for(self, param_names, trainable, counted):
        """Name the keys of one more module; see KVStoreKeys."""
        first = self._first and self._first[0]
        return KVStoreKeys(param_names, trainable, counted, self.keys - {first}, first)

    def number_of_first_key(self, kvstore, keys, updates):
        """Create the first key of one more module on the servers; return its number there.

        A key that was created for a module whose optimizer could not be
        installed then is that of the next one.

        Raises
        ------
        ValueError
            If the KVStore compresses gradients, or has keys of others than
            SVRG modules whose weights it would not update any more.
        """
        if self._first is None and not self.compresses:
            self._first = keys.first, number_of_new_key(kvstore, keys.first)
            self.compresses = self._first[1] is None
        if self.compresses:
            raise ValueError('kvstore must not compress gradients (set_gradient_compression): it '
                             'would compress the full gradient too')
        _, number = self._first
        if updates and number != sum(len(tenant.keys.on_servers) for tenant in self.modules):
            raise _foreign_keys()
        return number

    def add(self, kvstore, tenant):
        """Add a module, and let no other optimizer replace its own from now on."""
        self.modules.append(tenant)
        self._first = None
        if tenant.updates and 'set_optimizer' not in vars(kvstore):
            kvstore.set_optimizer = functools.partial(_set_optimizer, weakref.ref(kvstore))


_tenants = weakref.WeakKeyDictionary()


def tenants_of(kvstore):
    """Return the modules that have keys in a KVStore."""
    return _tenants.setdefault(kvstore, Tenants())


def _set_optimizer(kvstore, optimizer):
    kvstore = kvstore()
    if not isinstance(optimizer, _SVRGOptimizer):
        raise _foreign_keys()
    type(kvstore).set_optimizer(kvstore, optimizer)


def _foreign_keys():
    return ValueError('kvstore must not update the weights of a plain Module and of an SVRGModule: '
                      'it has one optimizer for all its keys')

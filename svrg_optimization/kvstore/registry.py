"""Registry of the modules that share a KVStore."""

import functools
import weakref

from ..svrg_optimizer import _SVRGOptimizer
from .keys import KVStoreKeys
from .kinds import is_distributed
from .operations import number_of_new_key


class RegisteredModule:
    """Module with keys in a KVStore.

    Parameters
    ----------
    keys : KVStoreKeys
        Keys of the module.
    optimizer : _SVRGOptimizer
        Optimizer of the module.
    snapshot : Snapshot
        Snapshot of the module, which counts its updates.
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
        """Whether the module is still in use and has updated its weights."""
        snapshot = self._snapshot()
        return snapshot is not None and snapshot.num_update > self._updates_before


class ModuleRegistry:
    """Registry of the modules with keys in one KVStore.

    Attributes
    ----------
    modules : list of RegisteredModule
        Modules in the order of their registration.
    compresses : bool or None
        Whether a distributed KVStore compresses gradients; None if not known yet.
    is_half_used : bool
        Whether keys were created for a module whose optimizer is not installed.
    """

    def __init__(self):
        self.modules = []
        self.compresses = None
        self.is_half_used = False
        self._first = None

    @property
    def keys(self):
        """Keys of all modules, and the first key of the next module if it exists already."""
        keys = {key for registered in self.modules for key in registered.keys.on_servers}
        return keys | {self._first[0]} if self._first else keys

    def check_room(self, kvstore, param_names, updates):
        """Raise a ValueError if the KVStore cannot take one more module.

        Parameters
        ----------
        kvstore : mxnet.kvstore.KVStore
            KVStore of this registry.
        param_names : list of str
            Parameters of the new module.
        updates : bool
            Whether the KVStore would update its weights.
        """
        if self.is_half_used:
            raise ValueError('kvstore has keys of a module whose init_optimizer failed, and cannot '
                             'be used any more: make another one')
        duplicates = self.keys.intersection(param_names)
        if duplicates:
            raise ValueError('kvstore already holds a module with the keys %s: %s' % (
                ', '.join(sorted(duplicates)),
                'give another module other parameter names; the optimizer of this one, once '
                'installed, stays for the whole job, as the keys on the servers do'
                if is_distributed(kvstore) else
                'give this module a kvstore of its own, or other parameter names'))
        if any(registered.updates != updates for registered in self.modules):
            raise ValueError('kvstore must update the weights of all modules or of none: it would '
                             '%supdate those of this module, and does %supdate those of an earlier '
                             'one (MXNET_UPDATE_ON_KVSTORE decides, or a BarzilaiBorwein, whose '
                             'rate needs workers that update)'
                             % (('', 'not ') if updates else ('not ', '')))
        if not updates:
            return
        if any(registered.has_stepped for registered in self.modules):
            raise ValueError('kvstore already updates the weights of a module that has begun its '
                             'training, and would lose the states of its optimizer: call '
                             'init_optimizer of all modules before the first step, or set '
                             'MXNET_UPDATE_ON_KVSTORE=0')
        if not self.modules and getattr(kvstore, '_updater', None) is not None:
            raise _foreign_keys()

    def keys_for(self, param_names, trainable, counted):
        """Return the KVStoreKeys of one more module."""
        first = self._first and self._first[0]
        return KVStoreKeys(param_names, trainable, counted, self.keys - {first}, first)

    @property
    def updates_none(self):
        """Whether there are modules, whose weights the KVStore does not update."""
        return any(not registered.updates for registered in self.modules)

    def number_of_first_key(self, kvstore, keys, holds_ours_alone):
        """Create the first key of one more module on the servers; return its number there.

        If the optimizer of a module could not be installed, the next module
        uses the first key that was created for it.

        Raises
        ------
        ValueError
            If the KVStore compresses gradients, or if it must hold keys of SVRG
            modules alone and has others.
        """
        if self._first is None and not self.compresses:
            self._first = keys.first, number_of_new_key(kvstore, keys.first)
            self.compresses = self._first[1] is None
        if self.compresses:
            raise ValueError('kvstore must not compress gradients (set_gradient_compression): it '
                             'would compress the full gradient too')
        _, number = self._first
        ours = sum(len(module.keys.on_servers) for module in self.modules)
        if holds_ours_alone and number != ours:
            raise _foreign_keys()
        return number

    def add(self, kvstore, registered):
        """Register a module. From now on no other kind of optimizer can replace the KVStore's."""
        self.modules.append(registered)
        self._first, self.is_half_used = None, False
        if 'set_optimizer' not in vars(kvstore) and (
                registered.updates or is_distributed(kvstore)):
            kvstore.set_optimizer = functools.partial(_set_optimizer, weakref.ref(kvstore))


_registries = weakref.WeakKeyDictionary()


def registry_of(kvstore):
    """Return the registry of a KVStore, which is created the first time."""
    return _registries.setdefault(kvstore, ModuleRegistry())


def _set_optimizer(kvstore, optimizer):
    kvstore = kvstore()
    if not isinstance(optimizer, _SVRGOptimizer):
        raise _foreign_keys()
    type(kvstore).set_optimizer(kvstore, optimizer)


def _foreign_keys():
    return ValueError('kvstore must not update the weights of a plain Module and of an SVRGModule: '
                      'it has one optimizer for all its keys')

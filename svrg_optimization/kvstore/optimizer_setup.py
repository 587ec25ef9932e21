"""Parts of installing an optimizer: its KVStore, its wrapper, the keys of full gradients."""

import contextlib
import pickle

import mxnet as mx
from mxnet.kvstore import KVStore

from ..mxnet_bridge import executor_group
from ..mxnet_bridge.optimizer_states import updater_keys
from ..mxnet_bridge.storage import dtype_of_sum
from ..svrg_optimizer import _SVRGOptimizer
from .agreement import PassCounts
from .kinds import (
    batches_of_rescaling,
    check_usable,
    is_asynchronous,
    is_distributed,
    kvstore_of,
    will_update,
)
from .operations import open_distributed, probe_of_compression
from .registry import ModuleRegistry, RegisteredModule, registry_of
from .worker_exit import prepare_exit

# Attributes that `init_optimizer` sets.
_INSTALLED = {'_optimizer', '_kvstore', '_update_on_kvstore', '_updater', 'optimizer_initialized',
              '_preload_opt_states', '_membership', '_loaded'}


@contextlib.contextmanager
def optimizer_kept_on_error(module):
    """Restore the optimizer of a module, or its absence, if the block fails."""
    before = {name: value for name, value in vars(module).items() if name in _INSTALLED}
    try:
        yield
    except BaseException:
        vars(module).update(before)
        raise


def usable_kvstore(module, kvstore):
    """Check a KVStore; return it, connected if distributed, and whether it updates weights."""
    updates = will_update(kvstore, len(module._context), module._arg_params)
    check_usable(kvstore, updates, len(module._context), module._compression_params,
                 *executor_group.sparse_parameters(module),
                 loads_states=module._preload_opt_states is not None)
    if isinstance(kvstore, str) and is_distributed(kvstore):
        kvstore = open_distributed(kvstore)
    return kvstore, updates


def wrapped_optimizer(module, keys, proximal, default_opt, kvstore, optimizer_params):
    """Return an _SVRGOptimizer around an optimizer, which is created as in Module.

    Parameters
    ----------
    module : mxnet.module.Module
        Module being trained.
    keys : KVStoreKeys
        Its keys.
    proximal : ProximalOperators
        Its proximal operators.
    default_opt, kvstore, optimizer_params
        As in ``SVRGModule._create_optimizer``.
    """
    updates = will_update(kvstore, len(module._context), module._arg_params)
    copies = 1 if updates else len(module._context)
    idx2name = {key: name for key, (name, _) in updater_keys(keys.params, copies).items()}
    proximal = proximal.steps(module._arg_params, idx2name)
    if isinstance(default_opt, _SVRGOptimizer):
        default_opt = default_opt.default_opt
    if not isinstance(default_opt, str):
        return _SVRGOptimizer(default_opt, full_keys=keys.summed, proximal=proximal,
                              param_idx2name=idx2name)
    params = dict(optimizer_params)
    params.setdefault('rescale_grad', 1.0 / (executor_group.batch_size(module)
                                             * batches_of_rescaling(kvstore)))
    return _SVRGOptimizer(default_opt, full_keys=keys.summed, proximal=proximal, sym=module.symbol,
                          param_idx2name=idx2name, **params)


class Joining:
    """One module's way into a KVStore.

    Parameters
    ----------
    kvstore : str or KVStore or None
        KVStore that `usable_kvstore` returned.
    updates : bool
        Whether it updates weights.
    param_names : list of str
        All parameters of the module.
    trainable : list of str
        Parameters with a full gradient.
    counted : iterable of str
        Parameters whose rows are counted.

    Attributes
    ----------
    keys : KVStoreKeys
        Keys of the module.

    Raises
    ------
    ValueError
        If the KVStore cannot take one more module.
    """

    def __init__(self, kvstore, updates, param_names, trainable, counted):
        self._kvstore, self._updates = kvstore, updates
        self._registry = registry_of(kvstore) if isinstance(kvstore, KVStore) else ModuleRegistry()
        self._registry.check_room(kvstore, param_names, updates)
        self.keys = self._registry.keys_for(param_names, trainable, counted)

    def place_on_servers(self, optimizer):
        """Tell an _SVRGOptimizer which key each number of a distributed KVStore stands for."""
        if not is_distributed(self._kvstore):
            return
        prepare_exit(self._kvstore)
        if self._updates:
            pickle.dumps(optimizer, 0)  # MXNet does so too, but after keys are created
        number = self._registry.number_of_first_key(self._kvstore, self.keys, self._updates)
        if self._updates:
            optimizer.place_on_servers(
                dict(enumerate(self.keys.on_servers, number)),
                self._kvstore.num_workers if is_asynchronous(self._kvstore) else 1)

    def begin(self, optimizer):
        """Let an _SVRGOptimizer update all modules of the KVStore, which has new keys from here."""
        if self._updates:
            for registered in self._registry.modules:
                optimizer.share_kvstore_with(registered.optimizer, registered.keys.on_servers)
        self._registry.is_half_used = True

    def complete(self, module, optimizer, snapshot):
        """Create the keys of full gradients and register the module.

        Parameters
        ----------
        module : mxnet.module.Module
            Module with its optimizer installed.
        optimizer : _SVRGOptimizer
            Its optimizer.
        snapshot : Snapshot
            Its snapshot, which counts its updates.
        """
        kvstore = kvstore_of(module)
        if not kvstore:
            return
        self._create_keys_of_full_gradient(module, kvstore)
        registry_of(kvstore).add(kvstore, RegisteredModule(self.keys, optimizer, snapshot,
                                                           self._updates))

    def _create_keys_of_full_gradient(self, module, kvstore):
        weights = module._arg_params
        values = {key: mx.nd.zeros(weights[name].shape, dtype=dtype_of_sum(weights[name].dtype))
                  for name, key in self.keys.full.items()}
        if is_distributed(kvstore):
            values.update((key, mx.nd.zeros(weights[name].shape[:1], dtype='float64'))
                          for name, key in self.keys.row_counts.items())
            values[self.keys.tally] = PassCounts(kvstore).value
            # Module does not give the workers rank 0's weights if they update the weights
            # themselves, and never updates their copies on the host.
            executor_group.pull_dense_weights(kvstore, module)
        else:
            values[self.keys.first] = probe_of_compression()
        if values:
            kvstore.init(list(values), list(values.values()))

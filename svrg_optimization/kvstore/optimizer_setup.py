"""Installing an optimizer: wrapped, with its keys in the KVStore, or borrowed."""

import contextlib
import pickle
import warnings

import mxnet as mx
from mxnet.kvstore import KVStore
from mxnet.module import Module

from ..mxnet_bridge import executor_group
from ..mxnet_bridge.optimizer_states import check_learning_rate, update_counts
from ..mxnet_bridge.storage import dtype_of_sum
from ..step_size import check_step_size
from ..svrg_optimizer import _SVRGOptimizer
from .agreement import PassCounts
from .kinds import (
    batches_of_rescaling,
    check_usable,
    is_asynchronous,
    is_distributed,
    size_split_on_servers,
    will_update,
)
from .membership import Membership
from .operations import open_distributed, probe_of_compression, push_all_before_exit
from .registry import ModuleRegistry, RegisteredModule, registry_of

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


class OptimizerSetup:
    """Mixin that installs the optimizer of an SVRGModule."""

    def init_optimizer(self, kvstore='local', optimizer='sgd',
                       optimizer_params=(('learning_rate', 0.01),), force_init=False):
        """Install the optimizer.

        It is wrapped, so that the KVStore updates weights with gradients and
        only sums full gradients over the devices.

        Parameters
        ----------
        kvstore : str or KVStore
            KVStore, or its name as in Module. A process has one connection to
            its servers, so all modules with the same name of a distributed
            KVStore share it.
        optimizer : str or Optimizer
            Any optimizer of MXNet, or its registered name.
        optimizer_params : dict
            Arguments of an optimizer that is given by name. `rescale_grad` has
            the same default as in Module.
        force_init : bool
            Whether to install it even if there is one already.

        Raises
        ------
        ValueError
            If MXNet would abort, hang or give wrong results with this
            `kvstore`: a distributed one with `compression_params`;
            ``dist_async`` with ``MXNET_UPDATE_ON_KVSTORE=0``; one that does not
            sum row_sparse gradients correctly; one whose servers would have to
            load optimizer states; or one that is already used by a plain
            Module, by a module with the same parameter names, or by a module
            that has made updates. Also if the learning rate is not finite, or
            `BarzilaiBorwein` or the module's `proximal` does not support the
            optimizer or the KVStore. No key of a weight has been created then.
        TypeError
            If `optimizer` is neither a str nor an Optimizer.
        """
        if not self.binded or not self.params_initialized or (
                self.optimizer_initialized and not force_init):
            super().init_optimizer(kvstore, optimizer, optimizer_params, force_init)
            return
        with optimizer_kept_on_error(self):
            self._install_optimizer(kvstore, optimizer, optimizer_params, force_init)

    def _install_optimizer(self, kvstore, optimizer, optimizer_params, force_init):
        kvstore, updates = self._usable_kvstore(kvstore)
        registry = registry_of(kvstore) if isinstance(kvstore, KVStore) else ModuleRegistry()
        registry.check_room(kvstore, self._param_names, updates)
        check_step_size(optimizer, optimizer_params, self.alpha,
                        updates and is_distributed(kvstore))
        self._proximal.check_optimizer(
            optimizer, optimizer_params,
            {name: array.shape for name, array in self._arg_params.items()},
            size_split_on_servers(kvstore) if updates and is_distributed(kvstore) else None)
        keys = registry.keys_for(self._param_names, self._trainable,
                                 self._new_full_gradient().row_counts)
        self._membership = Membership(keys)
        svrg_optimizer = self._create_optimizer(_SVRGOptimizer.__name__, optimizer, kvstore,
                                                optimizer_params)
        check_learning_rate(svrg_optimizer)
        if is_distributed(kvstore):
            self._place_keys_on_servers(svrg_optimizer, kvstore, registry, updates)
        self._restore_update_counts(svrg_optimizer.default_opt, optimizer, optimizer_params)
        if updates:
            for registered in registry.modules:
                svrg_optimizer.share_kvstore_with(registered.optimizer, registered.keys.on_servers)
        registry.is_half_used = True
        with warnings.catch_warnings():
            if isinstance(optimizer, str):
                # Module compares rescale_grad only where the user made the optimizer.
                warnings.filterwarnings('ignore', 'Optimizer created manually outside Module')
            super().init_optimizer(kvstore, svrg_optimizer, optimizer_params, force_init)
        self._restore_step_size(svrg_optimizer.lr_scheduler)
        if self._kvstore:
            self._create_keys_of_full_gradient()
        self._membership.counts_at_start = (update_counts(svrg_optimizer),
                                            self._snapshot.num_update)
        if not self._snapshot.is_active:
            self._snapshot.replace(self._new_full_gradient())
        if self._kvstore:
            registry_of(self._kvstore).add(self._kvstore, RegisteredModule(
                keys, svrg_optimizer, self._snapshot, updates))

    def _place_keys_on_servers(self, svrg_optimizer, kvstore, registry, updates):
        push_all_before_exit()
        keys = self._membership.keys
        if updates:
            pickle.dumps(svrg_optimizer, 0)  # MXNet does so too, but after keys are created
        number = registry.number_of_first_key(kvstore, keys, updates)
        if updates:
            svrg_optimizer.place_on_servers(
                dict(enumerate(keys.on_servers, number)),
                kvstore.num_workers if is_asynchronous(kvstore) else 1)

    def _create_keys_of_full_gradient(self):
        keys = self._membership.keys
        values = {key: mx.nd.zeros(self._arg_params[name].shape,
                                   dtype=dtype_of_sum(self._arg_params[name].dtype))
                  for name, key in keys.full.items()}
        if is_distributed(self._kvstore):
            values.update((key, mx.nd.zeros(self._arg_params[name].shape[:1], dtype='float64'))
                          for name, key in keys.row_counts.items())
            values[keys.tally] = PassCounts(self._kvstore).value
            # Module does not give the workers rank 0's weights if they update the weights
            # themselves, and never updates their copies on the host.
            executor_group.pull_dense_weights(self._kvstore, self)
        else:
            values[keys.first] = probe_of_compression()
        if values:
            self._kvstore.init(list(values), list(values.values()))

    def borrow_optimizer(self, shared_module):
        """Use the optimizer of another module.

        Parameters
        ----------
        shared_module : Module
            Module that shares its parameters with this one, with an optimizer.

        Raises
        ------
        TypeError
            If `shared_module` is not a Module.
        RuntimeError
            If `shared_module` has no optimizer yet.
        ValueError
            If `shared_module` is a plain Module with a distributed KVStore,
            which has no keys for full gradients. Also if `BarzilaiBorwein` does
            not support its optimizer, or `proximal` is not that of
            `shared_module`.
        """
        if not isinstance(shared_module, Module):
            raise TypeError('shared_module must be a Module, not %r' % (shared_module,))
        if not shared_module.optimizer_initialized:
            raise RuntimeError('shared_module must have its optimizer initialized')
        check_step_size(shared_module._optimizer, {}, self.alpha, on_servers=False)
        self._proximal.check_borrowed(
            getattr(shared_module, '_proximal', None),
            shared_module._update_on_kvstore or shared_module._param_names == self._param_names)
        if not isinstance(shared_module, OptimizerSetup):
            if is_distributed(shared_module._kvstore):
                raise ValueError('shared_module must be an SVRGModule where its kvstore is '
                                 'distributed (%r), not %r'
                                 % (shared_module._kvstore.type, shared_module))
        else:
            self._membership = shared_module._membership
        super().borrow_optimizer(shared_module)

    def _create_optimizer(self, optimizer, default_opt, kvstore, optimizer_params):
        """Wrap an optimizer. One that is given by name is created as in Module.

        Parameters
        ----------
        optimizer : str
            Name of the wrapper's class, ``'_SVRGOptimizer'``.
        default_opt : str or Optimizer
            Optimizer of the weights.
        kvstore : str or KVStore or None
            As in `init_optimizer`.
        optimizer_params : dict
            Arguments of `default_opt`, if that is a name.

        Returns
        -------
        _SVRGOptimizer
            The wrapper.

        Raises
        ------
        ValueError
            If `optimizer` is another name.
        """
        if optimizer.lower() != _SVRGOptimizer.__name__.lower():
            raise ValueError('optimizer must be %r, not %r; the optimizer that steps the weights '
                             'is default_opt' % (_SVRGOptimizer.__name__, optimizer))
        update_on_kvstore = will_update(kvstore, self._ctx_len, self._arg_params)
        copies = 1 if update_on_kvstore else self._ctx_len
        idx2name = {i * copies + device: name for i, name in enumerate(self._param_names)
                    for device in range(copies)}
        keys = self._membership.keys
        full_keys = [keys.first, *keys.assigned]
        proximal = self._proximal.steps(self._arg_params, idx2name)
        if isinstance(default_opt, _SVRGOptimizer):
            default_opt = default_opt.default_opt
        if not isinstance(default_opt, str):
            return _SVRGOptimizer(default_opt, full_keys=full_keys, proximal=proximal,
                                  param_idx2name=idx2name)
        params = dict(optimizer_params)
        params.setdefault('rescale_grad', 1.0 / (executor_group.batch_size(self)
                                                 * batches_of_rescaling(kvstore)))
        return _SVRGOptimizer(default_opt, full_keys=full_keys, proximal=proximal, sym=self.symbol,
                              param_idx2name=idx2name, **params)

    def _usable_kvstore(self, kvstore):
        """Check a KVStore; return it, connected if distributed, and whether it updates weights."""
        updates = will_update(kvstore, self._ctx_len, self._arg_params)
        check_usable(kvstore, updates, self._ctx_len, self._compression_params,
                     *executor_group.sparse_parameters(self),
                     loads_states=self._preload_opt_states is not None)
        if isinstance(kvstore, str) and is_distributed(kvstore):
            kvstore = open_distributed(kvstore)
        return kvstore, updates

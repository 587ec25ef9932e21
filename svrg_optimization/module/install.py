"""Installs the optimizer of a module and its keys in a KVStore, after all checks."""

import contextlib
import os
import pickle
import warnings
import weakref

import mxnet as mx

from ..core.exclusions import check_together, row_sparse
from ..kvstore import kinds
from ..kvstore.horovod import with_horovod
from ..kvstore.keys import KVStoreKeys
from ..kvstore.workers import create_keys
from ..mxnet_repair.kvstore import number_of_first_key, open_distributed, prepare_exit, set_updater
from ..rate.optimizer import features_of_optimizer
from ..svrg_optimizer import _SVRGOptimizer, check_optimizer, check_rates, update_counts
from . import executor_group
from .optimizer_states import has_states, load_counts, load_state

_used = weakref.WeakSet()  # KVStores with keys of an SVRGModule


@contextlib.contextmanager
def optimizer_kept_on_error(module):
    """Restore the optimizer of a module, or its absence, if the block fails."""
    before = {name: getattr(module, name) for name in (
        '_optimizer', '_kvstore', '_update_on_kvstore', '_updater', 'optimizer_initialized',
        '_preload_opt_states', '_keys', '_counts_at_start', '_waiting')}
    try:
        yield
    except BaseException:
        vars(module).update(before)  # at once, so that Ctrl-C cannot part them
        raise


def install(module, kvstore, optimizer, optimizer_params, init_optimizer):
    """Check, wrap and install the optimizer of a bound module, and create its keys.

    All checks come before the first key of a weight. After an error the KVStore may have
    keys; `optimizer_kept_on_error` restores the module. `init_optimizer` takes the KVStore and
    the wrapped optimizer and installs them as Module does.
    """
    svrg, devices = module._svrg, len(module._context)
    check_optimizer(optimizer, optimizer_params)
    kvstore = with_horovod(kvstore, optimizer)
    may_update = kinds.will_update(kvstore, devices, module._arg_params)
    on_workers = _must_update_on_workers(module, kvstore, optimizer, optimizer_params)
    updates = may_update and not on_workers
    kvstore = _checked(module, kvstore, updates, optimizer, optimizer_params)
    if on_workers:
        kvstore.is_capable = lambda capability: False  # Module asks it whether it updates weights
    module._keys = keys = KVStoreKeys(module._param_names, module._trainable)
    wrapped = module._create_optimizer(_SVRGOptimizer.__name__, optimizer, kvstore,
                                       optimizer_params)
    check_rates(wrapped)
    load_counts(module, wrapped.default_opt,
                'begin_num_update' in dict(optimizer_params) if isinstance(optimizer, str)
                else optimizer.begin_num_update > 0)
    if updates and kinds.is_distributed(kvstore):
        pickle.dumps(wrapped, 0)  # MXNet does so too, but after keys are created

    # From here on the KVStore changes.
    if isinstance(kvstore, mx.kv.KVStore):
        _used.add(kvstore)
    if kinds.has_servers(kvstore):
        _prepare_servers(kvstore, keys, module._param_names, may_update, updates and wrapped)
    with warnings.catch_warnings():
        if isinstance(optimizer, str):  # it was not
            warnings.filterwarnings('ignore', 'Optimizer created manually outside Module')
        init_optimizer(kvstore, wrapped)
    load_state(module)
    module._counts_at_start = update_counts(wrapped), svrg.snapshot.num_update
    if not svrg.snapshot.is_active:
        svrg.drop_snapshot()
    if module._kvstore:  # Module may have made it of its name
        # A plain Module would give it another one.
        vars(module._kvstore).pop('is_capable', None)
        module._kvstore.set_optimizer = _refuse_optimizer
    if module._update_on_kvstore and not kinds.is_distributed(kvstore):
        set_updater(module._kvstore, module._kvstore._updater)
    kinds.warn_of_devices(kvstore, devices, svrg.warn_once)
    if kinds.is_distributed(kvstore):
        # Module does not give the workers rank 0's weights if they update the weights
        # themselves, and never updates their copies on the host.
        executor_group.pull_dense_weights(kvstore, module)
    if module._kvstore:
        create_keys(module._kvstore, keys, {**module._aux_params, **module._arg_params})


def _prepare_servers(kvstore, keys, param_names, may_update, optimizer):
    """Create the first key on servers, and prepare an optimizer for them if they update."""
    prepare_exit(kvstore)
    if number_of_first_key(kvstore, keys.first) and may_update:
        _refuse_optimizer()  # of a plain Module, which has the first keys
    if optimizer:
        first, *others = keys.summed  # in the order of their creation
        optimizer.place_on_servers(dict(enumerate([first, *param_names, *others])),
                                   kvstore.num_workers if kinds.is_asynchronous(kvstore) else 1)


def _must_update_on_workers(module, kvstore, optimizer, optimizer_params):
    """Tell whether workers must update the weights, for proximal operators or newton_cg.

    The user may have decided otherwise in the environment.
    """
    moves = features_of_optimizer(optimizer, optimizer_params)['newton_cg']
    if (not moves and not module._proximal.by_name or not kinds.has_servers(kvstore)
            or not kinds.is_synchronous(kvstore) or 'MXNET_UPDATE_ON_KVSTORE' in os.environ
            or any(executor_group.sparse_parameters(module))):
        return False
    module.logger.info('The workers update the weights, not the servers of %r: %s needs it',
                       kinds.kind_of(kvstore), 'newton_cg' if moves else 'proximal')
    return True


def _checked(module, kvstore, updates, optimizer, optimizer_params):
    """Make all checks before the KVStore has a key; return it, connected if it is distributed."""
    check_together(module._svrg.settings.features(), kinds.features_of(kvstore, updates),
                   features_of_optimizer(optimizer, optimizer_params),
                   _features_of(module, kvstore))
    if isinstance(kvstore, str) and kinds.is_distributed(kvstore):
        kvstore = open_distributed(kvstore)
    # A KVStore has one optimizer for all its keys, and would let a second Module replace it.
    if kvstore in _used:
        raise ValueError('kvstore must have no keys of another SVRGModule, nor of a failed '
                         'init_optimizer, and %r has: give this module one of its own, which in a '
                         'cluster is a job of its own' % kvstore.type)
    if updates and getattr(kvstore, '_updater', None) is not None:
        _refuse_optimizer()
    return kvstore


def _features_of(module, kvstore):
    """Return what `check_together` takes of a module for a KVStore."""
    parameters, gradients = executor_group.sparse_parameters(module)
    sparse = row_sparse(parameters + gradients)
    are_summed = kinds.is_distributed(kvstore) or len(module._context) > 1
    return {'compression_params': module._compression_params,
            'load_optimizer_states': module._preload_opt_states is not None or has_states(
                module._waiting.get('optimizer')),
            'row_sparse arrays': sparse,
            'row_sparse gradients of dense parameters': row_sparse(gradients),
            'row_sparse gradients to be summed': are_summed and sparse}


def _refuse_optimizer(_=None):
    raise ValueError('kvstore must not update the weights of a plain Module and of an SVRGModule: '
                     'it has one optimizer for all its keys')


def _rows(module, kvstore):
    """Return the rows of a step, by which Module divides. Like Module it looks for "_sync"."""
    is_sync = kinds.is_distributed(kvstore) and '_sync' in kvstore.type
    return module._svrg.reference.batch_size * (kvstore.num_workers if is_sync else 1)


def wrapped_optimizer(module, default_opt, kvstore, optimizer_params):
    """Return an _SVRGOptimizer around an optimizer, which is created as in Module."""
    devices = len(module._context)
    copies = 1 if kinds.will_update(kvstore, devices, module._arg_params) else devices
    idx2name = dict(enumerate(name for name in module._param_names for _ in range(copies)))
    proximal = module._proximal.steps(idx2name)
    if isinstance(default_opt, _SVRGOptimizer):
        default_opt = default_opt.default_opt
    given = dict(optimizer_params) if isinstance(default_opt, str) else {}
    return _SVRGOptimizer(default_opt, full_keys=module._keys.summed, proximal=proximal,
                          sym=module.symbol, param_idx2name=idx2name,
                          **{'rescale_grad': 1 / _rows(module, kvstore), **given})

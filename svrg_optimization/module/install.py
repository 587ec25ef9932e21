"""Installs the optimizer of a module and its keys in a KVStore, after all checks."""

import contextlib
import math
import os
import pickle
import warnings
import weakref

import mxnet as mx
from mxnet.kvstore import KVStore

from ..core.arrays import dtype_of_sum
from ..core.rule import rule_of
from ..kvstore.agreement import check_waits, tally
from ..kvstore.horovod import join
from ..kvstore.keys import KVStoreKeys
from ..kvstore.kinds import (
    batches_of_rescaling,
    check_usable,
    has_servers,
    is_asynchronous,
    is_distributed,
    is_synchronous,
    kind_of,
    size_split_on_servers,
    will_update,
)
from ..kvstore.local_steps import LocalSteps, check_local_steps
from ..kvstore.operations import number_of_first_key, open_distributed
from ..kvstore.worker_exit import prepare_exit
from ..step_size import check_step_size
from ..svrg_optimizer import _SVRGOptimizer, check_learning_rate, described
from . import executor_group
from .membership import Membership
from .optimizer_states import kvstore_of

_VARIABLE = 'MXNET_UPDATE_ON_KVSTORE'
_used = weakref.WeakSet()  # KVStores with keys of a module
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


def install(module, kvstore, optimizer, optimizer_params, init_optimizer):
    """Check, wrap and install the optimizer of a module, and create its keys.

    All checks come before the first key of a weight.

    Parameters
    ----------
    module : SVRGModule
        The module, which is bound and has its parameters.
    kvstore, optimizer, optimizer_params
        Arguments of ``init_optimizer``.
    init_optimizer : callable
        Takes `kvstore` and the wrapped optimizer and installs them as Module does.
    """
    check_local_steps(module._svrg.settings.local_steps, kvstore, optimizer,
                      sum(executor_group.sparse_parameters(module), []))
    kvstore, optimizer = join(kvstore, optimizer, len(module._context))
    with _workers_updating(module, kvstore, optimizer, optimizer_params) as is_chosen:
        _install(module, kvstore, optimizer, optimizer_params, init_optimizer, is_chosen)


@contextlib.contextmanager
def _workers_updating(module, kvstore, optimizer, optimizer_params):
    """Let the workers update the weights in the block, where a BarzilaiBorwein needs it.

    The user may have decided, in the environment, which MXNet asks several times.
    It yields whether this is decided here.
    """
    _, _, arguments = described(optimizer, optimizer_params)
    is_needed = (has_servers(kvstore) and is_synchronous(kvstore)
                 and rule_of(arguments.get('lr_scheduler')) is not None
                 and not any(executor_group.sparse_parameters(module)))
    if _VARIABLE in os.environ or not is_needed:
        yield False
        return
    module.logger.info('The workers update the weights, not the servers of %r: BarzilaiBorwein '
                       'needs it', kind_of(kvstore))
    os.environ[_VARIABLE] = '0'
    try:
        yield True
    finally:
        del os.environ[_VARIABLE]


def _install(module, kvstore, optimizer, optimizer_params, init_optimizer, is_chosen):
    svrg, devices = module._svrg, len(module._context)
    distributed = is_distributed(kvstore)
    steps_alone = distributed and svrg.settings.local_steps
    updates = not steps_alone and will_update(kvstore, devices, module._arg_params)
    check_usable(kvstore, updates, devices, module._compression_params,
                 *executor_group.sparse_parameters(module),
                 loads_states=module._preload_opt_states is not None)
    if isinstance(kvstore, str) and distributed:
        kvstore = open_distributed(kvstore)
    _check_unused(kvstore, updates)
    check_waits(kvstore, tol=module.tol)
    on_servers = updates and distributed
    check_step_size(optimizer, optimizer_params, module.alpha, on_servers,
                    module.full_grad_batches)
    module._proximal.check_optimizer(
        optimizer, optimizer_params,
        {name: array.shape for name, array in module._arg_params.items()},
        size_split_on_servers(kvstore) if on_servers else None)

    opened, summed = kvstore, module._trainable
    if steps_alone:
        kvstore = LocalSteps(opened)
        summed = module._param_names + module._aux_names
    keys = KVStoreKeys(module._param_names, summed, svrg.reference.counted_by_row())
    module._membership = Membership(keys)
    wrapped = module._create_optimizer(_SVRGOptimizer.__name__, optimizer, kvstore,
                                       optimizer_params)
    check_learning_rate(wrapped)
    if on_servers:
        pickle.dumps(wrapped, 0)  # MXNet does so too, but after keys are created
    if isinstance(opened, KVStore):
        _used.add(opened)
    if has_servers(kvstore):
        prepare_exit(kvstore)
        number = number_of_first_key(kvstore, keys.first)
        if number and (updates or is_chosen or steps_alone):
            _refuse_optimizer()
        if on_servers:  # which know keys by their numbers
            wrapped.place_on_servers(dict(enumerate(keys.on_servers)),
                                     kvstore.num_workers if is_asynchronous(kvstore) else 1)
    module._loaded = module._loaded.restore_counts(wrapped.default_opt, optimizer,
                                                   optimizer_params, module._context)
    usual = 1 / (executor_group.batch_size(module) * batches_of_rescaling(kvstore))
    with warnings.catch_warnings():
        if isinstance(optimizer, str) or math.isclose(wrapped.rescale_grad, usual):
            # Module compares rescale_grad only where the user made the optimizer, digit by digit.
            warnings.filterwarnings('ignore', 'Optimizer created manually outside Module')
        init_optimizer(kvstore, wrapped)
    rule = rule_of(wrapped.lr_scheduler)
    module._loaded = module._loaded.restore_step_size(rule)
    if rule is not None and not rule.is_begun and svrg.snapshot.is_active:
        svrg.snapshot.is_stale = True  # a new one gives it its first rate
    module._membership.begin_counting(wrapped, svrg.snapshot.num_update)
    if not svrg.snapshot.is_active:
        svrg.drop_snapshot()
    kvstore = kvstore_of(module)  # Module may have made it of its name
    if kvstore:
        (opened if steps_alone else kvstore).set_optimizer = _refuse_optimizer  # of a plain Module
    if is_distributed(kvstore):
        _create_keys_of_full_gradient(module, kvstore, keys)


def _check_unused(kvstore, updates):
    """Raise a ValueError if a KVStore cannot take the keys of a module."""
    if kvstore in _used:
        raise ValueError(
            'kvstore must have no keys of another SVRGModule, nor of an init_optimizer that has '
            'failed, and %r has: give this module %s'
            % (kvstore.type, 'a job of its own, as a process has one connection to its servers'
               if is_distributed(kvstore) else
               'one of its own, as mx.kv.create(%r) makes' % kvstore.type))
    if updates and getattr(kvstore, '_updater', None) is not None:
        _refuse_optimizer()


def _refuse_optimizer(_=None):
    raise ValueError('kvstore must not update the weights of a plain Module and of an SVRGModule: '
                     'it has one optimizer for all its keys')


def _create_keys_of_full_gradient(module, kvstore, keys):
    weights = {**module._aux_params, **module._arg_params}
    values = {key: mx.nd.zeros(weights[name].shape, dtype=dtype_of_sum(weights[name].dtype))
              for name, key in keys.full.items()}
    values.update((key, mx.nd.zeros(weights[name].shape[:1], dtype='float64'))
                  for name, key in keys.row_counts.items())
    values[keys.tally] = tally(kvstore)
    # Module does not give the workers rank 0's weights if they update the weights
    # themselves, and never updates their copies on the host.
    executor_group.pull_dense_weights(kvstore, module)
    kvstore.init(list(values), list(values.values()))

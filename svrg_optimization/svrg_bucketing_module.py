"""SVRGBucketingModule, MXNet's BucketingModule trained with SVRG."""

import contextlib
import functools
import logging
import os

import mxnet as mx
import numpy as np
from mxnet.module import BucketingModule

from .checkpoint.files import save_arrays, save_symbol
from .checkpoint.format import Checkpoint, file_names, name_of_symbol, write_checkpoint
from .core.schedule import SnapshotSchedule
from .data.iterators import read_to_end
from .kvstore.optimizer_setup import optimizer_kept_on_error
from .mxnet_bridge.docstrings import with_docstrings_of_mxnet
from .svrg_module import SVRGModule


@with_docstrings_of_mxnet
class SVRGBucketingModule(SnapshotSchedule, BucketingModule):
    """Train a BucketingModule with SVRG.

    All buckets share one snapshot of the weights and one full gradient, which
    is the mean over the batches of all of them.

    Parameters
    ----------
    sym_gen : callable
        Takes a bucket's key and returns its symbol, data names and label names.
    default_bucket_key : object
        The key of the bucket that is bound first.
    logger, context, work_load_list, fixed_param_names, state_names, group2ctxs
        As in BucketingModule.
    compression_params : dict
        As in BucketingModule.
    update_freq : int
        Epochs from one snapshot to the next, 1 or more.
    loss_is_mean, full_grad_callback, sparse_full_grad, alpha, nonfinite
        As in SVRGModule.

    Raises
    ------
    ValueError, TypeError
        As from SVRGModule.
    """

    def __init__(self, sym_gen, default_bucket_key=None, logger=logging, context=mx.cpu(),
                 work_load_list=None, fixed_param_names=None, state_names=None, group2ctxs=None,
                 compression_params=None, update_freq=None, *, loss_is_mean=None,
                 full_grad_callback=None, sparse_full_grad=False, alpha=1.0, nonfinite='warn'):
        self._set_schedule(update_freq, full_grad_callback, alpha)
        super().__init__(sym_gen, default_bucket_key, logger, context, work_load_list,
                         fixed_param_names, state_names, group2ctxs, compression_params)
        self._svrg_arguments = {'loss_is_mean': loss_is_mean, 'nonfinite': nonfinite,
                                'sparse_full_grad': sparse_full_grad}
        self._buckets[default_bucket_key] = self._new_bucket(default_bucket_key)

    def _new_bucket(self, bucket_key, symbol=None):
        generated, data_names, label_names = self._call_sym_gen(bucket_key)
        symbol = generated if symbol is None else symbol
        bucket = SVRGModule(symbol, data_names, label_names, self.logger, self._context,
                            self._work_load_list, self._fixed_param_names, self._state_names,
                            self._group2ctxs, self._compression_params, self.update_freq,
                            **self._svrg_arguments)
        bucket._warned, bucket._coefficient = self._warned, self._coefficient
        return bucket

    @property
    def _default_bucket(self):
        return self._buckets[self._default_bucket_key]

    @property
    def _snapshot(self):
        return self._default_bucket._snapshot

    @property
    def _param_dict(self):
        return self._default_bucket._param_dict

    # Buckets: BucketingModule binds those that are there, and makes only missing ones itself.

    def _reset_bind(self):
        default = self._default_bucket
        super()._reset_bind()
        default._reset_bind()
        self._buckets[self._default_bucket_key] = default

    def bind(self, data_shapes, label_shapes=None, for_training=True, inputs_need_grad=False,
             force_rebind=False, shared_module=None, grad_req='write'):
        """Bind the bucket of the default key; see ``BucketingModule.bind``."""
        was_bound = self.binded and not force_rebind
        try:
            super().bind(data_shapes, label_shapes, for_training, inputs_need_grad, force_rebind,
                         shared_module, grad_req)
        except BaseException:
            if not was_bound:
                self._reset_bind()
            raise

    def init_optimizer(self, kvstore='local', optimizer='sgd',
                       optimizer_params=(('learning_rate', 0.01),), force_init=False):
        """Install the optimizer of all buckets; see ``SVRGModule.init_optimizer``."""
        with contextlib.ExitStack() as stack:
            for bucket in self._buckets.values():
                stack.enter_context(optimizer_kept_on_error(bucket))
            super().init_optimizer(kvstore, optimizer, optimizer_params, force_init)

    def switch_bucket(self, bucket_key, data_shapes, label_shapes=None):
        """Switch to another bucket; see ``BucketingModule.switch_bucket``."""
        is_new = bucket_key not in self._buckets
        if is_new:
            assert self.binded, 'call bind before switching bucket'
            self._buckets[bucket_key] = self._new_bucket(bucket_key)
        super().switch_bucket(bucket_key, data_shapes, label_shapes)
        # B is one for all, also where a bucket first appears with a short batch.
        self._curr_module._batch_size = self._default_bucket._batch_size
        if is_new and self._monitor is not None:
            self._curr_module.install_monitor(self._monitor)

    def set_params(self, arg_params, aux_params, allow_missing=False, force_init=True,
                   allow_extra=False):
        """Set the parameters; see ``Module.set_params``. The snapshot stays as it is."""
        current = self._curr_module
        with current._keeping_snapshot() if current else contextlib.nullcontext():
            super().set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)

    def update_full_grads(self, train_data, batch_end_callback=None):
        """Take a snapshot of the weights and compute the full gradient over all buckets.

        Parameters and errors are those of ``SVRGModule.update_full_grads``.

        Parameters
        ----------
        train_data : DataIter
            The rows to take the mean over; its batches have a `bucket_key`.
        batch_end_callback : callable or list of callable, optional
            Called with a BatchEndParam after each batch.
        """
        if not self.binded:
            raise RuntimeError('update_full_grads needs a module that is bound')
        self._default_bucket._check_ready_for_snapshot(train_data, batch_end_callback)
        if self._coefficient.is_always_zero:
            read_to_end(train_data)
            return
        current = self._curr_bucket_key
        try:
            self._default_bucket._take_snapshot(
                train_data, batch_end_callback or self._full_grad_callback, self._epoch,
                self._bucket_of)
        finally:
            self.switch_bucket(current, None, None)

    def _check_workers_agree(self, *plan):
        self._default_bucket._check_workers_agree(*plan)

    def _bucket_of(self, batch):
        self.switch_bucket(batch.bucket_key, batch.provide_data, batch.provide_label)
        return self._curr_module

    # Checkpoints

    def save_checkpoint(self, prefix, epoch, save_optimizer_states=False, remove_amp_cast=False):
        """Save the module, with all that a training needs to go on as if never stopped.

        BucketingModule's own files and, beside them, the optimizer's states
        and ``prefix-%04d.svrg``, as those of ``SVRGModule.save_checkpoint``.

        Parameters
        ----------
        prefix : str
            What the names of the files begin with.
        epoch : int
            What they go on with.
        save_optimizer_states : bool
            Whether to save the optimizer's states too. It is the third
            argument, as ``mx.callback.module_checkpoint`` has it.
        remove_amp_cast : bool
            As in BucketingModule, where it is the third.
        """
        names = {**file_names(prefix, epoch, self._default_bucket_key),
                 'buckets': os.fspath(prefix) + '.buckets'}
        writers = {'params': functools.partial(save_arrays, self.save_params)}
        for key in self._buckets:
            kind = 'symbol' if key == self._default_bucket_key else ('symbol', key)
            names[kind] = name_of_symbol(prefix, key)
            symbol, _, _ = self._call_sym_gen(key)
            writers[kind] = functools.partial(save_symbol, symbol, remove_amp_cast)
        keys = mx.nd.array(list(self._buckets), dtype=np.int32)
        save_keys = functools.partial(mx.nd.save, data=keys)
        writers['buckets'] = functools.partial(save_arrays, save_keys)
        if save_optimizer_states:
            writers.update(self._curr_module._writers_of_states())
        facts, arrays = self._default_bucket._checkpoint_of_snapshot(self.update_freq, self.alpha)
        write_checkpoint(names, writers, facts, arrays)

    @classmethod
    def load(cls, prefix, epoch, sym_gen=None, default_bucket_key=None,
             load_optimizer_states=False, update_freq=None, **kwargs):
        """Make a module of a checkpoint, of this class or of plain BucketingModule.

        Parameters
        ----------
        prefix : str
            What the names of the files begin with.
        epoch : int
            What they go on with.
        sym_gen : callable
            That of the module that was saved.
        default_bucket_key : object
            That of the module that was saved.
        load_optimizer_states, update_freq
            As in ``SVRGModule.load``.
        **kwargs
            Further arguments of the constructor.

        Returns
        -------
        SVRGBucketingModule

        Raises
        ------
        FileNotFoundError, ValueError
            As from ``SVRGModule.load``.
        """
        assert sym_gen is not None, 'sym_gen is required for loading a bucketing module'
        assert default_bucket_key is not None, (
            'default_bucket_key is required for loading a bucketing module')
        checkpoint = Checkpoint(prefix, epoch, load_optimizer_states, default_bucket_key)
        module = cls(sym_gen, default_bucket_key,
                     **checkpoint.constructor_arguments(update_freq, kwargs))
        module._curr_module = module._new_bucket(default_bucket_key, checkpoint.symbol)
        module._curr_bucket_key = default_bucket_key
        module._buckets[default_bucket_key] = module._curr_module
        module._curr_module._go_on_from(checkpoint)
        module.params_initialized = True
        return module

    @classmethod
    def load_dict(cls, sym_dict=None, sym_gen=None, default_bucket_key=None, arg_params=None,
                  aux_params=None, **kwargs):
        """Make a module of symbols and parameters; see ``BucketingModule.load_dict``.

        The constructor's `update_freq` is among `kwargs`.
        """
        for name, value in (('sym_dict', sym_dict), ('arg_params', arg_params),
                            ('aux_params', aux_params),
                            ('default_bucket_key', default_bucket_key)):
            assert value is not None, '%s needs to be provided' % name
        module = cls(sym_gen, default_bucket_key, **kwargs)
        for key, symbol in sym_dict.items():
            module._buckets[key] = module._new_bucket(key, symbol)
        module._curr_module = module._default_bucket
        module._curr_bucket_key = default_bucket_key
        module._curr_module._arg_params = arg_params
        module._curr_module._aux_params = aux_params
        module._curr_module.params_initialized = True
        module.params_initialized = True
        return module

"""SVRGBucketingModule, MXNet's BucketingModule trained with SVRG."""

import contextlib
import inspect
import logging

import mxnet as mx
from mxnet.module import BucketingModule

from .checkpoint.of_module import arguments_of, read_checkpoint, save
from .findings import Findings
from .module.install import optimizer_kept_on_error
from .mxnet_repair.casts import has_casts
from .svrg_module import SVRGModule


class SVRGBucketingModule(Findings, BucketingModule):
    """Train a BucketingModule with SVRG.

    All buckets share one snapshot of the weights and one full gradient, the
    mean over the batches of all buckets.

    Parameters
    ----------
    sym_gen : callable
        Takes a bucket key and returns the symbol of that bucket, its data names
        and its label names.
    default_bucket_key : object
        Key of the bucket that is bound first, usually the largest.
    **others
        As in SVRGModule. The parameters that `proximal` names are the default
        bucket's.

    Examples
    --------
    Learn which word comes next, in sentences of two lengths.

    >>> import mxnet as mx
    >>> from svrg_optimization import SVRGBucketingModule
    >>> def sym_gen(length):
    ...     words = mx.sym.reshape(mx.sym.one_hot(mx.sym.Variable('data'), depth=4), (-1, 4))
    ...     next_words = mx.sym.reshape(mx.sym.Variable('softmax_label'), (-1,))
    ...     scores = mx.sym.FullyConnected(words, num_hidden=4, name='scores')
    ...     loss = mx.sym.SoftmaxOutput(scores, next_words, use_ignore=True, ignore_label=0)
    ...     return loss, ('data',), ('softmax_label',)
    >>> sentences = [[1, 2, 3], [2, 3, 1, 2, 3]] * 10
    >>> train_data = mx.rnn.BucketSentenceIter(  # doctest: +ELLIPSIS
    ...     sentences, batch_size=5, buckets=[3, 5], invalid_label=0)
    WARNING: discarded 0 sentences...
    >>> module = SVRGBucketingModule(sym_gen, train_data.default_bucket_key, update_freq=1)
    >>> module.fit(train_data, eval_metric=mx.metric.Perplexity(0), num_epoch=20,
    ...            optimizer_params={'learning_rate': 1.0})
    >>> [(name, value)] = module.score(train_data, mx.metric.Perplexity(0))
    >>> name, round(value, 1)
    ('perplexity', 1.0)
    """

    def __init__(self, sym_gen, default_bucket_key=None, logger=logging, context=mx.cpu(),
                 work_load_list=None, fixed_param_names=None, state_names=None, group2ctxs=None,
                 compression_params=None, update_freq=2, **settings):
        super().__init__(sym_gen, default_bucket_key, logger, context, work_load_list,
                         fixed_param_names, state_names, group2ctxs, compression_params)
        self._settings = {'update_freq': update_freq, **settings}
        self._buckets[default_bucket_key] = self._new_bucket(default_bucket_key)

    __init__.__signature__ = inspect.signature(__init__).replace(parameters=[
        *list(inspect.signature(__init__).parameters.values())[:-1],
        *(parameter for parameter in inspect.signature(SVRGModule).parameters.values()
          if parameter.kind is parameter.KEYWORD_ONLY)])

    def _new_bucket(self, bucket_key, symbol=None):
        generated, data_names, label_names = self._call_sym_gen(bucket_key)
        symbol = generated if symbol is None else symbol
        default = self._buckets.get(self._default_bucket_key)
        settings = self._settings if default is None else {**self._settings, 'proximal': None}
        bucket = SVRGModule(symbol, data_names, label_names, self.logger, self._context,
                            self._work_load_list, self._fixed_param_names, self._state_names,
                            self._group2ctxs, self._compression_params, **settings)
        if default is not None:
            if bucket._param_names != default._param_names:
                raise ValueError('sym_gen must give all buckets the same parameters, in one order, '
                                 'since MXNet counts them in each: %r has %s, and %r has %s' % (
                                     bucket_key, bucket._param_names, self._default_bucket_key,
                                     default._param_names))
            bucket._svrg.settings = default._svrg.settings
            bucket._svrg.warn_once = bucket._svrg.reference.warn_once = default._svrg.warn_once
            bucket._default = default if bucket_key != self._default_bucket_key else None
            bucket._proximal = default._proximal
        return bucket

    _default_bucket = property(lambda module: module._buckets[module._default_bucket_key])
    _svrg = property(lambda module: module._default_bucket._svrg)
    _optimizer = property(lambda module: module._default_bucket._optimizer)
    _param_dict = property(lambda module: module._default_bucket._param_dict)
    _snapshot, _trained = SVRGModule._snapshot, SVRGModule._trained
    learning_rate, update_freq = SVRGModule.learning_rate, SVRGModule.update_freq
    full_grad_batches = SVRGModule.full_grad_batches

    # Buckets: BucketingModule binds a bucket that exists and makes only those that are missing.

    def _reset_bind(self):
        default = self._default_bucket
        super()._reset_bind()
        default._reset_bind()
        self._buckets[self._default_bucket_key] = default

    def bind(self, data_shapes, label_shapes=None, for_training=True, inputs_need_grad=False,
             force_rebind=False, shared_module=None, grad_req='write'):
        """Bind the default bucket. If binding fails, the module is not bound."""
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
        """Install one optimizer for all buckets. If that fails, the previous one stays."""
        with contextlib.ExitStack() as stack:
            for bucket in self._buckets.values():
                stack.enter_context(optimizer_kept_on_error(bucket))
            super().init_optimizer(kvstore, optimizer, optimizer_params, force_init)

    def switch_bucket(self, bucket_key, data_shapes, label_shapes=None):
        """Switch to another bucket, which is made and bound the first time."""
        is_new = bucket_key not in self._buckets
        if is_new:
            assert self.binded, 'call bind before switching bucket'
            self._buckets[bucket_key] = self._new_bucket(bucket_key)
        super().switch_bucket(bucket_key, data_shapes, label_shapes)
        if is_new and self._monitor is not None:
            self._curr_module.install_monitor(self._monitor)

    # Training

    fit = SVRGModule.fit

    def update_full_grads(self, train_data):
        """Take a snapshot as `SVRGModule.update_full_grads` does; batches have a `bucket_key`."""
        current = self._curr_bucket_key if self.binded else None
        reference = self._svrg.reference
        try:
            reference.bucket_of = self._bucket_of
            self._default_bucket.update_full_grads(train_data)
            self._params_dirty = True  # newton_cg may have moved
        finally:
            reference.bucket_of = None
            if current is not None:
                self.switch_bucket(current, None, None)

    def _bucket_of(self, batch):
        self.switch_bucket(batch.bucket_key, batch.provide_data, batch.provide_label)
        return self._curr_module

    # Checkpoints

    def save_checkpoint(self, prefix, epoch, save_optimizer_states=False, remove_amp_cast=False):
        """Save the module with all that is needed to resume the training run.

        It is as `SVRGModule.save_checkpoint`, beside the files of BucketingModule. The symbols of
        further buckets are not saved. `save_optimizer_states` is the third argument, where
        ``mx.callback.module_checkpoint`` passes it; in BucketingModule `remove_amp_cast` is.
        """
        remove_amp_cast = remove_amp_cast and has_casts(self._default_bucket.symbol)
        with_states = save(self, prefix, epoch, save_optimizer_states, remove_amp_cast)
        super().save_checkpoint(prefix, epoch, remove_amp_cast)
        if with_states:
            self._default_bucket.save_optimizer_states('%s-%04d.states' % (prefix, epoch))

    @classmethod
    def load(cls, prefix, epoch, sym_gen=None, default_bucket_key=None,
             load_optimizer_states=False, **kwargs):
        """Make a module from a checkpoint of this class or of plain BucketingModule.

        `sym_gen` and `default_bucket_key`, both required, are those of the saved
        module. All else is as in `SVRGModule.load`.
        """
        assert sym_gen is not None and default_bucket_key is not None, (
            'sym_gen and default_bucket_key are required for loading a bucketing module')
        state = read_checkpoint(prefix, epoch, load_optimizer_states, default_bucket_key)
        module = cls(sym_gen, default_bucket_key, **arguments_of(state, kwargs))
        module._begin_with({default_bucket_key: state['symbol']})
        module._curr_module._load_state(state)
        return module

    def _begin_with(self, symbols):
        """Take the buckets of symbols, which are about to get their parameters."""
        for key, symbol in symbols.items():
            self._buckets[key] = self._new_bucket(key, symbol)
        self._curr_bucket_key, self._curr_module = self._default_bucket_key, self._default_bucket
        self.params_initialized = True

    @classmethod
    def load_dict(cls, sym_dict=None, sym_gen=None, default_bucket_key=None, arg_params=None,
                  aux_params=None, **kwargs):
        """Make a module from symbols and parameters. Further arguments are the constructor's."""
        for name, value in (('sym_dict', sym_dict), ('arg_params', arg_params),
                            ('aux_params', aux_params),
                            ('default_bucket_key', default_bucket_key)):
            assert value is not None, '%s needs to be provided' % name
        module = cls(sym_gen, default_bucket_key, **kwargs)
        module._begin_with(sym_dict)
        bucket = module._curr_module
        bucket._arg_params, bucket._aux_params = arg_params, aux_params
        bucket.params_initialized = True
        return module

"""The training loop of ``fit``, with the snapshots that are due."""

import itertools
import time
import warnings
from types import SimpleNamespace

import mxnet as mx
from mxnet.base import _as_list
from mxnet.model import BatchEndParam

from .._argument_checks import check_epoch, check_iterator
from ..data.iterators import rewind_for_pass
from ..data.ndarray_iter import is_viewable, views
from ..early_stopping import EarlyStopping
from ..rate.run import Run
from ..svrg_optimizer import check_rates_of_training
from .workers import check_plan

_END = object()


def fit(**arguments):
    """Train a module as ``Module.fit`` does, and take the snapshots that are due.

    The arguments are those of ``Module.fit``, with `self`. Callbacks get them in `locals`.
    """
    given, module = SimpleNamespace(**arguments), arguments['self']
    if given.validation_metric is None:
        given.validation_metric = given.eval_metric
    check_iterator('train_data', given.train_data)
    if given.eval_data is not None:
        check_iterator('eval_data', given.eval_data)
    check_epoch('begin_epoch', given.begin_epoch)
    check_epoch('num_epoch', given.num_epoch)
    for callback in _as_list(given.eval_end_callback):
        if isinstance(callback, EarlyStopping):
            callback.check_metric(given.eval_data, given.validation_metric)
    module.bind(data_shapes=given.train_data.provide_data,
                label_shapes=given.train_data.provide_label,
                for_training=True, force_rebind=given.force_rebind)
    if given.monitor is not None:
        module.install_monitor(given.monitor)
    with warnings.catch_warnings():
        if not (given.arg_params or given.aux_params):  # as after `load`: nothing is ignored
            warnings.filterwarnings('ignore', 'Parameters already initialized')
        module.init_params(initializer=given.initializer, arg_params=given.arg_params,
                           aux_params=given.aux_params, allow_missing=given.allow_missing,
                           force_init=given.force_init)
    module.init_optimizer(kvstore=given.kvstore, optimizer=given.optimizer,
                          optimizer_params=given.optimizer_params)
    if not isinstance(given.eval_metric, mx.metric.EvalMetric):
        given.eval_metric = mx.metric.create(given.eval_metric)
    try:
        _train_epochs(module, given, _Data(module, given))
    except BaseException:  # Ctrl-C too
        module._conclude('interrupted')
        raise


def _train_epochs(module, given, data):
    svrg, default = module._svrg, module._default_bucket
    epochs = range(given.begin_epoch, given.num_epoch)
    check_rates_of_training(default._optimizer, svrg.settings.tol, svrg.warn_once)
    run = Run(svrg, module._trained, module.logger, given.train_data, data.take_snapshot)
    if epochs:
        check_plan(default, given.train_data, epochs, not run.is_plain,
                   run.is_due(epochs.start % svrg.settings.update_freq == 0))
        if run.moves:
            data.check_forward()
    for epoch in epochs:
        tic = time.time()
        given.eval_metric.reset()
        if not run.begin_epoch(epoch, epoch % svrg.settings.update_freq == 0):
            break
        for name, value in () if run.moves else _train(module, given, data.batches(), epoch, tic):
            module.logger.info('Epoch[%d] Train-%s=%f', epoch, name, value)
        run.end_epoch()
        module.logger.info('Epoch[%d] Time cost=%.3f', epoch, time.time() - tic)
        given.arg_params, given.aux_params = module.get_params()
        svrg.training.keeps_history = True
        try:
            module.set_params(given.arg_params, given.aux_params)  # the same on all devices
        finally:
            svrg.training.keeps_history = False
        _call(given.epoch_end_callback, epoch, module.symbol, given.arg_params, given.aux_params)
        if given.eval_data is not None:
            for name, value in module.score(
                    given.eval_data, given.validation_metric, epoch=epoch,
                    score_end_callback=given.eval_end_callback,
                    batch_end_callback=given.eval_batch_end_callback):
                module.logger.info('Epoch[%d] Validation-%s=%f', epoch, name, value)
        data.reset(was_trained=not run.moves)
    run.finish(given.num_epoch - 1)  # also if a resumed run has no epoch left
    data.rewind()


def _train(module, given, batches, epoch, tic):
    """Train on the batches of one epoch; return the names and values of its metric."""
    metric, monitor, is_last = given.eval_metric, given.monitor, False
    next_batch = next(batches, _END)
    if next_batch is _END:
        given.train_data.reset()  # an interrupted run may have left them at their end
        batches = iter(given.train_data)
        next_batch = next(batches, _END)
    if next_batch is _END:
        raise ValueError('train_data must yield at least one batch in each epoch, and %r yielded '
                         'none in epoch %d, maybe since a snapshot reads them before: reset() '
                         'must begin them anew' % (given.train_data, epoch))
    for nbatch in itertools.count():
        batch = next_batch
        if monitor is not None:
            monitor.tic()
        module._default_bucket._watch.add(batch)
        module.forward_backward(batch)
        module.update()
        if isinstance(batch, list):
            module.update_metric(metric, [piece.label for piece in batch], pre_sliced=True)
        else:
            module.update_metric(metric, batch.label)
        try:
            next_batch = next(batches)  # only now: an iterator may use its arrays again
            module.prepare(next_batch, sparse_row_id_fn=given.sparse_row_id_fn)
        except StopIteration:
            is_last = True
        if monitor is not None:
            monitor.toc_print()
        values = metric.get_global_name_value() if is_last else None
        if given.batch_end_callback is not None:
            # A dict of its own: with locals() each param would keep all before it alive.
            seen = {**vars(given), 'epoch': epoch, 'tic': tic, 'nbatch': nbatch,
                    'data_iter': batches, 'data_batch': batch, 'next_data_batch': next_batch,
                    'end_of_batch': is_last, 'eval_name_vals': values}
            _call(given.batch_end_callback, BatchEndParam(epoch, nbatch, metric, seen))
        if is_last:
            return values


def _call(callbacks, *arguments):
    for callback in [] if callbacks is None else _as_list(callbacks):
        callback(*arguments)


class _Data:
    """The position of the data of one ``fit``, which a snapshot reads before an epoch does."""

    def __init__(self, module, given):
        self._module, self._given = module, given
        # A user's subclass may read the data before their pass or write to batches.
        self._is_ours = type(module).__module__.startswith('svrg_optimization.')
        # Whether the data are known to stand at their beginning, and what sets them there after a
        # pass.
        self._is_rewound, self._rewind = False, None

    def check_forward(self):
        """Let a subclass have one batch as in a step, since passes do not call its methods."""
        module, data = self._module, self._given.train_data
        if self._is_ours:
            return
        self._rewind = rewind_for_pass(data, self._is_rewound)
        batch, watch = next(iter(data), None), module._default_bucket._watch
        if batch is not None:
            watch.end_pass(data, 0)
            watch.add(batch)
            module.forward_backward(batch)
        self.rewind()

    def take_snapshot(self):
        """Take a snapshot. Then `batches` rewinds the data."""
        module, data = self._module, self._given.train_data
        default = module._default_bucket
        self._rewind = rewind_for_pass(data, self._is_rewound)
        default._pass_of_fit = data, self._is_ours
        try:
            module.update_full_grads(data)
        finally:
            default._pass_of_fit = None, False

    def rewind(self):
        """Set the data to their beginning after a pass."""
        rewind_data, self._rewind = self._rewind, None
        if rewind_data:
            rewind_data()

    def batches(self):
        """Return an iterator over the batches of an epoch."""
        given, data = self._given, self._given.train_data
        self._is_rewound = False
        self.rewind()
        is_unseen = (self._is_ours and given.batch_end_callback is None
                     and given.sparse_row_id_fn is None)
        return views(data) if is_unseen and is_viewable(data) else iter(data)

    def reset(self, was_trained):
        """Reset the data after an epoch; without steps only passes have read them."""
        if was_trained:
            self._given.train_data.reset()
        else:
            self.rewind()
        self._is_rewound = True

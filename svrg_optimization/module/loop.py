"""The training loop of ``fit``, with the snapshots that are due."""

import inspect
import itertools
import math
import time
from types import SimpleNamespace

import mxnet as mx
from mxnet.base import _as_list
from mxnet.model import BatchEndParam
from mxnet.module import BaseModule

from .._argument_checks import check_epoch, checked_callbacks, checked_iterator
from ..core import snapshots
from ..data.batch_rows import count_rows
from ..data.iterators import begin_within_epoch, leaves_out_other_rows, rewind, rewind_for_pass
from ..data.ndarray_iter import views_of_batches
from ..kvstore.kinds import steps_alone
from . import executor_group
from .loss_reduction import NoLossError
from .membership import workers_of
from .passes import Pass
from .snapshots import is_at_snapshot
from .trained_module import TrainedModule

_END = object()
_NO_BATCH = ('train_data must yield at least one batch in each epoch, and %r yielded none in epoch '
             '%d. A snapshot reads the data before the epoch trains on them: reset() must begin '
             'them anew. Where they can be read only once, store_snapshot_grads=True trains on the '
             'batches that the snapshot has read')


def _check_arguments(module, arguments):
    """Raise a TypeError or a ValueError for arguments of ``fit`` that are not usable."""
    train_data = arguments['train_data']
    checked_iterator('train_data', train_data)
    for name, value in arguments.items():
        if name.endswith('_callback'):
            checked_callbacks(name, value)
        elif name.endswith('_epoch') and value is not None:
            check_epoch(name, value)
        elif name == 'eval_data' and value is not None:
            checked_iterator(name, value)
    settings = module._svrg.settings
    if settings.updates_per_snapshot is not None and not settings.is_plain:
        begin_within_epoch(train_data)()
    assert arguments['num_epoch'] is not None, 'num_epoch must be given, a number of epochs'


def fit(module, args, kwargs, only_reads_batches):
    """Train a module as ``Module.fit`` does, and take the snapshots that are due.

    Parameters
    ----------
    module : SVRGModule or SVRGBucketingModule
        The module.
    args, kwargs : tuple, dict
        Arguments of ``Module.fit``. Callbacks get them in `locals`.
    only_reads_batches : bool
        Whether the module writes to no batch. A subclass may.
    """
    call = inspect.signature(BaseModule.fit).bind(module, *args, **kwargs)
    call.apply_defaults()
    given = SimpleNamespace(**call.arguments)
    _check_arguments(module, call.arguments)
    _make_ready(module, given)
    if given.validation_metric is None:
        given.validation_metric = given.eval_metric
    if not isinstance(given.eval_metric, mx.metric.EvalMetric):
        given.eval_metric = mx.metric.create(given.eval_metric)
    try:
        _train_epochs(module, given, only_reads_batches)
        module._svrg.snapshot.jump = None
    finally:
        module._svrg.epoch = None


def _train_epochs(module, given, only_reads_batches):
    are_seen = not (only_reads_batches and given.batch_end_callback is None
                    and given.sparse_row_id_fn is None)
    data = _Epochs(module, given.train_data, given.num_epoch, are_seen, only_reads_batches)
    for epoch in range(given.begin_epoch, given.num_epoch):
        tic = time.time()
        given.eval_metric.reset()
        batches = data.begin_epoch(epoch, is_first=epoch == given.begin_epoch)
        if data.has_ended:
            return
        for name, value in _train(module, given, data, batches, epoch, tic):
            module.logger.info('Epoch[%d] Train-%s=%f', epoch, name, value)
        data.check_rows()
        module.logger.info('Epoch[%d] Time cost=%.3f', epoch, time.time() - tic)
        data.average(epoch)
        given.arg_params, given.aux_params = module.get_params()
        with module._svrg.keeping_comparison():
            module.set_params(given.arg_params, given.aux_params)  # the same on all devices
        _call(given.epoch_end_callback, epoch, module.symbol, given.arg_params, given.aux_params)
        if given.eval_data is not None:
            for name, value in module.score(
                    given.eval_data, given.validation_metric, epoch=epoch,
                    score_end_callback=given.eval_end_callback,
                    batch_end_callback=given.eval_batch_end_callback):
                module.logger.info('Epoch[%d] Validation-%s=%f', epoch, name, value)
        data.end_epoch()
        if data.has_ended:
            return
    if given.begin_epoch < given.num_epoch or module._snapshot.is_active:
        data.end(given.num_epoch - 1)  # to which the run that this one resumes may not have come


def _make_ready(module, given):
    """Bind a module, and install its Monitor, parameters and optimizer."""
    module.bind(data_shapes=given.train_data.provide_data,
                label_shapes=given.train_data.provide_label,
                for_training=True, force_rebind=given.force_rebind)
    if given.monitor is not None:
        module.install_monitor(given.monitor)
    module.init_params(initializer=given.initializer, arg_params=given.arg_params,
                       aux_params=given.aux_params, allow_missing=given.allow_missing,
                       force_init=given.force_init)
    module.init_optimizer(kvstore=given.kvstore, optimizer=given.optimizer,
                          optimizer_params=given.optimizer_params)


def _train(module, given, data, batches, epoch, tic):
    """Train on the batches of one epoch; return the names and values of its metric."""
    metric, monitor = given.eval_metric, given.monitor
    next_batch, is_last = next(batches, _END), False
    if next_batch is _END:
        given.train_data.reset()  # an interrupted run may have left them at their end
        batches = iter(given.train_data)
        next_batch = next(batches, _END)
    if next_batch is _END:
        raise ValueError(_NO_BATCH % (given.train_data, epoch))
    for nbatch in itertools.count():
        batch = next_batch
        data.begin_batch(batch)
        if data.has_ended:
            return metric.get_global_name_value()
        if monitor is not None:
            monitor.tic()
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
                    'end_of_batch': is_last}
            if is_last:
                seen['eval_name_vals'] = values
            _call(given.batch_end_callback, BatchEndParam(epoch, nbatch, metric, seen))
        if is_last:
            return values


def _call(callbacks, *arguments):
    for callback in [] if callbacks is None else _as_list(callbacks):
        callback(*arguments)


class _Epochs:
    """Training data of one ``fit``: where they stand, and the snapshots that are taken of them.

    Parameters
    ----------
    module : SVRGModule or SVRGBucketingModule
        Module being trained.
    train_data : DataIter
        The data.
    num_epoch : int
        Argument of ``fit``.
    are_seen : bool
        Whether others see the batches, and may write to them. Otherwise they may be views of rows.
    is_ours : bool
        Whether no subclass may read the data before its pass.

    Attributes
    ----------
    has_ended : bool
        Whether the latest snapshot has found convergence, or that no step can lower the
        objective.
    """

    def __init__(self, module, train_data, num_epoch, are_seen, is_ours):
        self._module, self._train_data, self._are_seen = module, train_data, are_seen
        self._num_epoch, self._is_ours = num_epoch, is_ours
        self._of_snapshot = module._default_bucket
        self._svrg = module._svrg
        self._step_alone = steps_alone(self._of_snapshot._kvstore)
        self._has_loss, self._was_reset, self._is_read = True, False, False
        self._rows = None  # of an epoch that goes on from an earlier fit's snapshot
        self.has_ended = False
        self._rule = TrainedModule(self._of_snapshot).rule
        self._svrg.begin_fit(self._rule)

    @property
    def _takes_snapshots(self):
        return self._has_loss and not self._svrg.settings.is_plain

    def begin_epoch(self, epoch, is_first):
        """Take a snapshot if one is due, and return an iterator over the epoch's batches.

        If the snapshot finds convergence, there is no such epoch.
        """
        svrg, store, train_data = self._svrg, self._svrg.store, self._train_data
        svrg.epoch = epoch
        takes_snapshot = self._takes_snapshots and (
            svrg.settings.is_due(svrg.snapshot, epoch) or is_first and self._step_alone)
        goes_on = is_first and self._takes_snapshots and not takes_snapshot
        # With a number of batches a whole pass would be stored, and no sample. No pass is over
        # buckets without a snapshot.
        stores_again = (goes_on and store.lacks(train_data)
                        and svrg.settings.full_grad_batches is None
                        and self._of_snapshot is self._module)
        if is_first:
            self._begin(takes_snapshot, stores_again)
        self._rows = 0 if goes_on else None
        rewind_data = None
        if takes_snapshot:
            rewind_data = rewind_for_pass(train_data, self._was_reset)
            self._take_snapshot()
        elif goes_on and self._had_converged():
            self.has_ended = True
        elif stores_again:
            rewind_data = rewind_for_pass(train_data)
            svrg.store_again(self._of_snapshot, Pass(train_data),
                             workers_of(self._of_snapshot, trains_on_pass=True))
        elif goes_on and store.lacks(train_data):
            store.drop()
        stored = None
        if self._takes_snapshots and not self.has_ended:
            stored = store.shuffled(train_data, svrg.warn_once)
        if stored is None and rewind_data:
            rewind_data()
        if self.has_ended:
            return None
        self._is_read = stored is None or rewind_data is not None
        self._was_reset = False
        if stored is not None:
            return iter(stored)
        return iter(train_data) if self._are_seen else views_of_batches(train_data)

    def _begin(self, takes_snapshot, stores_again):
        """Look at the data and the other workers, before the first epoch."""
        svrg, module = self._svrg, self._of_snapshot
        if self._may_not_converge:
            snapshots.warn_of_rows_left_out(svrg)
        module._membership.check_plan(module, self._train_data, svrg, self._num_epoch,
                                      self._takes_snapshots, takes_snapshot, stores_again)

    def _had_converged(self):
        """Tell whether the run that this one resumes ended at its snapshot."""
        module = self._of_snapshot
        if self._svrg.settings.tol is None or not is_at_snapshot(module):
            return False
        snapshots.look_for_convergence(self._svrg, module.gradient_norm, workers_of(module))
        return module.has_converged

    @property
    def _may_not_converge(self):
        settings = self._svrg.settings
        return (settings.tol is not None and self._takes_snapshots
                and leaves_out_other_rows(self._train_data))

    def begin_batch(self, batch):
        """Take a snapshot within an epoch if one is due."""
        if self._rows is not None:
            rows, padding = count_rows(batch, self._module.data_shapes)
            self._rows += rows - padding
        if self._svrg.settings.is_due_within_epoch(self._svrg.snapshot) and self._takes_snapshots:
            rewind_data = begin_within_epoch(self._train_data)
            self._take_snapshot()
            rewind_data()

    def check_rows(self):
        """Let the next epoch begin with a snapshot if the one before was of other rows."""
        svrg = self._svrg
        if (self._rows is None or not svrg.snapshot.is_active
                or svrg.settings.full_grad_batches is not None
                or svrg.reference.executors.loss_reduction.mask):  # labels were counted
            return
        rows, module = svrg.snapshot.full_gradient.rows, self._of_snapshot
        found = module._membership.total(module, math.nan if leaves_out_other_rows(
            self._train_data) else self._rows)
        if not math.isnan(found) and found != rows:
            svrg.snapshot.is_stale = True
            svrg.warn_once('train_data had %d rows in epoch %d, and the snapshot before it %d: the '
                           'next epoch begins with a snapshot' % (found, svrg.epoch, rows), 'rows')

    def average(self, epoch):
        """Average the weights of workers that step alone after the last epoch of a snapshot."""
        if self._step_alone and (epoch + 1 == self._num_epoch or self._svrg.settings.is_due(
                self._svrg.snapshot, epoch + 1)):
            module = self._of_snapshot
            snapshots.average(self._svrg, TrainedModule(module), workers_of(module))
            executor_group.weights_have_moved(self._module)

    def end_epoch(self):
        """Reset the data, unless they have not been read."""
        if self._is_read:
            # Within an epoch, rewind: C++ iterators lose rows when they are reset in the middle.
            if self.has_ended:
                rewind(self._train_data)
            else:
                self._train_data.reset()
            self._was_reset = True

    def end(self, epoch):
        """Let a last snapshot decide whether training has converged, and which weights are best.

        Without a `tol` and a BarzilaiBorwein there is nothing to decide.
        """
        svrg = self._svrg
        svrg.epoch = epoch
        if not self._takes_snapshots or (svrg.settings.tol is None and self._rule is None):
            return
        if not svrg.snapshot.is_active or svrg.snapshot.num_update > svrg.snapshot.taken_at:
            rewind_data = rewind_for_pass(self._train_data, self._was_reset)
            self._take_snapshot()
            rewind_data()
        if svrg.taken is not None and self._takes_snapshots:
            if svrg.taken.went_back:
                executor_group.weights_have_moved(self._module)
            snapshots.warn_of_end(svrg, TrainedModule(self._of_snapshot), self._may_not_converge)

    def _take_snapshot(self):
        """Take a snapshot of data that stand at their beginning."""
        tic = time.time()
        svrg, train_data, module = self._svrg, self._train_data, self._module
        svrg.taken = None
        try:
            self._of_snapshot._pass_of_fit = train_data, self._is_ours
            module.update_full_grads(train_data)
        except NoLossError as error:
            if self._step_alone:
                raise
            self._has_loss = False
            svrg.warn_once('%s: fit trains as plain Module' % error, 'plain Module')
            return
        finally:
            self._of_snapshot._pass_of_fit = None, False
        svrg.store.say_data(train_data)
        snapshots.log_taken(module.logger, svrg.epoch, time.time() - tic, svrg.taken)
        if svrg.taken is not None:
            self.has_ended = module.has_converged or not snapshots.can_go_on(svrg)
        if svrg.settings.full_grad_batches is not None:
            module.logger.info('Epoch[%d] Full gradient batches=%d', svrg.epoch,
                               svrg.snapshot.full_gradient.batches)

"""When a training run takes snapshots: after some epochs of ``fit`` or updates, unless α is 0."""

import contextlib
import functools
import inspect
import time

from mxnet.module import BaseModule

from .._argument_checks import check_callbacks, check_epoch, checked_count, errors_named
from ..data.iterators import SnapshotIterator, check_iterator, rewind, rewind_for_pass
from ..data.passes import Pass
from .loss_reduction import NoLossError
from .sampling import Sampling
from .step_size_from_snapshots import step_size_rule_of


def _check_arguments_of_fit(arguments):
    """Raise a TypeError or a ValueError for arguments that Module checks only after an epoch."""
    for name, value in arguments.items():
        if name.endswith('_callback'):
            check_callbacks(name, value)
        elif name.endswith('_epoch') and value is not None:  # Module handles None
            check_epoch(name, value)
        elif name == 'eval_data' and value is not None:
            check_iterator(name, value)


class SnapshotSchedule:
    """Mixin that takes snapshots in ``fit``, for an MXNet module with full gradients.

    The class needs the methods ``_take_snapshot`` and ``_check_workers_agree``
    and the attribute ``_svrg``, an SVRGState. A class that stores batches needs
    ``_store_again`` too.
    """

    def _set_schedule(self, update_freq, full_grad_callback, stores_batches=False, **sampling):
        """Check the constructor's arguments of these names and set the attributes."""
        self._sampling = Sampling(stores_batches)
        self._sampling.set(**sampling)
        if update_freq is None and self.updates_per_snapshot is not None:
            update_freq = 1
        self.update_freq = update_freq
        check_callbacks('full_grad_callback', full_grad_callback)
        self._full_grad_callback = full_grad_callback
        self._epoch = self._pass = None
        self._has_no_loss = False

    @property
    def update_freq(self):
        """Number of epochs from one snapshot to the next, an int of 1 or more."""
        return self._update_freq

    @update_freq.setter
    def update_freq(self, update_freq):
        self._update_freq = checked_count('update_freq', update_freq)

    @property
    def alpha(self):
        """Coefficient of the variance reduction: a number in [0, 1] or a schedule.

        A schedule is called with the number of updates so far. In a resumed
        training run this includes the updates before the checkpoint.
        """
        return self._svrg.coefficient.alpha

    @alpha.setter
    def alpha(self, alpha):
        self._svrg.coefficient.alpha = alpha

    @property
    def full_grad_batches(self):
        """Number of batches that `fit` computes a full gradient over: an int, a schedule or None.

        A schedule is called with the number of snapshots so far. In a resumed
        training run this includes the snapshots before the checkpoint.
        """
        return self._sampling.full_grad_batches

    @full_grad_batches.setter
    def full_grad_batches(self, full_grad_batches):
        self._sampling.set(full_grad_batches=full_grad_batches)

    @property
    def updates_per_snapshot(self):
        """Number of updates from one snapshot to the next; None if `update_freq` counts epochs."""
        return self._sampling.updates_per_snapshot

    @updates_per_snapshot.setter
    def updates_per_snapshot(self, updates_per_snapshot):
        self._sampling.set(updates_per_snapshot=updates_per_snapshot)

    @property
    def full_grad_data(self):
        """Data that `fit` computes full gradients over; None for its training data."""
        return self._sampling.full_grad_data

    @full_grad_data.setter
    def full_grad_data(self, full_grad_data):
        self._sampling.set(full_grad_data=full_grad_data)

    @property
    def _snapshot(self):
        return self._svrg.snapshot

    def fit(self, train_data, *args, **kwargs):
        """Train the module for some epochs, with snapshots.

        A snapshot is taken at the beginning of the epochs 0, `update_freq`,
        2 `update_freq` and so on. It is also taken before the first step if
        there is none, or if updates were made with ``alpha=0`` since the last
        one. With ``alpha=0`` none is taken. The duration of its pass is logged as
        ``Epoch[%d] Full gradient time=%.3f``, in seconds, and is part of the
        epoch's ``Time cost``. With `full_grad_batches` the number of batches,
        of all workers together, is logged as ``Epoch[%d] Full gradient batches=%d``.

        With `updates_per_snapshot` epochs do not count: a snapshot is taken
        before the first step after so many updates, also within an epoch.

        Parameters
        ----------
        train_data : DataIter
            Training data. It is read twice in an epoch with a snapshot.
        eval_data : DataIter, optional
            Data that the module is evaluated on after each epoch.
        eval_metric : str or EvalMetric
            Metric of the training batches.
        epoch_end_callback : callable or list of callable, optional
            Called after each epoch with its number, the symbol, the parameters
            and the auxiliary states.
        batch_end_callback : callable or list of callable, optional
            Called with a BatchEndParam after each training batch.
        kvstore : str or KVStore
            As in `init_optimizer`.
        optimizer : str or Optimizer
            As in `init_optimizer`.
        optimizer_params : dict
            As in `init_optimizer`.
        eval_end_callback : callable or list of callable, optional
            Called with a BatchEndParam after each evaluation.
        eval_batch_end_callback : callable or list of callable, optional
            Called with a BatchEndParam after each batch of an evaluation.
        initializer : Initializer
            As in `init_params`.
        arg_params : dict of str to NDArray, optional
            As in `init_params`.
        aux_params : dict of str to NDArray, optional
            As in `init_params`.
        allow_missing : bool
            As in `init_params`.
        force_rebind : bool
            As in `bind`.
        force_init : bool
            Whether to initialize parameters and optimizer again. The snapshot
            is then dropped.
        begin_epoch : int
            Number of the first epoch, 0 or more.
        num_epoch : int
            Training ends before the epoch of this number; required. It is not
            the number of epochs to train if `begin_epoch` is above 0.
        validation_metric : str or EvalMetric, optional
            Metric of the evaluation, by default `eval_metric`.
        monitor : Monitor, optional
            Monitor that is installed in the module.
        sparse_row_id_fn : callable, optional
            Takes a batch and returns the rows of each row_sparse parameter that
            are pulled from the KVStore.

        Raises
        ------
        TypeError
            If an iterator, a callback or an epoch is of another type.
        ValueError
            If an epoch number is negative, if `train_data` yields no batch in
            an epoch or is `full_grad_data` itself, or if the workers of a
            distributed training run differ in what must be the same on all, or
            use `updates_per_snapshot` in ``dist_async``. Also where
            `init_optimizer` or `update_full_grads` raises one.
        FloatingPointError
            If a full gradient is not finite, with ``nonfinite='raise'``.

        Warns
        -----
        UserWarning
            If the symbol has no loss: `fit` then trains as plain Module. Also
            where `bind` or `update_full_grads` warns.
        """
        check_iterator('train_data', train_data)
        if train_data is self.full_grad_data:
            raise ValueError('full_grad_data must be another iterator than train_data, which a '
                             'pass would move, and not %r' % (train_data,))
        call = inspect.signature(super().fit).bind(train_data, *args, **kwargs)
        call.apply_defaults()
        _check_arguments_of_fit(call.arguments)
        call.arguments['train_data'] = SnapshotIterator(train_data, call.arguments['begin_epoch'],
                                                        self._epoch_begins, self._batch_begins)
        try:
            super().fit(*call.args, **call.kwargs)
        finally:
            self._epoch = None

    fit.__signature__ = inspect.signature(BaseModule.fit)

    def _epoch_begins(self, epoch, train_data, is_rewound):
        """Take a snapshot if one is due.

        Parameters
        ----------
        epoch : int
            Number of the epoch.
        train_data : DataIter
            The data.
        is_rewound : bool
            Whether they are known to be at their beginning.

        Returns
        -------
        stored : list of StoredBatch or None
            Stored batches to train on, if there are any.
        is_moved : bool
            Whether the data have to be reset before the next epoch can begin.
        """
        is_first, self._epoch = self._epoch is None, epoch
        needs_snapshot = self._needs_snapshots
        takes_snapshot = needs_snapshot and self._is_snapshot_due(epoch)
        lacks_batches = (is_first and needs_snapshot and not takes_snapshot
                         and self._svrg.stored.lacks(train_data))
        # With full_grad_batches a whole pass would be stored, and no sample.
        stores_again = lacks_batches and self.full_grad_batches is None
        if is_first:
            # Only workers that compare their plans call a schedule.
            sampled = functools.partial(self._sampling.fields_of_plan, self._snapshot.num_taken)
            self._check_workers_agree(train_data, self.update_freq if needs_snapshot else 0, epoch,
                                      takes_snapshot, stores_again,
                                      sampled if needs_snapshot else dict)
        go_back = None
        if takes_snapshot:
            go_back = self._take_snapshot_in_fit(train_data, is_rewound)
        elif stores_again:
            go_back = self._store_again(train_data)
        elif lacks_batches:
            self._svrg.stored.drop()
        stored = None
        if needs_snapshot:
            stored = self._svrg.stored.shuffled(train_data, self._svrg.warn_once)
        if go_back and stored is None:
            go_back()
            go_back = None
        return stored, go_back is not None

    def _batch_begins(self):
        """Take a snapshot within an epoch if one is due."""
        if (self.updates_per_snapshot is not None and self._needs_snapshots
                and self._is_snapshot_due()):
            self._take_snapshot_in_fit()

    @property
    def _needs_snapshots(self):
        return not (self._svrg.coefficient.is_always_zero or self._has_no_loss)

    def _is_snapshot_due(self, epoch=None):
        """Tell whether a snapshot is due, at the beginning of an epoch or within one."""
        snapshot = self._snapshot
        if not snapshot.is_active or snapshot.is_stale:
            return True
        if self.updates_per_snapshot is None:
            return epoch % self.update_freq == 0
        return snapshot.num_update - snapshot.taken_at >= self.updates_per_snapshot

    def _take_snapshot_in_fit(self, train_data=None, is_rewound=False):
        """Take a snapshot; return a function that sets the data to their beginning again.

        The function is None if the pass is over `full_grad_data`. A subclass
        may override `update_full_grads(train_data)`, so the pass that has begun
        is an attribute and not an argument.
        """
        tic = time.time()
        count = self._sampling.count_after(self._snapshot.num_taken)
        go_back, errors = None, errors_named('full_grad_data')
        if self.full_grad_data is None:
            go_back, errors = rewind_for_pass(train_data, is_rewound), contextlib.nullcontext()
        self._pass = self._sampling.pass_over(train_data, count)
        try:
            with errors:
                self.update_full_grads(self._pass.train_data,
                                       **({} if count is None else {'batches': count}))
        except NoLossError as error:
            self._has_no_loss = True
            self._svrg.warn_once('%s: fit trains as plain Module' % error, 'plain Module')
        else:
            self.logger.info('Epoch[%d] Full gradient time=%.3f', self._epoch, time.time() - tic)
            if count is not None:
                self.logger.info('Epoch[%d] Full gradient batches=%d', self._epoch,
                                 self._snapshot.full_gradient.batches)
        finally:
            self._pass = None
        return go_back

    def update_full_grads(self, train_data, batch_end_callback=None, *, batches=None):
        r"""Take a snapshot of the weights and compute the full gradient there.

        The iterator is reset, read to its end, or for some `batches`, and left
        there. Padding rows are ignored. If the pass fails, the previous snapshot
        and full gradient stay active. With the number 0 as `alpha` the data are
        read and nothing is computed, so that shuffled iterators yield the same
        batches afterwards.

        Parameters
        ----------
        train_data : DataIter
            The n rows to average over. It yields DataBatches, or lists with one
            DataBatch for each device. In an SVRGBucketingModule each batch has
            a `bucket_key`.
        batch_end_callback : callable or list of callable, optional
            Called with a BatchEndParam after each batch. Its epoch is 0 outside
            of `fit`. The default is the constructor's `full_grad_callback`.
        batches : int, optional
            Number of batches, from the beginning, whose rows are averaged over,
            or all if there are fewer. By default it is all batches.

        Raises
        ------
        RuntimeError
            If the module is not bound for training or has no parameters yet.
        TypeError
            If `train_data` is not an iterator or does not yield batches,
            `batch_end_callback` is not callable, or `batches` is not an int.
        ValueError
            If `train_data` yields no row, a batch without labels, or a batch of
            shapes that the module cannot be bound for. Also if the symbol has
            no loss, or if `batches` is below 1 or given with `BarzilaiBorwein`.
        FloatingPointError
            If the full gradient is not finite, with ``nonfinite='raise'``.

        Warns
        -----
        UserWarning
            If the full gradient is not finite, with ``nonfinite='warn'``, or if
            the network has random layers other than Dropout, or states without
            `next_states`. Also if the padding of a batch cannot be cut off,
            because the symbol cannot be bound for the real rows or a device
            would have no row. The gradient then includes the padding, and its
            weight is the fraction of real rows. Each warning appears once.
        """
        if not (self.binded and self.for_training and self.params_initialized):
            raise RuntimeError('update_full_grads needs a module that is bound with '
                               'for_training=True and has its parameters initialized')
        check_iterator('train_data', train_data)
        check_callbacks('batch_end_callback', batch_end_callback)
        if batches is not None:
            batches = checked_count('batches', batches, 'None or an int of 1 or more')
            if step_size_rule_of(self):
                raise ValueError('%s must be None with BarzilaiBorwein, as differences of samples '
                                 'are noise, and not %d'
                                 % ('full_grad_batches' if self._pass else 'batches', batches))
        data_pass = self._begun_or_new_pass(train_data, batches)
        if self._svrg.coefficient.is_always_zero:
            for _ in data_pass:
                pass
        else:
            self._take_snapshot(data_pass, batch_end_callback or self._full_grad_callback,
                                self._epoch)

    def _begun_or_new_pass(self, train_data, batches):
        """Return the Pass that ``fit`` has begun over the data, or one from their beginning."""
        begun, self._pass = self._pass, None
        if begun is not None and begun.train_data is train_data:
            return begun
        rewind(train_data)
        return Pass(train_data, batches, begun and begun.train_data)

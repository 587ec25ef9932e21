"""When a training takes snapshots: every so many epochs of ``fit``, unless α is 0."""

import inspect
import time
import warnings

from mxnet.module import BaseModule

from .._argument_checks import check_callbacks, check_epoch, checked_count
from ..alpha import Coefficient
from ..data.iterators import SnapshotIterator, check_iterator, rewind
from .loss_reduction import NoLossError


def _check_arguments_of_fit(arguments):
    """Raise a TypeError or a ValueError for those that Module would look at after an epoch."""
    for name, value in arguments.items():
        if name.endswith('_callback'):
            check_callbacks(name, value)
        elif name.endswith('_epoch') and value is not None:  # Module knows about None
            check_epoch(name, value)
        elif name == 'eval_data' and value is not None:
            check_iterator(name, value)


class SnapshotSchedule:
    """Take snapshots in ``fit``, for any MXNet module that has full gradients.

    A class that also inherits from a module gives it ``update_full_grads``,
    ``_check_workers_agree`` and the attribute ``_snapshot``; if it holds
    batches, ``_store_again`` and ``_stored_batches`` too.
    """

    def _set_schedule(self, update_freq, full_grad_callback, alpha):
        """Check and keep the constructor's arguments of these names."""
        self.update_freq = update_freq
        self._coefficient = Coefficient(alpha)
        check_callbacks('full_grad_callback', full_grad_callback)
        self._full_grad_callback = full_grad_callback
        self._epoch = None
        self._has_no_loss = False
        self._warned = set()

    @property
    def update_freq(self):
        """Epochs from one snapshot to the next, an int of 1 or more."""
        return self._update_freq

    @update_freq.setter
    def update_freq(self, update_freq):
        self._update_freq = checked_count('update_freq', update_freq)

    @property
    def alpha(self):
        """The coefficient of the variance reduction: a number in [0, 1], or a schedule of it.

        A schedule is called with the number of updates so far, those of a
        training that a checkpoint has resumed included.
        """
        return self._coefficient.alpha

    @alpha.setter
    def alpha(self, alpha):
        self._coefficient.alpha = alpha

    def fit(self, train_data, *args, **kwargs):
        """Train the module; parameters and behaviour are those of ``Module.fit``.

        A snapshot is taken when an epoch begins that `update_freq` divides,
        and before the first step if there is none or `alpha` was 0 since it
        was taken. The time of its pass is
        logged as ``Epoch[%d] Full gradient time=%.3f``, in seconds, and is
        part of the epoch's ``Time cost``. With ``alpha=0`` none is taken.
        """
        check_iterator('train_data', train_data)
        call = inspect.signature(super().fit).bind(train_data, *args, **kwargs)
        call.apply_defaults()
        _check_arguments_of_fit(call.arguments)
        call.arguments['train_data'] = SnapshotIterator(train_data, call.arguments['begin_epoch'],
                                                        self._epoch_begins)
        try:
            super().fit(*call.args, **call.kwargs)
        finally:
            self._epoch = None

    fit.__signature__ = inspect.signature(BaseModule.fit)

    def _epoch_begins(self, epoch, train_data):
        """Take a snapshot where one is due; return held batches to train on, if there are any."""
        is_first, self._epoch = self._epoch is None, epoch
        needs_snapshot = not (self._coefficient.is_always_zero or self._has_no_loss)
        takes_snapshot = needs_snapshot and (
            epoch % self.update_freq == 0
            or not self._snapshot.is_active or self._snapshot.is_stale)
        if is_first:
            self._check_workers_agree(train_data, needs_snapshot * self.update_freq, epoch,
                                      takes_snapshot)
        if takes_snapshot:
            tic = time.time()
            try:
                self.update_full_grads(train_data)
            except NoLossError as error:
                self._has_no_loss = True
                self._warn_once('%s: fit trains as plain Module' % error)
                rewind(train_data)
                return None
            self.logger.info('Epoch[%d] Full gradient time=%.3f', epoch, time.time() - tic)
            train_data.reset()
        elif is_first and needs_snapshot:
            self._store_again(train_data)
        return self._stored_batches() if needs_snapshot else None

    def _warn_once(self, message, kind=None):
        if (kind or message) not in self._warned:
            self._warned.add(kind or message)
            warnings.warn(message, stacklevel=2)

    def _store_again(self, train_data):
        """Hold the batches for a snapshot that was taken before."""

    def _stored_batches(self):
        """Return the held batches in a new random order, None if there are none."""

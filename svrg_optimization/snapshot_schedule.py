"""When a training takes snapshots: every so many epochs of ``fit``, unless α is 0."""

import inspect
import time

from mxnet.module import BaseModule

from .alpha import Coefficient
from .argument_checks import check_callbacks, check_epoch
from .iterators import SnapshotIterator, check_iterator


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
    ``_check_numbers_of_batches`` and the attribute ``_snapshot``; if it holds
    batches, ``_hold_again`` and ``_held_batches`` too.
    """

    def _set_schedule(self, update_freq, full_grad_callback, alpha):
        """Check and keep the constructor's arguments of these names."""
        self.update_freq = update_freq
        self._coefficient = Coefficient(alpha)
        check_callbacks('full_grad_callback', full_grad_callback)
        self._full_grad_callback = full_grad_callback
        self._epoch = None

    @property
    def update_freq(self):
        """Epochs from one snapshot to the next, an int of 1 or more."""
        return self._update_freq

    @update_freq.setter
    def update_freq(self, update_freq):
        if not isinstance(update_freq, int) or isinstance(update_freq, bool):
            raise TypeError('update_freq must be an int of 1 or more, not %r' % (update_freq,))
        if update_freq < 1:
            raise ValueError('update_freq must be an int of 1 or more, not %d' % update_freq)
        self._update_freq = update_freq

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
        needs_snapshot = not self._coefficient.is_always_zero
        if needs_snapshot and (not self._snapshot.in_force or self._snapshot.is_stale
                               or epoch % self.update_freq == 0):
            tic = time.time()
            self.update_full_grads(train_data)
            self.logger.info('Epoch[%d] Full gradient time=%.3f', epoch, time.time() - tic)
            train_data.reset()
        elif is_first:
            self._check_numbers_of_batches(train_data)
            if needs_snapshot:
                self._hold_again(train_data)
        return self._held_batches() if needs_snapshot else None

    def _hold_again(self, train_data):
        """Hold the batches for a snapshot that was taken before."""

    def _held_batches(self):
        """Return the held batches in a new random order, None if there are none."""

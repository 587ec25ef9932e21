"""The loop of an SVRGTrainer: epochs with their snapshots, until training has converged."""

import logging
import time

from .._argument_checks import check_epoch, checked_count
from ..data.iterators import leaves_out_other_rows
from ..rate import convergence


def epochs(trainer, train_data, num_epoch, update_freq, begin_epoch, states):
    """Return the iterator of ``SVRGTrainer.epochs``."""
    check_epoch('num_epoch', num_epoch)
    check_epoch('begin_epoch', begin_epoch)
    update_freq = checked_count('update_freq', update_freq)
    is_read_once = hasattr(train_data, '__next__') and not hasattr(train_data, 'reset')
    if is_read_once and not trainer._svrg.store.budget:
        raise TypeError('train_data must be an iterable that can be read more than once, and not '
                        '%r' % (train_data,))
    return _epochs(trainer, train_data, range(begin_epoch, num_epoch), update_freq, states)


def _epochs(trainer, train_data, numbers, update_freq, states):
    svrg = trainer._svrg
    svrg.begin_fit(trainer._trained.rule)
    if svrg.settings.tol is not None and leaves_out_other_rows(train_data):
        convergence.warn_of_rows_left_out(svrg)
    trainer._loop = {'begin_epoch': numbers.start, 'num_epoch': numbers.stop,
                     'update_freq': update_freq}
    for epoch in numbers:
        if (svrg.settings.is_due(svrg.snapshot) or epoch % update_freq == 0
                or svrg.snapshot.has_converged):  # as in a file
            take_snapshot(trainer, train_data, logging, epoch, states)
            if has_ended(trainer):
                takes_last = False
                break
        elif epoch == numbers.start:
            trainer._agreeing_workers(takes_snapshot=False)
        yield trainer.training_batches(train_data)
        svrg.training.epochs += 1
    else:
        takes_last = bool(numbers or svrg.snapshot.is_active)
    # A run that is resumed may not have come to the last epoch.
    end(trainer, train_data, logging, numbers.stop - 1, takes_last, states)


def take_snapshot(trainer, train_data, logger, epoch, states=()):
    """Take the snapshot of an epoch, and log it; with the number 0 as alpha do nothing."""
    tic, svrg = time.time(), trainer._svrg
    if svrg.settings.is_plain:
        return
    svrg.epoch = epoch
    try:
        trainer.update_full_grads(train_data, states=states)
    finally:
        svrg.epoch = None
    convergence.log_result(logger, epoch, time.time() - tic, svrg.training.result)


def has_ended(trainer):
    """Tell whether training has converged, or cannot go on from the latest snapshot."""
    svrg = trainer._svrg
    return not svrg.settings.is_plain and (
        trainer.has_converged or svrg.training.result is not None and svrg.training.result.ends)


def end(trainer, train_data, logger, epoch, takes_last, states=()):
    """Let a last snapshot decide whether training has converged, and which weights are best."""
    svrg, trained = trainer._svrg, trainer._trained
    if svrg.settings.is_plain:
        return
    if takes_last and not (svrg.settings.tol is None and trained.rule is None):
        take_snapshot(trainer, train_data, logger, epoch, states)
    convergence.end(svrg, trained, logger)

"""The loop of an SVRGTrainer: epochs with their snapshots, until training has converged."""

import itertools
import logging
import time

from .._argument_checks import check_epoch, checked_count
from ..core import snapshots
from ..kvstore.kinds import steps_alone
from .trained_parameters import TrainedParameters


def epochs(trainer, train_data, num_epoch, update_freq, begin_epoch, states):
    """Return the iterator of ``SVRGTrainer.epochs``."""
    check_epoch('num_epoch', num_epoch)
    check_epoch('begin_epoch', begin_epoch)
    update_freq = checked_count('update_freq', update_freq)
    return _epochs(trainer, train_data, range(begin_epoch, num_epoch), update_freq, states)


def _epochs(trainer, train_data, numbers, update_freq, states):
    svrg, trained = trainer._svrg, TrainedParameters(trainer)
    svrg.begin_fit(trained.rule)
    try:
        for svrg.epoch in numbers:
            snapshot, alone = svrg.snapshot, steps_alone(trainer._kvstore_params['kvstore'])
            if not svrg.settings.is_plain and (not snapshot.is_active or snapshot.is_stale
                                             or snapshot.has_converged  # as in a file
                                             or svrg.epoch % update_freq == 0
                                             or alone and svrg.epoch == numbers.start):
                _take_snapshot(trainer, train_data, states)
                if trainer.has_converged or not snapshots.can_go_on(svrg):
                    svrg.snapshot.jump = None
                    return
            batches = trainer.training_batches(train_data)
            is_last = svrg.epoch + 1 == numbers.stop or (svrg.epoch + 1) % update_freq == 0
            yield itertools.chain(batches, _averaging(trainer)) if alone and is_last else batches
        if numbers and alone:
            trainer._average()  # where a loop has ended before its batches
        if (numbers or svrg.snapshot.is_active) and not svrg.settings.is_plain and not (
                svrg.settings.tol is None and trained.rule is None):
            svrg.epoch = numbers.stop - 1  # to which a run that is resumed may not have come
            _take_snapshot(trainer, train_data, states)
            snapshots.warn_of_end(svrg, trained)
            svrg.snapshot.jump = None
    finally:
        svrg.epoch = None


def _averaging(trainer):
    """Yield no batch; average the weights of workers that step alone."""
    trainer._average()
    yield from ()


def _take_snapshot(trainer, train_data, states):
    tic, epoch = time.time(), trainer._svrg.epoch
    trainer.update_full_grads(train_data, states=states)
    snapshots.log_taken(logging, epoch, time.time() - tic, trainer._svrg.taken)

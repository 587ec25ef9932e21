"""The loop of an SVRGTrainer: epochs with their snapshots, until training has converged."""

import functools
import logging
import sys

from .._argument_checks import check_epoch, checked_count
from ..rate.run import Run
from ..svrg_optimizer import check_rates_of_training


def epochs(trainer, train_data, num_epoch, update_freq, begin_epoch, states):
    """Return the iterator of ``SVRGTrainer.epochs``."""
    check_epoch('num_epoch', num_epoch)
    check_epoch('begin_epoch', begin_epoch)
    update_freq = checked_count('update_freq', update_freq)
    if hasattr(train_data, '__next__') and not hasattr(train_data, 'reset'):
        raise TypeError('train_data must be an iterable that can be read more than once, and not '
                        '%r' % (train_data,))
    return _epochs(trainer, train_data, range(begin_epoch, num_epoch), update_freq, states)


def _epochs(trainer, train_data, numbers, update_freq, states):
    check_rates_of_training(trainer._optimizer, trainer.tol, trainer._svrg.warn_once)
    run = Run(trainer._svrg, trainer._trained, logging, train_data, functools.partial(
        trainer.update_full_grads, train_data, states=states))
    loop = trainer._loop = {'begin_epoch': numbers.start, 'num_epoch': numbers.stop,
                            'update_freq': update_freq}
    try:
        for epoch in numbers:
            is_scheduled = epoch % update_freq == 0
            if epoch == numbers.start and not (run.is_plain or run.is_due(is_scheduled)):
                trainer._agreeing_workers(takes_snapshot=False)
            if not run.begin_epoch(epoch, is_scheduled):
                break
            yield () if run.moves else trainer.training_batches(train_data)
            run.end_epoch()
        run.finish(numbers.stop - 1)  # a run that is resumed may not have come to the last epoch
    except BaseException:  # the loop may have been left, too
        if trainer._loop is loop and not sys.is_finalizing():
            trainer._conclude('interrupted')
        raise

"""One training run: when its snapshots are taken, what is logged, and why it has ended.

The loop of a front end calls `begin_epoch`, trains, calls `end_epoch`, and at last `finish`.
"""

import math
import time

from ..core.front_end import NoLossError
from ..core.result import REASONS, Training, reference_to
from ..data.iterators import leaves_out_other_rows

_WORSE = 10  # times the first norm: rounding does less where training begins at the floor


class Run:
    """A training that begins, from its first snapshot to its end.

    Parameters
    ----------
    svrg : SVRG
        The snapshot of the model.
    trained : TrainedModel
        The model.
    logger : logging.Logger
        Where snapshots and the end are logged.
    train_data : iterable
        What the run trains on.
    take_snapshot : callable
        Takes a snapshot, by the method that a user's subclass may override. It must not refer to
        the run: such a cycle would free the memory of the model late.

    Attributes
    ----------
    has_ended : bool
        Whether the latest snapshot has found that no step can lower the objective.
    """

    has_ended, _has_loss = False, True

    def __init__(self, svrg, trained, logger, train_data, take_snapshot):
        self._svrg, self._trained, self._logger = svrg, trained, logger
        self._take_snapshot = take_snapshot
        former = svrg.training.data
        svrg.training = Training(svrg.snapshot.num_taken, data=reference_to(train_data))
        if former and former() is not train_data:
            svrg.snapshot.is_stale = True  # it is of other data
        if trained.rule is not None and not trained.rule.is_resumed:
            trained.rule.forget_history()  # which may be of other data
            svrg.snapshot.distance, svrg.snapshot.num_stays = math.inf, 0
        if svrg.settings.tol is not None and leaves_out_other_rows(train_data):
            svrg.warn_once('tol may not be reached: each pass over train_data leaves out other '
                           'rows (rolled over, or discarded after a shuffle). With '
                           "last_batch_handle='pad', or a DataLoader's last_batch='keep', it "
                           'leaves out none')

    @property
    def is_plain(self):
        """Whether no snapshots are taken: α is the number 0, or the model has no loss."""
        return self._svrg.settings.is_plain or not self._has_loss

    def is_due(self, is_scheduled):
        """Tell whether a snapshot is due, given whether it is by the front end's schedule."""
        snapshot = self._svrg.snapshot
        return not self.is_plain and (
            is_scheduled or not snapshot.is_active or snapshot.is_stale
            or snapshot.has_converged)  # as in a file

    def begin_epoch(self, epoch, is_scheduled):
        """Take a snapshot if one is due; tell whether the epoch is to be trained."""
        if self.is_due(is_scheduled):
            self._take(epoch)
        return not self.has_ended

    def end_epoch(self):
        """Count an epoch that was trained."""
        self._svrg.training.epochs += 1

    def finish(self, epoch):
        """Let a last snapshot decide whether training has converged; say why it has ended.

        Without a `tol` and a rule there is nothing to decide, so that no snapshot is taken.
        """
        svrg, snapshot = self._svrg, self._svrg.snapshot
        if self.is_plain:
            return
        decides = svrg.settings.tol is not None or self._trained.rule is not None
        has_trained = (snapshot.num_update > snapshot.taken_at if snapshot.is_active
                       else svrg.training.epochs > 0)
        if decides and has_trained and not self.has_ended:
            self._take(epoch)
        if svrg.training.result is not None:
            self._say_why()

    def _take(self, epoch):
        """Take a snapshot, and log what it has found."""
        svrg, rule, log, tic = self._svrg, self._trained.rule, self._logger.info, time.time()
        svrg.training.result = None
        try:
            self._take_snapshot()
        except NoLossError as error:
            self._has_loss = False
            svrg.warn_once('%s: fit trains as plain Module' % error, 'plain Module')
            return
        result, seconds = svrg.training.result, time.time() - tic
        if result is None:  # an override has taken no snapshot
            return
        if rule is not None:
            if result.reason == 'rolled back':
                log('Epoch[%d] The learning rate was too large: back to the best snapshot', epoch)
            log('Epoch[%d] Learning rate=%g', epoch, rule(None))
        log('Epoch[%d] Full gradient time=%.3f', epoch, seconds)
        log('Epoch[%d] Full gradient norm=%.1e', epoch, result.norm)
        if result.objective is not None:
            log('Epoch[%d] Full objective=%g', epoch, result.objective)
        if result.distance is not None:
            log('Epoch[%d] Distance=%.1e', epoch, result.distance)
        if svrg.settings.full_grad_batches is not None:
            log('Epoch[%d] Full gradient batches=%d', epoch, svrg.snapshot.full_gradient.batches)
        self.has_ended = result.ends

    def _say_why(self):
        """Set in the result why training has ended; log it, and warn if it did not converge."""
        svrg, trained = self._svrg, self._trained
        training, tol = svrg.training, svrg.settings.tol
        result, first = training.result, training.first_result
        reason = result.reason or ('diverged' if training.is_repeatable is not False
                                   and result.objective is not None
                                   and result.objective > first.objective
                                   and result.norm > _WORSE * first.norm else 'epochs used up')
        words = REASONS[reason] % {
            'to': '' if tol is None else ' to tol=%g' % tol,
            'dtype': trained.mean_gradient().dtype(svrg.reference.weights()),
            'advice': _advice(svrg, trained, reason)}
        if reason == 'epochs used up' and tol is None and trained.rule is None:
            words = 'all epochs are trained'  # nobody has asked for convergence
        training.result = result = result._replace(
            reason=reason, words=words, epochs=training.epochs,
            passes=result.passes + training.epochs - result.epochs)
        if tol is not None or trained.rule is not None:
            self._logger.info('%s', result)
        if tol is not None and not result.has_converged:
            svrg.warn_once(str(result))


def _advice(svrg, trained, reason):
    """Return what may let training converge, or what keeps it from that."""
    training = svrg.training
    advice, rows = '', sorted(training.rows_of_passes)
    if reason == 'no step':
        advice = '%s may be needed' % ('a larger learning rate' if trained.rule is None
                                       else 'other initial weights')
    elif reason == 'not finite' and not training.result.epochs:
        advice = 'look at the data and the initial weights'
    elif training.only_grows:
        advice = ('the loss vanishes while outputs grow, as where all labels are one class or '
                  'classes are separable: without weight decay there is no optimum')
    elif len(rows) > 1:
        advice = ('passes had %s rows, so that each has another objective, unless batch_size '
                  'divides the rows' % ' and '.join(map(str, rows[:2])))
    elif svrg.reference.noise_sources():
        advice = ('with %s each batch has another objective, so that the gradient may not vanish'
                  % ', '.join(svrg.reference.noise_sources()))
    elif training.is_repeatable is False:
        advice = ('passes find other gradients at the same weights. Rows that are drawn, left out '
                  'or changed by chance (sampling, discarded rows, augmentation) make each pass '
                  'another objective')
    return advice or '%smore epochs may be needed' % (
        'another learning rate or ' if trained.rule is None
        else '' if trained.mean_gradient().is_smooth else 'larger batches or ')

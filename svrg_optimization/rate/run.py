"""One training run: when its snapshots are taken, what is logged, and why it has ended.

The loop of a front end calls `begin_epoch`, trains, calls `end_epoch`, and at last `finish`.
"""

import time

from ..core.front_end import NoLossError
from ..data.iterators import leaves_out_other_rows
from .objective import Objective
from .training import reference_to


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
        training, former = svrg.training, svrg.training.data
        training.begin(reference_to(train_data))
        if former and former() is not train_data:
            svrg.snapshot.is_stale = True  # it is of other data
        if not training.is_resumed:
            training.forget()
        if svrg.settings.tol is not None and leaves_out_other_rows(train_data):
            svrg.warn_once('tol may not be reached: each pass over train_data leaves out other '
                           'rows (rolled over, or discarded after a shuffle). With '
                           "last_batch_handle='pad', or a DataLoader's last_batch='keep', it "
                           'leaves out none')

    @property
    def is_plain(self):
        """Whether no snapshots are taken: α is the number 0, or the model has no loss."""
        return self._svrg.settings.is_plain or not self._has_loss

    @property
    def moves(self):
        """Whether an epoch is an iteration of 'newton_cg', without steps."""
        return self._trained.moves

    def is_due(self, is_scheduled):
        """Tell whether a snapshot is due, given whether it is by the front end's schedule."""
        snapshot = self._svrg.snapshot
        return not self.is_plain and (
            is_scheduled or self.moves or not snapshot.is_active or snapshot.is_stale
            or self._svrg.training.has_converged(snapshot.number))  # as in a file

    def begin_epoch(self, epoch, is_scheduled):
        """Take a snapshot if one is due; tell whether there is such an epoch.

        The last one of 'newton_cg' is that which finds its end.
        """
        if self.has_ended:
            return False
        self._svrg.training.epochs += self.moves  # it is made now
        if self.is_due(is_scheduled):
            self._take(epoch)
        return self.moves or not self.has_ended

    def end_epoch(self):
        """Count an epoch of steps."""
        self._svrg.training.epochs += not self.moves

    def finish(self, epoch):
        """Let a last snapshot decide whether training has converged; say why it has ended.

        Without a `tol` there is nothing to decide, so that no snapshot is taken, nor with
        'newton_cg', whose latest one is judged already.
        """
        svrg, snapshot = self._svrg, self._svrg.snapshot
        if self.is_plain:
            return
        decides = svrg.settings.tol is not None and not self.moves
        has_trained = (snapshot.num_update > snapshot.taken_at if snapshot.is_active
                       else svrg.training.epochs > 0)
        if decides and has_trained and not self.has_ended:
            self._take(epoch)
        if snapshot.is_active:
            self._say_why()

    def _take(self, epoch):
        """Take a snapshot, and log what it has found."""
        svrg, log, tic = self._svrg, self._logger.info, time.time()
        former = svrg.snapshot.number
        try:
            self._take_snapshot()
        except NoLossError as error:
            if self.moves:
                raise
            self._has_loss = False
            svrg.warn_once('%s: fit trains as plain Module' % error, 'plain Module')
            return
        seconds = time.time() - tic
        if svrg.snapshot.number == former and not self.moves:  # by an override
            return
        result = svrg.training.result(Objective(svrg, self._trained))
        if self.moves:
            log('Epoch[%d] %s', epoch, ' '.join(words % number for words, number in (
                ('Objective=%g', result.objective), ('Distance=%.1e', result.distance),
                ('Passes=%d', result.passes)) if number is not None))
        else:
            for words, number in (
                    ('Full gradient time=%.3f', seconds),
                    ('Full gradient norm=%.1e', result.norm),
                    ('Full objective=%g', result.objective),
                    ('Distance=%.1e', result.distance), ('Full gradient batches=%d', None if (
                        svrg.settings.full_grad_batches is None) else (
                            svrg.snapshot.full_gradient.batches))):
                if number is not None:
                    log('Epoch[%d] ' + words, epoch, number)
        self.has_ended = result.ends or self.moves and result.reason is not None

    def _say_why(self):
        """Set in the result why training has ended; log it, and warn if it did not converge."""
        svrg, objective = self._svrg, Objective(self._svrg, self._trained)
        result = svrg.training.conclude(objective)
        if objective.tol is not None or objective.moves:
            self._logger.info('%s', result)
        if objective.tol is not None and not result.has_converged and (
                svrg.training.learned.metric is not None):  # else it was said at the beginning
            svrg.warn_once(str(result))

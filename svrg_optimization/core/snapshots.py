"""What both front ends do at a snapshot: take it, with a rule of the learning rate; tell of it."""

import math
from typing import NamedTuple


class Taken(NamedTuple):
    """What a snapshot has found.

    Attributes
    ----------
    norm : float
        As `gradient_norm`.
    objective : float or None
        As `objective`.
    went_back : bool
        Whether the snapshot was worse than the one before, to which training went back.
    """

    norm: float
    objective: float
    went_back: bool = False


def take(svrg, trained, source, workers):
    """Take a snapshot; where the optimizer has a rule, let it set the rate there.

    If the objective is above that of the snapshot before, a rule may go back to that one
    instead, with a smaller rate.

    Parameters
    ----------
    svrg : SVRG
        The snapshot of the model.
    trained : TrainedModel
        The model.
    source, workers
        As in ``SVRG.take_snapshot``.

    Returns
    -------
    Taken
    """
    if workers.step_alone:
        average(svrg, trained, workers)
    rule, tol = trained.rule, svrg.settings.tol
    if rule is None:
        before = Before(svrg) if tol is not None and svrg.snapshot.is_active else None
        svrg.take_snapshot(trained.live, source, workers)
        find_floor(svrg, trained.mean_gradient(), before, workers)
    went_back = rule is not None and rule.take_snapshot(svrg, trained, source, workers)
    svrg.taken = Taken(gradient_norm(svrg, trained), objective(svrg, trained), went_back)
    look_for_convergence(svrg, svrg.taken.norm, workers)
    return svrg.taken


class Before:
    """The snapshot that the next one replaces, and the number of steps from it."""

    def __init__(self, svrg):
        self.weights = svrg.reference.copy_of_values()
        self.full_gradient = svrg.snapshot.full_gradient
        self.steps = svrg.snapshot.num_update - svrg.snapshot.taken_at


def find_floor(svrg, mean_gradient, before, workers):
    """Find out whether a snapshot and the one before are at the floor of the precision.

    Passes that find another gradient each time, as with Dropout, do not tell.
    """
    snapshot = svrg.snapshot
    above, = workers.largest([float(not (  # so that workers decide alike
        before is not None and before.steps and not svrg.reference.disturbances()
        and snapshot.full_gradient.rows == before.full_gradient.rows
        and mean_gradient.is_at_floor(snapshot.full_gradient, svrg.reference.weights(),
                                      before.full_gradient, before.weights)))])
    snapshot.is_at_floor = not above


def look_for_convergence(svrg, norm, workers):
    """Find out whether the snapshot's gradient is at most `tol`, or is rounding alone."""
    tol = svrg.settings.tol
    svrg.snapshot.has_converged = svrg.snapshot.is_at_floor or (  # workers decide alike
        tol is not None and workers.largest([norm])[0] <= tol)


def average(svrg, trained, workers):
    """Set workers that step alone to the mean of their weights, by rows, without momentum.

    Before the first snapshot, and from one of a file, these are the weights of rank 0.
    """
    snapshot = svrg.snapshot
    if snapshot.averaged_at != snapshot.num_update:
        values = svrg.reference.values_of(trained.live)
        trained.go_to(workers.average(values, snapshot.full_gradient))
        snapshot.averaged_at = snapshot.num_update


def log_rate(logger, svrg, trained, taken):
    """Log what a snapshot has made of the learning rate of a rule."""
    if trained.rule is not None:
        if taken.went_back:
            logger.info('Epoch[%d] The learning rate was too large: back to the best snapshot',
                        svrg.epoch or 0)
        logger.info('Epoch[%d] Learning rate=%g', svrg.epoch or 0, trained.rule(None))


def log_taken(logger, epoch, seconds, taken):
    """Log the seconds that a snapshot took, the gradient's norm and the objective there."""
    logger.info('Epoch[%d] Full gradient time=%.3f', epoch, seconds)
    if taken is None:  # an override has taken no snapshot
        return
    logger.info('Epoch[%d] Full gradient norm=%.1e', epoch, taken.norm)
    if taken.objective is not None:
        logger.info('Epoch[%d] Full objective=%g', epoch, taken.objective)


def can_go_on(svrg):
    """Tell whether steps from the latest snapshot can lower the objective: no row has a NaN."""
    return math.isfinite(svrg.taken.norm) or svrg.snapshot.num_update > 0


def warn_of_rows_left_out(svrg):
    """Warn once that training may not converge since its passes lack rows, others each time."""
    svrg.warn_once("tol may not be reached: each pass over train_data lacks other rows (the last "
                   "ones are rolled over, or discarded after a shuffle), so its gradient vanishes "
                   "only where the model fits every row. With last_batch_handle='pad', "
                   "or a DataLoader's last_batch='keep', it lacks none")


def warn_of_end(svrg, trained, leaves_out_rows):
    """Warn where a last snapshot went back, or found that training has not converged.

    Parameters
    ----------
    svrg, trained : SVRG, TrainedModel
        The snapshot and the model.
    leaves_out_rows : bool
        Whether passes are known to lack rows, others each time.
    """
    if svrg.taken.went_back:
        svrg.warn_once('the learning rate was too large since the last snapshot: the weights are '
                       'those of the best snapshot')
    tol = svrg.settings.tol
    if tol is None or svrg.snapshot.has_converged:
        return
    if leaves_out_rows:
        reason = ("passes without rows left out, as with last_batch_handle='pad' or a "
                  "DataLoader's last_batch='keep', may be needed")
    elif not can_go_on(svrg):
        reason = 'no step was made: look at the data and the first weights'
    elif len(svrg.rows_of_passes) > 1:
        reason = ('passes had %s rows, so that each has another objective: iterators over files '
                  'leave other rows out with round_batch, unless batch_size divides the rows'
                  % ' and '.join(map(str, sorted(svrg.rows_of_passes)[:2])))
    elif svrg.reference.disturbances():
        reason = ('with %s each batch has another objective, so that the gradient may not vanish'
                  % ', '.join(svrg.reference.disturbances()))
    else:
        reason = '%smore epochs may be needed' % (
            'another learning rate or ' if trained.rule is None
            else '' if trained.mean_gradient().is_smooth else 'larger batches or ')
    svrg.warn_once('training did not converge: gradient %.1e, tol %g; %s'
                   % (svrg.taken.norm, tol, reason))


def gradient_norm(svrg, trained):
    """Return the norm of the mean gradient at the snapshot, None without one."""
    snapshot = svrg.snapshot
    if not snapshot.is_active:
        return None
    return trained.mean_gradient().norm(snapshot.full_gradient, svrg.reference.weights())


def objective(svrg, trained):
    """Return the mean objective at the snapshot, None without one or if it is not known."""
    snapshot = svrg.snapshot
    if not snapshot.is_active:
        return None
    return trained.mean_gradient().objective(snapshot.full_gradient, svrg.reference.weights())

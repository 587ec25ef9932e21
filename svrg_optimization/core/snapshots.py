"""What both front ends do at a snapshot: take it, with a rule of the learning rate; tell of it."""

import math
from typing import NamedTuple

_ROUNDING = 25  # of the weights' spacing, within which a step is rounding


class SnapshotResult(NamedTuple):
    """What a snapshot has found.

    Attributes
    ----------
    norm : float
        As `gradient_norm`.
    objective : float or None
        As `objective`.
    rolled_back : bool
        Whether the snapshot was worse than the one before, to which training went back.
    """

    norm: float
    objective: float
    rolled_back: bool = False


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
    SnapshotResult
    """
    if workers.step_alone:
        average(svrg, trained, workers)
    rule, has_tol = trained.rule, svrg.settings.tol is not None
    if rule is None:
        before = PreviousSnapshot(svrg) if has_tol and svrg.snapshot.is_active else None
        svrg.take_snapshot(trained.model, source, workers)
        if before is not None:
            svrg.snapshot.is_at_floor = not is_above_floor(svrg, trained.mean_gradient(), before)
    rolled_back = rule is not None and rule.take_snapshot(svrg, trained, source, workers)
    svrg.result = SnapshotResult(gradient_norm(svrg, trained), objective(svrg, trained),
                                 rolled_back)
    look_for_convergence(svrg, svrg.result.norm, workers)
    return svrg.result


class PreviousSnapshot:
    """The snapshot that the next one replaces, and the number of steps from it."""

    def __init__(self, svrg):
        self.weights = svrg.reference.copy_of_values()
        self.full_gradient = svrg.snapshot.full_gradient
        self.steps = svrg.snapshot.num_update - svrg.snapshot.taken_at


def is_above_floor(svrg, mean_gradient, before):
    r"""Tell whether a snapshot is above the floor of the precision, given the one before.

    It is not where

    .. math:: \|G\| < 25\, \epsilon \|w\| \frac{\|\Delta G\|}{\|\Delta w\|}
              \quad \text{and} \quad \|G\| \ge \|G_{before}\|.

    The step to where the gradient vanishes, by the secant through the last two snapshots that
    differ, is within the rounding of the weights, and the gradient does not get smaller. Passes
    that find another gradient each time, as with Dropout, do not tell.
    """
    snapshot = svrg.snapshot
    if (before is None or not before.steps or svrg.reference.disturbances()
            or snapshot.full_gradient.rows != before.full_gradient.rows):
        return True
    weights = svrg.reference.weights()
    norm, former, changed, moved = mean_gradient.secant(
        snapshot.full_gradient, weights, before.full_gradient, before.weights)
    if changed and moved:
        svrg.curvature = changed / moved
    return not (norm < _ROUNDING * mean_gradient.spacing(weights) * svrg.curvature
                and norm >= former)


def look_for_convergence(svrg, norm, workers):
    """Find out whether the snapshot's gradient is at most `tol`, or is rounding alone."""
    snapshot, tol = svrg.snapshot, svrg.settings.tol
    if tol is not None:  # workers decide alike
        norm, is_above = workers.allreduce_max([norm, float(not snapshot.is_at_floor)])
        snapshot.is_at_floor = not is_above
    snapshot.has_converged = snapshot.is_at_floor or tol is not None and norm <= tol


def average(svrg, trained, workers):
    """Set workers that step alone to the mean of their weights, by rows, without momentum.

    Before the first snapshot, and from one of a file, these are the weights of rank 0.
    """
    snapshot = svrg.snapshot
    if snapshot.averaged_at != snapshot.num_update:
        values = svrg.reference.values_of(trained.model)
        trained.go_to(workers.average(values, snapshot.full_gradient))
        snapshot.averaged_at = snapshot.num_update


def log_rate(logger, svrg, trained, result):
    """Log what a snapshot has made of the learning rate of a rule."""
    if trained.rule is not None:
        if result.rolled_back:
            logger.info('Epoch[%d] The learning rate was too large: back to the best snapshot',
                        svrg.epoch or 0)
        logger.info('Epoch[%d] Learning rate=%g', svrg.epoch or 0, trained.rule(None))


def log_result(logger, epoch, seconds, result):
    """Log the seconds that a snapshot took, the gradient's norm and the objective there."""
    logger.info('Epoch[%d] Full gradient time=%.3f', epoch, seconds)
    if result is None:  # an override has taken no snapshot
        return
    logger.info('Epoch[%d] Full gradient norm=%.1e', epoch, result.norm)
    if result.objective is not None:
        logger.info('Epoch[%d] Full objective=%g', epoch, result.objective)


def can_go_on(svrg):
    """Tell whether steps from the latest snapshot can lower the objective: no row has a NaN."""
    return math.isfinite(svrg.result.norm) or svrg.snapshot.num_update > 0


def warn_of_rows_left_out(svrg):
    """Warn once that training may not converge since each pass leaves out other rows."""
    svrg.warn_once('tol may not be reached: each pass over train_data leaves out other rows '
                   '(rolled over, or discarded after a shuffle). With last_batch_handle='
                   "'pad', or a DataLoader's last_batch='keep', it leaves out none")


def warn_of_end(svrg, trained):
    """Warn where a last snapshot found that training has not converged."""
    tol = svrg.settings.tol
    if tol is None or svrg.snapshot.has_converged:
        return
    if not can_go_on(svrg):
        reason = 'no step was made: look at the data and the first weights'
    elif len(svrg.rows_of_passes) > 1:
        reason = ('passes had %s rows, so that each has another objective, unless batch_size '
                  'divides the rows' % ' and '.join(map(str, sorted(svrg.rows_of_passes)[:2])))
    elif svrg.reference.disturbances():
        reason = ('with %s each batch has another objective, so that the gradient may not vanish'
                  % ', '.join(svrg.reference.disturbances()))
    else:
        reason = '%smore epochs may be needed' % (
            'another learning rate or ' if trained.rule is None
            else '' if trained.mean_gradient().is_smooth else 'larger batches or ')
    svrg.warn_once('training did not converge: gradient %.1e, tol %g; %s'
                   % (svrg.result.norm, tol, reason))


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

"""What both front ends do at a snapshot: take it, let a rule set the rate, and report it."""

import math

from .result import REASONS, Result

_ROUNDING = 25  # of the weights' spacing, within which a step is rounding
_SAME = 1e-3  # what norms at the same weights differ by at most, on the same data
_WORSE = 10  # times the first norm: rounding does less where training begins at the floor


def take(svrg, trained, source, workers):
    """Take a snapshot; if the optimizer has a rule, let it set the rate.

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
    Result
    """
    rule, snapshot, training = trained.rule, svrg.snapshot, svrg.training
    training.is_stuck = False
    if rule is None:
        before = PreviousSnapshot(svrg) if svrg.settings.tol and snapshot.is_active else None
        svrg.take_snapshot(trained.model, source, workers)
        if before is not None:
            snapshot.is_at_floor = not learn_from_move(svrg, trained.mean_gradient(), before)
    rolled_back = rule is not None and rule.take_snapshot(svrg, trained, source, workers)
    tol, far, norm = svrg.settings.tol, math.inf, gradient_norm(svrg, trained)
    if tol is not None or rule is not None:
        far = distance(svrg, trained, norm)
    if tol is not None:  # workers decide alike
        far, is_above = workers.allreduce_max([far, float(not snapshot.is_at_floor)])
        snapshot.is_at_floor = not is_above
    reason = ('converged' if tol is not None and far <= tol
              else 'at the floor' if snapshot.is_at_floor
              else 'rolled back' if rolled_back
              else 'no step' if not (snapshot.num_update or math.isfinite(norm)) or (
                  rule is None and training.is_stuck)
              else 'not finite' if not math.isfinite(norm) else None)
    training.result = Result(
        reason, objective(svrg, trained), norm, far if math.isfinite(far) else None,
        training.epochs, training.epochs + snapshot.num_taken - training.taken_before)
    training.first_result = training.first_result or training.result
    snapshot.has_converged = training.result.has_converged
    return training.result


class PreviousSnapshot:
    """The snapshot that the next one replaces, and the number of steps from it."""

    def __init__(self, svrg):
        self.weights = svrg.reference.copy_of_values()
        self.full_gradient = svrg.snapshot.full_gradient
        self.steps = svrg.snapshot.num_update - svrg.snapshot.taken_at


def learn_from_move(svrg, mean_gradient, before):
    r"""Learn the curvature since the snapshot before; tell whether this one is above the floor.

    That of the precision is where

    .. math:: \|G\| < 25\, \epsilon \|w\| \sqrt{\lambda \lambda_{max}}
              \quad \text{and} \quad \|G\| \ge \|G_{before}\|.

    With the curvature :math:`\lambda = \|\Delta G\| / \|\Delta w\|` of the last two snapshots
    that differ, and the largest so far, the way to the optimum is within the rounding of the
    weights, the smaller ones of both snapshots, and the gradient does not get smaller. Passes
    that find another gradient each time, as with Dropout, do not tell.
    """
    snapshot, weights = svrg.snapshot, svrg.reference.weights()
    if before is None or (before.steps and (
            svrg.reference.disturbances()
            or snapshot.full_gradient.rows != before.full_gradient.rows)):
        return True
    norm, former, changed, moved = mean_gradient.secant(
        snapshot.full_gradient, weights, before.full_gradient, before.weights)
    if not before.steps:
        if not moved and not math.isclose(norm, former, rel_tol=_SAME):
            snapshot.forget_curvature()  # of other data
        return True
    svrg.training.is_stuck = not moved and mean_gradient.rate != 0
    if changed and moved:
        snapshot.see_curvature(changed / moved)
    curvature = math.sqrt(snapshot.curvature * snapshot.steepest)
    spacing = mean_gradient.spacing(weights, before.weights)
    return not (norm < _ROUNDING * spacing * curvature and norm >= former)


def distance(svrg, trained, norm):
    r"""Return how far a snapshot of a gradient norm is from the optimum, relative to its weights.

    .. math:: \sqrt{\frac{G^T H G}{\lambda\, w^T M w}}

    The root of :math:`G^T H G` is the Newton decrement: half its square estimates how far the
    objective can fall. :math:`\lambda` is the largest curvature so far. In the metric M of a layer
    on the inputs the norm of w is the spread of the outputs, so the distance has no unit. With a
    proximal operator G is the gradient mapping, and H has the pairs on its support. With another
    optimizer than 'svrg_lbfgs' M is 1, and H is one over the curvature between the last two
    snapshots that differ. The distance is infinite if no curvature is known.
    """
    if not norm:
        return 0.
    snapshot, weights = svrg.snapshot, svrg.reference.weights()
    fall, size = trained.mean_gradient().decrement(
        snapshot.full_gradient, weights, snapshot.curvature)
    size *= snapshot.steepest
    return math.sqrt(max(fall, 0.) / size) if size and math.isfinite(fall) else math.inf


def log_rate(logger, svrg, trained, result):
    """Log the learning rate that a rule has set at a snapshot."""
    if trained.rule is not None:
        if result.reason == 'rolled back':
            logger.info('Epoch[%d] The learning rate was too large: back to the best snapshot',
                        svrg.epoch or 0)
        logger.info('Epoch[%d] Learning rate=%g', svrg.epoch or 0, trained.rule(None))


def log_result(logger, epoch, seconds, result):
    """Log the seconds that a snapshot took, and what it has found."""
    logger.info('Epoch[%d] Full gradient time=%.3f', epoch, seconds)
    if result is None:  # an override has taken no snapshot
        return
    logger.info('Epoch[%d] Full gradient norm=%.1e', epoch, result.norm)
    if result.objective is not None:
        logger.info('Epoch[%d] Full objective=%g', epoch, result.objective)
    if result.distance is not None:
        logger.info('Epoch[%d] Distance=%.1e', epoch, result.distance)


def warn_of_rows_left_out(svrg):
    """Warn once that training may not converge since each pass leaves out other rows."""
    svrg.warn_once('tol may not be reached: each pass over train_data leaves out other rows '
                   '(rolled over, or discarded after a shuffle). With last_batch_handle='
                   "'pad', or a DataLoader's last_batch='keep', it leaves out none")


def end(svrg, trained, logger):
    """Set in the result why training has ended; log it, and warn if it did not converge."""
    training, tol = svrg.training, svrg.settings.tol
    result, first = training.result, training.first_result
    if result is None:
        return
    reason = result.reason or ('diverged' if result.objective is not None
                               and result.objective > first.objective
                               and result.norm > _WORSE * first.norm else 'epochs used up')
    words = REASONS[reason] % {
        'tol': tol or 0, 'to': '' if tol is None else ' to tol=%g' % tol,
        'dtype': trained.mean_gradient().dtype(svrg.reference.weights()),
        'advice': _advice(svrg, trained, reason)}
    training.result = result = result._replace(
        reason=reason, words=words, epochs=training.epochs,
        passes=result.passes + training.epochs - result.epochs)
    if tol is not None or trained.rule is not None:
        logger.info('%s', result)
    if tol is not None and not result.has_converged:
        svrg.warn_once(str(result))


def _advice(svrg, trained, reason):
    """Return what may let training converge, or what keeps it from that."""
    if reason == 'no step':
        return ('a larger learning rate may be needed' if svrg.training.is_stuck
                else 'look at the data and the first weights')
    rows = sorted(svrg.training.rows_of_passes)
    if len(rows) > 1:
        return ('passes had %s rows, so that each has another objective, unless batch_size '
                'divides the rows' % ' and '.join(map(str, rows[:2])))
    if svrg.reference.disturbances():
        return ('with %s each batch has another objective, so that the gradient may not vanish'
                % ', '.join(svrg.reference.disturbances()))
    return '%smore epochs may be needed' % (
        'another learning rate or ' if trained.rule is None
        else '' if trained.mean_gradient().is_smooth else 'larger batches or ')


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

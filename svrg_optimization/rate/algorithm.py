"""A snapshot from its beginning to what it has found: the algorithm of rate/ in one place."""

import numpy as np

from .constants import HALVINGS
from .convergence import judge
from .learning import fits, learn
from .objective import Objective


def take(svrg, trained, a_pass, workers):
    """Take a snapshot, learn from it, and judge whether training has converged.

    With 'newton_cg' make an iteration of L-BFGS. Without that and a `tol` the snapshot is only
    taken.

    Parameters
    ----------
    svrg : SVRG
        The snapshot of the model.
    trained : TrainedModel
        The model.
    a_pass, workers
        As in ``SVRG.take_snapshot``.
    """
    objective, training = Objective(svrg, trained, a_pass, workers), svrg.training
    if objective.tol is None and not objective.moves:
        svrg.take_snapshot(trained.model, a_pass, workers)
        return
    with np.errstate(all='ignore'):  # numbers that are not finite are told in words
        found = (_iterate if objective.moves else _observe)(
            objective, training.learned(), training)
        training.is_resumed = False
        if found is not None:
            reason, verdict = found
            training.record(objective, verdict.word or reason, verdict.distance)


def _observe(objective, learned, training):
    """Learn from the snapshot after steps, which may have moved no weight; judge it."""
    before = objective.kept()
    learn(objective, learned, before, training.is_resumed)
    is_stuck = before is not None and before.steps and not objective.has_moved_from(before)
    return 'no step' if is_stuck else None, _judged(objective, learned, training)


def _iterate(objective, learned, training):
    """Move the weights along the way, so far that the objective falls; judge the new snapshot.

    That of the last iteration is at the weights of now, unless there is none, or somebody has set
    them since, or the data are others. Where it has converged, nothing is done.
    """
    stays, is_other = training.has_converged_at(objective.number), training.is_of_other_data(
        objective.train_data)
    verdict = None
    if objective.agree(learned.is_fresh or is_other or not objective.is_at_snapshot()
                       or not fits(learned.regime, objective)):
        learn(objective, learned, None, is_other)
        verdict = _judged(objective, learned, training)
    if stays or verdict is not None and verdict.word:
        return verdict and (None, verdict)
    if verdict is None:
        learned.set_way(objective.point(learned.regime.metric))  # maybe of other decays
    may_restart = True
    while True:
        has_moved = _move(objective, learned)
        verdict = _judged(objective, learned, training)
        if has_moved or verdict.word:
            return None, verdict
        if not (verdict.check and verdict.check.pairs):  # of which H has learned
            if not (may_restart and objective.rewind()):
                return 'no step', verdict
            may_restart = False  # rounding may have spoilt H
            learned.forget()
            learn(objective, learned, None)


def _move(objective, learned):
    """Move along the way, or half as far and so on; tell whether the objective has fallen."""
    begin, reach = objective.kept(), 1.
    while reach >= 0.5 ** HALVINGS and np.isfinite(learned.way).all() and objective.rewind():
        at, end = learned.point.weights, learned.end
        try:
            if not objective.go_to(learned.regime.metric,
                                   end if reach == 1 else at + reach * (end - at)):
                return False
            if not learn(objective, learned, begin, is_trial=True):
                return True
        except BaseException:  # nobody has seen whether the move lowers the objective
            objective.go_back(begin)
            learned.forget()
            raise
        reach /= 2
    return False


def _judged(objective, learned, training):
    """Return the Verdict on the latest snapshot, of whose check is learned."""
    verdict = judge(objective, learned)
    training.is_hidden = verdict.is_hidden
    if verdict.check is not None:
        training.check = verdict.check
        training.checks += verdict.check.passes
        learned.learn_check(verdict.check, objective.number)
    return verdict

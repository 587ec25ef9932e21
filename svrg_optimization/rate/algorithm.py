"""What happens at a snapshot, from its beginning to what it has found: the door to rate/."""

import math

import numpy as np

from .constants import ROUGHLY
from .convergence import Verdict
from .learning import fits, learn
from .newton_cg import begin, iterate, judged, solve_and_judge
from .objective import Objective


def take(svrg, trained, a_pass, workers):
    """Take a snapshot. With a `tol`, judge how far the optimum is from there.

    With 'newton_cg' make an iteration of Newton's method, which takes snapshots as it needs them.

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
        training.passes += 1
        return
    with np.errstate(all='ignore'):  # numbers that are not finite are told in words
        verdict, reason = (_iterate if objective.moves else _observe)(objective, training)
        training.is_resumed = False
        training.record(objective, verdict, verdict.word or reason)


def _iterate(objective, training):
    """Make an iteration, unless the weights of now are the optimum; return Verdict and reason.

    What was learned is of the snapshot. Since then users may have set weights, given other data,
    or another decay.
    """
    learned = training.learned
    is_other = training.is_of_other_data(objective.train_data)
    if objective.agree(learned.is_fresh or not objective.is_at_snapshot()
                       or not fits(learned, objective)) or (
            is_other and not _has_gradient_of_snapshot(objective, learned)):
        learned.forget()
        verdict = begin(objective, learned)
    else:
        former, learned.point = learned.point, objective.point(learned.metric)
        if former and not np.array_equal(former.gradient, learned.point.gradient):
            verdict = solve_and_judge(objective, learned)
        elif training.has_converged(objective.number):
            verdict = judged(objective, learned)
        else:
            verdict = Verdict()
    if verdict.word:
        return verdict, None
    verdict, has_moved = iterate(objective, learned)
    return verdict, None if has_moved else 'no step'


def _has_gradient_of_snapshot(objective, learned):
    """Tell whether another pass finds the snapshot's gradient; set the point of the snapshot."""
    learned.point = objective.point(learned.metric)
    there = objective.point_at(learned.metric)
    far = np.linalg.norm(learned.metric.pull(there.gradient - learned.point.gradient))
    return objective.rewind() and not objective.agree(
        there.rows != learned.point.rows or not far <= ROUGHLY * learned.noise.rounding)


def _observe(objective, training):
    """Learn from the snapshot after steps, which may have moved no weight; judge it.

    A path is looked for where it may be short enough, and after a failed one not too soon.
    """
    learned, before = training.learned, objective.kept()
    learn(objective, learned, before, training.is_resumed)
    reason = 'no step' if before and before.steps and not objective.has_moved_from(
        before) else None
    if learned.metric is None or learned.rows_differ:
        return Verdict(), reason
    metric, point, passes = learned.metric, learned.point, training.passes
    move = learned.pairs.times(metric.seen_by_loss(metric.pull(point.gradient)))
    verdict = Verdict(objective.agree(learned.relative(move)))
    if objective.number >= learned.next_check and verdict.distance <= objective.tol:
        learned.radius = math.inf
        verdict = solve_and_judge(objective, learned)
        if not verdict.word:
            learned.next_check = objective.number + training.passes - passes
    return verdict, reason

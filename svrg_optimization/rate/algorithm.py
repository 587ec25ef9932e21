"""A snapshot from its beginning to what it has found: the algorithm of rate/ in one place."""

import numpy as np

from .convergence import Verdict, judge
from .jumps import Jumps
from .learned import earned
from .learning import learn
from .objective import Objective


def take(svrg, trained, a_pass, workers):
    """Take a snapshot, learn from it, and tell whether training has converged.

    With 'svrg_lbfgs' the rate is set, and jumps are made. If the objective is above that of the
    snapshot before, training then goes back to that one, with a smaller rate.

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
    learned, stays = training.learned(objective), training.has_converged(svrg.snapshot)
    with np.errstate(all='ignore'):  # numbers that are not finite are told in words
        is_undone = _learn_steps(objective, learned, training.is_resumed)
        verdict, jumps = _judged(objective, learned, training), Jumps(objective, learned)
        while not verdict.word and not stays and objective.sets_rate and jumps.jump():
            verdict = _judged(objective, learned, training)
        training.is_resumed = False
        if objective.sets_rate:
            objective.rule.begin_steps()
        training.record(objective, verdict.word or (
            'no step' if learned.is_stuck else 'rolled back' if is_undone else None), verdict)


def _learn_steps(objective, learned, is_resumed):
    """Learn from the snapshot after steps, also what they have earned; tell whether it went back.

    An epoch's steps take two passes, and the snapshot takes one.
    """
    before, former = objective.kept(), learned.length
    is_undone = learn(objective, learned, before, is_resumed)
    if before is not None and before.steps and former:
        learned.steps_cost = 1 + 2 * before.steps / max(objective.batches, 1)
        learned.steps_earn = earned(former, learned.length) / learned.steps_cost
    return is_undone


def _judged(objective, learned, training):
    """Return the Verdict on the latest snapshot, of whose check is learned."""
    verdict = judge(objective, learned)
    if verdict.check is not None:
        training.checks += verdict.check.passes
        learned.learn_check(verdict.check, objective.number)
    return verdict


def result(svrg, trained):
    """Return what the latest snapshot has found, None without one."""
    training, snapshot = svrg.training, svrg.snapshot
    if snapshot.is_active and training.result(snapshot) is None:
        training.record(Objective(svrg, trained), None, Verdict())
    return training.result(snapshot)

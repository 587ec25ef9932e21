"""A snapshot from its beginning to what it has found: the algorithm of rate/ in one place."""

import math

import numpy as np

from .convergence import judge
from .learning import learn
from .objective import Objective


def take(svrg, trained, a_pass, workers):
    """Take a snapshot, learn from it, and judge whether training has converged.

    Without a `tol` and 'svrg_lbfgs' it is only taken. With 'svrg_lbfgs' the rate is set, and jumps
    are made. If the objective is above that of the snapshot before, training then goes back to
    that one, with a smaller rate.

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
    if objective.tol is None and not objective.sets_rate:
        svrg.take_snapshot(trained.model, a_pass, workers)
        return
    learned, stays = training.learned(objective), training.has_converged(svrg.snapshot)
    with np.errstate(all='ignore'):  # numbers that are not finite are told in words
        is_undone = _learn_steps(objective, learned, training.is_resumed)
        verdict, jumping = _judged(objective, learned, training), jumps(objective, learned)
        while not verdict.word and not stays and objective.sets_rate and next(jumping, False):
            verdict = _judged(objective, learned, training)
        training.is_resumed = False
        if objective.sets_rate:
            objective.rule.begin_steps()
        training.record(objective, verdict.word or (
            'no step' if learned.is_stuck else 'rolled back' if is_undone else None),
            verdict.distance)


def _learn_steps(objective, learned, is_resumed):
    """Learn from the snapshot after steps, also what they have earned; tell whether it went back.

    An epoch's steps take two passes, and the snapshot takes one.
    """
    before, former = objective.kept(), learned.length
    is_undone = learn(objective, learned, before, is_resumed)
    if before is not None and before.steps and former:
        learned.steps_cost = 1 + 2 * before.steps / max(objective.batches, 1)
        learned.steps_earn = _earned(former, learned.length) / learned.steps_cost
    return is_undone


def _judged(objective, learned, training):
    """Return the Verdict on the latest snapshot, of whose check is learned."""
    verdict = judge(objective, learned)
    training.is_hidden = verdict.is_hidden
    if verdict.check is not None:
        training.check = verdict.check
        training.checks += verdict.check.passes
        learned.learn_check(verdict.check, objective.number)
    return verdict


def jumps(objective, learned):
    """Jump to where the regime has the optimum, and learn from it; yield True after each jump."""
    made, reach, first_length = 0, 1., learned.length
    while True:
        goes_on = objective.agree(pays(made, _earned(first_length, learned.length), learned))
        if not (goes_on and reach and made < learned.regime.jumps and np.isfinite(
                learned.way).all()) or objective.noise_sources or not objective.rewind():
            return
        begin, at, end = objective.kept(), learned.point.weights, learned.end
        try:
            if not objective.go_to(learned.regime.metric,
                                   end if reach == 1 else at + reach * (end - at)):
                return
            is_undone = learn(objective, learned, begin, has_jumped=True)
        except BaseException:  # nobody has seen whether the jump lowers the objective
            objective.go_back(begin)
            learned.forget()
            raise
        made += 1
        # Once more, half as far, or as far as the new way.
        reach = 1. if not is_undone else 0.5 if reach == 1 else 0.
        yield True


def pays(made, gained, learned):
    """Tell whether another jump pays, after some that have shortened the way by powers of e.

    It does as long as jumps have taken fewer passes than the steps before them, or shorten the way
    by more in a pass.
    """
    return made < learned.steps_cost or gained >= made * learned.steps_earn


def _earned(former, way):
    """Return by how many powers of e a way of some length has become shorter."""
    return math.log(former / way) if 0 < former < math.inf and 0 < way < math.inf else 0.

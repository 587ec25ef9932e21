r"""Convergence: what a snapshot finds, by three rules.

1. *Distance.* With the inverse H of the Hessian, as the secant pairs have it, and the mean gradient
   g, the optimum is :math:`\|H g\|` away, in the outputs.
2. *Confirmation.* That is so if H is right. Gradients near the snapshot measure the smallest
   curvature :math:`\theta` of the objective beside that of H, with which there is a bound of the
   distance (`confirmation.py`). What they find, H learns.
3. *Floor.* The weights are known to their precision :math:`\epsilon`, and g to about
   :math:`\epsilon \|g_{batch}\| / 2`, of which H makes a distance. Rounding that moves the outputs
   by a thousandth of their size is no floor.

Training has converged where the distance is at most `tol` times the spread of the outputs, and the
bound ten times that at most, or `tol` where a direction without curvature may hide. It is at the
floor where the bound is at most what rounding may be. Of a saturated loss gradients are small, and
their rounding is not: it is that of what cancels in them, as in the gradient at weights of 0.
Neither distance nor bound are below that of such a rounding.
"""

import math

import numpy as np

from ..core.arrays import precision_of
from .confirmation import flattest
from .constants import ROUGHLY, SLIGHT
from .objective import Objective
from .result import REASONS, Result


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
    with np.errstate(all='ignore'):  # numbers that are not finite are told in words
        training, objective = svrg.training, Objective(svrg, trained, a_pass, workers)
        rule, stays = training.rule_of(trained), training.has_converged(svrg.snapshot)
        is_undone = rule.take_snapshot(objective, training.is_resumed)
        while True:
            distance, word = _found(objective, rule, training)
            if word or stays or not objective.sets_rate or not rule.jump(objective):
                break
        training.is_resumed = False
        _record(svrg, trained, word or ('no step' if rule.is_stuck else 'rolled back' if is_undone
                                        else None), distance)


class _Distance:
    """How far the optimum is by H alone, and what hides it, in the outputs.

    Attributes
    ----------
    way, noise : float
        The way to the optimum, and that by rounding of gradients at most.
    size, near : float
        Spread of the outputs, and `tol` times that.
    enough : float
        How large the bound may be: the floor, if it is one, or `near`.
    is_hidden : bool
        Whether rounding hides the distance.
    scale : float
        That of the outputs.
    """

    def __init__(self, objective, rule):
        metric, weights = rule.metric, rule.point.weights
        self._rule, self._agree, self.size = rule, objective.agree, metric.spread(weights)
        of_gradient = rule.gamma * rule.of_batch
        self._outputs = max(metric.spread(weights, about_zero=True), of_gradient)
        self._rounding = metric.rounding(weights, rule.regime.dtype)
        self.near = (objective.tol or 0.) * self.size
        self.scale = max(self.size, of_gradient) or 1.
        self.precision = math.sqrt(max(precision_of(rule.regime.dtype),
                                       self._rounding / self.scale))
        self.measure()

    def measure(self):
        """Measure the way and its rounding in the H of now."""
        noise, self.noise = self._rule.noise()
        self.way, = self._agree([float(np.linalg.norm(self._rule.way))])
        floor = self._rounding + ROUGHLY * noise
        self.enough = max(self.near, 0. if floor >= SLIGHT * self._outputs else floor)
        self.is_hidden = (self.way <= max(self.enough, floor)
                          and max(self.way, self.noise) > self.enough)


def _found(objective, rule, training):
    """Return the distance, and 'converged' or 'at the floor' if that is confirmed."""
    rule.rows_differ |= objective.leaves_out_rows
    if not rule.knows_distance or rule.rows_differ:
        return math.inf, None
    at = _Distance(objective, rule)
    left, word, training.is_hidden = at.way / rule.smallest, None, at.is_hidden
    is_due = objective.number >= rule.next_check or max(left, at.noise) <= at.enough
    if is_due and at.way <= at.enough and objective.rewind():
        left, word = _confirmed(objective, rule, training, at)
    return left / at.size if at.size else math.inf if left else 0., word


def _confirmed(objective, rule, training, at):
    """Return the distance and the word by the smallest curvature, which H learns if it is small."""
    metric, checks = rule.metric, training.checks
    # So long that the rounding of weights and the change of the curvature weigh alike.
    length = at.precision * at.scale

    def product(vector):
        training.checks += 1
        there = objective.point_at(metric, length * vector)
        return metric.pull(there.gradient - rule.point.gradient) / length

    def curvature(sees):
        return flattest(product, at.precision, rule.regime.pairs, sees, metric.size,
                        objective.agree, objective.number)

    def bound_of(check):
        """Let the rule have the smallest curvature of a check, and return the bound with it."""
        rule.smallest = min(max(check.smallest, precision_of(rule.regime.dtype)), 1.)
        is_known = check.smallest > 0 and all(
            rule.knows(*pair, length) for pair in zip(check.moves, check.changes)
            if pair[0].any())  # where nothing is seen there is no move
        return objective.agree([rule.bound() if is_known else math.inf])[0]

    rule.measure_noise(objective)
    check = curvature(rule.sees)
    bound = left = math.inf
    training.is_hidden = True
    if check.is_resolved:
        bound, is_sharp = bound_of(check), check.is_sharp
        at.measure()
        training.is_hidden = at.is_hidden
        decays = objective.mean_gradient.decays
        decayed = [name for name in metric.shapes if decays[name]]
        if decayed and not is_sharp and (
                max(bound, at.noise) <= at.enough
                or max(at.way, bound / ROUGHLY, at.noise) <= at.near):
            undecayed = curvature(lambda vector: metric.without(rule.sees(vector), decayed))
            is_sharp = undecayed.is_sharp and undecayed.is_resolved
            check = min(check, undecayed, key=lambda each: each.smallest)
            bound = bound_of(check)
        left = max(at.way, bound / (ROUGHLY if is_sharp else 1), at.noise)
    fails = max(bound, at.noise) > at.enough and left > at.near
    training.is_other_function = fails and rule.is_other(objective.point_at(metric), objective)
    rule.next_check = objective.number + training.checks - checks
    training.flat = ''
    if fails:
        rule.regime.pairs.flat = check.moves[0]
    if check.is_resolved and bound > at.enough:
        rule.learn_curvature(check.moves, check.changes, length)
        training.flat = metric.largest_part(check.moves[0])
    return left, None if fails else 'converged' if left <= at.near else 'at the floor'


def _record(svrg, trained, reason, distance=math.inf):
    training, snapshot, norm = svrg.training, svrg.snapshot, gradient_norm(svrg, trained)
    if not math.isfinite(norm):
        reason = 'not finite'
    training.record(Result(
        reason, objective(svrg, trained), norm, distance if math.isfinite(distance) else None,
        training.epochs, training.passes(snapshot),
        **{'words': words(svrg, trained, reason)} if reason else {}), snapshot)


def words(svrg, trained, reason):
    """Return the sentence of a reason."""
    training, tol, found = svrg.training, svrg.settings.tol, svrg.training.result(svrg.snapshot)
    if reason == 'epochs used up' and tol is None and trained.rule is None:
        return 'all epochs are trained'  # nobody has asked for convergence
    noise = ', '.join(svrg.reference.noise_sources())
    mean_gradient = trained.mean_gradient()
    dtype = mean_gradient.dtype(svrg.reference.weights())
    rule = training.rule_of(trained)
    part = training.flat or rule.flat_part()
    flat = ('the loss hardly changes along %s, as where classes are separable or a column has one '
            'value' % part)
    is_free = part and mean_gradient.is_smooth and not mean_gradient.decays[part]
    advice = ((reason == 'not finite', 'a smaller learning rate is needed' if training.epochs
               else 'look at the data and the initial weights'),
              (rule.rows_differ, 'passes had different numbers of rows, so that each has '
                                 'another objective, unless batch_size divides the rows'),
              (training.is_other_function,
               'passes find other gradients at the same weights: rows that are drawn, left out or '
               'changed by chance make each pass another objective'),
              (noise, 'with %s each batch has another objective' % noise),
              (training.has_risen(found), 'it went up, a smaller learning rate is needed'),
              (found and found.norm == 0, 'the gradient is 0, as at the optimum of a hinge loss or '
                                          'where it is rounded to 0'),
              (is_free, flat + ': without weight decay there may be no optimum'),
              (training.is_hidden, 'rounding of %s hides how far the optimum is' % dtype),
              (part, flat),
              (found and found.distance is None, 'distances are known for linear models only'),
              (True, '%smore epochs may be needed' % (
                  '' if trained.rule else 'another learning rate or ')))
    return REASONS[reason] % {
        'to': '' if tol is None else ' to tol=%g' % tol,
        'dtype': dtype,
        'advice': next(words for applies, words in advice if applies)}


def result(svrg, trained):
    """Return what the latest snapshot has found, None without one."""
    training, snapshot = svrg.training, svrg.snapshot
    if snapshot.is_active and training.result(snapshot) is None:
        _record(svrg, trained, None)
    return training.result(snapshot)


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

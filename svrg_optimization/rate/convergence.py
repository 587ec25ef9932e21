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
from ..data.iterators import leaves_out_other_rows
from .confirmation import flattest
from .constants import ROUGHLY, SLIGHT
from .probe import near_snapshot
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
        training, has_rule = svrg.training, trained.rule is not None
        rule, stays = training.rule_of(trained), training.has_converged(svrg.snapshot)
        is_undone = rule.take_snapshot(svrg, trained, a_pass, workers)
        while True:
            distance, word = _found(svrg, trained, rule, a_pass, workers)
            if word or stays or not has_rule or not rule.jump(
                    svrg, trained, a_pass, workers):
                break
        training.is_resumed = False
        training.rows_differ |= rule.rows_differ or leaves_out_other_rows(a_pass.train_data)
        _record(svrg, trained, word or ('no step' if rule.is_stuck else 'rolled back' if is_undone
                                        else None), distance)


def _found(svrg, trained, rule, a_pass, workers):
    """Return the distance, and 'converged' or 'at the floor' if that is confirmed."""
    training, metric = svrg.training, rule.metric
    if not rule.knows_distance or leaves_out_other_rows(a_pass.train_data):
        return math.inf, None
    size, dtype = metric.spread(rule.point.weights), rule.regime.dtype
    outputs = max(metric.spread(rule.point.weights, about_zero=True), rule.gamma * rule.of_batch)
    rounding = metric.rounding(rule.point.weights, dtype) * (ROUGHLY if rule.is_stuck else 1)
    near = (svrg.settings.tol or 0.) * size

    def ways():
        """Return the way, that by rounding, how far both may be, and whether rounding hides it."""
        noise, noise_at_most = rule.noise()
        noise_at_most *= max(1., rule.amplifies)
        way, = workers.allreduce_max([float(np.linalg.norm(rule.way))])
        floor = rounding + ROUGHLY * noise
        enough = max(near, 0. if floor >= SLIGHT * outputs else floor)
        return way, noise_at_most, enough, (
            way <= max(enough, floor) and max(way, noise_at_most) > enough)

    way, noise, enough, training.is_hidden = ways()
    if way > enough or rule.rows_differ or a_pass.again() is None or (
            max(way / rule.smallest, noise) > enough
            and svrg.snapshot.num_taken < rule.next_check):
        left = way / rule.smallest
        return (left / size if size else math.inf if way else 0.), None
    # So long that the rounding of weights and the change of the curvature weigh alike.
    scale = max(size, rule.gamma * rule.of_batch, rounding / SLIGHT ** 2) or 1.
    precision = math.sqrt(max(precision_of(dtype), rounding / scale))
    length = precision * scale
    with near_snapshot(svrg, trained, workers, metric) as point_at:
        def product(vector):
            training.checks += 1
            there = point_at(length * vector, a_pass.again())
            return metric.pull(there.gradient - rule.point.gradient) / length

        def curvature(sees):
            return flattest(product, precision, rule.regime.pairs, sees, metric.size, workers,
                            svrg.snapshot.num_taken)

        def bound_of(check):
            """Let the rule have the smallest curvature of a check, and return the bound with it."""
            rule.smallest = min(max(check.smallest, precision_of(dtype)), 1.)
            return workers.allreduce_max([rule.bound()])[0] if check.smallest > 0 else math.inf

        rule.measure_noise(point_at)
        check = curvature(rule.sees)
        rule.next_check = svrg.snapshot.num_taken + len(check.moves)
        bound = left = math.inf
        training.is_hidden = True
        if check.is_resolved:
            rule.amplifies, bound, is_sharp = check.amplifies, bound_of(check), check.is_sharp
            way, noise, enough, training.is_hidden = ways()
            decays = trained.mean_gradient().decays
            decayed = [name for name in metric.shapes if decays[name]]
            if decayed and not is_sharp and (max(bound, noise) <= enough
                                             or max(way, bound / ROUGHLY, noise) <= near):
                undecayed = curvature(lambda vector: metric.without(rule.sees(vector), decayed))
                is_sharp = undecayed.is_sharp and undecayed.is_resolved
                check = min(check, undecayed, key=lambda each: each.smallest)
                bound = bound_of(check)
            left = max(way, bound / (ROUGHLY if is_sharp else 1), noise)
        fails = max(bound, noise) > enough and left > near
        training.is_other_function = fails and rule.is_other(
            point_at(None, a_pass.again()), workers)
    training.flat = ''
    if check.is_resolved and bound > enough:
        rule.learn_curvature(check.moves, check.changes, length)
        training.flat = metric.largest_part(check.moves[0])
    return left / size if size else math.inf, (
        None if fails else 'converged' if left <= near else 'at the floor')


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
    flat = ('the loss hardly changes along %s, as where classes are separable or a column has one '
            'value' % training.flat)
    is_free = training.flat and mean_gradient.is_smooth and not mean_gradient.decays[training.flat]
    advice = ((reason == 'not finite', 'a smaller learning rate is needed' if training.epochs
               else 'look at the data and the initial weights'),
              (training.rows_differ, 'passes had different numbers of rows, so that each has '
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
              (training.flat, flat),
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

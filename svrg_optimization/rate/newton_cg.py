r"""Newton's method in a trust region, with conjugate gradients: the iterations of 'newton_cg'.

With the gradient g and the Hessian A at the weights, in the variables of the metric, it is

1. *solve*: conjugate gradients on :math:`A d = -g`, until the residual is small, the path leaves
   the trust region, or a curvature is not positive [1]_. A product with A is a difference of
   gradients, by a pass. Earlier products precondition it [3]_. With operators see `composite`;
2. *trial*: the point of the path at the radius, and nearer ones, until the objective falls; what
   it falls by beside the quadratic model sets the radius [2]_;
3. *judge*: how far the optimum is from there, by the path that the next iteration takes.

References
----------
.. [1] T. Steihaug, "The Conjugate Gradient Method and Trust Regions in Large Scale Optimization",
   SIAM Journal on Numerical Analysis 20(3), 1983.
.. [2] C.-J. Lin, R. C. Weng and S. S. Keerthi, "Trust Region Newton Method for Large-Scale
   Logistic Regression", JMLR 9, 2008.
.. [3] J. L. Morales and J. Nocedal, "Automatic Preconditioning by Limited Memory Quasi-Newton
   Updating", SIAM Journal on Optimization 10(4), 2000.
"""

import math

import numpy as np

from ..core.arrays import precision_of
from .composite import minimum_of_model
from .constants import CURVATURES, GOOD, GROW, RESIDUAL, SHRINK, SLIGHT, TRIALS
from .convergence import is_hidden, judge
from .learning import begin_nearer_zero, learn, tried
from .nearby import Nearby
from .path import Path, trial_at


def begin(objective, learned):
    """Take a snapshot, and find the path from there; return the Verdict."""
    learn(objective, learned, None)
    if not objective.rewind():
        raise ValueError('train_data must be read several times with newton_cg, and %r can be '
                         'read once only' % (objective.train_data,))
    begin_nearer_zero(objective, learned)
    return solve_and_judge(objective, learned)


def iterate(objective, learned):
    """Make an iteration; return the Verdict on where it ends, and whether it has moved."""
    for _ in range(2):
        if step(objective, learned):
            return solve_and_judge(objective, learned), True
        learned.is_stuck = True
        verdict = judged(objective, learned)
        if verdict.check and verdict.check.pairs:
            verdict = verdict if verdict.word else solve_and_judge(objective, learned)
        if verdict.word or learned.is_stuck:
            break
    return verdict, False


def solve_and_judge(objective, learned):
    """Find the path from the weights of now; return the Verdict on them."""
    learned.is_stuck, learned.path = False, None
    if not (np.isfinite(learned.point.gradient).all() and objective.rewind()):
        return judged(objective, learned)
    if objective.mean_gradient.proximal:
        learned.radius = math.inf
        learned.path = minimum_of_model(objective, learned)
    else:
        learned.path = solve(objective, learned)
        for move, change in learned.path.products():
            learned.pairs.add(move, change)
    return judged(objective, learned)


def judged(objective, learned):
    """Return the Verdict on the weights of now; let pairs learn of its check."""
    verdict = judge(objective, learned)
    if verdict.check is not None:
        learned.rows_differ |= verdict.check.rows_differ
        for pair in verdict.check.pairs:
            learned.pairs.add(*pair)
    return verdict


def solve(objective, learned):
    """Return the Path of conjugate gradients, preconditioned by the pairs."""
    agree, pairs, metric, point = objective.agree, learned.pairs, learned.metric, learned.point
    gradient = metric.seen_by_loss(metric.pull(point.gradient))
    size, radius = agree(np.linalg.norm(gradient)), learned.radius
    nearby, points, changes = Nearby(objective, learned), [0 * gradient], [0 * gradient]
    conjugate, ray, residual, is_exact = [], [], -gradient, size == 0
    while not is_exact and len(conjugate) < min(pairs.room, metric.size):
        direction = pairs.times(residual)
        for former, product, curvature in conjugate:
            direction = direction - (product @ direction / curvature) * former
        direction, product = nearby.product(
            direction, direction @ residual / (direction @ direction))
        curvature, square = direction @ product, direction @ direction
        largest = max([1 / pairs.gamma if pairs else 0., math.sqrt(product @ product / square)])
        is_flat = not curvature > precision_of(np.float32) * largest * square
        if radius is None:
            radius = learned.radius = agree(min(
                size * square / curvature if curvature > 0 else math.inf,
                max(CURVATURES * size * pairs.gamma, metric.spread(point.weights))))
        if agree(is_flat):
            downhill = -1. if direction @ gradient > 0 else 1.
            ray = [downhill * direction, downhill * product] if direction.any() else []
            break
        conjugate.append((direction, product, curvature))
        step_length = residual @ direction / curvature
        points.append(points[-1] + step_length * direction)
        changes.append(changes[-1] + step_length * product)
        residual = residual - step_length * product
        left, far = agree(np.linalg.norm(residual), np.linalg.norm(points[-1]))
        is_exact = left <= RESIDUAL * size
        if far > radius:
            break
    learned.rows_differ |= nearby.rows_differ
    estimated = pairs.times(residual)
    return Path(np.array(points), np.array(changes), np.array(ray),
                points[-1] + estimated - metric.unseen_by_loss(point.weights), estimated, is_exact)


def step(objective, learned):
    """Go to a point of the path where the objective is lower; tell whether there is one."""
    path = learned.path
    if path is None or objective.agree(path.is_exact and np.linalg.norm(path.move) <= min(
            learned.rounding, SLIGHT * min(learned.sizes))):  # it is rounding alone
        return False
    for _ in range(TRIALS):
        trial = trial_at(path, learned.radius, learned.metric, learned.point)
        trial = trial._replace(is_hidden=objective.agree(is_hidden(learned, trial)))
        if len(path.ray) and objective.agree(trial.fall) <= precision_of(float) * learned.largest:
            break  # the loss falls on, as where classes are separable, but no more than this
        found = tried(objective, learned, trial)
        if found is None:  # rounding leaves the weights where they are
            break
        learned.radius = objective.agree(next_radius(learned.radius, trial, found))
        if not found.is_undone:
            return True
        if trial.is_hidden and path.is_exact:
            break
    return False


def next_radius(radius, trial, found):
    """Return the radius after a Trial, given its Compared."""
    if found.is_undone:
        return SHRINK * min(radius, trial.length)
    if -found.rise > GOOD * trial.fall and trial.length > 0.9 * radius:
        return GROW * radius
    return radius

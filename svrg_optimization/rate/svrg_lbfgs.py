"""Optimizer 'svrg_lbfgs': SVRG with stochastic L-BFGS, in the metric of the inputs."""

import math
from typing import NamedTuple

import mxnet as mx
import numpy as np
from mxnet.lr_scheduler import LRScheduler

from .._argument_checks import checked_number
from ..core.arrays import dense, is_row_sparse
from ..core.requirements import ALL_ROWS, SNAPSHOTS, require
from ..core.snapshots import PreviousSnapshot, distance, gradient_norm, learn_from_move
from ..svrg_optimizer import _register, described
from .direction import Direction
from .metric import InputMoments, MetricBlock, metric_of
from .rollback import Guard, roll_back
from .sampled_batch import SampledBatch
from .secant_pairs import SecantPairs, room_for

_MODULES_DEFAULT = (('learning_rate', 0.01),)  # of `fit` and `init_optimizer`: nobody has given it
_MOMENTUM = 0.9
_TIME_CONSTANTS = 4  # from one snapshot to the next
_STABLE = 1.5  # times (1 + momentum) / (1 + 2 momentum); nag is unstable from 2 on
_UNKNOWN = 0.1  # the rate without momentum, where nothing can be measured
_STATE = 'rate', 'gamma', '_steps', '_is_directed', '_is_fresh', '_lacks_metric', 'num_rollbacks'
_PROXIMAL_RATE = 10.  # with operators, over the batches of a pass; 1 at most
_JUMPS = 20  # at a snapshot
_FASTER = 1.1  # by which the rate grows at most where each batch has another curvature
_FLAT = 1e-8  # relative to the largest value that s y can have


class SnapshotRule(LRScheduler):
    r"""Learning rate and direction of 'svrg_lbfgs', set at each snapshot: its `lr_scheduler`.

    A step is :math:`w \leftarrow w - \eta H g` with the SVRG gradient g, weight decay included,
    and nag's momentum :math:`\beta`. H is the matrix of SecantPairs in the metric M of
    MetricBlocks, with

    .. math:: \gamma = \frac{s^T y}{y^T M^{-1} y}, \quad
              \eta = \min\left(\frac{4 (1 - \beta)}{m},
              \frac{3}{4} \frac{2 (1 + \beta)}{1 + 2 \beta} \frac{1}{b}\right) / \mathrm{slowdown}

    where s and y are those of the newest pair, m is the number of steps between snapshots and b is
    that of batches in a pass. The first bound on :math:`\eta` lets m steps take four time
    constants. The second keeps nag stable: H is about the inverse Hessian of the mean, and the
    Hessian of a batch is at most b times as large, since it is one term of a mean over b batches.
    A random batch gives the first pair: along :math:`M^{-1} g`, with the length at which the
    outputs move by about 1. :math:`\gamma` is the second formula of Barzilai and Borwein.

    If the objective is above that of the snapshot before, training goes back there. The failed
    move gives a pair, too.

    With a proximal operator M is diagonal, and a step has :math:`\gamma M^{-1}`, sgd's momentum,
    and :math:`\eta = \gamma \min(1, 10 / b) / \mathrm{slowdown}`. At a snapshot H is used for
    steps of length 1 in the weights that are neither 0 nor at a bound, as long as passes find
    that these lower the objective or, where it is rounding, the gradient.

    Without pairs M is 1 for several layers. With layers such as Dropout and BatchNorm a random
    batch gives :math:`\gamma`, twice with the same random numbers.
    If M is 1 and in the latter case :math:`\eta = \gamma (1 - \beta) / \mathrm{slowdown}`.

    Preconditioned SVRG that needs no tuning is due to Z. Frangella, P. Rathore, S. Zhao and
    M. Udell, "PROMISE: Preconditioned Stochastic Optimization Methods by Incorporating Scalable
    Curvature Estimates", JMLR 25(346), 2024.

    Attributes
    ----------
    rate : float or None
        Rate since the latest snapshot; None before the first.
    gamma : float or None
        None before it is known.
    metric : list of MetricBlock
        The parts of M that are not 1.
    pairs : SecantPairs
        The last pairs.
    num_rollbacks : int
        How often training went back to the snapshot before.
    """

    def __init__(self):
        super().__init__(1.)
        self.reset()

    def reset(self):
        """Forget all, for another model."""
        self.rate, self.gamma, self._steps, self._is_directed = None, None, 0, False
        self._has_pairs = False
        self.metric, self.pairs, self.guard, self.num_rollbacks = [], SecantPairs(), Guard(), 0
        self.is_resumed, self._directions, self._inverses = False, {}, {}
        self.forget_history()

    def forget_history(self):
        """Let the next snapshot measure everything anew, since the weights or data are others."""
        self._is_fresh = self._lacks_metric = True

    def state(self):
        """Return a dict of numbers, strings and arrays, and lists and dicts, for a checkpoint."""
        return {**{name: getattr(self, name) for name in _STATE}, 'guard': vars(self.guard),
                'metric': [[list(part.names), part.axis, part.moment] for part in self.metric],
                'pairs': vars(self.pairs)}

    def load_state(self, state):
        """Go on with what `state` has returned."""
        vars(self).update({name: state[name] for name in _STATE}, is_resumed=True)
        self.metric = [MetricBlock(*part) for part in state['metric']]
        self.guard, self.pairs = Guard(**state['guard']), SecantPairs(**state['pairs'])
        self._directions, self._inverses = {}, {}

    def rename(self, names):
        """Use other names for the parameters, given a dict from those in the metric to them."""
        for part in self.metric:
            part.names = tuple(names[name] for name in part.names)

    def __call__(self, num_update):
        """Return the current rate.

        Raises
        ------
        RuntimeError
            If it is not known before the first snapshot.
        """
        if self.rate is None:
            raise RuntimeError('svrg_lbfgs has no learning rate before the first snapshot: call '
                               'update_full_grads(train_data) before the first update')
        return self.rate

    # A snapshot

    def take_snapshot(self, svrg, trained, source, workers):
        """Take a snapshot, and set rate and direction, or go back to the one before.

        It returns whether training went back. Arguments are those of
        ``core.snapshots.take``.
        """
        rolls_back = is_worse = self._take(svrg, trained, source, workers)
        for _ in range(0 if trained.mean_gradient().is_smooth else _JUMPS):
            far, = workers.allreduce_max([distance(svrg, trained, gradient_norm(svrg, trained))])
            source = None if is_worse or far <= (svrg.settings.tol or 0) else source.again()
            if source is None or not self._jump(svrg, trained):
                break
            is_worse = self._take(svrg, trained, source, workers, has_jumped=True)
        return rolls_back

    def _take(self, svrg, trained, source, workers, has_jumped=False):
        negative = {name: value for name, value in trained.mean_gradient().multipliers.items()
                    if value < 0}
        if negative:
            raise ValueError('lr_mult must be 0 or more with svrg_lbfgs, and not %s' % negative)
        previous = PreviousSnapshot(svrg) if svrg.snapshot.is_active else None
        moments = InputMoments(svrg.reference, source) if self._lacks_metric else None
        sample = SampledBatch(source, svrg.snapshot.num_taken, moments)
        former = svrg.snapshot.full_gradient
        try:
            svrg.take_snapshot(trained.model, sample, workers)
            return self._decide(svrg, trained, previous, moments, sample, workers, has_jumped)
        except BaseException:
            if svrg.snapshot.full_gradient is not former:
                svrg.snapshot.is_stale = True  # the next one sets the rate
                self.forget_history()
            raise

    def _decide(self, svrg, trained, previous, moments, sample, workers, has_jumped):
        full_gradient, weights = svrg.snapshot.full_gradient, svrg.reference.weights()
        gradient, is_random = trained.mean_gradient(), bool(svrg.reference.disturbances())
        is_fresh = self._is_fresh or (self.is_resumed and previous is not None
                                      and previous.full_gradient.rows != full_gradient.rows)
        self._has_pairs = _has_room(gradient, full_gradient, weights) and not is_random
        self._is_directed = self._has_pairs and gradient.is_smooth
        norm, objective = (measure(full_gradient, weights)
                           for measure in (gradient.norm, gradient.smooth_objective))
        pair, change, along = Pair(), -math.inf, 0.
        if previous is not None and not is_fresh:
            pair, change, along = self._compare(
                gradient, previous, full_gradient, weights, is_random, svrg.snapshot.steepest)
        # Workers decide alike: each with the largest of all workers' numbers.
        is_fresh, lacks_moments, norm, change, along, steps, is_above, batches, *products = (
            workers.allreduce_max([
                is_fresh, moments is None, norm, change, along, previous.steps if previous else 0,
                learn_from_move(svrg, gradient, previous),
                sample.read, *pair[:3]]))
        pair = Pair(*products, pair.vectors)
        svrg.snapshot.is_at_floor = not is_above
        if is_fresh:
            self.gamma, self.pairs, self.guard = None, SecantPairs(), Guard()
        if not lacks_moments:
            self.metric = metric_of(moments.means(workers), gradient, full_gradient, weights,
                                    self._is_directed)
        # They are, where data are others at a resume, or weights were set on another worker.
        self._lacks_metric = bool(is_fresh and lacks_moments)
        self.is_resumed = self._is_fresh = False
        is_better = math.isfinite(norm) and (change < 0 or change == 0 and not has_jumped)
        rolls_back = bool((steps or has_jumped) and is_above and not (is_fresh or is_better))
        if rolls_back:
            roll_back(svrg, previous, trained)
            self.num_rollbacks += not has_jumped
        else:
            self.guard.accept(objective)
        if steps:
            self.guard.slowdown = max(1., self.guard.slowdown * (
                2 if rolls_back else 0.5))
        if (steps or has_jumped) and not (is_random or is_fresh):
            self._learn(pair, gradient, weights, has_failed=rolls_back)
        if ((self.gamma is None or is_random) and not rolls_back
                and svrg.reference.is_repeatable):
            self._learn(self._probe(svrg, trained, gradient, sample, workers), gradient, weights)
        if self.gamma is None and 0 < norm < math.inf:
            svrg.warn_once('the curvature of the objective cannot be measured at a snapshot: the '
                           'learning rate may be too large or too small', 'no curvature')
        if self.gamma and (steps or has_jumped or not svrg.snapshot.curvature):
            svrg.snapshot.see_curvature(1 / self.gamma)
        self._steps = steps or self._steps or 2 * batches
        self._set_rate(gradient, max(batches, 1), is_random)
        self._directions, self._inverses = {}, {}
        return rolls_back

    def _set_rate(self, gradient, batches, is_random):
        """Set the rate, given the number of batches in a pass."""
        beta = gradient.momentum
        if is_random or not self.turns:
            rate = 1 - beta
        elif gradient.is_smooth:
            rate = min(_TIME_CONSTANTS * (1 - beta) / self._steps,
                       _STABLE * (1 + beta) / (1 + 2 * beta) / batches)
        else:
            rate = min(1., _PROXIMAL_RATE / batches)
        gamma = 1. if self._is_directed else self.gamma or _UNKNOWN  # which is in H
        self.rate = rate * gamma / self.guard.slowdown

    def _compare(self, gradient, previous, full_gradient, weights, is_random, steepest):
        """Return the Pair since the previous snapshot, the change of the objective, and g' s."""
        move = {name: dense(weights[name][0]) - dense(previous.weights[name][0])
                for name in gradient.updated(full_gradient)}
        pair = self._pair(gradient, move, gradient.change(
            full_gradient, previous.full_gradient, move))
        along = _dot(move, gradient.of(full_gradient, weights))
        if not math.isclose(gradient.units(full_gradient, previous.full_gradient), 1,
                            rel_tol=1e-6):
            self.pairs = SecantPairs()
        elif pair.length:  # if not, another order of the rows has changed the objective
            noise = steepest * gradient.spacing(weights, previous.weights)
            return pair, self.guard.change(gradient, previous, full_gradient, weights, noise,
                                           along, pair.product, is_random), along
        return pair, -math.inf, along

    def decrement(self, gradients, weights, multipliers, curvature):
        """Return the square of the Newton decrement, g' H g, and w' M w without biases.

        Without pairs H is the inverse of M over the curvature. M joins a bias to the columns: it
        is the mean of the outputs, and what is left is their spread.
        """
        parts = self._parts(list(gradients))
        factors = [multipliers[part.names[0]] for part in parts]
        numbers = [part.joined(gradients) for part in parts]
        vector = np.concatenate([each.ravel() * factor for each, factor in zip(numbers, factors)])
        fall, (pairs, gamma) = 0., self._pairs_along(numbers, parts, multipliers)
        if len(pairs):
            products = np.vstack([pairs.moves, pairs.changes]) @ vector
            fall, curvature = float(products @ pairs.matrix(gamma) @ products), 1 / gamma
        fall += sum(float((each * part.solve(each)).sum()) * factor
                    for part, each, factor in zip(parts, numbers, factors)) / (
                        curvature or math.nan)
        is_matrix = any(array.ndim > 1 for array in weights.values())
        return fall, sum(
            part.spread(part.joined(weights)) / factor for part, factor in zip(parts, factors)
            if weights[part.names[0]].ndim > 1 or not is_matrix)

    def _pairs_of(self, size):
        """Return the pairs in H if steps have them and they are of so many numbers, else none."""
        fits = self._is_directed and len(self.pairs) and self.pairs.moves.shape[1] == size
        return self.pairs if fits else SecantPairs()

    def _pairs_along(self, numbers, parts, multipliers):
        """Return the pairs in H along the numbers of all parts, and its gamma.

        With proximal operators they are those on the support: where the numbers are not 0.
        """
        if self._is_directed or not len(self.pairs):
            return self._pairs_of(sum(map(np.size, numbers))), self.gamma
        metric = [part.times(np.full_like(each, multipliers[part.names[0]]))
                  for part, each in zip(parts, numbers)]
        free, metric = (np.concatenate([each.ravel() for each in arrays])
                        for arrays in (numbers, metric))
        pairs = self.pairs.within(free != 0, metric)
        return pairs, 1 / pairs.squares[-1, -1] if len(pairs) else self.gamma

    def _parts(self, names):
        """Return the parts of some parameters, those with a metric first."""
        parts = [part for part in self.metric if set(part.names) <= set(names)]
        others = set(names).difference(*(part.names for part in parts))
        return [*parts, *(MetricBlock([name]) for name in names if name in others)]

    def _pair(self, gradient, move, change):
        """Return the Pair of a move, from dicts of NDArray by name."""
        length = product = solved = 0.
        vectors = []
        for part in self._parts(list(move)):
            multiplier, s, y = (gradient.multipliers[part.names[0]], part.joined(move),
                                part.joined(change))
            z = part.solve(y)
            length += float((s * part.times(s)).sum()) / multiplier
            product += float((s * y).sum())
            solved += float((y * z).sum()) * multiplier
            if self._has_pairs:
                vectors.append((s.ravel() / multiplier, y.ravel() * multiplier, z.ravel()))
        return Pair(length, product, solved, tuple(map(np.concatenate, zip(*vectors))))

    def _learn(self, pair, gradient, weights, has_failed=False):
        """Let a pair set gamma, and add it to the pairs, if the objective is convex along it.

        After a failed move gamma gets no larger.
        """
        if not _FLAT * math.sqrt(pair.length * pair.solved) < pair.product < math.inf:
            return
        gamma = pair.product / pair.solved
        # With Dropout each batch has another curvature.
        largest = 1. if has_failed else math.inf if self._is_directed else _FASTER
        self.gamma = gamma if self.gamma is None else min(gamma, largest * self.gamma)
        if self._has_pairs:
            self.pairs.add(*pair.vectors, _dtype(gradient, weights))

    def _probe(self, svrg, trained, gradient, sample, workers):
        """Return the Pair of a random batch, along the inverse of M times the gradient."""
        full_gradient, weights = svrg.snapshot.full_gradient, svrg.reference.weights()
        here, way, length = gradient.of(full_gradient, weights), {}, 0.
        for part in self._parts(list(here)):
            numbers, multiplier = part.joined(here), gradient.multipliers[part.names[0]]
            solved = part.solve(numbers) * multiplier
            length += float((numbers * solved).sum())
            way.update(part.separated(solved, here))
        with svrg.gradients_nearby(trained.model, sample, workers) as gradient_of:
            if not 0 < length < math.inf:
                return Pair()
            shift = {name: mx.nd.array(way[name] / math.sqrt(length), here[name].context,
                                       here[name].dtype) for name in here}
            sample.is_repeated = True
            now = gradient_of(sample.batch)
            if now is None:  # all of it is padding
                return Pair()
            sample.draws_random_numbers = False
            pair = self._pair(gradient, shift, gradient.change(
                now, gradient_of(sample.batch, shift), shift))
        return Pair(*workers.allreduce_max(pair[:3]), pair.vectors)

    def _jump(self, svrg, trained):
        """Make an L-BFGS step of the model on the support; tell whether there is one.

        The objective is smooth there. Weights that an operator has set to 0 or to a bound stay.
        """
        gradient, at_snapshot = trained.mean_gradient(), svrg.reference.weights()
        if gradient.is_smooth or not self._has_pairs or svrg.snapshot.is_at_floor:
            return False
        weights = {name: dense(at_snapshot[name][0]) for name in gradient.multipliers}
        slopes = {name: slope.astype(weights[name].dtype) * (weights[name] != 0) for name, slope in
                  gradient.mapping(svrg.snapshot.full_gradient, at_snapshot).items()}
        parts = self._parts(list(slopes))
        pairs, gamma = self._pairs_along([part.joined(slopes) for part in parts], parts,
                                         gradient.multipliers)
        if not len(pairs):
            return False
        Direction(parts, gamma, pairs, gradient, weights).apply(
            slopes, weights, math.inf)  # the slopes include the decay
        has_moved = False
        for name, slope in slopes.items():
            here, there = weights[name], weights[name] - slope * gradient.multipliers[name]
            if name in gradient.proximal:
                there *= there * here > 0  # not to the other side of 0
                gradient.proximal[name].prox(there, 0.)  # within bounds
            weights[name], has_moved = there, has_moved or (there != here).max().asscalar() > 0
        if has_moved:
            trained.go_to({name: [there] * len(at_snapshot[name])
                           for name, there in weights.items()})
        return has_moved

    # A step

    @property
    def turns(self):
        """Whether steps have other directions than the gradient."""
        return bool(self._is_directed or self.metric)

    def direct(self, trained, svrg, gradients, weights, scale, copies=1):
        """Turn the gradients of a step into directions, in place.

        Parameters
        ----------
        trained, svrg
            The model and its snapshot.
        gradients, weights : dict of str to list of NDArray
            One array a device.
        scale : float
            What the optimizer multiplies a gradient by.
        copies : int
            Number of gradients that are summed before it.
        """
        if not self.turns:
            return
        for device in range(len(next(iter(gradients.values())))):
            here, there = ({name: arrays[device] for name, arrays in each.items()}
                           for each in (weights, gradients))
            if device not in self._directions:
                gradient, at_snapshot = trained.mean_gradient(), svrg.reference.weights()
                like = {name: at_snapshot[name][device] for name in gradient.multipliers
                        if name in at_snapshot}
                size = sum(math.prod(array.shape) for array in like.values())
                self._directions[device] = Direction(
                    self._parts(list(like)), (self.gamma or _UNKNOWN) if self._is_directed else 1.,
                    self._pairs_of(size), gradient, like)
            self._directions[device].apply(there, here, scale, copies)

    def step_size(self, name, rate, like):
        """Return a rate divided by M's diagonal, for a proximal operator; without M the rate.

        `like` is an array with shape, context and dtype of the parameter.
        """
        for part in self.metric:
            if name in part.names:
                key = name, like.context, np.dtype(like.dtype)
                if key not in self._inverses:  # as large as the weight: broadcasting is slow
                    self._inverses[key] = mx.nd.array(np.broadcast_to(
                        part.by_column(-1)[name], like.shape), like.context, like.dtype)
                return self._inverses[key] * rate
        return rate


class Pair(NamedTuple):
    r"""The products of a secant pair, and what SecantPairs keeps of it.

    They are :math:`s^T M s`, :math:`s^T y` and :math:`y^T M^{-1} y`.
    """

    length: float = 0.
    product: float = 0.
    solved: float = 0.
    vectors: tuple = ()


def _dot(first, second):
    return sum(float(np.vdot(first[name].asnumpy().astype('float64'),
                             second[name].asnumpy().astype('float64'))) for name in first)


def _dtype(gradient, weights):
    """Return the dtype of the widest parameter that is updated, at least float32."""
    return np.result_type(np.float32, *(weights[name][0].dtype for name in gradient.multipliers))


def _has_room(gradient, full_gradient, weights):
    """Tell whether pairs can be used: not by row_sparse weights with operators."""
    size = sum(math.prod(weights[name][0].shape) for name in gradient.updated(full_gradient))
    return (not any(is_row_sparse(weights[name][0]) for name in gradient.proximal)
            and room_for(size, _dtype(gradient, weights)) > 0)


@_register
class SVRG_LBFGS(mx.optimizer.NAG):  # noqa: N801 (MXNet registers the name in lower case)
    """Optimizer 'svrg_lbfgs', which finds its learning rate and its directions.

    It is nag with the gradients that SVRGModule and SVRGTrainer give it.

    Parameters
    ----------
    momentum : float
        As in ``mxnet.optimizer.NAG``; 0.9 by default. With proximal operators as in
        ``mxnet.optimizer.SGD``, where the last move counts as the operators left it.
    **others
        As in ``mxnet.optimizer.NAG``, for example `wd`.
    """

    lazy_update = has_operators = False

    def __init__(self, momentum=_MOMENTUM, lr_scheduler=None, **others):
        super().__init__(momentum=momentum, lr_scheduler=lr_scheduler or SnapshotRule(), **others)

    def _update_impl(self, *step, **how):
        base = mx.optimizer.SGD if self.has_operators else mx.optimizer.NAG
        base._update_impl(self, *step, **how)


def spelled_out(optimizer, optimizer_params):
    """Return the arguments of an optimizer, for 'svrg_lbfgs' with those that it has by default."""
    if not (isinstance(optimizer, str) and optimizer.lower() == SVRG_LBFGS.__name__.lower()):
        return optimizer_params or {}
    given = {} if optimizer_params == _MODULES_DEFAULT else dict(optimizer_params or {})
    return {'momentum': _MOMENTUM, 'lr_scheduler': SnapshotRule(), **given}


def rule_of(optimizer):
    """Return the SnapshotRule of an optimizer, None without one."""
    scheduler = getattr(optimizer, 'lr_scheduler', None)
    if isinstance(getattr(optimizer, 'default_opt', optimizer), SVRG_LBFGS):
        _check_scheduler(scheduler)
    return scheduler if isinstance(scheduler, SnapshotRule) else None


def _check_scheduler(scheduler):
    if not isinstance(scheduler, SnapshotRule):
        raise ValueError('lr_scheduler must not be given with svrg_lbfgs, which finds its learning '
                         'rate, and not be %r' % (scheduler,))


def check_rule(optimizer, optimizer_params, alpha, on_servers, batches=None):
    """Raise an error for a bad `lr_scheduler`, or for 'svrg_lbfgs' where it cannot be used.

    Parameters
    ----------
    optimizer, optimizer_params
        As ``Module.init_optimizer`` or Trainer takes them.
    alpha : float or callable
        The setting.
    on_servers : bool
        Whether the servers of a KVStore update the weights.
    batches : int, callable or None
        The setting `full_grad_batches`.

    Raises
    ------
    TypeError
        If the optimizer's `lr_scheduler` is a class or not callable.
    ValueError
        If another argument does not fit.
    """
    klass, name, arguments = described(optimizer, optimizer_params)
    scheduler = arguments.get('lr_scheduler')
    if scheduler is not None and (isinstance(scheduler, type) or not callable(scheduler)):
        raise TypeError('lr_scheduler must be an object or None, not %r' % (scheduler,))
    if klass is not SVRG_LBFGS:
        if isinstance(scheduler, SnapshotRule):
            raise ValueError('lr_scheduler must not be that of svrg_lbfgs with %s' % name)
        return
    _check_scheduler(scheduler)
    for argument, value in (('learning_rate', arguments.get('learning_rate', arguments.get('lr'))),
                            ('clip_gradient', arguments.get('clip_gradient'))):
        if value:
            raise ValueError('%s must not be given with svrg_lbfgs, whose rate and directions are '
                             'those of the whole gradient, and not be %r' % (argument, value))
    checked_number('momentum', arguments.get('momentum', 0.), 'a number from 0 to below 1',
                   lambda number: 0 <= number < 1)
    if not callable(alpha) and alpha == 0:
        require(SNAPSHOTS, {'svrg_lbfgs': scheduler}, 'alpha', alpha)
    if batches is not None:
        require(ALL_ROWS, {'svrg_lbfgs': scheduler}, 'full_grad_batches', batches)
    if on_servers:
        raise ValueError('kvstore must leave the updates to the workers for svrg_lbfgs, whose '
                         'rate would not reach the servers. They keep them with '
                         'MXNET_UPDATE_ON_KVSTORE=1, in dist_async and for row_sparse weights: '
                         'unset the variable, or choose another optimizer')

"""What is learned at each snapshot; with it 'svrg_lbfgs' sets its rate, and makes jumps."""

import math

import numpy as np
from mxnet.lr_scheduler import LRScheduler

from .._argument_checks import check_like
from ..core.arrays import precision_of
from .composite import Composite
from .constants import ROUGHLY, SLIGHT
from .metric import Metric, blocks_of
from .preconditioner import Preconditioner
from .probe import probe
from .random import Random
from .regime import Move
from .rollback import change
from .secant_pairs import room_for
from .smooth import Smooth

_RATES = 1e-30, 1e30  # which float32 has
_REGIMES = {regime.__name__: regime for regime in (Smooth, Composite, Random)}
_STATE = ('rate', 'num_rollbacks', '_steps', '_is_fresh', 'smallest', 'of_batch', '_of_zero',
          '_steps_earn', '_steps_cost', 'next_check', '_length', '_largest',
          'rows_differ')


class SnapshotRule(LRScheduler):
    r"""What snapshots tell of the objective. It is the `lr_scheduler` of 'svrg_lbfgs'.

    There are three regimes: Smooth, Composite with proximal operators, and Random. The first
    snapshot makes the metric, and a random batch gives the first :math:`\gamma`: along
    :math:`-M^{-1} g`, with the length at which the outputs move by about 1. Each later one gives
    the move since the one before. With another optimizer and a `tol` this is all.

    With 'svrg_lbfgs' each snapshot sets the rate, and training may jump to where the regime has the
    optimum. If the objective is above that of the snapshot before, training goes back there. Each
    return halves the rate, and each other snapshot doubles it again, up to that of the regime. The
    failed move counts, too.

    Preconditioned SVRG that needs no tuning is due to Z. Frangella, P. Rathore, S. Zhao and
    M. Udell, "PROMISE: Preconditioned Stochastic Optimization Methods by Incorporating Scalable
    Curvature Estimates", JMLR 25(346), 2024.

    Attributes
    ----------
    rate : float or None
        Rate since the latest snapshot; None before the first.
    regime : Smooth, Composite or Random, or None
        None before the first snapshot.
    num_rollbacks : int
        How often training went back to the snapshot before.
    point : Point
        The latest snapshot.
    way : numpy.ndarray
        The way from there to the optimum, as the regime has it, in the variables of the metric.
    smallest : float
        The smallest curvature beside that of the regime's pairs, as the latest check has found it.
    of_batch : float
        Norm of the gradient of a batch, in those variables.
    next_check : int
        The snapshot before which the next check is made only if its word is likely: a check that
        has failed takes as many passes as there are snapshots in between.
    is_stuck : bool
        Whether the steps to it have moved no weight.
    rows_differ : bool
        Whether some passes had another number of rows than the one before, or others.
    """

    def __init__(self):
        super().__init__(1.)
        self.reset()

    def reset(self):
        """Forget all, for another model."""
        self.rate, self.regime, self.num_rollbacks, self._steps = None, None, 0, 0
        self._preconditioners, self.of_batch, self._of_zero = {}, 0., 0.
        self._steps_cost, self._steps_earn = 3., 0.  # passes of an epoch with its snapshot
        self._length = 0.
        self.point = self.way = self._end = None
        self.is_stuck = False
        self.forget_history()

    def forget_history(self):
        """Let the next snapshot measure everything anew, since the weights or data are others."""
        self._is_fresh, self.smallest, self.next_check, self._largest = True, 1., 0, 0.
        self.rows_differ = False

    @property
    def gamma(self):
        """Inverse of the curvature of the loss in the outputs; None before it is known."""
        return self.regime and self.regime.pairs.gamma

    @property
    def metric(self):
        """The variables in which distances are measured, None before the first snapshot."""
        return self.regime and self.regime.metric

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

    # What convergence asks

    @property
    def knows_distance(self):
        """Whether the metric is that of the outputs, and the way is known."""
        return bool(self.regime.is_whole and self.gamma and np.isfinite(self.way).all())

    def bound(self):
        """Return how far the optimum is at most, by the bound of `confirmation.py`."""
        pairs, way = self.regime.pairs, self.way
        error = math.sqrt(max(pairs.largest() * (way @ pairs.inverse()(way)), 0.))
        return float(np.linalg.norm(way)) + error * (1 / self.smallest - 1)

    def noise(self):
        """Return by how much the rounding of gradients moves the outputs, and how much it may.

        Each batch has a random error of half the precision, which the model amplifies where it is
        flat. It may be that of what cancels in the gradient.
        """
        error = np.random.RandomState(0).normal(size=self.metric.size)
        moved = precision_of(self.regime.dtype) / 2 * float(np.linalg.norm(
            self.sees(self.regime.pairs.times(error / np.linalg.norm(error)))))
        return moved * self.of_batch, moved * self._of_zero

    @property
    def _rounding_of_gradient(self):
        """By how much rounding may change a mean gradient, by what may cancel in a batch's."""
        return ROUGHLY * precision_of(self.regime.dtype) / 2 * self._of_zero

    def measure_noise(self, objective):
        """Measure the gradients of a batch.

        A saturated loss has small gradients, whose rounding is that of what cancels in them: that
        of the gradient at weights of 0.
        """
        here = objective.point_of_batch(self.metric)
        if here is not None:  # not all is padding
            there = here if not self.regime.is_whole else objective.point_of_batch(
                self.metric, -self.metric.whiten(here.weights))
            sizes = [float(np.linalg.norm(self.metric.pull(each.gradient)))
                     for each in (here, there)]
            self.of_batch, self._of_zero = sizes[0], max(filter(math.isfinite, sizes), default=0.)

    def is_other(self, point, objective):
        """Tell whether a Point of the same weights has another gradient, but for rounding."""
        far, = objective.agree([float(np.linalg.norm(self.metric.pull(
            point.gradient - self.point.gradient)))])
        return far > self._rounding_of_gradient

    def sees(self, vector):
        """Return variables without the directions that say nothing of the distance.

        Inputs do not vary along them, the loss does not see them, or an operator holds a weight.
        """
        metric = self.metric
        if self.regime.proximal:
            free = metric.vector({name: (array != 0) | (name not in self.regime.proximal)
                                  for name, array in metric.arrays(self.point.weights).items()})
            vector = metric.whiten(metric.without_shifts(metric.push(vector), free.astype(float)))
        return metric.resolved(metric.seen_by_loss(vector))

    def flat_part(self):
        """Name the parameter along which the way goes, if there is hardly a curvature."""
        if self.regime is None or not self.knows_distance or not self.way.any():
            return ''
        curvature = self.way @ self.regime.pairs.inverse()(self.way) / (self.way @ self.way)
        return self.metric.largest_part(self.way) if curvature * self.gamma < SLIGHT else ''

    def knows(self, move, change, length):
        """Tell whether a curvature that moves of a length have shown is more than rounding."""
        return move @ change > self._rounding_of_gradient / length * (move @ move)

    def learn_curvature(self, moves, changes, length):
        """Learn curvatures that a check has found by moves of a length, the smallest first."""
        for pair in zip(moves[::-1], changes[::-1]):
            if self.knows(*pair, length):
                self.regime.pairs.add(*pair)
        self.way, self._end = self.regime.way(self.point)

    # A snapshot

    def take_snapshot(self, objective, is_resumed):
        """Take a snapshot, learn from it, and set the rate; tell whether training went back.

        `is_resumed` tells that the snapshot before may be of other data.
        """
        before = objective.kept()
        former = self._length
        is_undone = self._take(objective, before, is_resumed)
        if before is not None and before.steps and former:
            self._steps_cost = 1 + 2 * before.steps / max(objective.batches, 1)
            self._steps_earn = _earned(former, self._length) / self._steps_cost
        self._reach, self._jumps, self._first_length = 1., 0, self._length
        return is_undone

    def jump(self, objective):
        """Go to where the regime has the optimum, if that pays; tell whether weights have moved.

        It pays as long as jumps have taken fewer passes than the steps before them, or shorten the
        way by more in a pass.
        """
        pays, = objective.agree([float(self._jumps < self._steps_cost or _earned(
            self._first_length, self._length) >= self._jumps * self._steps_earn)])
        if not (pays and self._reach and self._jumps < self.regime.jumps
                and np.isfinite(self.way).all()) or objective.noise_sources:
            return False
        if not objective.rewind():
            return False
        begin, at = objective.kept(), self.point.weights
        end = self._end if self._reach == 1 else at + self._reach * (self._end - at)
        try:
            if not objective.go_to(self.metric, end):
                return False
            is_undone = self._take(objective, begin, has_jumped=True)
        except BaseException:  # nobody has seen whether the jump lowers the objective
            objective.go_back(begin)
            self.forget_history()
            raise
        self._jumps += 1
        # Once more, half as far, or as far as the new way.
        self._reach = 1. if not is_undone else 0.5 if self._reach == 1 else 0.
        return True

    def _take(self, objective, before, is_resumed=False, has_jumped=False):
        mean_gradient, shapes = objective.mean_gradient, objective.shapes
        negative = {name: value for name, value in mean_gradient.multipliers.items() if value < 0}
        if negative and objective.sets_rate:
            raise ValueError('lr_mult must be 0 or more with svrg_lbfgs, and not %s' % negative)
        multipliers = {name: abs(mean_gradient.multipliers[name]) for name in shapes}
        # A first step may have shown that layers draw random numbers, and a resumed run may have
        # operators that the saved one had not, or none.
        is_fresh, = objective.agree([float(
            self._is_fresh or (self.metric.shapes, self.metric.multipliers)
            != (shapes, multipliers) or isinstance(self.regime, Composite) is (
                mean_gradient.is_smooth) or isinstance(self.regime, Smooth)
            and bool(objective.noise_sources))])
        with objective.told_by(self.forget_history):
            found = objective.take_snapshot(bool(is_fresh or is_resumed), (
                objective.sets_rate and not is_fresh and before is not None
                and (before.steps > 0 or has_jumped)))
            if is_fresh or is_resumed and not self.metric.is_of(found):  # on other data
                is_fresh = True
                self._begin(objective, shapes, multipliers, found)
            self._find_invariant(objective, is_fresh)
            return self._learn(objective, None if is_fresh else before, has_jumped)

    def _begin(self, objective, shapes, multipliers, moments):
        """Begin a regime in the metric of the inputs."""
        mean_gradient, dtype = objective.mean_gradient, objective.dtype_of_steps(shapes)
        is_random = bool(objective.noise_sources)
        blocks = blocks_of(moments, mean_gradient, shapes, 1 / objective.units, dtype)
        has_room = room_for(sum(map(math.prod, shapes.values()))) > 0 and not objective.is_sparse
        # In a network the metric of the first layer alone makes training slower.
        is_whole = set(shapes) <= {name for layer in moments for name in layer[:2]}
        if not (is_whole or has_room and mean_gradient.is_smooth and not is_random):
            blocks = []
        metric = Metric(shapes, multipliers, blocks)
        if not mean_gradient.is_smooth:
            self.regime = Composite(metric, dtype, mean_gradient.proximal)
            if not has_room:
                self.regime.jumps = 0
        elif is_random or not (has_room or blocks):
            self.regime = Random(metric, dtype)
            self.regime.has_noise = is_random
        else:
            self.regime = Smooth(metric, dtype)
        self.regime.is_whole = is_whole and has_room and not is_random

    def _find_invariant(self, objective, is_fresh):
        """Find what the loss does not see; near an optimum only gradients of batches tell."""
        found = [objective.slopes(self.metric)]
        if is_fresh and self.metric.blocks:
            found.insert(0, objective.slopes(self.metric, of_batch=True))
        for each in found:
            if each is not None:
                self.metric.find_invariant(each, is_fresh, bool(objective.mean_gradient.proximal))
                is_fresh = False

    def _learn(self, objective, before, has_jumped):
        """Learn from the snapshot; go back to the one before if that is better, and tell so."""
        mean_gradient, regime = objective.mean_gradient, self.regime
        former, now = before and objective.point(self.metric, before), objective.point(self.metric)
        restarts = former is not None and not math.isclose(former.units, now.units, rel_tol=1e-6)
        if restarts:  # in other units
            former = None
            regime.forget_pairs()
        for each in filter(None, (former, now)):  # its rounding may be in all that comes later
            if math.isfinite(each.objective):
                self._largest = max(self._largest, abs(each.objective))
        move = Move() if former is None else Move.between(
            self.metric, former, now, objective.agree)
        of_outputs = self.metric.rounding(now.weights, regime.dtype)
        rounding = ROUGHLY * precision_of(regime.dtype) * self._largest + of_outputs * (
            self.of_batch + of_outputs / (regime.pairs.gamma or math.inf))
        steps, batches, changed, rows_differ = objective.agree([
            before.steps if former else 0, objective.batches, change(
                former, now, move, rounding, regime.is_whole and not objective.leaves_out_rows
                and objective.warn_once) if move.length and not regime.has_noise
            else -math.inf if np.isfinite(now.gradient).all() else math.inf,
            former is not None and former.rows != now.rows])
        self.rows_differ |= bool(rows_differ)
        # A jump without a change ends there, but where a penalty may hide the change.
        is_undone = bool(former is not None and objective.sets_rate and (steps or has_jumped)
                         and (changed > 0 or has_jumped and not changed and not former.penalty))
        if not has_jumped:
            self.is_stuck = bool(steps and not move.length)
        if is_undone:
            objective.go_back(before)
            self.num_rollbacks += not has_jumped
        if steps:
            regime.slowdown = max(1., regime.slowdown * (2 if is_undone else 0.5))
        if is_undone and changed > ROUGHLY * abs(move.before):
            regime.shorten()
        elif move.length and not regime.has_noise:
            if self._is_seen(objective, move):
                regime.learn(move, changed < 0 and not is_undone)
            elif changed < -rounding:  # a slope without a curvature
                regime.lengthen()
        if (regime.pairs.gamma is None or regime.has_noise) and not is_undone:
            along = -self.metric.pull(now.gradient)
            found = probe(objective, self.metric, along if along.any()
                          else np.random.RandomState(0).normal(size=along.size))
            self.of_batch = self._of_zero = found.slope
            regime.learn(found)
        regime.follow(mean_gradient.decays)
        self.point = former if is_undone else now
        self.way, self._end = regime.way(self.point)
        self._length, = objective.agree([float(np.linalg.norm(self.way))])
        self._is_fresh = restarts
        self._steps = int(steps) or self._steps or 2 * int(batches)
        self.rate = float(np.clip(regime.rate(
            mean_gradient.momentum, self._steps, max(batches, 1)) / regime.slowdown, *_RATES))
        self._preconditioners = {}
        return is_undone

    def _is_seen(self, objective, move):
        """Tell whether a move has changed the slope along it by more than rounding."""
        def is_seen():
            seen, = objective.agree([float(
                abs(move.product) > self._rounding_of_gradient * math.sqrt(move.length))])
            return bool(seen)

        if not is_seen():  # beside that of the batch of an earlier snapshot
            self.measure_noise(objective)
        return is_seen()

    # A step

    @property
    def preconditions(self):
        """Whether steps have other directions than the gradient, with the weight decay."""
        return self.regime is not None and bool(self.regime.steps.blocks)

    def precondition(self, trained, svrg, gradients, weights, scale, copies=1):
        """Divide the gradients of a step by the diagonal of the metric, in place.

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
        if not self.preconditions:
            return
        for device in range(len(next(iter(gradients.values())))):
            here, there = ({name: arrays[device] for name, arrays in each.items()}
                           for each in (weights, gradients))
            if device not in self._preconditioners:
                self._preconditioners[device] = Preconditioner(
                    self.regime.steps, trained.mean_gradient().decays,
                    {name: svrg.reference.weights()[name][device] for name in self.metric.shapes})
            self._preconditioners[device].apply(there, here, scale, copies)

    def step_size(self, name, rate, like):
        """Return a rate for a proximal operator, as the regime has it for each element."""
        return self.regime.step_size(name, rate, like) if self.regime else rate

    # A file

    def state(self):
        """Return a dict of numbers, strings and arrays, and lists and dicts, for a checkpoint."""
        return {**{name: getattr(self, name) for name in _STATE},
                'regime': self.regime and self.regime.state()}

    def load_state(self, state, proximal, names=None):
        """Go on with what `state` has returned.

        `proximal` maps names to the operators, and `names` those of the state to those of now.
        """
        fresh, saved, expected = SnapshotRule(), state['regime'], None
        if saved is not None:
            fresh.regime = _REGIMES[saved['kind']](
                Metric.from_state(saved['metric'], names or {}), saved['regime']['dtype'],
                proximal)
            expected = fresh.regime.expected_state(saved)
        check_like(state.file_name, 'rule', state, {**fresh.state(), 'regime': expected})
        if saved is not None:
            fresh.regime.load_state(saved)
        vars(self).update({**vars(fresh), **{name: state[name] for name in _STATE}})


def _earned(former, way):
    """Return by how many powers of e a way of some length has become shorter."""
    return math.log(former / way) if 0 < former < math.inf and 0 < way < math.inf else 0.

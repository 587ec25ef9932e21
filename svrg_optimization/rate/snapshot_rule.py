"""What sets the rate of 'svrg_lbfgs' at each snapshot, and makes jumps."""

import math

import numpy as np
from mxnet.lr_scheduler import LRScheduler

from ..core.arrays import is_row_sparse, like, with_dense_storage
from .composite import Composite
from .convergence import Way
from .metric import InputMoments, Metric, blocks_of
from .preconditioner import Preconditioner
from .probe import SampledBatch, probe
from .random import Random
from .rollback import PreviousSnapshot, compare, roll_back
from .secant_pairs import room_for
from .smooth import Smooth

_NEAR = 0.02  # the part of tol from which on no jump is made
_REGIMES = {regime.__name__: regime for regime in (Smooth, Composite, Random)}
_STATE = 'rate', 'num_rollbacks', '_steps', '_is_fresh'


class SnapshotRule(LRScheduler):
    r"""Learning rate and jumps of 'svrg_lbfgs', at each snapshot: its `lr_scheduler`.

    There are three regimes: Smooth, Composite with proximal operators, and Random. The first
    snapshot makes the metric, and a random batch gives the first :math:`\gamma`: along
    :math:`-M^{-1} g`, with the length at which the outputs move by about 1. Each later one gives
    the move since the one before.

    If the objective is above that of the snapshot before, training goes back there. Each return
    halves the rate, and each other snapshot doubles it again, up to that of the regime. The failed
    move counts, too.

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
    """

    def __init__(self):
        super().__init__(1.)
        self.reset()

    def reset(self):
        """Forget all, for another model."""
        self.rate, self.regime, self.num_rollbacks, self._steps = None, None, 0, 0
        self.is_resumed, self._preconditioners = False, {}
        self.forget_history()

    def forget_history(self):
        """Let the next snapshot measure everything anew, since the weights or data are others."""
        self._is_fresh = True

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

    # A snapshot

    def take_snapshot(self, svrg, trained, a_pass, workers):
        """Take a snapshot, and set the rate, or go back to the one before.

        It returns whether training went back. Arguments are those of ``convergence.take``.
        """
        has_converged = svrg.snapshot.has_converged  # as in a file: its weights stay
        rolls_back = self._take(svrg, trained, a_pass, workers)
        reach = 0. if has_converged or rolls_back or svrg.reference.noise_sources() else 1.
        for _ in range(self.regime.jumps):
            way = Way(svrg, trained) if reach else None
            far, = workers.allreduce_max([float(way is not None and math.inf > way.length > max(
                way.rounding / 2, _NEAR * (svrg.settings.tol or 0.) * way.size))])
            a_pass = a_pass.again() if far else None
            if a_pass is None:
                break
            begin = PreviousSnapshot(svrg)
            try:
                if not self._jump(svrg, trained, way.point.weights, reach):
                    break
                is_undone = self._take(svrg, trained, a_pass, workers, begin)
            except BaseException:  # nobody has seen whether the jump lowers the objective
                roll_back(svrg, begin, trained)
                self.forget_history()
                raise
            # Once more, half as far, or as far as the new way.
            reach = 1. if not is_undone else 0.5 if reach == 1. else 0.
        return rolls_back

    def _take(self, svrg, trained, a_pass, workers, begin_of_jump=None):
        mean_gradient, weights = trained.mean_gradient(), svrg.reference.values_of(trained.model)
        negative = {name: value for name, value in mean_gradient.multipliers.items() if value < 0}
        if negative:
            raise ValueError('lr_mult must be 0 or more with svrg_lbfgs, and not %s' % negative)
        shapes = {name: weights[name][0].shape for name in mean_gradient.updated(weights)}
        multipliers = {name: mean_gradient.multipliers[name] for name in shapes}
        # A first step may have shown that layers draw random numbers, and a resumed run may have
        # operators that the saved one had not, or none.
        is_fresh, = workers.allreduce_max([float(
            self._is_fresh or (self.metric.shapes, self.metric.multipliers)
            != (shapes, multipliers) or isinstance(self.regime, Composite) is (
                mean_gradient.is_smooth) or isinstance(self.regime, Smooth)
            and bool(svrg.reference.noise_sources()))])
        moments = InputMoments(svrg.reference, a_pass) if is_fresh else None
        sample = SampledBatch(a_pass, svrg.snapshot.num_taken, moments)
        before, has_jumped = begin_of_jump, begin_of_jump is not None
        if before is None and svrg.snapshot.is_active:
            before = PreviousSnapshot(svrg)
        former = svrg.snapshot.full_gradient
        try:
            svrg.take_snapshot(trained.model, sample, workers, may_be_undone=(
                not is_fresh and before is not None and (before.steps > 0 or has_jumped)))
            if is_fresh:
                self._begin(svrg, mean_gradient, shapes, multipliers, moments.of_all(workers))
            if mean_gradient.is_smooth:  # an operator sees each weight
                self.metric.find_invariant(self.metric.vector(
                    svrg.snapshot.full_gradient.totals()), is_fresh)
            return self._learn(svrg, trained, None if is_fresh else before, sample, workers,
                               has_jumped)
        except BaseException:
            if svrg.snapshot.full_gradient is not former:
                svrg.snapshot.is_stale = True  # the next one sets the rate
                self.forget_history()
            raise

    def _begin(self, svrg, mean_gradient, shapes, multipliers, moments):
        """Begin a regime in the metric of the inputs."""
        weights, full_gradient = svrg.reference.weights(), svrg.snapshot.full_gradient
        dtype = np.result_type(np.float32, *(weights[name][0].dtype for name in shapes)).name
        is_random = bool(svrg.reference.noise_sources())
        blocks = blocks_of(moments, mean_gradient, shapes, 1 / mean_gradient.per_row(full_gradient),
                           dtype)
        has_room = room_for(sum(map(math.prod, shapes.values()))) > 0 and not any(
            is_row_sparse(weights[name][0]) for name in mean_gradient.proximal)
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

    def _learn(self, svrg, trained, before, sample, workers, has_jumped):
        """Learn from the snapshot; go back to the one before if that is better, and tell so."""
        mean_gradient, regime = trained.mean_gradient(), self.regime
        former, now = (each and mean_gradient.point(self.metric, *each) for each in (
            before and (before.full_gradient, before.weights),
            (svrg.snapshot.full_gradient, svrg.reference.weights())))
        if not regime.has_values:
            now = now._replace(objective=math.nan)
        restarts = former is not None and (
            not math.isclose(former.units, now.units, rel_tol=1e-6)
            or self.is_resumed and former.rows != now.rows)
        if restarts:  # of other data, or in other units
            former = None
            regime.forget_pairs()
        seen = compare(former, now, before.steps if former else 0, sample.read, has_jumped,
                       regime, workers)
        if seen.rolls_back:
            roll_back(svrg, before, trained)
            self.num_rollbacks += not has_jumped
        elif math.isfinite(now.objective):
            regime.largest = max(regime.largest, abs(now.objective))
        regime.adapt(seen, now.weights)
        if (regime.pairs.gamma is None or regime.has_noise) and not seen.rolls_back:
            regime.learn(probe(svrg, trained, regime, now, sample, workers))
        regime.follow(mean_gradient.decays)
        regime.ways.add(*regime.way(former if seen.rolls_back else now),
                        math.sqrt(seen.move.length), seen.rolls_back)
        self.is_resumed, self._is_fresh = False, restarts
        self._steps = seen.steps or self._steps or 2 * seen.batches
        self.rate = regime.rate(mean_gradient.momentum, self._steps, max(seen.batches, 1)) / (
            regime.slowdown)
        self._preconditioners = {}
        return seen.rolls_back

    def _jump(self, svrg, trained, begin, reach):
        """Go part of the way, which begins at some weights; tell whether weights have moved."""
        end = self.regime.ways.end
        there = end if reach == 1 else begin + reach * (end - begin)
        at = svrg.reference.weights()
        weights = {name: [like(old, part) for old in at[name]]
                   for name, part in self.metric.arrays(there).items()}
        if all((with_dense_storage(weights[name][0]) == with_dense_storage(
                at[name][0])).min().asscalar() for name in weights):
            return False
        trained.go_to(weights)
        return True

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
        vars(self).update({name: state[name] for name in _STATE})
        self.is_resumed, self._preconditioners, self.regime = True, {}, None
        saved = state['regime']
        if saved is not None:
            self.regime = _REGIMES[saved['kind']](
                Metric.from_state(saved['metric'], names or {}), saved['regime']['dtype'],
                proximal)
            self.regime.load_state(saved)

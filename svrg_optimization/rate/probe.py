"""The probe: one random batch of a pass, whose gradients at two points give the first gamma."""

import math

import numpy as np

from ..core.arrays import precision_of
from ..core.front_end import BatchesOfPass, joined_count
from .regime import ROUNDING, Move

# By what the outputs move, about, and what part of the slopes the loss may differ by from them.
_PROBES = (1., 1e-3), (1e-2, 0.5)


class SampledBatch(BatchesOfPass):
    """A pass that keeps one batch, chosen uniformly, and adds all batches to InputMoments.

    `seed` is that of the choice, which does not use NumPy's global generator.
    """

    def __init__(self, a_pass, seed, moments=None):
        super().__init__(a_pass.train_data, a_pass.count)
        self.states = a_pass.states
        self.batch, self.read, self._a_pass, self._moments = None, 0, a_pass, moments
        self.reads_inputs = moments is not None
        self._generator = np.random.RandomState(seed)

    def batches(self, at_once=None):
        """Yield the batches; keep one, by reservoir sampling, and the states before it."""
        for batch in self._a_pass.batches(at_once):
            for place in range(joined_count(batch)):
                self.read += 1
                if self._generator.randint(self.read) == 0:
                    one = batch.part(place) if joined_count(batch) > 1 else batch
                    self.batch, states = self._a_pass.kept(one), self.states
            yield batch
            if self._moments is not None:
                self._moments.add(batch)
        if self.batch is not None:
            self.states = states


def probe(svrg, trained, regime, now, sample, workers):
    """Return the Move of a SampledBatch against the gradient, by about 1 in the outputs.

    It also finds out whether the change of the loss is that of its gradients.
    """
    metric, first = regime.metric, None
    way = metric.pull(now.gradient)
    length = np.linalg.norm(way)
    sample.is_repeated = True
    with svrg.nearby(trained, sample, workers, metric) as point_of:
        for size, slack in _PROBES if 0 < length < math.inf else ():
            here = point_of([sample.batch])
            if here is None:  # all of it is padding
                break
            sample.draws_random_numbers = False
            there = point_of([sample.batch], way * (-size / length))
            move = Move.between(metric, there, here)
            rounding = ROUNDING * precision_of(regime.dtype) * abs(here.objective)
            *numbers, is_unlike = workers.allreduce_max([
                *move.numbers(), first is None and move.is_past or not move.explains(
                    here.objective - there.objective, slack, rounding)])
            first = first or Move(*move[:2], *numbers)
            if not is_unlike:
                break
        else:
            regime.has_values = length == 0 or not math.isfinite(length)
    if not regime.has_values:
        svrg.warn_once('the loss is not the function whose gradient is computed, as with '
                       'BlockGrad or an operator of your own: whether a step has made it '
                       'larger is told by the slopes along it')
    return first or Move()

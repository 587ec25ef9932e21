"""Gradients near a snapshot: of one random batch, or of another pass."""

import contextlib
import math

import numpy as np

from ..core.arrays import shifted
from ..core.front_end import BatchesOfPass, joined_count
from .regime import Move


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


@contextlib.contextmanager
def near_snapshot(svrg, trained, workers, metric):
    """Yield a function of a move, a pass and batches: the Point that they find at w̃ plus the move.

    The move is a vector of the variables of the Metric, or None. By default the batches are all of
    the pass. For batches that are all padding None is returned.
    """
    snapshot, reference = svrg.snapshot, svrg.reference
    before, weights, mean_gradient = (
        reference.copy_of_values(), reference.weights(), trained.mean_gradient())

    def point_at(move, a_pass, batches=None):
        for name, by in ({} if move is None else metric.arrays(metric.push(move))).items():
            for weight in weights[name]:
                shifted(weight, by).copyto(weight)
        if batches is None:
            batches = a_pass.batches(reference.batches_at_once)
        full_gradient = svrg.sum_of_gradients(trained.model, batches, a_pass, workers).mean()
        point = full_gradient and mean_gradient.point(metric, full_gradient, weights)
        reference.set_values(before)
        return point

    with snapshot.being_replaced(lambda: reference.set_values(before)):
        yield point_at
        snapshot.replace(snapshot.full_gradient, snapshot.taken_at)


def probe(svrg, trained, sample, workers, metric, along):
    """Return the Move along a vector by which the outputs move by about 1, of one random batch."""
    size = np.linalg.norm(along)
    if not 0 < size < math.inf:
        return Move()
    with near_snapshot(svrg, trained, workers, metric) as point_at:
        one, sample.is_repeated = [sample.batch], True
        here = point_at(None, sample, one)
        if here is None:  # all is padding
            return Move()
        sample.draws_random_numbers = False
        return Move.between(metric, here, point_at(along / size, sample, one), workers)

"""What one batch of a pass tells of the learning rate: its curvature, and how far it may go."""

import math

import numpy as np

from ..core.arrays import dense
from ..core.front_end import BatchesOfPass, number_in

_SHIFT = 1e-3  # of the weights, relative to their norm, along which curvature is measured
_ITERATIONS = 2  # of the power method that measures it
_SUFFICIENT = 0.25  # of the decrease that the gradient foretells, in Armijo's condition
_MOST_HALVINGS = 60


class SampledBatch(BatchesOfPass):
    """A pass, and afterwards one batch of it, each as likely as any other.

    Parameters
    ----------
    source : BatchesOfPass
        The pass.
    seed : int
        Seed of the choice. NumPy's own generator stays as it is.
    look : callable, optional
        Called with each batch.

    Attributes
    ----------
    batch : object
        The batch.
    """

    def __init__(self, source, seed, look=None):
        super().__init__(source.train_data, source.count)
        self.states = source.states
        self.batch, self._source = None, source
        self._generator, self._look = np.random.RandomState(seed), look

    def batches(self, **how):
        """Yield the batches; keep one, by reservoir sampling, and the states before it."""
        read = 0
        for batch in self._source.batches(**how):
            if self._look:
                self._look(batch)
            for place in range(number_in(batch)):
                read += 1
                if self._generator.randint(read) == 0:
                    one = batch.part(place) if number_in(batch) > 1 else batch
                    self.batch, states = self._source.kept(one), self.states
            yield batch
        if self.batch is not None:
            self.states = states

    def is_whole(self, yielded):
        """As that of the pass."""
        return self._source.is_whole(yielded)

    def kept(self, batch):
        """As that of the pass."""
        return self._source.kept(batch)


class BatchNearby:
    """The mean objective of the batch at the snapshot and near it.

    Parameters
    ----------
    svrg : SVRG
        The snapshot of the model.
    live : object
        Model being trained.
    gradient : MeanGradient
        What the optimizer makes of a gradient.
    sample : SampledBatch
        The batch.
    workers : Workers
        Devices and workers of the pass.
    """

    def __init__(self, svrg, live, gradient, sample, workers):
        self._svrg, self._live, self._gradient = svrg, live, gradient
        self._sample, self._workers = sample, workers.within_process()
        self._weights = svrg.reference.weights()
        self._lengths = {name: 1 / each for name, each in gradient.multipliers.items()}
        # A smaller difference is lost in rounding.
        self._precision = max([np.finfo(self._weights[name][0].dtype).eps
                               for name in self._lengths] or [0])

    def _gradients(self):
        self._sample.is_repeated = True
        return self._svrg.gradients_nearby(self._live, self._sample, self._workers)

    def _along(self, gradients, step_size=1.):
        """Return the step of a size along gradients by name."""
        return {name: self._gradient.scaled(
            name, array * (step_size * self._gradient.multipliers[name]))
                for name, array in gradients.items()}

    def _squared(self, arrays, multipliers, power=1):
        """Return the sum of the squares of arrays, times multipliers and a power of D."""
        return sum(multipliers[name] * dot(array, self._gradient.scaled(name, array, power=power))
                   for name, array in arrays.items())

    def _length(self, arrays, multipliers, power=1):
        return math.sqrt(self._squared(arrays, multipliers, power))

    def curvature(self):
        """Return the largest curvature of the batch at the snapshot; 0 if it cannot be measured.

        It is found by the power method on differences of the batch's gradients,
        which begins with the gradient itself.
        """
        largest, gradient, lengths = 0., self._gradient, self._lengths
        if not lengths:  # nothing is updated
            return largest
        with self._gradients() as gradient_of:
            distance = max(_SHIFT, math.sqrt(self._precision)) * max(1., self._length(
                {name: dense(self._weights[name][0]) for name in lengths}, lengths, -1))
            here = gradient_of(self._sample.batch)
            if here is None:
                return largest
            self._sample.draws_random_numbers = False
            direction = gradient.of(here, self._weights)
            for _ in range(_ITERATIONS):
                along = self._along(direction)
                size = self._length(along, lengths, -1)
                if not 0 < size < math.inf:
                    break
                shift = {name: array * (distance / size) for name, array in along.items()}
                direction = gradient.change(here, gradient_of(self._sample.batch, shift), shift)
                curvature = self._length(direction, gradient.multipliers) / distance
                if not math.isfinite(curvature):
                    break
                largest = max(largest, curvature)
        return largest

    def halvings(self, step_size):
        """Return how often a step along the batch's gradient has to be halved to lower its loss.

        It is Armijo's condition, which a curvature measured where the loss is saturated
        does not ensure. 0 if the loss is not known.
        """
        gradient = self._gradient
        with self._gradients() as gradient_of:
            here = gradient_of(self._sample.batch)
            if here is None or math.isnan(here.loss):
                return 0
            value = gradient.smooth_objective(here, self._weights)
            direction = gradient.of(here, self._weights)
            slope = self._squared(direction, gradient.multipliers)
            halvings = 0
            while halvings < _MOST_HALVINGS:
                if not step_size * slope > self._precision * abs(value):
                    break
                shift = self._along(direction, step_size)
                moved = {name: [dense(self._weights[name][0]) - by]
                         for name, by in shift.items()}
                after = gradient.smooth_objective(gradient_of(self._sample.batch, shift), moved)
                if after <= value - _SUFFICIENT * step_size * slope:
                    break
                step_size /= 2
                halvings += 1
        return halvings


def dot(first, second):
    """Return the scalar product of two NDArrays, summed in float64."""
    return float(np.vdot(first.asnumpy().astype('float64'), second.asnumpy().astype('float64')))

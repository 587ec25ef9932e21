"""A pass that keeps one random batch, and adds up the moments of all inputs."""

import numpy as np

from ..core.front_end import BatchesOfPass, joined_count


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

    def batches(self, **how):
        """Yield the batches; keep one, by reservoir sampling, and the states before it."""
        for batch in self._a_pass.batches(**how):
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

    def is_whole(self, yielded):
        """As that of the pass."""
        return self._a_pass.is_whole(yielded)

    def kept(self, batch):
        """As that of the pass."""
        return self._a_pass.kept(batch)

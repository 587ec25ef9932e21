"""The random numbers of a step, which are the same at both weights, as the masks of Dropout."""

import numpy as np
from mxnet import nd, random

_GENERATORS = 8  # a multiple of MXNet's number of generators, 4 on a CPU
_SHUFFLED = 64  # numbers, of which no two orders are equal by chance


class RandomNumbers:
    """Seeds that are set before a batch, and again for its gradient at the snapshot.

    A seed takes 1.5 ms, so it is set only where the objective draws random numbers:
    `are_drawn` is None before the first step from a snapshot finds that out.
    """

    def __init__(self, state=None, were_drawn=False):
        self._generator = self._seed = self.are_drawn = None
        self.were_drawn = were_drawn
        if state is not None:
            self._generator = np.random.RandomState()
            self._generator.set_state(state)

    def set_seed(self, is_new=True):
        """Set MXNet's seed, to a new number or to the last one."""
        if self._generator is None:
            self._generator = np.random.RandomState(
                int(random.randint(0, 2 ** 31 - 1).asscalar()))
        if is_new or self._seed is None:
            self._seed = int(self._generator.randint(2 ** 31 - 1))
        random.seed(self._seed)

    def find_out(self, device):
        """Find out whether random numbers have been drawn since the seed was set."""
        def draw():  # from each of MXNet's generators: those that take turns, and that of shuffle
            return (sorted(random.uniform(ctx=device).asscalar() for _ in range(_GENERATORS)),
                    random.shuffle(nd.arange(_SHUFFLED, ctx=device)).asnumpy().tolist())

        numbers = draw()
        self.set_seed(is_new=False)
        self.are_drawn = draw() != numbers
        self.were_drawn |= self.are_drawn

    def state(self):
        """Return what a file contains: the state of the generator of seeds, None without."""
        return self._generator and self._generator.get_state()

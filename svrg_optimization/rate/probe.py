"""The first curvature: that of one random batch, along the gradient."""

import math

import numpy as np

from .regime import Move


def probe(objective, metric, along):
    """Return the Move along a vector by which the outputs move by about 1, of one random batch."""
    size = np.linalg.norm(along)
    if not 0 < size < math.inf:
        return Move()
    here = objective.point_of_batch(metric, draws=True)
    if here is None:  # all is padding
        return Move()
    there = objective.point_of_batch(metric, along / size, draws=False)
    return Move.between(metric, here, there, objective.agree)

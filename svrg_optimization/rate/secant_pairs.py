r"""The jump: where a quadratic objective would be least on the span of the last moves.

Between two snapshots the weights move by s and the gradient changes by y. If the objective
is quadratic with the Hessian H, y = H s, so the least point of it on the span of
some moves is known without one more gradient:

.. math:: \tilde w - S (S^T Y)^{-1} S^T g

with the moves as the columns of S, their changes as those of Y, and g the gradient at the
snapshot. Steps from there are unbiased steps of SVRG: the snapshot and its full gradient
stay as they are. It is a multi-secant quasi-Newton step; compare D. Scieur, A. d'Aspremont and
F. Bach, "Regularized Nonlinear Acceleration", NIPS 2016. The bounds are ours.
"""

import math

import numpy as np

# Five moves converged on as many problems as ten, and three on fewer; a larger model keeps fewer.
_MOVES, _BYTES = 5, 1 << 24
_FARTHEST = 3  # times the longest of the moves
_SMALLEST = 1e-5  # curvature along a combination of moves, relative to the largest: float32's


class Moves:
    """The last moves between snapshots, and the changes of the gradient, as flat arrays.

    Attributes
    ----------
    moves, changes : list of numpy.ndarray
        S and Y.
    """

    def __init__(self, moves=(), changes=()):
        self.moves, self.changes = list(moves), list(changes)

    def add(self, move, change):
        """Add a move, and drop the oldest ones that there is no room for."""
        if self.moves and self.moves[0].shape != move.shape:
            self.clear()  # other parameters are updated now
        room = self.room_for([move])
        self.moves = [*self.moves, move][-room:] if room else []
        self.changes = [*self.changes, change][-room:] if room else []

    @staticmethod
    def room_for(arrays):
        """Return how many moves of some arrays are kept, with their changes."""
        size = sum(2 * np.prod(array.shape, dtype=int) * np.dtype(array.dtype).itemsize
                   for array in arrays)
        return min(_MOVES, _BYTES // size) if size else 0

    def clear(self):
        """Forget all moves."""
        self.moves, self.changes = [], []

    def jump(self, gradient, scales, largest):
        """Return the way to the least point, None without any.

        Parameters
        ----------
        gradient : numpy.ndarray
            g at the snapshot.
        scales : numpy.ndarray
            What each component is multiplied by where lengths are measured.
        largest : callable
            Takes a list of numbers and returns the largest of all workers, for each.
        """
        if not self.moves or self.moves[0].shape != gradient.shape:
            return None
        count = len(self.moves)
        moves = np.array(self.moves, np.float64)
        lengths = np.linalg.norm(moves * scales, axis=1)
        numbers = np.array(largest([*(moves @ np.transpose(self.changes)).ravel(),
                                    *(moves @ gradient), *lengths]))
        products = numbers[:count * count].reshape(count, count)
        along, lengths = numbers[count * count:-count], numbers[-count:]
        units = np.sqrt(np.diag(products))  # along each the curvature becomes 1
        curvatures, directions = np.linalg.eigh(
            (products + products.T) / 2 / units[:, None] / units)
        are_curved = curvatures > _SMALLEST * curvatures.max()
        directions = directions[:, are_curved]
        weights = directions @ (directions.T @ (along / units) / curvatures[are_curved]) / units
        jump = -weights @ moves
        length, = largest([float(np.linalg.norm(jump * scales))])
        if not 0 < length < math.inf:
            return None
        return jump * min(1., _FARTHEST * lengths.max() / length)

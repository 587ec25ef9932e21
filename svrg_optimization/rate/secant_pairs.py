r"""Secant pairs: the last moves between snapshots, with the changes of the gradient."""

import numpy as np

_CURVED = 0.01  # the part of a pair's curvature that must be left on the support
_PAIRS, _BYTES = 10, 1 << 24  # a larger model keeps fewer: each step reads them twice


def room_for(size, dtype):
    """Return how many pairs of so many numbers are kept."""
    return min(_PAIRS, _BYTES // (2 * size * np.dtype(dtype).itemsize)) if size else 0


class SecantPairs:
    r"""The matrix of L-BFGS in its compact form.

    From one snapshot to the next the weights move by s and the gradient changes by y. With the
    last moves as the rows of S and the changes as those of Y, each divided by the root of
    :math:`s^T y`, and :math:`Z = Y M^{-1}`, the inverse Hessian of L-BFGS that begins with
    :math:`\gamma M^{-1}` is

    .. math:: H = \gamma M^{-1} + \begin{bmatrix} S \\ Z \end{bmatrix}^T
              \begin{bmatrix} R^{-T} (I + \gamma Y Z^T) R^{-1} & -\gamma R^{-T} \\
              -\gamma R^{-1} & 0 \end{bmatrix} \begin{bmatrix} S \\ Z \end{bmatrix},
              \quad R_{ij} = s_i^T y_j \text{ for } i \le j

    [1]_. SVRG with stochastic L-BFGS is due to [2]_, whose pairs come from subsampled Hessians.

    Attributes
    ----------
    moves, changes : numpy.ndarray
        S and Z.
    products, squares : numpy.ndarray
        :math:`R` and :math:`Y Z^T`.

    References
    ----------
    .. [1] R. H. Byrd, J. Nocedal and R. B. Schnabel, "Representations of Quasi-Newton Matrices
       and Their Use in Limited Memory Methods", Mathematical Programming 63, 1994.
    .. [2] P. Moritz, R. Nishihara and M. I. Jordan, "A Linearly-Convergent Stochastic L-BFGS
       Algorithm", AISTATS 2016.
    """

    def __init__(self, moves=(), changes=(), products=(), squares=()):
        self.moves, self.changes = np.array(moves), np.array(changes)
        self.products, self.squares = np.array(products), np.array(squares)

    def __len__(self):
        return len(self.moves)

    def add(self, move, change, solved, dtype):
        """Add s, y and the inverse of M times y; drop the oldest pairs if there is no room."""
        root, room = np.sqrt(change @ move), room_for(move.size, dtype)
        if len(self) and self.moves.shape[1] != move.size:
            self.__init__()  # other parameters are updated now
        kept = slice(max(0, len(self) + 1 - room), None)
        self.moves = np.array([*self.moves[kept], move / root], dtype)
        self.changes = np.array([*self.changes[kept], solved / root], dtype)
        self.products, self.squares = (
            _bordered(square[kept, kept] if square.size else square, rows @ (change / root))
            for square, rows in ((self.products, self.moves), (self.squares, self.changes)))

    def within(self, free, metric):
        """Return the pairs restricted to the `free` numbers, if they still have curvature."""
        pairs = SecantPairs()
        for move, solved in zip(self.moves, self.changes):
            if move.size == free.size and free * move @ (solved * metric) > _CURVED:
                pairs.add(move * free, solved * metric * free, solved * free, move.dtype)
        return pairs

    def matrix(self, gamma):
        """Return the matrix in the middle of H."""
        inverse = np.linalg.inv(np.triu(self.products))
        top = inverse.T @ (np.eye(len(self)) + gamma * self.squares) @ inverse
        return np.block([[top, -gamma * inverse.T],
                         [-gamma * inverse, np.zeros_like(inverse)]])


def _bordered(square, column):
    """Return a symmetric matrix with one more column, and the same row."""
    size = len(column)
    result = np.zeros((size, size))
    result[:-1, :-1] = square
    result[-1], result[:, -1] = column, column
    return result

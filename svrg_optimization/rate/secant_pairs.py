r"""Secant pairs: the last moves between snapshots, with the changes of the gradient."""

import numpy as np

_PAIRS, _BYTES = 10, 1 << 24  # a larger model keeps fewer: each step reads them twice


def room_for(size, dtype):
    """Return how many pairs of so many numbers are kept."""
    return min(_PAIRS, _BYTES // (2 * size * np.dtype(dtype).itemsize)) if size else 0


class SecantPairs:
    r"""The matrix of L-BFGS in its compact form, in variables whose metric is the identity.

    From one snapshot to the next the variables move by s and the gradient changes by y. With the
    last moves as the rows of S and the changes as those of Y, each divided by the root of
    :math:`s^T y`, the inverse Hessian of L-BFGS that begins with :math:`\gamma I` is

    .. math:: H = \gamma I + \begin{bmatrix} S \\ Y \end{bmatrix}^T
              \begin{bmatrix} R^{-T} (I + \gamma Y Y^T) R^{-1} & -\gamma R^{-T} \\
              -\gamma R^{-1} & 0 \end{bmatrix} \begin{bmatrix} S \\ Y \end{bmatrix},
              \quad R_{ij} = s_i^T y_j \text{ for } i \le j

    [1]_. SVRG with stochastic L-BFGS is due to [2]_, whose pairs come from subsampled Hessians.

    Parameters
    ----------
    size : int
        How many numbers a move has.
    dtype : str
        Of the pairs that are kept.

    Attributes
    ----------
    moves, changes : numpy.ndarray
        S and Y.
    gamma : float or None
        :math:`s^T y / y^T y` of the newest pair, the second formula of Barzilai and Borwein; None
        before it is known.

    References
    ----------
    .. [1] R. H. Byrd, J. Nocedal and R. B. Schnabel, "Representations of Quasi-Newton Matrices
       and Their Use in Limited Memory Methods", Mathematical Programming 63, 1994.
    .. [2] P. Moritz, R. Nishihara and M. I. Jordan, "A Linearly-Convergent Stochastic L-BFGS
       Algorithm", AISTATS 2016.
    """

    def __init__(self, size, dtype):
        self.room, self.gamma = room_for(size, dtype), None
        self.moves = self.changes = np.zeros((0, size), dtype)

    def __len__(self):
        return len(self.moves)

    def add(self, move, change):
        """Add s and y; drop the oldest pair if there is no room."""
        if self.room:
            root, kept = np.sqrt(change @ move), max(0, len(self) + 1 - self.room)
            self.moves, self.changes = (
                np.array([*rows[kept:], row / root], rows.dtype)
                for rows, row in ((self.moves, move), (self.changes, change)))

    def transform(self, of_move, of_change):
        """Write the pairs in other variables, given functions of s and of y."""
        pairs, self.moves, self.changes = zip(self.moves, self.changes), *(
            np.zeros((0, self.moves.shape[1]), self.moves.dtype),) * 2
        for move, change in pairs:
            move, change = of_move(move.astype('float64')), of_change(change.astype('float64'))
            self.add(move, change)
            self.gamma = float(move @ change / (change @ change))

    def rows(self):
        """Return S above Y."""
        return np.vstack([self.moves, self.changes])

    def squares(self):
        """List the curvature y'y / s'y of each pair, the largest that it shows."""
        return [float(change @ change) for change in self.changes.astype('float64')]

    def middle(self):
        """Return the matrix in the middle of H."""
        if not len(self):
            return np.zeros((0, 0))
        moves, changes = self.moves.astype('float64'), self.changes.astype('float64')
        inverse = np.linalg.inv(np.triu(moves @ changes.T))
        top = inverse.T @ (np.eye(len(self)) + self.gamma * changes @ changes.T) @ inverse
        return np.block([[top, -self.gamma * inverse.T],
                         [-self.gamma * inverse, np.zeros_like(inverse)]])

    def times(self, vector):
        """Return H times a vector."""
        rows = self.rows()
        return self.gamma * vector + (self.middle() @ (rows @ vector)) @ rows

    def inverse_times(self, vector):
        """Return the inverse of H times a vector, in the compact form of [1]_ too."""
        moves, changes = self.moves.astype('float64'), self.changes.astype('float64')
        rows, products = np.vstack([moves / self.gamma, changes]), moves @ changes.T
        lower = np.tril(products, -1)
        middle = np.block([[moves @ moves.T / self.gamma, lower],
                           [lower.T, -np.diag(np.diag(products))]])
        return vector / self.gamma - np.linalg.solve(middle, rows @ vector) @ rows

"""Secant pairs: the latest moves, made or only tried, with the changes of the gradient."""

import numpy as np

from .constants import BYTES, LATEST, PAIRS


def room_for(size):
    """Return how many pairs of so many float64 numbers are kept, `most` at most."""
    if not size:
        return 0
    return min(PAIRS, max(size, LATEST), BYTES // (2 * size * np.dtype(float).itemsize))


class SecantPairs:
    r"""The matrix H of L-BFGS, in variables whose metric is the identity.

    Along a move s of the variables the gradient changes by y. The last
    moves are the rows of S and the changes those of Y, each divided by the root of
    :math:`s^T y`. The inverse Hessian of L-BFGS begins with :math:`\gamma I` [1]_.

    Parameters
    ----------
    size : int
        How many numbers a move has.
    gamma : float
        That before any pair.
    room : int
        How many pairs are kept.

    Attributes
    ----------
    moves, changes : numpy.ndarray
        S and Y.
    gamma : float
        The least :math:`s^T y / y^T y` of the latest pairs, the second formula of Barzilai and
        Borwein.

    References
    ----------
    .. [1] J. Nocedal, "Updating Quasi-Newton Matrices with Limited Storage", Mathematics of
       Computation 35(151), 1980.
    .. [2] R. H. Byrd, J. Nocedal and R. B. Schnabel, "Representations of Quasi-Newton Matrices
       and Their Use in Limited Memory Methods", Mathematical Programming 63, 1994.
    """

    def __init__(self, size, gamma, room):
        self.gamma, self.room = gamma, room
        self.moves = self.changes = np.zeros((0, size))

    def __len__(self):
        return len(self.moves)

    def add(self, move, change):
        """Add s and y; drop the oldest pair if there is no room."""
        if self.room:
            root, kept = np.sqrt(change @ move), max(0, len(self) + 1 - self.room)
            self.moves, self.changes = (
                np.array([*rows[kept:], row / root])
                for rows, row in ((self.moves, move), (self.changes, change)))
            self.gamma = 1 / max(self.squares())
        else:
            self.gamma = (change @ move) / (change @ change)

    def squares(self):
        """List the curvature y'y / s'y of the latest pairs, the largest that each shows."""
        return [float(change @ change) for change in self.changes[-LATEST:]]

    def times(self, vector):
        """Return H times a vector, by the two loops of [1]_."""
        parts = []
        for move, change in zip(self.moves[::-1], self.changes[::-1]):
            parts.append(move @ vector)
            vector = vector - parts[-1] * change
        vector = self.gamma * vector
        for move, change, part in zip(self.moves, self.changes, reversed(parts)):
            vector = vector + (part - change @ vector) * move
        return vector

    def sample(self, generator):
        """Return a random vector of the covariance H, by a factor of the product form of [1]_."""
        vector = np.sqrt(self.gamma) * generator.normal(size=self.moves.shape[1])
        for move, change in zip(self.moves, self.changes):
            vector = vector + (generator.normal() - change @ vector) * move
        return vector

    def inverse(self):
        r"""Return the function that multiplies a vector by the inverse of H, in the form of [2]_.

        .. math:: H^{-1} = \frac{1}{\gamma} I - \begin{bmatrix} S / \gamma \\ Y \end{bmatrix}^T
                  \begin{bmatrix} S S^T / \gamma & L \\ L^T & -I \end{bmatrix}^{-1}
                  \begin{bmatrix} S / \gamma \\ Y \end{bmatrix},
                  \quad L_{ij} = s_i^T y_j \text{ for } i > j
        """
        rows, middle = self._inverse_parts()
        return lambda vector: vector / self.gamma - rows.T @ (middle @ (rows @ vector))

    def largest(self):
        """Return the largest eigenvalue of H."""
        rows, middle = self._inverse_parts()
        triangle = np.linalg.qr(rows.T, 'r')
        values = np.linalg.eigvalsh(triangle @ middle @ triangle.T)
        return self.gamma / max(1 - self.gamma * max([0., *values]), np.finfo(float).eps)

    def _inverse_parts(self):
        rows = np.vstack([self.moves / self.gamma, self.changes])
        lower = np.tril(self.moves @ self.changes.T, -1)
        return rows, np.linalg.inv(np.block([[self.moves @ self.moves.T / self.gamma, lower],
                                             [lower.T, -np.eye(len(self))]]))

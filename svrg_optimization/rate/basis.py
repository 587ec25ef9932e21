"""Orthonormal bases of the columns of an input: eigenvectors of their covariances."""

import numpy as np


def of_covariances(matrix):
    """Return the eigenvalues of a covariance matrix, and the basis of its eigenvectors."""
    values, vectors = np.linalg.eigh(matrix)
    return values, Vectors(vectors)


def of_rows(rows):
    """Return these of R^T R, for fewer rows R than columns. All other eigenvalues are 0."""
    reflected, factors = np.linalg.qr(rows.T, mode='raw')
    turn, values, _ = np.linalg.svd(np.triu(reflected.T[:len(rows)]))
    return (np.append(np.square(values), np.zeros(rows.shape[1] - len(values))),
            Reflections(reflected.T, factors, turn))


class Columns:
    """The columns themselves."""

    def times(self, rows):
        """Return rows times the matrix of the basis."""
        return rows

    times_transposed = sizes = times


class Vectors:
    """The columns of an orthogonal matrix."""

    def __init__(self, matrix):
        self.matrix = matrix

    def times(self, rows):
        """Return rows times the matrix of the basis."""
        return rows @ self.matrix

    def times_transposed(self, rows):
        """Return rows times the transposed matrix, its inverse."""
        return rows @ self.matrix.T

    def sizes(self, rows):
        """Return sizes of what is summed in `times`, of rows that are positive."""
        return rows @ abs(self.matrix)


class Reflections:
    r"""Vectors of which the first span some that are given, at the cost of these.

    Their matrix is the product of the Householder reflections of LAPACK's QR, which is kept as
    :math:`I - Y T Y^T` [1]_, with the first columns turned.

    Parameters
    ----------
    reflected, factors : numpy.ndarray
        LAPACK's result: the vectors of the reflections below the diagonal, and their factors.
    turn : numpy.ndarray
        An orthogonal matrix.

    References
    ----------
    .. [1] R. Schreiber and C. Van Loan, "A Storage-Efficient WY Representation for Products of
       Householder Transformations", SIAM Journal on Scientific and Statistical Computing 10(1),
       1989.
    """

    def __init__(self, reflected, factors, turn):
        self._y, self._turn, self._count = np.tril(reflected, -1), turn, len(turn)
        np.fill_diagonal(self._y, 1.)
        self._y *= factors != 0
        self._t = np.linalg.inv(np.triu(self._y.T @ self._y, 1) + np.diag(
            1 / np.where(factors == 0, 1., factors)))

    def times(self, rows):
        """Return rows times the matrix of the basis."""
        rows = rows - rows @ self._y @ self._t @ self._y.T
        rows[:, :self._count] = rows[:, :self._count] @ self._turn
        return rows

    def times_transposed(self, rows):
        """Return rows times the transposed matrix, its inverse."""
        rows = rows.copy()
        rows[:, :self._count] = rows[:, :self._count] @ self._turn.T
        return rows - rows @ self._y @ self._t.T @ self._y.T

    def sizes(self, rows):
        """Return sizes of what is summed in `times`, of rows that are positive: of any vector."""
        return np.linalg.norm(rows, axis=1, keepdims=True) + 0 * rows

"""Schedule of the number of batches that a snapshot passes over."""

import math

from ._argument_checks import checked_count, checked_number

_LARGEST = 2.0 ** 62


class Growing:
    r"""Schedule of `full_grad_batches` that grows by a factor, up to a limit.

    After s snapshots it returns :math:`\min(\lceil b f^s \rceil, l)`. Use it as
    ``SVRGModule(..., full_grad_batches=Growing(8))``. The first full gradients are
    then means over few batches. Once the number reaches that of all batches, the
    method is exact SVRG [1]_ [2]_. A stream without an end, or data of more batches
    than the limit, never get there. ``fit`` logs when the limit is reached.

    Parameters
    ----------
    first : int
        b, the number of batches of the first snapshot, 1 or more.
    factor : float
        f, the factor from one snapshot to the next, 1 or more.
    limit : int or None
        l, the largest number of batches, `first` or more. None is for data with an
        end that have more batches.

    Raises
    ------
    TypeError
        If `first` or `limit` is not an int or `factor` is not a number.
    ValueError
        If `first` or `factor` is below 1, `factor` is not finite, or `limit` is
        below `first`.

    References
    ----------
    .. [1] R. Babanezhad, M. O. Ahmed, A. Virani, M. Schmidt, J. Konecny and
       S. Sallinen, "Stop Wasting My Gradients: Practical SVRG", NeurIPS 2015.
    .. [2] L. Lei and M. I. Jordan, "Less than a Single Pass: Stochastically
       Controlled Stochastic Gradient", AISTATS 2017.

    Examples
    --------
    >>> from svrg_optimization import Growing
    >>> full_grad_batches = Growing(8)
    >>> [full_grad_batches(snapshots) for snapshots in range(4)]
    [8, 16, 32, 64]
    """

    def __init__(self, first, factor=2, limit=10000):
        self.first = checked_count('first', first)
        self.factor = checked_number('factor', factor, 'a number of 1 or more',
                                     lambda number: 1 <= number < math.inf)
        self.limit = None if limit is None else checked_count(
            'limit', limit, 'None or an int of %d (first) or more' % self.first, self.first)

    def __call__(self, snapshots):
        """Return the number of batches of the next snapshot.

        Parameters
        ----------
        snapshots : int
            Number of snapshots so far, s.

        Returns
        -------
        int
            Number of batches, 1 or more, at most `limit`, and at most 2**62.
        """
        try:
            batches = self.first * float(self.factor) ** snapshots
        except OverflowError:
            batches = _LARGEST
        # A factor like 1.1 is a little more in binary, and 10 * 1.1 is not 12.
        batches = math.ceil(round(min(batches, _LARGEST), 6))
        return batches if self.limit is None else min(batches, self.limit)

    def reaches_limit(self, snapshots):
        """Tell whether the next snapshot is the first one of `limit` batches.

        Parameters
        ----------
        snapshots : int
            Number of snapshots so far, s.

        Returns
        -------
        bool
            Whether it is.
        """
        return self(snapshots) == self.limit and (snapshots == 0
                                                  or self(snapshots - 1) < self.limit)

    def __repr__(self):
        return 'Growing(%r, factor=%r, limit=%r)' % (self.first, self.factor, self.limit)

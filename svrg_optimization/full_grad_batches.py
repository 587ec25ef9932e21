"""Schedule of the number of batches that a snapshot passes over."""

import math

from ._argument_checks import checked_count, checked_number

_LARGEST = 2.0 ** 62


class Growing:
    r"""Schedule of `full_grad_batches` that grows by a factor: :math:`\lceil b f^s \rceil`.

    Use it as ``SVRGModule(..., full_grad_batches=Growing(8))``. The first full
    gradients are then means over few batches. Once the number reaches that of
    all batches, the method is exact SVRG [1]_ [2]_.

    Parameters
    ----------
    first : int
        b, the number of batches of the first snapshot, 1 or more.
    factor : float
        f, the factor from one snapshot to the next, 1 or more.

    Raises
    ------
    TypeError
        If `first` is not an int or `factor` is not a number.
    ValueError
        If `first` or `factor` is below 1, or `factor` is not finite.

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

    def __init__(self, first, factor=2):
        self.first = checked_count('first', first)
        self.factor = checked_number('factor', factor, 'a number of 1 or more',
                                     lambda number: 1 <= number < math.inf)

    def __call__(self, snapshots):
        """Return the number of batches of the next snapshot.

        Parameters
        ----------
        snapshots : int
            Number of snapshots so far, s.

        Returns
        -------
        int
            Number of batches, 1 or more and at most 2**62.
        """
        try:
            batches = self.first * float(self.factor) ** snapshots
        except OverflowError:
            batches = _LARGEST
        # A factor like 1.1 is a little more in binary, and 10 * 1.1 is not 12.
        return math.ceil(round(min(batches, _LARGEST), 6))

    def __repr__(self):
        return 'Growing(%r, factor=%r)' % (self.first, self.factor)

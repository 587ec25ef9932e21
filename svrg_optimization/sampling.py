"""Sampled full gradients: over how many batches, after how many updates, of which data."""

import dataclasses
import math
from typing import Any, Optional

from ._argument_checks import checked_count, checked_iterator, checked_number

_LARGEST = 2.0 ** 62


@dataclasses.dataclass(frozen=True, eq=False)
class Sampling:
    """What `fit` computes full gradients over, and how often: SVRGModule's `sampling`.

    Parameters
    ----------
    batches : int or callable, optional
        Number of batches of each full gradient, or a schedule like `Growing`,
        which is called with the number of snapshots so far [1]_. By default it
        is all batches. In a resumed run a schedule counts the snapshots before.
    updates_per_snapshot : int, optional
        Updates from one snapshot to the next, instead of the epochs of
        `update_freq`, which may then be left out [2]_ [3]_. It needs `data`.
    data : DataIter, optional
        Data that full gradients are computed over, by default the training
        data. A pass goes on where the last one stopped, and begins again at the
        end of the data. It must not be the iterator that is trained on.

    Raises
    ------
    TypeError
        If `batches` is neither an int nor callable, `updates_per_snapshot` is
        not an int, or `data` is not an iterator.
    ValueError
        If a number is below 1, or if there is `updates_per_snapshot` without
        `data`.

    References
    ----------
    .. [1] R. Babanezhad, M. O. Ahmed, A. Virani, M. Schmidt, J. Konecny and
       S. Sallinen, "Stop Wasting My Gradients: Practical SVRG", NeurIPS 2015.
    .. [2] R. Johnson and T. Zhang, "Accelerating Stochastic Gradient Descent
       using Predictive Variance Reduction", NIPS 2013, Figure 1.
    .. [3] D. Kovalev, S. Horvath and P. Richtarik, "Don't Jump Through Hoops and
       Remove Those Loops: SVRG and Katyusha are Better Without the Outer Loop",
       ALT 2020.

    Examples
    --------
    >>> from svrg_optimization import Growing, Sampling
    >>> Sampling(Growing(8))
    Sampling(batches=Growing(8, factor=2, limit=10000), updates_per_snapshot=None, data=None)
    """

    batches: Any = None
    updates_per_snapshot: Optional[int] = None
    data: Any = None

    def __post_init__(self):
        if not (self.batches is None or callable(self.batches)):
            object.__setattr__(self, 'batches', checked_count(
                'batches', self.batches,
                'None, an int of 1 or more or a callable that returns one'))
        object.__setattr__(self, 'updates_per_snapshot', checked_count(
            'updates_per_snapshot', self.updates_per_snapshot, or_none=True))
        checked_iterator('data', self.data, or_none=True)
        if self.data is None and self.updates_per_snapshot is not None:
            raise ValueError('data must be a DataIter where updates_per_snapshot is given, since a '
                             'pass within an epoch must not move train_data, and not None')

    def batches_after(self, snapshots):
        """Return the number of batches of a pass after a number of snapshots, None for all."""
        if not callable(self.batches):
            return self.batches
        return checked_count('sampling.batches', self.batches(snapshots),
                             'a callable that returns an int of 1 or more (here after %d '
                             'snapshots)' % snapshots)


class Growing:
    r"""Schedule of the `batches` of a Sampling that grows by a factor, up to a limit.

    After s snapshots it returns :math:`\min(\lceil b f^s \rceil, l)`. Use it as
    ``SVRGModule(..., sampling=Sampling(Growing(8)))``. The first full gradients are
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
    >>> batches = Growing(8)
    >>> [batches(snapshots) for snapshots in range(4)]
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
        """Tell whether the next snapshot is the first one of `limit` batches."""
        return self(snapshots) == self.limit and (snapshots == 0
                                                  or self(snapshots - 1) < self.limit)

    def __repr__(self):
        return 'Growing(%r, factor=%r, limit=%r)' % (self.first, self.factor, self.limit)

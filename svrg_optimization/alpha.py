r"""Coefficient of the variance reduction, α.

.. math:: g = \nabla f_{batch}(w) - \alpha (\nabla f_{batch}(\tilde w) - \mu)
"""

from ._argument_checks import SMALLEST, checked_count, checked_number


def checked_coefficient(name, value, allowed='a number from 0 to 1'):
    """Return a number in [0, 1]; raise an error for all else. MXNet takes no smaller ones."""
    number = checked_number(name, value, allowed, lambda number: 0 <= number <= 1)
    return number if number >= SMALLEST else 0.


class LinearDecay:
    r"""Schedule of α that decreases linearly to 0: :math:`\alpha_t = \alpha_0 (1 - t / T)`.

    Use it as ``SVRGModule(..., alpha=LinearDecay(0.75, num_updates))``. During
    the training of a network its gradients become less correlated with those
    at the snapshot, and the best coefficient decreases [1]_.

    Parameters
    ----------
    initial : float
        :math:`\alpha_0`, from 0 to 1.
    num_updates : int
        T, the number of updates of the whole training run, 1 or more. α is 0
        afterwards.

    Raises
    ------
    TypeError
        If `initial` is not a number or `num_updates` is not an int.
    ValueError
        If `initial` is not in [0, 1] or `num_updates` is below 1.

    References
    ----------
    .. [1] Y. Yin, Z. Xu, Z. Li, T. Darrell and Z. Liu, "A Coefficient Makes
       SVRG Effective", ICLR 2025.

    Examples
    --------
    >>> from svrg_optimization import LinearDecay
    >>> alpha = LinearDecay(0.5, num_updates=100)
    >>> alpha(0), alpha(50), alpha(100), alpha(200)
    (0.5, 0.25, 0.0, 0.0)
    """

    def __init__(self, initial: float, num_updates: int) -> None:
        self.initial = checked_coefficient('initial', initial)
        self.num_updates = checked_count('num_updates', num_updates)

    def __call__(self, num_update: int) -> float:
        """Return α after this number of updates.

        Parameters
        ----------
        num_update : int
            Number of updates so far, t.

        Returns
        -------
        float
            :math:`\\alpha_t`, from 0 to 1.
        """
        return self.initial * max(0., 1 - num_update / self.num_updates)

    def __repr__(self):
        return 'LinearDecay(%r, num_updates=%r)' % (self.initial, self.num_updates)

r"""The coefficient of the variance reduction, α.

.. math:: g = \nabla f_{batch}(w) - \alpha (\nabla f_{batch}(\tilde w) - \mu)
"""

from ._argument_checks import as_number, checked_count

_ALLOWED = 'a number from 0 to 1 or a callable that returns one'


class Coefficient:
    """What SVRGModule's `alpha` was set to.

    Parameters
    ----------
    alpha : float or callable
        A number in [0, 1], or a schedule, called with the number of updates
        so far, that returns one.

    Raises
    ------
    TypeError, ValueError
        If it is neither.
    """

    def __init__(self, alpha):
        self.alpha = alpha

    @property
    def alpha(self):
        """The number or the schedule."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha):
        self._alpha = alpha if callable(alpha) else _checked(alpha, 'alpha must be %s' % _ALLOWED)

    @property
    def is_always_zero(self):
        """Whether no step looks at the snapshot."""
        return not callable(self.alpha) and self.alpha == 0

    def at(self, num_update):
        """Return the number after so many updates."""
        value = self.alpha
        if callable(value):
            value = _checked(value(num_update), 'alpha must be %s; after %d updates it returned '
                             'something else' % (_ALLOWED, num_update))
        return float(value)


def _checked(value, message):
    number = as_number(value)
    if number is None:
        raise TypeError('%s: %r' % (message, value))
    if not 0 <= number <= 1:
        raise ValueError('%s: %r' % (message, value))
    return number


class LinearDecay:
    r"""A schedule of α that goes linearly to 0: :math:`\alpha_t = \alpha_0 (1 - t / T)`.

    Give it as ``SVRGModule(..., alpha=LinearDecay(0.75, num_updates))``. A
    network's snapshot says less of its gradients as training goes on, and so
    does the best coefficient decrease [1]_.

    Parameters
    ----------
    initial : float
        :math:`\alpha_0`, from 0 to 1.
    num_updates : int
        T, the updates of the whole training, 1 or more. Later ones have 0.

    Raises
    ------
    TypeError, ValueError
        If `initial` is no number from 0 to 1, or `num_updates` no int of 1 or
        more.

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

    def __init__(self, initial, num_updates):
        self.initial = _checked(initial, 'initial must be a number from 0 to 1')
        self.num_updates = checked_count('num_updates', num_updates)

    def __call__(self, num_update):
        """Return α after so many updates."""
        return self.initial * max(0., 1 - num_update / self.num_updates)

    def __repr__(self):
        return 'LinearDecay(%r, num_updates=%r)' % (self.initial, self.num_updates)

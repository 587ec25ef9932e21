"""What a snapshot has found, and why training ended: one result for all front ends."""

import math
from typing import NamedTuple, Optional


class Result(NamedTuple):
    """What a snapshot has found. At the end of a training it says why that ended.

    Attributes
    ----------
    reason : str or None
        'converged', 'at the floor' (of the precision), 'epochs used up', 'stopped early' (by
        EarlyStopping), 'interrupted' (by an error, Ctrl-C or leaving the loop), 'no step' or
        'not finite'; None where training goes on.
    objective : float or None
        Mean objective per row; None if it is not known.
    norm : float
        As `gradient_norm`.
    distance : float or None
        Distance from the optimum, relative to the spread of the outputs, which `tol` bounds; None
        if it is not known.
    epochs, passes : int
        Epochs of the training so far, and passes over the data, in which each row is read once
        with its gradient. A step of SVRG reads it twice, at both weights.
    words : str
        The reason as a sentence.
    rounding : float
        By how much rounding of the outputs may change the objective, about; 0 if that is not known.
    """

    reason: Optional[str]
    objective: Optional[float]
    norm: float
    distance: Optional[float]
    epochs: int
    passes: int
    words: str = 'training goes on'
    rounding: float = 0.

    @property
    def has_converged(self) -> bool:
        """Whether training has converged: to `tol`, or to the floor of the precision."""
        return self.reason in ('converged', 'at the floor')

    @property
    def ends(self) -> bool:
        """Whether no step from the snapshot can lower the objective."""
        return self.has_converged or self.reason == 'no step' or (
            self.reason == 'not finite' and not self.epochs)

    def __str__(self) -> str:
        size, objective = abs(self.objective or 0.), 'objective %g'
        if size < 1e6 * self.rounding:
            digits = math.ceil(math.log10(size / self.rounding)) if size > self.rounding else 1
            objective = 'objective %%.%dg +- %.0e' % (digits, self.rounding)
        numbers = [('distance %.1e', self.distance), ('gradient %.1e', self.norm),
                   (objective, self.objective), ('%d epochs', self.epochs),
                   ('%d passes', self.passes)]
        return '%s (%s)' % (self.words, ', '.join(
            words % number for words, number in numbers if number is not None))

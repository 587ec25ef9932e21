"""What a snapshot has found, and why training ended: one result for all front ends."""

import dataclasses
import weakref
from typing import Callable, NamedTuple, Optional

# Why a training ended, in words. Those that converged come first.
REASONS = {
    'converged': 'training converged%(to)s',
    'at the floor': "training converged to %(dtype)s's precision",
    'epochs used up': 'training did not converge%(to)s: %(advice)s',
    'rolled back': 'training did not converge%(to)s: the last steps went up and were undone, '
                   '%(advice)s',
    'diverged': 'training did not converge%(to)s: it went up, a smaller learning rate is needed',
    'not finite': 'training did not converge%(to)s: the gradient is not finite, %(advice)s',
    'no step': 'training did not converge%(to)s: no step changes the weights, %(advice)s'}


class Result(NamedTuple):
    """What a snapshot has found. At the end of a training it says why that ended.

    Attributes
    ----------
    reason : str or None
        'converged', 'at the floor' (of the precision), 'epochs used up', 'rolled back',
        'diverged', 'not finite' or 'no step'; None where training goes on.
    objective : float or None
        Mean objective per row; None if it is not known.
    norm : float
        As `gradient_norm`.
    distance : float or None
        Distance from the optimum, relative to the weights, which `tol` bounds; None if it is not
        known.
    epochs, passes : int
        Epochs of the training so far, and passes over the data, those of snapshots included.
    words : str
        The reason as a sentence.
    """

    reason: Optional[str]
    objective: Optional[float]
    norm: float
    distance: Optional[float]
    epochs: int
    passes: int
    words: str = ''

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
        numbers = [('distance %.1e', self.distance), ('gradient %.1e', self.norm),
                   ('objective %g', self.objective), ('%d epochs', self.epochs),
                   ('%d passes', self.passes)]
        return '%s (%s)' % (self.words or 'training goes on', ', '.join(
            words % number for words, number in numbers if number is not None))


@dataclasses.dataclass
class Training:
    """What one training has come to: a `fit`, or a loop over epochs.

    Attributes
    ----------
    taken_before : int
        Number of snapshots that were taken before it.
    epochs : int
        Epochs so far.
    result, first_result : Result or None
        Those of its latest and of its first snapshot.
    rows_of_passes : set of int
        How many rows each pass has had.
    is_stuck : bool
        Whether the steps before the latest snapshot have moved no weight.
    only_grows : bool
        Whether what is left of the loss gets smaller as outputs grow, as of separable classes.
    is_repeatable : bool or None
        Whether two passes have found the same gradient; None before that was asked.
    checks, noisy : int
        Passes that checked a distance, and those of them that found another function.
    data : callable or None
        Returns the data of the training, as `reference_to` does; None before any training.
    """

    taken_before: int = 0
    epochs: int = 0
    result: Optional[Result] = None
    first_result: Optional[Result] = None
    rows_of_passes: set = dataclasses.field(default_factory=set)
    is_stuck: bool = False
    only_grows: bool = False
    is_repeatable: Optional[bool] = None
    checks: int = 0
    noisy: int = 0
    data: Optional[Callable] = None


def reference_to(data):
    """Return a function that returns data, or None if they are gone; a list or the like stays."""
    try:
        return weakref.ref(data)
    except TypeError:
        return lambda: data

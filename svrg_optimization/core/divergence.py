"""Whether training diverges, as its snapshots tell."""

import math

from .arrays import dense

_RISE = 10  # of the objective, and of the weights
# Without an objective, growth of the gradient and of the weights. Where a deep network leaves a
# plateau the gradient grows as much, but its weights do not.
_GROWTH = 1000


class Divergence:
    """Warning of an objective far above the first, or of such a gradient where it is not known."""

    def __init__(self):
        self._first = None  # Taken, and the norm of the weights

    def look_at(self, taken, weights, trained, workers, warn_once):
        """Warn once if training diverges.

        Parameters
        ----------
        taken : Taken
            What a new snapshot has found.
        weights : dict of str to list of NDArray
            The weights there.
        trained : TrainedModel
            The model.
        workers : Workers
            Workers of the pass.
        warn_once : WarnOnce
            Warnings of the model.
        """
        if self._first is None:
            self._first = (taken, _length_of(weights)) if math.isfinite(taken.norm) else None
            return
        first, length = self._first
        growth, what, before, now = _RISE, 'mean objective', first.objective, taken.objective
        if before is None or now is None:
            growth, what = _GROWTH, 'gradient of the mean objective'
            before, now = first.norm, taken.norm
        if not (now <= growth * abs(before) or _length_of(weights) <= growth * length):
            warn_once('training diverges: the %s has grown from %.1e to %.1e. The learning rate%s '
                      'is too large%s: see the page "The learning rate" of the documentation'
                      % (what, before, now,
                         '' if trained.rate is None else ', %g,' % trained.rate,
                         ', or the rows of the workers, who step alone, are unlike (shuffle the '
                         'rows before they are sharded, or use BarzilaiBorwein)'
                         if workers.step_alone else ''),
                      'divergence')


def _length_of(weights):
    """Return the Euclidean norm of weights on the first device, summed in float64."""
    arrays = [dense(of_devices[0]).astype('float64') for of_devices in weights.values()]
    return math.sqrt(sum(float((array * array).sum().asscalar()) for array in arrays))

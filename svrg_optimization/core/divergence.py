"""Whether training diverges, as the gradients at its snapshots tell."""

import math

from .arrays import dense

# Growth of the gradient and of the weights. Where a deep network leaves a plateau the gradient
# grows as much, but its weights do not.
_GROWTH = 1000


class Divergence:
    """Warning of a gradient that has grown far above the first, and the weights with it."""

    def __init__(self):
        self._first = None  # norms of the gradient and of the weights

    def look_at(self, norm, weights, trained, warn_once):
        """Warn once if training diverges.

        Parameters
        ----------
        norm : float
            Norm of the gradient of the mean objective at a new snapshot.
        weights : dict of str to list of NDArray
            The weights there.
        trained : TrainedModel
            The model.
        warn_once : WarnOnce
            Warnings of the model.
        """
        if self._first is None:
            self._first = (norm, _length_of(weights)) if math.isfinite(norm) else None
        elif not (norm <= _GROWTH * self._first[0]
                  or _length_of(weights) <= _GROWTH * self._first[1]):
            warn_once('training diverges: the gradient of the mean objective has grown from %.1e '
                      'to %.1e. The learning rate%s is too large: see the page "The learning '
                      'rate" of the documentation'
                      % (self._first[0], norm,
                         '' if trained.rate is None else ', %g,' % trained.rate),
                      'divergence')


def _length_of(weights):
    """Return the Euclidean norm of weights on the first device, summed in float64."""
    arrays = [dense(of_devices[0]).astype('float64') for of_devices in weights.values()]
    return math.sqrt(sum(float((array * array).sum().asscalar()) for array in arrays))

"""Whether training diverges, as the gradients at its snapshots tell."""

import math

# Growth of the gradient, and of the weights.
_OF_GRADIENT, _OF_WEIGHTS = 1000, 10


class Divergence:
    """Warning of a gradient that has grown far above all before, and the weights with it.

    A run that diverges slowly grows from snapshot to snapshot. All of them are
    compared with those before its growth.
    """

    def __init__(self):
        self._previous = math.inf
        self._before_growth = None  # the largest norm and weights

    def look_at(self, norm, weights, rate, warn_once):
        """Warn once if training diverges.

        Parameters
        ----------
        norm : float
            Norm of the gradient of the mean objective at a new snapshot.
        weights : float
            Norm of the weights there.
        rate : float or None
            Learning rate, if it is known.
        warn_once : WarnOnce
            Warnings of the model.
        """
        if norm <= self._previous and math.isfinite(weights):
            self._before_growth = tuple(map(max, self._before_growth or (0., 0.),
                                            (norm, weights)))
        elif self._before_growth and not (norm <= _OF_GRADIENT * self._before_growth[0]
                                          or weights <= _OF_WEIGHTS * self._before_growth[1]):
            warn_once('training diverges: the gradient of the mean objective has grown from %.1e '
                      'to %.1e. The learning rate%s is too large: see docs/learning-rate.md'
                      % (self._before_growth[0], norm, '' if rate is None else ', %g,' % rate),
                      'divergence')
        self._previous = norm


def length_of(arrays):
    """Return the Euclidean norm of some dense arrays together, summed in float64."""
    squares = [(array * array).sum() for array in (each.astype('float64') for each in arrays)]
    return math.sqrt(sum(float(square.asscalar()) for square in squares))

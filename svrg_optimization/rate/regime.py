"""What the regimes have in common: moves between snapshots, and what is learned from them."""

import math
from typing import NamedTuple

import numpy as np

from ..core.arrays import precision_of
from .secant_pairs import SecantPairs

ROUNDING = 25  # times the precision, relative: differences that are noise
UNKNOWN = 0.1  # gamma where nothing can be measured
_LONGER = 10.  # by which gamma grows along a move without curvature; less after too long ones
_SLOWEST = 0.9  # from one way to the next: a ratio above it is not measured
_STATE = {  # what a file has of each part
    'regime': ('dtype', 'has_noise', 'jumps', 'steepest', 'slowdown', 'largest', 'has_values'),
    'pairs': ('gamma', 'moves', 'changes'), 'ways': ('expected', 'shortfall', 'slowness')}


class Move(NamedTuple):
    r"""A move s of the variables, with the change y of the gradient, where the loss sees them.

    The numbers are :math:`s^T s`, :math:`s^T y` and :math:`y^T y`; of the whole move
    :math:`g^T s` and :math:`g'^T s` with the gradients before and after it; and the length of g'.
    Workers agree on them.
    """

    move: np.ndarray = np.zeros(0)
    change: np.ndarray = np.zeros(0)
    length: float = 0.
    product: float = 0.
    square: float = 0.
    before: float = 0.
    after: float = 0.
    slope: float = 0.

    @classmethod
    def between(cls, metric, before, now):
        """Return the Move from one Point to another."""
        whole = metric.whiten(now.weights - before.weights)
        slopes = [metric.pull(each.gradient) for each in (before, now)]
        move = metric.seen_by_loss(whole)
        change = metric.seen_by_loss(metric.pull(now.gradient - before.gradient))
        return cls(move, change, float(move @ move), float(move @ change), float(change @ change),
                   *(float(whole @ slope) for slope in slopes), float(np.linalg.norm(slopes[1])))

    def numbers(self):
        """List the numbers."""
        return list(self[2:])

    @property
    def is_past(self):
        """Whether it has gone past the lowest point of its line: a constant fits its slopes."""
        return self.before * self.after < 0

    def explains(self, difference, slack, rounding):
        """Tell whether the gradients explain by how much the objective has changed.

        For a convex one that lies between both slopes, for others nearly so after a short move.
        The `slack` is relative to the slopes. If the change is not known, nothing speaks against.
        """
        slopes = self.before, self.after
        slack = slack * max(map(abs, slopes)) + rounding
        return not (difference < min(slopes) - slack or difference > max(slopes) + slack)


class Ways:
    """The ways to the optimum that snapshots have found, and how much longer they really are.

    Attributes
    ----------
    latest : numpy.ndarray
        That from the latest snapshot, in the variables of the metric.
    end : numpy.ndarray or None
        The weights that it leads to, to which training may jump.
    expected : float
        Length of the way from the latest snapshot but those undone.
    shortfall : float
        By which factor the move since the snapshot before was longer than its way, 1 at least.
    slowness : float
        By which one all ways that follow are longer than the latest: where each way is q times the
        one before, 1 / (1 - q).
    """

    def __init__(self):
        self.latest = self.end = None
        self.expected, self.shortfall, self.slowness = math.inf, 1., 1.

    def add(self, latest, end, went, is_undone):
        """Add the way of a snapshot, to which the weights went by some length."""
        self.latest, self.end = latest, end
        length, former = float(np.linalg.norm(latest)), self.expected
        if math.isfinite(length) and not is_undone:
            self.expected = length
        if went and 0 < former < math.inf:
            self.slowness = 1 / (1 - min(self.expected / former, _SLOWEST))
            if not is_undone:
                self.shortfall = max(1., went / former)


class Regime:
    """A metric, and what is learned in it: gamma and pairs, the slowdown, and ways.

    A regime of its own has the methods `rate` and `way`, as Random has them.

    Parameters
    ----------
    metric : Metric
        The variables.
    dtype : str
        'float32' or 'float64', that of steps.
    proximal : dict of str to operator
        The proximal operators.

    Attributes
    ----------
    steps : Metric
        That of steps, the diagonal of `metric`.
    pairs : SecantPairs
        With gamma. There are none if `has_pairs` is False, or the model is too large.
    steepest : float
        Largest curvature so far, the inverse of gamma.
    slowdown : float
        What the rate is divided by.
    largest : float
        Largest objective so far, in absolute value.
    has_values : bool
        Whether the loss is the function whose gradient is computed.
    has_noise : bool
        Whether each pass finds another objective.
    jumps : int
        Most jumps at a snapshot.
    ways : Ways
        Those so far.
    residual : callable or None
        With operators it returns the length of a proximal step from a Point.
    """

    most_jumps, has_pairs, has_noise, residual = 0, True, False, None

    def __init__(self, metric, dtype, proximal=()):
        self.dtype, self.proximal, self.ways = dtype, dict(proximal), Ways()
        self.pairs = SecantPairs(metric.size if self.has_pairs else 0)
        self.jumps = self.most_jumps if self.pairs.room else 0
        self.steepest, self.slowdown, self.largest, self.has_values = 0., 1., 0., True
        self._measure_in(metric)

    def _measure_in(self, metric):
        self.metric, self.steps = metric, metric.as_diagonal(self.proximal)

    def learn(self, move, rounding=0., has_failed=False, has_fallen=False):
        """Learn from a Move, unless its change of the gradient is rounding, of `rounding` or of g'.

        After a failed one gamma gets no larger. Where the objective has fallen and the gradient
        has not changed, it grows.
        """
        pairs, precision, changed = self.pairs, precision_of(self.dtype), math.sqrt(move.square)
        flat = math.sqrt(precision * move.length) * changed
        is_flat = changed <= ROUNDING * precision * move.slope or abs(move.product) <= flat
        if is_flat and has_fallen and not has_failed:
            pairs.gamma = _LONGER * (pairs.gamma or UNKNOWN)
        elif not is_flat and flat < move.product < math.inf and (
                changed > ROUNDING * self.steepest * rounding):
            gamma = move.product / move.square
            pairs.gamma = min(gamma, pairs.gamma) if has_failed and pairs.gamma else gamma
            self.steepest = max(self.steepest, 1 / gamma)
            pairs.add(move.move, move.change)

    def adapt(self, seen, weights):
        """Learn from a Comparison of the snapshot, at some weights, with the one before."""
        if seen.fails_by_far:
            gamma = self.pairs.gamma or UNKNOWN
            self.forget_pairs()
            self.pairs.gamma = gamma / _LONGER
            return
        if seen.steps:
            self.slowdown = max(1., self.slowdown * (2 if seen.rolls_back else 0.5))
        if seen.move.length and not self.has_noise:
            self.learn(seen.move, self.metric.rounding(weights, self.dtype), seen.rolls_back,
                       seen.changed < 0 and self.residual is None)

    def forget_pairs(self):
        """Forget gamma and the pairs."""
        self.pairs = SecantPairs(self.pairs.moves.shape[1])

    def follow(self, decays):
        """Let the decays in the metric be times the gamma of now."""
        metric, former = self.metric.with_decays(decays, self.pairs.gamma or 0.), self.metric
        if self.pairs.gamma and metric is not former:
            self.pairs.transform(lambda move: metric.whiten(former.push(move)),
                                 lambda change: metric.pull(former.unpull(change)))
            self._measure_in(metric)

    def step_size(self, name, rate, like):
        """Return a rate for the operator of a parameter, or an array of one for each element.

        `like` is an array with shape, context and dtype of the parameter.
        """
        return rate

    # A file

    def _parts(self):
        return {'regime': self, 'pairs': self.pairs, 'ways': self.ways}

    def state(self):
        """Return what `load_state` takes, for a file."""
        return {'kind': type(self).__name__, 'metric': self.metric.state(), **{
            part: {name: getattr(owner, name) for name in _STATE[part]}
            for part, owner in self._parts().items()}}

    def load_state(self, state):
        """Go on with what `state` has returned, in the metric of the state."""
        for part, owner in self._parts().items():
            vars(owner).update({name: state[part][name] for name in _STATE[part]})

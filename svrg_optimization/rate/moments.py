"""The moments of the inputs of a model, of which the metric is made: means and covariances."""

import collections
import math
from typing import NamedTuple

import numpy as np

from ..core.arrays import precision_of

# Columns up to which their covariances are used, and rows up to which these stand for them: with
# more the products take too long. Of more columns so many numbers are kept.
COLUMNS, NUMBERS = 1024, 1 << 23


class Moments(NamedTuple):
    """Mean of each column of an input, and how the columns vary together.

    Attributes
    ----------
    mean : numpy.ndarray
        The means.
    spread : numpy.ndarray
        The covariances C. Of many columns fewer rows R with C = R^T R, or with many rows the
        variances alone. A sparse input of many columns has mean squares there, and means of 0.
    parts : tuple of Moments
        Those of each layer, where several share their weight.
    """

    mean: np.ndarray
    spread: np.ndarray
    parts: tuple = ()

    @classmethod
    def joined(cls, parts, counts):
        """Return the Moments of all rows, given those of some and how many these are."""
        if len(parts) == 1:
            return parts[0]
        shares = np.array(counts) / sum(counts)
        mean = sum(share * part.mean for share, part in zip(shares, parts))
        rows = [math.sqrt(share) * np.vstack([part.spread, part.mean - mean])
                for share, part in zip(shares, parts) if part.has_rows]
        if len(rows) == len(parts) and sum(map(len, rows)) < len(mean):
            return cls(mean, np.vstack(rows), tuple(parts))
        is_full = parts[0].spread.ndim == 2 and not rows
        return cls(mean, sum(share * (
            part.spread + np.outer(part.mean - mean, part.mean - mean) if is_full
            else part.variances + np.square(part.mean - mean))
            for share, part in zip(shares, parts)), tuple(parts))

    @property
    def has_rows(self):
        """Whether there are rows R."""
        return self.spread.ndim == 2 and len(self.spread) < len(self.mean)

    @property
    def variances(self):
        """The variance of each column."""
        if self.has_rows:
            return np.square(self.spread).sum(axis=0)
        return np.diag(self.spread) if self.spread.ndim == 2 else self.spread

    def times(self, rows):
        """Return rows times C, or its diagonal."""
        if self.has_rows:
            return rows @ self.spread.T @ self.spread
        return rows @ self.spread if self.spread.ndim == 2 else rows * self.spread

    def are_like(self, other):
        """Tell whether others are those of the same rows, but for rounding."""
        near = precision_of(np.float32) * np.sqrt(self.variances)
        if self.spread.shape != other.spread.shape or (abs(self.mean - other.mean) > near).any():
            return False
        some, others, near = (self.spread, other.spread, np.outer(near, near)) if (
            self.spread.ndim == 2 and not self.has_rows) else (
                self.variances, other.variances, near * near)
        return bool((abs(some - others) <= near / precision_of(np.float32)).all())


class InputMoments:
    """Sums over the rows of the inputs of a pass, about the mean of the first batch.

    `reference` and `a_pass` are those of the pass whose batches are added. `names` are those of
    the parameters of the layers.
    """

    def __init__(self, reference, a_pass):
        self._reference, self._a_pass, self._sums, self.names = reference, a_pass, {}, set()
        self._rows = collections.defaultdict(list)

    def add(self, batch):
        """Add the inputs of a batch.

        Layers that share their weight have the rows of all: those of a few are parts of the
        Moments. Biases that layers share, or that differ where the weight is shared, are joined to
        none.
        """
        found = self._reference.inputs_of_weights(batch, self._a_pass)
        layers = {layer for layer, *_ in found}
        self.names.update(name for layer in layers for name in layer[:2] if name)
        uses = collections.Counter(name for layer in layers for name in layer[:2])
        counts = collections.Counter()
        for layer, inputs, *factors in found:
            if max(uses[layer.weight], uses[layer.bias]) > 1:
                layer = layer._replace(bias=None)
            columns = self._reference.weights()[layer.weight][0].shape[layer.axis]
            key = layer, min(counts[layer], NUMBERS // columns ** 2)
            counts[layer] += 1
            origin, *sums = self._sums.get(key, (None, 0, 0., 0.))
            is_sparse = getattr(inputs, 'stype', '') == 'csr' and columns > COLUMNS
            if not is_sparse:
                rows = inputs if isinstance(inputs, np.ndarray) else inputs.asnumpy()
                rows = rows.reshape(-1, columns)
            weights = np.ones(inputs.shape[0] if is_sparse else len(rows))
            for factor in factors:
                if factor.size == len(weights):
                    weights *= abs(factor.asnumpy().ravel())
            if is_sparse:
                values = inputs.data.asnumpy().astype('float64')
                origin = np.zeros(columns)
                found = weights.sum(), origin, np.bincount(
                    inputs.indices.asnumpy(), np.repeat(weights, np.diff(
                        inputs.indptr.asnumpy())) * values * values, columns)
            else:
                if factors:
                    rows, weights = rows[weights > 0], weights[weights > 0]
                if not sums[0]:
                    origin = (rows.mean(axis=0, dtype='float64') if len(rows)
                              else np.zeros(columns))
                rows = np.subtract(rows, origin, dtype='float64')
                total = weights @ rows
                if factors:
                    rows *= np.sqrt(weights)[:, None]
                self._keep(key, np.sqrt(weights), rows)
                # NumPy computes one half of a matrix times its own transpose.
                found = weights.sum(), total, (
                    rows.T @ rows if columns <= COLUMNS else np.square(rows).sum(axis=0))
            self._sums[key] = (origin, *map(sum, zip(sums, found)))

    def _keep(self, key, roots, rows):
        """Keep rows, and the roots of their weights, of many columns as long as they are few."""
        kept, columns = self._rows[key], rows.shape[1]
        kept.append((roots, rows))
        count = sum(len(some) for some, _ in kept)
        if columns <= COLUMNS or count > COLUMNS or count * columns > NUMBERS:
            kept.clear()

    def _spread(self, key, count, mean, variances, workers):
        """Return rows whose products are the covariances if all of some weight are here."""
        kept, origin = self._rows[key], self._sums[key][0]
        here = sum((roots @ roots for roots, _ in kept), 0.)
        if workers.allreduce_max([float(not math.isclose(here, count))])[0]:
            return variances
        return np.vstack([rows - np.outer(roots, mean - origin)
                          for roots, rows in kept]) / math.sqrt(count)

    def of_all(self, workers):
        """Map each layer to the Moments over the rows of all workers."""
        if not self._sums:
            return {}
        ends = np.cumsum([1 + origin.size + square.size
                          for origin, _, _, square in self._sums.values()])

        def summed(parts):  # of one shape in both messages
            return np.split(workers.total(np.concatenate([
                np.concatenate([[count], total, np.ravel(square)])
                for count, total, square in parts])), ends)

        totals, squares = summed((count, total + count * origin, 0 * square)
                                 for origin, count, total, square in self._sums.values()), []
        for (origin, count, total, square), part in zip(self._sums.values(), totals):
            by = origin - part[1:1 + origin.size] / (part[0] or 1)
            outer = np.outer if square.ndim == 2 else np.multiply
            squares.append((0, 0 * origin, square + outer(total, by) + outer(by, total)
                            + count * outer(by, by)))
        found = collections.defaultdict(list)
        for (key, (origin, _, _, square)), part, central in zip(
                self._sums.items(), totals, summed(squares)):
            if part[0]:
                mean, spread = part[1:1 + origin.size] / part[0], central[1 + origin.size:].reshape(
                    square.shape) / part[0]
                found[key[0]].append((
                    Moments(mean, self._spread(key, part[0], mean, spread, workers)), part[0]))
        return {layer: Moments.joined(*zip(*parts)) for layer, parts in found.items()}

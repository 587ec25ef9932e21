"""The metric: curvature of the objective along the inputs, known before a step is made."""

import math
from typing import NamedTuple, Optional

import numpy as np

from ..core.arrays import is_row_sparse
from ..proximal import GroupLasso, is_ours

# Columns up to which the whole moment is inverted: with more its product takes too long.
_COLUMNS = 256
_SMALLEST = 1e-7  # eigenvalue: beside the inverse of a smaller one float32 would lose the others


class Layer(NamedTuple):
    """A layer that multiplies an input by a weight, which has the columns of the input.

    Attributes
    ----------
    weight : str
        Name of the weight.
    bias : str or None
        Name of the bias that is added to the product.
    axis : int
        Axis of the weight that counts the columns: 0 for x w, 1 for x w^T.
    """

    weight: str
    bias: Optional[str]
    axis: int


class InputMoments:
    """Sums of [x, 1] [x, 1]^T over the rows x of inputs; for many columns only the diagonal.

    `reference` and `source` are those of the pass whose batches are added.
    """

    def __init__(self, reference, source):
        self._reference, self._source, self._sums = reference, source, {}

    def add(self, batch):
        """Add the inputs of a batch."""
        for layer, inputs in self._reference.inputs_of_weights(batch, self._source):
            columns = self._reference.weights()[layer.weight][0].shape[layer.axis]
            self._sums[layer] = self._sums.get(layer, 0.) + _moment(inputs, columns)

    def means(self, workers):
        """Map each layer to its moment divided by the rows of all workers."""
        layers, sums = list(self._sums), list(self._sums.values())
        if not sums:
            return {}
        total = workers.total(np.concatenate([each.ravel() for each in sums]))
        ends = np.cumsum([each.size for each in sums])
        return {layer: part.reshape(each.shape) / max(part[-1], 1)
                for layer, each, part in zip(layers, sums, np.split(total, ends))}


def _moment(inputs, columns):
    """Return the sum of [x, 1] [x, 1]^T, or its diagonal; its last element counts the rows."""
    if getattr(inputs, 'stype', '') == 'csr' and columns > _COLUMNS:
        values = inputs.data.asnumpy().astype('float64')
        return np.append(np.bincount(inputs.indices.asnumpy(), values * values, columns),
                         inputs.shape[0])
    rows = inputs if isinstance(inputs, np.ndarray) else inputs.asnumpy()
    rows = rows.reshape(-1, columns).astype('float64')
    rows = np.column_stack([rows, np.ones(len(rows))])
    return rows.T @ rows if columns <= _COLUMNS else (rows * rows).sum(0)


class MetricBlock:
    r"""Some parameters and their part of the metric.

    For the weight and the bias of a Layer it is

    .. math:: M = \frac{1}{n} \sum_i [x_i, 1] [x_i, 1]^T + \Lambda

    with the weight decays :math:`\Lambda`. It is the Hessian of the mean objective if the loss of
    a row has the curvature 1 in the outputs. It is a matrix, or the diagonal of one. If the
    columns are divided by the root of their mean square, the matrix may have eigenvalues of at
    most :math:`10^{-7}`: there it is set to 1. All other parameters have M = 1, with `moment` None.

    The `numbers` of a part are an array whose last axis has the columns, and then the bias.
    """

    def __init__(self, names, axis=1, moment=None):
        self.names, self.axis, self.moment = tuple(names), axis, moment
        if moment is not None and moment.ndim == 2:
            root = np.sqrt(np.diag(moment))
            inverse = np.linalg.inv(moment / root / root[:, None])
            self.inverse = (inverse + inverse.T) / 2 / root / root[:, None]
        else:
            self.inverse = None if moment is None else 1 / moment

    @property
    def is_full(self):
        """Whether M is a matrix."""
        return self.moment is not None and self.moment.ndim == 2

    def joined(self, arrays):
        """Return the numbers of the part from a dict of NDArrays, in float64."""
        weight, *bias = (arrays[name].asnumpy().astype('float64') for name in self.names)
        if self.moment is None:
            return weight.ravel()
        rows = weight.reshape(len(weight), -1)
        rows = rows if self.axis else rows.T
        return np.column_stack([rows, *(each.ravel() for each in bias)])

    def times(self, numbers):
        """Return M times the numbers."""
        return numbers if self.moment is None else (
            numbers @ self.moment if self.is_full else numbers * self.moment)

    def solve(self, numbers):
        """Return the inverse of M times the numbers."""
        return numbers if self.moment is None else (
            numbers @ self.inverse if self.is_full else numbers * self.inverse)

    def spread(self, numbers):
        """Return the square of the norm in M, with the bias for which this is least."""
        if self.is_full and len(self.names) == 2:
            *_, means = self.moment
            numbers, inner = numbers[:, :-1], (
                self.moment - np.outer(means, means) / means[-1])[:-1, :-1]
            return float((numbers @ inner * numbers).sum())
        return float((numbers * self.times(numbers)).sum())

    def by_column(self, power):
        """Map each name to a power of M's diagonal, in a shape that broadcasts to it."""
        diagonal = (np.diag(self.moment) if self.is_full else self.moment) ** power
        weight, *bias = self.names
        columns = diagonal[:-1] if bias else diagonal
        return {weight: columns[None] if self.axis else columns[:, None],
                **dict.fromkeys(bias, diagonal[-1:])}

    def separated(self, numbers, arrays):
        """Map each name to its numbers, in the shapes of a dict of arrays."""
        if self.moment is None:
            return {self.names[0]: numbers.reshape(arrays[self.names[0]].shape)}
        weight, *bias = self.names
        rows = numbers[:, :-1] if bias else numbers
        return {weight: (rows if self.axis else rows.T).reshape(arrays[weight].shape),
                **{name: numbers[:, -1].reshape(arrays[name].shape) for name in bias}}


def metric_of(moments, gradient, full_gradient, weights, is_directed):
    """Return the MetricBlocks that have a moment, made of the moment of each layer.

    A network of several layers has none unless steps have pairs of L-BFGS: a metric of its
    first layer alone makes training slower.

    Parameters
    ----------
    moments : dict of Layer to numpy.ndarray
        Result of ``InputMoments.means``.
    gradient, full_gradient, weights
        MeanGradient, FullGradient and weights at the snapshot.
    is_directed : bool
        Whether steps have pairs of L-BFGS.
    """
    parts, updated = [], gradient.updated(full_gradient)
    of_layers = {name for layer in moments for name in (layer.weight, layer.bias)}
    if not (is_directed or set(updated) <= of_layers):
        return []
    for layer, moment in moments.items():
        names = [name for name in (layer.weight, layer.bias) if name in updated]
        operator = gradient.proximal.get(layer.weight)
        if (layer.weight not in names or is_row_sparse(weights[layer.weight][0]) and operator
                or not np.isfinite(moment).all() or not (operator is None or is_ours(operator))):
            continue
        outputs = math.prod(weights[layer.weight][0].shape) // (len(moment) - 1)
        if len(names) == 2 and (gradient.multipliers[layer.weight]
                                != gradient.multipliers[layer.bias] or not gradient.is_smooth
                                or math.prod(weights[layer.bias][0].shape) != outputs
                                or moment.ndim == 1):
            names.pop()  # the bias: its own moment is 1, and a diagonal does not join it to columns
        decays = [gradient.decays[name] / gradient.per_row(full_gradient) for name in names]
        if len(names) == 1:
            moment = moment[(slice(-1),) * moment.ndim]
        columns = len(moment) - len(names) + 1
        decay = np.repeat(decays, [columns, 1][:len(names)])
        if moment.ndim == 2 and gradient.is_smooth:
            root = np.diag(moment) + decay
            root = np.sqrt(np.where(root > 0, root, 1.))
            values, vectors = np.linalg.eigh((moment + np.diag(decay)) / root / root[:, None])
            values = np.where(values > _SMALLEST, values, 1.)
            moment = (vectors * values) @ vectors.T * root * root[:, None]
        else:
            moment = (np.diag(moment) if moment.ndim == 2 else moment) + decay
            if isinstance(operator, GroupLasso) and operator.axis % 2 != layer.axis:
                moment = np.full_like(moment, moment.mean())  # one for all columns of a group
            moment = np.where(moment > 0, moment, 1.)
        parts.append(MetricBlock(names, layer.axis, moment))
    return parts

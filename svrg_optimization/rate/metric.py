"""The metric: curvature of the objective along the inputs, known before a step is made."""

import copy
import math

import numpy as np

from ..core.arrays import precision_of
from .basis import Columns, Vectors, of_covariances, of_rows

_EPSILON = precision_of(float)
_SMALLEST = 10 * _EPSILON  # times the columns: an eigenvalue of a correlation matrix is rounding
_SMALL = 1e-3  # a part of a spread, or of a mean, that is worth a word
_LARGE = 1e-6  # beside the largest mean square: a decay for which columns need not be scaled
ROUNDED = 100  # times the precision, relative: a sum of gradients that is rounding
_CONSTANT = 4 * _EPSILON  # relative to its size: the deviation of a column without any


class Block:
    r"""The weight and the bias of a Layer in the metric, which is for each output

    .. math:: M = \frac{1}{n} \sum_i [x_i, 1] [x_i, 1]^T + \gamma \Lambda

    with the weight decays :math:`\Lambda`. It is :math:`\gamma` times the Hessian of the mean
    objective if the loss of a row has the curvature :math:`1 / \gamma` in the outputs. It is kept
    as a factor of its inverse, :math:`M^{-1} = F F^T`, whose rounding is that of the root. With
    the mean m and the covariance C of the columns, and without a decay of the bias,

    .. math:: F = \begin{bmatrix} A & 0 \\ -m^T A & 1 \end{bmatrix}, \quad
              A A^T = (C + \gamma \Lambda)^{-1}.

    Parameters
    ----------
    names, axis : tuple of str, int
        The weight, and the bias if the columns are joined to it; the weight's axis of columns.
    moments : Moments
        Those of the input.
    decays : list of float
        Weight decay of each name times gamma.
    dtype : str
        'float32' or 'float64', which steps are computed in.

    Attributes
    ----------
    scale, basis, root : numpy.ndarray, basis, numpy.ndarray
        S, Q and R of A = S Q R^-1: scales of the columns, the eigenvectors of what is scaled, and
        the roots of its eigenvalues.
    resolved : numpy.ndarray
        Which columns of A are directions in which inputs vary. Along the others there is the
        decay alone, or it is as if the scaled M were 1.
    diagonal : numpy.ndarray
        That of M, the bias last.
    sums_up, is_invariant : bool
        Whether gradients of the loss always add up to 0 over the outputs, and whether the loss
        does not see what all outputs have in common, as with a softmax.
    largest_gradient : float
        Norm of the largest gradient so far, of which that is known.
    """

    def __init__(self, names, axis, moments, decays, dtype, is_invariant=False,
                 largest_gradient=0.):
        self.names, self.axis, self.moments = tuple(names), axis, moments
        self.decays, self.dtype = decays, dtype
        self.is_invariant = self.sums_up = is_invariant
        self.largest_gradient = largest_gradient
        mean, spread = moments.mean, moments.spread
        # About 0 without a bias. A decayed bias does not follow the mean all the way.
        self._about = about = 1. if len(names) == 1 else decays[1] / (1 + decays[1])
        self.mean, self.last = mean * (1 - about), 1. if about == 1 else math.sqrt(1 + decays[1])
        variances = moments.variances + about * mean * mean
        self.diagonal = variances + (1 - about) * mean * mean + decays[0]
        least, smallest = _CONSTANT * np.abs(mean), _SMALLEST * len(mean)
        varies = variances + decays[0] > least * least
        is_even = spread.ndim == 2 and decays[0] > (
            0 if moments.has_rows else _LARGE * self.diagonal.max())
        scale = self.diagonal.max() if is_even else np.where(
            varies, variances + decays[0], self.diagonal)
        self.scale = np.where(scale > 0, scale, 1.) ** -0.5 * np.ones(len(mean))
        decay, varying = decays[0] * np.square(self.scale), self.scale * varies
        if spread.ndim == 1:
            values, self.basis = 1. * varies, Columns()
        elif moments.has_rows:
            values, self.basis = of_rows(np.vstack([spread, math.sqrt(about) * mean]) * varying)
            values = values + decay
        else:
            values, self.basis = of_covariances(np.outer(varying, varying) * (
                spread + about * np.outer(mean, mean) + decays[0] * np.eye(len(mean))))
            decay = decay @ np.square(self.basis.matrix)
        is_known = values > smallest * (not is_even)
        self.root = np.sqrt(np.where(is_known, values, 1.))
        # What the decay leaves of a value; the rounding of eigh is that of the largest value.
        self.resolved = is_known & (values - decay > smallest * np.where(
            isinstance(self.basis, Vectors), 1., values))
        self.diagonal = np.append(np.where(self.diagonal > 0, self.diagonal, 1.),
                                  self.last ** 2)[:len(mean) + len(names) - 1]

    def whiten(self, weights, bias=None):
        """Return the inverse of F times the rows of each output, and times their biases."""
        rows = self.basis.times(weights / self.scale) * self.root
        return rows, None if bias is None else self.last * (bias + weights @ self.mean)

    def pull(self, weights, bias=None):
        """Return the transpose of F times a gradient, given and returned as in `whiten`."""
        if bias is not None:
            weights = weights - np.outer(bias, self.mean)
        return (self.basis.times(weights * self.scale) / self.root,
                None if bias is None else bias / self.last)

    def sizes(self, weights, bias=None):
        """Return sizes of what is summed in `pull`, as it returns the sums."""
        weights = abs(weights)
        if bias is not None:
            weights = weights + np.outer(abs(bias), abs(self.mean))
        return (self.basis.sizes(weights * self.scale) / self.root,
                None if bias is None else abs(bias) / self.last)

    def push(self, rows, last=None):
        """Return F times what `whiten` returns."""
        weights = self.basis.times_transposed(rows / self.root) * self.scale
        return weights, None if last is None else last / self.last - weights @ self.mean

    def unpull(self, rows, last=None):
        """Return the gradient that `pull` takes."""
        weights = self.basis.times_transposed(rows * self.root) / self.scale
        return (weights if last is None else weights + np.outer(last * self.last, self.mean),
                None if last is None else last * self.last)

    def seen(self, rows, last=None):
        """Return numbers as of `whiten` or `pull` without what neither loss nor decay sees."""
        seen_rows, seen_last = self.seen_by_loss(rows, last)
        return (rows if self.decays[0] else seen_rows,
                seen_last if last is None or not self.decays[1] else last)

    def seen_by_loss(self, rows, last=None):
        """Return numbers as of `whiten` or `pull` without what the loss does not see."""
        if self.is_invariant:
            rows, last = rows - rows.mean(axis=0), last if last is None else last - last.mean()
        return rows, last

    def dependence(self, place, dtype):
        """Say which columns a direction of A is of, '' if they vary enough, apart from others."""
        mean, deviations, only = self.moments.mean, np.sqrt(self.moments.variances), 0 * self.mean
        only[place] = 1.
        along = self.push(only[None])[0][0]
        parts = abs(along * deviations)
        order = np.argsort(parts)[::-1][:2]
        of_means = deviations[order] / np.where(mean[order], abs(mean[order]), math.inf)
        apart, column = 1 / np.linalg.norm(parts), order[of_means.argmin()]
        if apart < min(_SMALL, of_means.min()):
            words = 'columns %d and %d of %s differ by %.0e of their spread: subtract one from ' \
                    'the other' % (*sorted(order), self.names[0], apart)
        elif of_means.min() < _SMALL:
            words = 'column %d of %s varies by %.0e of its mean: subtract the mean' % (
                column, self.names[0], of_means.min())
        else:
            return ''
        return ' (%s%s)' % (words, ', or train in float64' if dtype == 'float32' else '')

    def about_zero(self):
        """Return a copy for columns whose means are subtracted: its M joins no bias."""
        block = copy.copy(self)
        block.diagonal = block.diagonal - np.append(
            self.moments.mean * self.mean, [0.])[:len(self.diagonal)]
        block.mean = 0 * self.mean
        return block

    def spreads(self, weights, bias=None):
        """Return the square of each output's spread; of one that joins all.

        All are joined where the loss does not see what they have in common. Without a bias it is
        about 0. Where layers share the weight it is that of the layer with the least.
        """
        if self.is_invariant:
            weights = weights - weights.mean(axis=0)
        about, parts = (0., self.moments.parts) if self.moments.parts else (
            self._about, [self.moments])
        return np.min([self._joined(
            (weights * part.times(weights)).sum(axis=1)
            + about * np.square(weights @ part.mean)) for part in parts], axis=0)

    def lengths(self, rows, last=None):
        """Return the square of the norm of what `whiten` returns, joined as in `spreads`."""
        squares = np.square(rows).sum(axis=1)
        return self._joined(squares if last is None else squares + np.square(last))

    def _joined(self, squares):
        return squares.sum(keepdims=True) if self.is_invariant else squares


class Metric:
    r"""The variables u in which the metric is the identity, of all parameters that are updated.

    With the multipliers m of the rate, F of each Block, and F = 1 for other parameters,

    .. math:: w = \sqrt m F u.

    Vectors have the parameters one after the other, as `vector` returns them.

    Parameters
    ----------
    shapes : dict of str to tuple
        Shape of each parameter.
    multipliers : dict of str to float
        What the learning rate of each is multiplied by.
    blocks : list of Block, optional
        Those that are not 1.

    Attributes
    ----------
    unseen : list of (list of str, numpy.ndarray)
        Names of parameters of one shape, and orthonormal rows of factors of their parts of u: the
        loss does not see any of these sums.
    common : list of str
        Parameters of which the loss does not see what all numbers have in common.
    """

    def __init__(self, shapes, multipliers, blocks=()):
        self.shapes, self.multipliers, self.blocks = shapes, multipliers, list(blocks)
        self.roots = {name: math.sqrt(multipliers[name]) for name in shapes}
        ends = np.cumsum([0, *(math.prod(shape) for shape in shapes.values())])
        self._places = {name: slice(begin, end)
                        for name, begin, end in zip(shapes, ends, ends[1:])}
        self.size, self.unseen, self.common = int(ends[-1]), [], []

    def vector(self, arrays):
        """Return arrays by name, NDArrays or NumPy's, as a float64 vector."""
        parts = [arrays[name] for name in self.shapes]
        return np.concatenate([np.zeros(0), *(
            np.ravel(part if isinstance(part, np.ndarray) else part.asnumpy()) for part in parts)])

    def arrays(self, vector):
        """Map each name to its part of a vector."""
        return {name: vector[self._places[name]].reshape(shape)
                for name, shape in self.shapes.items()}

    def whiten(self, weights):
        """Return u of weights, or of a move."""
        return self._through('whiten', weights, lambda root: 1 / root, sees=True)

    def pull(self, gradient):
        """Return the gradient with respect to u."""
        return self._through('pull', gradient, lambda root: root, sees=True)

    def pull_unseen(self, gradient):
        """Return `pull` of a gradient with what neither loss nor decay sees."""
        return self._through('pull', gradient, lambda root: root)

    def sizes(self, gradient):
        """Return sizes of what is summed in `pull`, of which its rounding is a part."""
        return self._through('sizes', gradient, lambda root: root)

    def unpull(self, gradient):
        """Return the gradient with respect to the weights."""
        return self._through('unpull', gradient, lambda root: 1 / root)

    def push(self, u):
        """Return the weights, or the move, of u."""
        return self._through('push', u, lambda root: root)

    def seen_by_loss(self, u):
        """Return u, or a gradient with respect to it, without what the loss does not see."""
        return self._without_unseen(self.without_common(u))

    def without_common(self, vector):
        """Return a vector without what outputs have in common, where the loss does not see it."""
        if not any(block.is_invariant for block in self.blocks):
            return vector
        return self._through('seen_by_loss', vector, lambda root: 1.)

    def unseen_by_loss(self, weights):
        """Return u of weights where the loss does not see them, of which a decay leaves nothing."""
        u = self.whiten(weights)
        return u - self.seen_by_loss(u)

    def resolved(self, u, weights, proximal):
        """Return u without the directions that say nothing of the distance at weights.

        Inputs do not vary along them, the loss does not see them, or an operator holds a weight at
        0; `proximal` maps names to operators.
        """
        if proximal:
            free = self.vector({name: (array != 0) | (name not in proximal)
                                for name, array in self.arrays(weights).items()})
            u = self.whiten(self.without_shifts(self.push(u), free.astype(float)))
        u = self.seen_by_loss(u).copy()
        for block in self.blocks:
            rows = self._rows(block, u)[0]  # a view
            rows[:, ~block.resolved] = 0.
        return u

    def of_rows(self, u):
        """Return u of the blocks' weights alone: without it all outputs are at their mean."""
        kept = np.zeros_like(u)
        for block in self.blocks:
            self._rows(block, kept)[0][...] = self._rows(block, u)[0]
        return kept

    def without_shifts(self, weights, free):
        """Return a move of free weights without what all outputs that sum up have in common."""
        weights = free * weights
        for block in self.blocks:
            for part, is_free in zip(self._rows(block, weights), self._rows(block, free)):
                if block.sums_up:  # the parts are views
                    part -= part.mean(axis=0) * is_free.all(axis=0)
        return weights

    def largest_part(self, u):
        """Return the name of the parameter with the largest part of u."""
        return max(self.shapes, key=lambda name: np.linalg.norm(u[self._places[name]]))

    def hardest_columns(self, gradient, dtype):
        """Say which columns of an input rounding hides most, '' if they vary by enough."""
        sizes, found = self.sizes(gradient), ''
        for block in self.blocks:
            rows = self._rows(block, sizes)[0]
            place = int(np.linalg.norm(rows, axis=0).argmax()) if rows.size else 0
            if rows.size and np.linalg.norm(rows[:, place]) >= np.linalg.norm(sizes) / 10:
                found = block.dependence(place, dtype)
        return found

    def is_of(self, moments):
        """Tell whether the blocks have these moments, a dict by Layer."""
        found = {layer.weight: each for layer, each in moments.items()}
        return all(block.names[0] in found and block.moments.are_like(found[block.names[0]])
                   for block in self.blocks)

    def _through(self, method, vector, factor_of, sees=False):
        result = np.concatenate([np.zeros(0), *(
            vector[place] * factor_of(self.roots[name]) for name, place in self._places.items())])
        for block in self.blocks:
            factor, places = factor_of(self.roots[block.names[0]]), [
                self._places[name] for name in block.names]
            parts = getattr(block, method)(*self._rows(block, vector))
            parts = block.seen(*parts) if sees else parts
            for place, part in zip(places, parts):
                if part.ndim == 2 and not block.axis:
                    part = part.T
                result[place] = np.ravel(part) * factor
        return self._without_unseen(result) if sees else result

    def _without_unseen(self, u):
        u = u.copy() if self.unseen or self.common else u
        for name in self.common:
            u[self._places[name]] -= u[self._places[name]].mean()
        for names, rows in self.unseen:
            places = [self._places[name] for name in names]
            parts = np.array([u[place] for place in places])
            for place, part in zip(places, parts - rows.T @ (rows @ parts)):
                u[place] = part
        return u

    def along_unseen(self, gradient):
        """Return how long a gradient is along the `unseen` sums."""
        pulled = self.pull_unseen(gradient)
        return math.sqrt(sum(np.square(rows @ np.array(
            [pulled[self._places[name]] for name in names])).sum() for names, rows in self.unseen))

    def set_unseen(self, sums=(), common=()):
        """Set the `unseen` ones, given as dicts of the factor of each name, and the `common`."""
        scales, self.unseen, self.common = (
            {name: 1 / root for name, root in self.roots.items()}, [], list(common))
        for block in self.blocks:
            for name in block.names[1:]:
                scales[name] *= block.last
        for shape in {self.shapes[name] for factors in sums for name in factors}:
            names = [name for name in self.shapes if self.shapes[name] == shape]
            rows = np.array([[factors.get(name, 0.) * scales[name] for name in names]
                             for factors in sums if not factors.keys().isdisjoint(names)])
            _, values, vectors = np.linalg.svd(rows, full_matrices=False)
            self.unseen.append((names, vectors[values > _EPSILON * len(rows) * values[0]]))

    def see_all(self):
        """Let the loss see all."""
        self.set_unseen()
        for block in self.blocks:
            block.is_invariant = block.sums_up = False

    def _rows(self, block, vector):
        """Return the weights of a block as a row for each output, and its biases."""
        weights = vector[self._places[block.names[0]]].reshape(
            (-1, len(block.mean)) if block.axis else (len(block.mean), -1))
        return [weights if block.axis else weights.T,
                *(vector[self._places[name]] for name in block.names[1:])]

    def find_invariant(self, gradient, is_first, has_operator=False):
        """Find the blocks of several outputs whose loss gradients always add up to 0."""
        for block in self.blocks if np.isfinite(gradient).all() else ():
            numbers = np.column_stack([part for part in block.pull(
                *self._rows(block, gradient)) if part is not None])
            block.largest_gradient = max(block.largest_gradient, float(np.linalg.norm(numbers)))
            sums_up = block.largest_gradient > 0 and np.linalg.norm(numbers.sum(axis=0)) <= (
                ROUNDED * precision_of(block.dtype) * block.largest_gradient)
            block.sums_up = bool(sums_up and (is_first or block.sums_up) and len(numbers) > 1)
            # With a decay of the bias alone, both are not separate. An operator sees each weight.
            block.is_invariant = block.sums_up and not has_operator and bool(
                block.decays[0] or not sum(block.decays))

    def spread(self, weights):
        """Return the spread of all outputs; other parameters count by their size."""
        of_blocks, others = self._of_outputs('spreads', weights)
        is_matrix = any(len(shape) > 1 for shape in self.shapes.values())
        return math.sqrt(of_blocks.sum() + sum(
            float(np.square(array).sum()) / self.multipliers[name]
            for name, array in others.items() if array.ndim > 1 or not is_matrix))

    def spreads_of_outputs(self, weights):
        """Return the spread of each output about its mean; of all as one without blocks."""
        spreads = np.sqrt(self._of_outputs('spreads', weights)[0])
        return spreads if len(spreads) else np.array([self.spread(weights)])

    def lengths_of_outputs(self, u):
        """Return the norm of each output of u; other parameters count in all."""
        lengths, others = self._of_outputs('lengths', u)
        rest = sum(float(np.square(array).sum()) for array in others.values())
        return np.sqrt((lengths if len(lengths) else np.zeros(1)) + rest)

    def scaled_by_outputs(self, u, lengths):
        """Return u with another length of each output; other parameters get the largest."""
        if not lengths.any():
            return u
        factors, begin = np.full(self.size, lengths.max()), 0
        for block in self.blocks:
            rows = self._rows(block, factors)  # views
            of_block = lengths[begin:begin + (1 if block.is_invariant else len(rows[0]))]
            begin += len(of_block)
            rows[0][...] = of_block[:, None]
            for last in rows[1:]:
                last[...] = of_block
        return factors * u

    def _of_outputs(self, method, vector):
        """Return what a method of blocks returns of a vector, and the other parameters' arrays."""
        arrays, found = self.arrays(vector), [np.zeros(0)]
        for block in self.blocks:
            by = self.multipliers[block.names[0]] if method == 'spreads' else 1.
            found.append(getattr(block, method)(*self._rows(block, vector)) / by)
            for name in block.names:
                del arrays[name]
        return np.concatenate(found), arrays

    def diagonal(self, power):
        """Map names of the blocks to a power of M's diagonal, in a shape that broadcasts."""
        found = {}
        for block in self.blocks:
            columns = block.diagonal[:len(block.mean)] ** power
            weight = len(self.shapes[block.names[0]]) > 1
            found[block.names[0]] = columns[:, None] if weight and not block.axis else columns
            found.update(dict.fromkeys(block.names[1:], block.diagonal[-1:] ** power))
        return found

    def rounding(self, weights, dtype):
        """Return what the outputs move by if each weight moves by its precision, about."""
        scales, arrays = self.diagonal(0.5), self.arrays(weights)
        return precision_of(dtype) * math.sqrt(sum(
            float(np.square(array * scales.get(name, 1.)).sum()) / self.roots[name] ** 2
            for name, array in arrays.items()))


def blocks_of(moments, mean_gradient, shapes, gamma, dtype):
    """Return the Blocks of the layers whose parameters are updated.

    Parameters
    ----------
    moments : dict of Layer to Moments
        Result of ``InputMoments.of_all``.
    mean_gradient : MeanGradient
        Has the multipliers and decays.
    shapes : dict of str to tuple
        Shape of each parameter that is updated.
    gamma : float
        That of the secant pairs.
    dtype : str
        As in Block.
    """
    blocks = []
    for layer, each in moments.items():
        if layer.weight not in shapes or not np.isfinite(each.spread).all():
            continue
        names = [layer.weight]
        if layer.bias in shapes and each.mean.any() and (
                mean_gradient.multipliers[layer.weight] == mean_gradient.multipliers[layer.bias]
                and math.prod(shapes[layer.bias]) * len(each.mean) == math.prod(
                    shapes[layer.weight])):
            names.append(layer.bias)
        blocks.append(Block(names, layer.axis, each, [
            gamma * mean_gradient.decays[name] for name in names], dtype))
    return blocks

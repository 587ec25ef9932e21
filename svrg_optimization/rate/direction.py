r"""The direction of a step: the gradient in the metric, times the matrix of L-BFGS."""

import math

import mxnet as mx
import numpy as np
from mxnet import ndarray as nd

from ..core.arrays import as_float32, is_row_sparse, with_all_rows, with_dense_storage


class Direction:
    r"""Turns the gradients on a device so that the optimizer makes a quasi-Newton step.

    An optimizer that decays weights steps along :math:`s g + \lambda w`, where s is its
    `rescale_grad`. After

    .. math:: g \leftarrow H (g + \lambda w / s) - \lambda w / s

    it steps along :math:`H (s g + \lambda w)`. This is linear. So each device and each worker
    can do it before gradients are summed, and all get bit-identical sums. In the last term
    s and :math:`\lambda` are rounded as MXNet rounds them, so that the term cancels exactly. The
    optimum is that of the exact wd.

    All of this is one operation of MXNet, since calls of small ones take as long as the arithmetic.

    Parameters
    ----------
    parts : list of MetricBlock
        All parameters that are updated.
    gamma : float
        Factor of the inverse of M in H.
    pairs : SecantPairs
        The pairs in H.
    gradient : MeanGradient
        Has the weight decays and the multipliers m of the rate. The multipliers are part of the
        metric: H is that of the variables :math:`w / \sqrt m`, and the optimizer multiplies by m.
    weights : dict of str to NDArray
        Arrays like the gradients, on the device.
    """

    def __init__(self, parts, gamma, pairs, gradient, weights):
        dtypes = {np.dtype(array.dtype).name for array in weights.values()}
        self._dtype = 'float64' if 'float64' in dtypes else 'float32'
        self._context = next(iter(weights.values())).context
        self._like = {name: weights[name] for part in parts for name in part.names}
        self._constants, self._decays, self._scale, self._ones = {}, {}, None, {}
        decayed, undone = ([self._decayed(part, gradient.decays, kind) for part in parts]
                           for kind in ('exact', 'rounded'))
        gradients = [_sum(self._joined(part, 'gradient'), decay)
                     for part, decay in zip(parts, decayed)]
        changes = [None for part in parts]
        if len(pairs):
            changes = self._changes(parts, pairs, gamma, [
                _times(each, gradient.multipliers[part.names[0]])
                for part, each in zip(parts, gradients)])
        symbol = mx.sym.Group([
            output for part, each, change, decay in zip(parts, gradients, changes, undone)
            for output in self._separated(part, _sum(self._solved(part, gamma, each), change,
                                                     None if decay is None else -decay))])
        self._inputs = [name.split(' ', 1) for name in symbol.list_inputs()]
        # All inputs are declared as parameters, which MXNet does not check again in each step.
        self._operation = nd.CachedOp(symbol, [
            ('static_alloc', True), ('static_shape', True), ('data_indices', '[]'),
            ('param_indices', str(list(range(len(self._inputs)))))])

    def _constant(self, name, values):
        self._constants[name] = nd.array(values, self._context, self._dtype)
        return mx.sym.Variable('constant %s' % name)

    def _joined(self, part, kind):
        """Return the gradients or weights of a part, with the columns of the input last."""
        weight, *bias = (_cast(mx.sym.Variable('%s %s' % (kind, name)), self._like[name].dtype,
                               self._dtype) for name in part.names)
        if part.moment is None:
            return weight
        if len(self._like[part.names[0]].shape) == 1:
            weight = mx.sym.reshape(weight, (-1, 1))
        weight = weight if part.axis else mx.sym.transpose(weight)
        return mx.sym.concat(weight, mx.sym.reshape(bias[0], (-1, 1)), dim=1) if bias else weight

    def _separated(self, part, numbers):
        """List the numbers of the parameters of a part, in their shapes and dtypes."""
        columns = len(part.moment) - 1 if len(part.names) == 2 else None
        for name, begin, end in zip(part.names, (0, columns), (columns, None)):
            like, found = self._like[name], numbers
            if columns:
                found = mx.sym.slice_axis(found, axis=1, begin=begin, end=end)
            if columns or not part.axis:
                found = found if part.axis else mx.sym.transpose(found)
                found = mx.sym.reshape(found, like.shape)
            yield _cast(found, self._dtype, like.dtype)

    def _decayed(self, part, decays, kind):
        """Return the weights of a part times their decays over s, None without decays."""
        by_name = [decays[name] for name in part.names]
        if not any(by_name):
            return None
        name, numbers = '%s decays %s' % (kind, part.names[0]), self._joined(part, 'weight')
        if len(by_name) == 1:
            self._decays[name] = np.array(by_name)
        else:
            self._decays[name] = np.repeat(by_name, [len(part.moment) - 1, 1])[None]
        return mx.sym.broadcast_mul(numbers, self._constant(name, [0.]))

    def _solved(self, part, gamma, numbers):
        """Return gamma times the inverse of M times the numbers of a part."""
        if part.moment is None:
            return numbers * gamma
        inverse = self._constant('inverse %s' % part.names[0],
                                 gamma * np.atleast_2d(part.inverse))
        return (mx.sym.dot if part.is_full else mx.sym.broadcast_mul)(numbers, inverse)

    def _changes(self, parts, pairs, gamma, numbers):
        """List what pairs add to the numbers of each part."""
        rows = np.vstack([pairs.moves, pairs.changes])
        ends = np.cumsum([sum(math.prod(self._like[name].shape) for name in part.names)
                          for part in parts])[:-1]
        # The second product is twice as fast with its matrix transposed.
        read, written = (
            [self._constant('%s %s' % (name, part.names[0]), of_part)
             for part, of_part in zip(parts, np.split(matrix, ends, axis))]
            for name, matrix, axis in (('pairs', rows, 1),
                                       ('combined', (pairs.matrix(gamma) @ rows).T, 0)))
        products = _sum(*(mx.sym.dot(of_part, mx.sym.reshape(each, (-1,)))
                          for of_part, each in zip(read, numbers)))
        return [mx.sym.reshape_like(mx.sym.dot(of_part, products), each)
                for of_part, each in zip(written, numbers)]

    def apply(self, gradients, weights, scale, copies=1):
        """Turn gradients, a dict of NDArrays, into directions, in place.

        `scale` is s, and `copies` is the number of gradients that are summed. The network of a
        batch may lack some of the parameters.
        """
        if (scale, copies) != self._scale:
            self._scale, (rounded,) = (scale, copies), as_float32([scale])
            for name, decays in self._decays.items():
                self._constant(name, decays / (scale * copies) if name.startswith('exact') else
                               decays.astype('float32').astype('float64') / (rounded * copies))
        found = {name: with_dense_storage(gradients[name]) if name in gradients
                 else self._zeros(like) for name, like in self._like.items()}
        arrays = {'gradient': found, 'constant': self._constants}
        self._operation(*(
            arrays[kind][name] if kind in arrays else with_dense_storage(weights[name])
            if name in weights else self._zeros(self._like[name]) for kind, name in self._inputs),
            out=list(found.values()))
        for name, gradient in gradients.items():
            if is_row_sparse(gradient):  # it stores all rows, so that momentum reaches them
                self._ones.setdefault(name, with_all_rows(nd.ones_like(found[name])))
                nd.elemwise_mul(self._ones[name], found[name], out=gradient)

    def _zeros(self, like):
        return nd.zeros(like.shape, self._context, like.dtype)


def _sum(first, *others):
    """Return the sum of the symbols that are not None."""
    return sum((each for each in others if each is not None), first)


def _times(symbol, factor):
    return symbol if factor == 1 else symbol * factor


def _cast(symbol, dtype, wanted):
    dtype, wanted = np.dtype(dtype).name, np.dtype(wanted).name
    return symbol if dtype == wanted else mx.sym.cast(symbol, wanted)

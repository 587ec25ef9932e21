r"""The direction of a step: the gradient times the matrix of L-BFGS, in the metric."""

import mxnet as mx
import numpy as np
from mxnet import ndarray as nd

from ..core.arrays import is_row_sparse, with_all_rows, with_dense_storage


class Direction:
    r"""Turns the gradients on a device so that the optimizer makes a quasi-Newton step.

    With F of a Metric, the matrix H of SecantPairs, the optimizer's scale s and the weight decays
    :math:`\lambda` a gradient becomes

    .. math:: g \leftarrow F H F^T (g + \lambda w / s).

    This is linear. So each device and each worker can do it before gradients are summed, and all
    get bit-identical sums. The optimizer has no decay of its own then.

    All of this is one operation of MXNet, since calls of small ones take as long as the arithmetic.

    Parameters
    ----------
    metric : Metric
        The variables of H. They have the multipliers of the rate in them.
    pairs : SecantPairs
        Those of H.
    gamma : float
        Factor of the identity in H.
    decays : dict of str to float
        Weight decay of each parameter.
    weights : dict of str to NDArray
        Arrays like the gradients, on the device.
    """

    def __init__(self, metric, pairs, gamma, decays, weights):
        dtypes = {np.dtype(array.dtype).name for array in weights.values()}
        self._dtype = 'float64' if 'float64' in dtypes else 'float32'
        self._context = next(iter(weights.values())).context
        self._like = {name: weights[name] for name in metric.shapes}
        self._constants, self._decays, self._scale, self._ones = {}, {}, None, {}
        parts = metric.parts()
        pulled = [self._pulled(names, block, decays) for names, block in parts]
        turned = [each * gamma for each in pulled]
        if len(pairs):
            turned = [each + change for each, change in zip(
                turned, self._changes(metric, pairs, pulled))]
        symbol = mx.sym.Group([output for (names, block), each in zip(parts, turned)
                               for output in self._pushed(names, block, each)])
        self._outputs = [name for names, _ in parts for name in names]
        self._inputs = [name.split(' ', 1) for name in symbol.list_inputs()]
        # All inputs are declared as parameters, which MXNet does not check again in each step.
        self._operation = nd.CachedOp(symbol, [
            ('static_alloc', True), ('static_shape', True), ('data_indices', '[]'),
            ('param_indices', str(list(range(len(self._inputs)))))])

    def _constant(self, name, values):
        self._constants[name] = nd.array(values, self._context, self._dtype)
        return mx.sym.Variable('constant %s' % name)

    def _decayed(self, name, decay):
        """Return the gradient of a parameter, with its weight decay."""
        gradient, weight = (_cast(mx.sym.Variable('%s %s' % (kind, name)), self._like[name].dtype,
                                  self._dtype) for kind in ('gradient', 'weight'))
        if not decay:
            return gradient
        self._decays[name] = np.full((1,) * len(self._like[name].shape), decay)
        return gradient + mx.sym.broadcast_mul(weight, self._constant(name, self._decays[name]))

    def _pulled(self, names, block, decays):
        """Return F^T times the gradient of a part."""
        weight, *bias = (self._decayed(name, decays[name]) for name in names)
        if block is None:
            return weight
        if len(self._like[names[0]].shape) == 1:
            weight = mx.sym.reshape(weight, (-1, 1))
        weight = weight if block.axis else mx.sym.transpose(weight)
        bias = [mx.sym.reshape(each, (-1, 1)) for each in bias]
        if block.is_full:
            joined = mx.sym.concat(weight, *bias, dim=1) if bias else weight
            return mx.sym.dot(joined, self._constant('F of ' + names[0], block.matrix()))
        factor = self._constant('factor of ' + names[0], block.factor[None])
        if not bias:
            return mx.sym.broadcast_mul(weight, factor)
        weight = weight - mx.sym.dot(bias[0], self._constant('mean of ' + names[0],
                                                             block.mean[None]))
        return mx.sym.concat(mx.sym.broadcast_mul(weight, factor), bias[0] / block.last, dim=1)

    def _pushed(self, names, block, numbers):
        """List F times the numbers of a part, for each of its parameters in its shape and dtype."""
        if block is None:
            yield _cast(numbers, self._dtype, self._like[names[0]].dtype)
            return
        columns, bias = len(block.mean), []
        if block.is_full:
            numbers = mx.sym.dot(numbers, self._constant('F^T of ' + names[0], block.matrix().T))
        if block.is_joined:
            bias = [mx.sym.slice_axis(numbers, axis=1, begin=columns, end=columns + 1)]
            numbers = mx.sym.slice_axis(numbers, axis=1, begin=0, end=columns)
        if not block.is_full:
            numbers = mx.sym.broadcast_mul(numbers, mx.sym.Variable(
                'constant factor of ' + names[0]))
            bias = [each / block.last - mx.sym.dot(numbers, mx.sym.Variable(
                'constant mean of ' + names[0]), transpose_b=True) for each in bias]
        weight = numbers if block.axis else mx.sym.transpose(numbers)
        for name, each in zip(names, [weight, *bias]):
            yield _cast(mx.sym.reshape(each, self._like[name].shape), self._dtype,
                        self._like[name].dtype)

    def _changes(self, metric, pairs, pulled):
        """List what the pairs add to the numbers of each part."""
        rows, roots = pairs.rows(), metric.vector({
            name: np.full(shape, metric.roots[name]) for name, shape in metric.shapes.items()})
        read, written = (
            [np.array(list(map(np.ravel, of_part))) for of_part in zip(*map(metric.joined, matrix))]
            for matrix in (rows * roots, pairs.middle() @ rows / roots))
        first, *others = (mx.sym.dot(self._constant('pairs %d' % number, of_part),
                                     mx.sym.reshape(each, (-1,)))
                          for number, (of_part, each) in enumerate(zip(read, pulled)))
        products = sum(others, first)
        # This product is twice as fast with its matrix transposed.
        return [mx.sym.reshape_like(mx.sym.dot(self._constant('changes %d' % number, of_part.T),
                                               products), each)
                for number, (of_part, each) in enumerate(zip(written, pulled))]

    def apply(self, gradients, weights, scale, copies=1):
        """Turn gradients, a dict of NDArrays, into directions, in place.

        `scale` is s, and `copies` is the number of gradients that are summed. The network of a
        batch may lack some of the parameters.
        """
        if (scale, copies) != self._scale:
            self._scale = scale, copies
            for name, decay in self._decays.items():
                self._constant(name, decay / (scale * copies))
        found = {name: with_dense_storage(gradients[name]) if name in gradients
                 else self._zeros(like) for name, like in self._like.items()}
        arrays = {'gradient': found, 'constant': self._constants}
        self._operation(*(
            arrays[kind][name] if kind in arrays else with_dense_storage(weights[name])
            if name in weights else self._zeros(self._like[name]) for kind, name in self._inputs),
            out=[found[name] for name in self._outputs])
        for name, gradient in gradients.items():
            if is_row_sparse(gradient):  # it stores all rows, so that momentum reaches them
                self._ones.setdefault(name, with_all_rows(nd.ones_like(found[name])))
                nd.elemwise_mul(self._ones[name], found[name], out=gradient)

    def _zeros(self, like):
        return nd.zeros(like.shape, self._context, like.dtype)


def _cast(symbol, dtype, wanted):
    dtype, wanted = np.dtype(dtype).name, np.dtype(wanted).name
    return symbol if dtype == wanted else mx.sym.cast(symbol, wanted)

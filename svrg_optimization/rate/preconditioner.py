r"""The preconditioner of a step: gradients are divided by the diagonal of the metric."""

import mxnet as mx
import numpy as np
from mxnet import ndarray as nd

from ..core.arrays import is_row_sparse, with_all_rows, with_dense_storage


class Preconditioner:
    r"""Divides the gradients on a device by a Metric of diagonal blocks.

    With F of the Metric, the optimizer's scale s and the weight decays :math:`\lambda` a gradient
    becomes

    .. math:: g \leftarrow F F^T (g + \lambda w / s).

    This is linear. So each device and each worker can do it before gradients are summed, and all
    get bit-identical sums. The optimizer has no decay of its own then. It applies the multipliers
    of the rate, so that they are not in F here.

    All of this is one operation of MXNet, since calls of small ones take as long as the arithmetic.

    Parameters
    ----------
    metric : Metric
        Its blocks are diagonals.
    decays : dict of str to float
        Weight decay of each parameter.
    weights : dict of str to NDArray
        Arrays like the gradients, on the device.
    """

    def __init__(self, metric, decays, weights):
        dtypes = {np.dtype(array.dtype).name for array in weights.values()}
        self._dtype = 'float64' if 'float64' in dtypes else 'float32'
        self._context = next(iter(weights.values())).context
        self._like = {name: weights[name] for name in metric.shapes}
        self._constants, self._decays, self._scale, self._ones = {}, {}, None, {}
        outputs = {name: self._decayed(name, decays[name]) for name in metric.shapes
                   if decays[name] or any(name in block.names for block in metric.blocks)}
        for block in metric.blocks:
            outputs.update(zip(block.names, self._divided(
                block, *(outputs[name] for name in block.names))))
        symbol = mx.sym.Group([_cast(each, self._dtype, self._like[name].dtype)
                               for name, each in outputs.items()])
        self._outputs = list(outputs)
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

    def _divided(self, block, weight, bias=None):
        """List F F^T times the gradients of a block."""
        name, axis = block.names[0], block.axis
        shape = [len(block.mean) if each == axis else 1
                 for each in range(len(self._like[name].shape))]
        inverse = self._constant('inverse of ' + name, np.reshape(block.factor ** 2, shape))
        if bias is None:
            return [mx.sym.broadcast_mul(weight, inverse)]
        mean = self._constant('mean of ' + name, block.mean)
        along = [1 if each == axis else -1 for each in range(len(shape))]
        weight = mx.sym.broadcast_mul(inverse, weight - mx.sym.broadcast_mul(
            mx.sym.reshape(bias, along), mx.sym.reshape(mean, shape)))
        outputs = mx.sym.dot(weight, mean) if axis else mx.sym.dot(mean, weight)
        return [weight, bias / block.last ** 2 - mx.sym.reshape_like(outputs, bias)]

    def apply(self, gradients, weights, scale, copies=1):
        """Divide gradients, a dict of NDArrays, in place.

        `scale` is s, and `copies` is the number of gradients that are summed. The network of a
        batch may lack some of the parameters.
        """
        if (scale, copies) != self._scale:
            self._scale = scale, copies
            for name, decay in self._decays.items():
                self._constant(name, decay / (scale * copies))
        found = {name: with_dense_storage(gradients[name]) if name in gradients
                 else self._zeros(self._like[name]) for name in self._outputs}
        arrays = {'gradient': found, 'constant': self._constants}
        self._operation(*(
            arrays[kind][name] if kind in arrays else with_dense_storage(weights[name])
            if name in weights else self._zeros(self._like[name]) for kind, name in self._inputs),
            out=[found[name] for name in self._outputs])
        for name in self._outputs:
            if name in gradients and is_row_sparse(gradients[name]):
                # It stores all rows, so that momentum reaches them.
                if name not in self._ones:
                    self._ones[name] = with_all_rows(nd.ones_like(found[name]))
                nd.elemwise_mul(self._ones[name], found[name], out=gradients[name])

    def _zeros(self, like):
        return nd.zeros(like.shape, self._context, like.dtype)


def _cast(symbol, dtype, wanted):
    dtype, wanted = np.dtype(dtype).name, np.dtype(wanted).name
    return symbol if dtype == wanted else mx.sym.cast(symbol, wanted)

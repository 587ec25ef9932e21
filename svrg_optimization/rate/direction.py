r"""The direction of a step: the gradient in the metric, times the matrix of L-BFGS."""

import numpy as np
from mxnet import ndarray as nd


class Direction:
    r"""What gradients become on a device so that the optimizer makes the wished step.

    An optimizer that decays weights steps along :math:`s g + \lambda w`, with its `rescale_grad`
    s. After

    .. math:: g \leftarrow H (g + \lambda w / s) - \lambda w / s

    it steps along :math:`H (s g + \lambda w)`. This is linear, so each device and each worker
    does it before gradients are summed, and all get the same sum, to the bit.

    Parameters
    ----------
    parts : list of MetricBlock
        All parameters that are updated.
    gamma : float
        Factor of the inverse of M in H.
    pairs : SecantPairs
        The pairs in H.
    gradient : MeanGradient
        Has the weight decays, and the multipliers of the rate, m. They are part of the metric:
        H is for :math:`w / \sqrt m`, and the optimizer multiplies by m.
    weights : dict of str to NDArray
        Arrays like the gradients, on the device.
    """

    def __init__(self, parts, gamma, pairs, gradient, weights):
        dtypes = {np.dtype(weights[name].dtype).name for part in parts for name in part.names}
        self._dtype = 'float64' if 'float64' in dtypes else 'float32'
        self._context = next(iter(weights.values())).context
        sizes = [sum(weights[name].size for name in part.names) for part in parts]
        decays, multipliers, factors = (np.concatenate(vectors) for vectors in zip(*(
            (_flat(part, gradient.decays, weights), _flat(part, gradient.multipliers, weights),
             _factors(part, gamma, size)) for part, size in zip(parts, sizes))))
        ends = np.cumsum(sizes).tolist()

        def views(flat):
            flat = flat.reshape((-1,))
            return [flat[end - size:end].reshape(_shape(part, weights))
                    for part, size, end in zip(parts, sizes, ends)]

        self._parts = parts
        self._gradient, self._result = self._array(np.zeros((2, 1, ends[-1])))
        self._read, self._written = views(self._gradient), views(self._result)
        self._inverses = [self._array(gamma * part.inverse) if part.is_full else None
                          for part in parts]
        self._factors = self._array(factors[None]) if factors.any() else None
        self._multipliers = self._array(multipliers[None]) if (multipliers != 1).any() else None
        self._decays = self._array(decays[None]) if decays.any() else None
        if decays.any():
            self._decayed = self._array(np.zeros((1, ends[-1])))
            self._weights = views(self._decayed)
        self._pairs = None
        if len(pairs):
            rows = np.vstack([pairs.moves, pairs.changes])
            self._pairs = [self._array(each) for each in (
                rows, pairs.matrix(gamma) @ rows, np.zeros((1, len(rows))))]

    def _array(self, values):
        return nd.array(values, self._context, self._dtype)

    def apply(self, gradients, weights, scale):
        """Turn gradients, a dict of NDArrays, in place.

        `scale` is s, times the number of gradients that are summed. The network of a batch may
        lack some of the parameters.
        """
        flat, result = self._gradient, self._result
        self._copy(gradients, self._read)
        if self._decays is not None:
            self._copy(weights, self._weights)
            nd.broadcast_mul(self._decayed, self._decays, out=self._decayed)
            self._decayed *= 1 / scale
            flat += self._decayed
        if self._factors is not None:
            nd.broadcast_mul(flat, self._factors, out=result)
        for inverse, read, written in zip(self._inverses, self._read, self._written):
            if inverse is not None:
                nd.dot(read, inverse, out=written)
        if self._pairs:
            rows, combined, products = self._pairs
            if self._multipliers is not None:
                flat *= self._multipliers
            nd.dot(flat, rows, transpose_b=True, out=products)
            nd.linalg.gemm(products, combined, result, out=result)
        if self._decays is not None:
            result -= self._decayed
        for part, written in zip(self._parts, self._written):
            self._write(part, written, gradients)

    def _copy(self, arrays, views):
        for part, view in zip(self._parts, views):
            found = [arrays[name].astype(self._dtype, copy=False)
                     for name in part.names if name in arrays]
            if len(found) < len(part.names):
                view[:] = 0
            elif len(found) == 2:
                nd.concat(found[0], found[1].reshape((-1, 1)), dim=1, out=view)
            elif part.axis:
                found[0].copyto(view)
            else:
                nd.transpose(found[0], out=view)

    @staticmethod
    def _write(part, view, gradients):
        columns = view.shape[-1] - 1
        for name in part.names:
            if name not in gradients:
                continue
            array, found = gradients[name], view if part.axis else view.T
            if len(part.names) == 2:
                is_bias = array.ndim == 1
                array = array.reshape((-1, 1)) if is_bias else array
                ends = (columns, columns + 1) if is_bias else (0, columns)
                if array.dtype == view.dtype:
                    nd.slice_axis(view, axis=1, begin=ends[0], end=ends[1], out=array)
                    continue
                found = nd.slice_axis(view, axis=1, begin=ends[0], end=ends[1])
            found.copyto(array)


def _shape(part, weights):
    """Return the shape of a part's numbers."""
    weight, *bias = (weights[name].shape for name in part.names)
    if part.moment is None:
        return weight
    return (weight[0], weight[1] + len(bias)) if part.axis else weight[::-1]


def _flat(part, by_name, weights):
    """Return a number of each parameter for each of its elements, in a vector."""
    weight, *bias = (by_name[name] for name in part.names)
    if not bias:
        return np.full(weights[part.names[0]].size, weight, np.float64)
    rows, columns = weights[part.names[0]].shape
    return np.tile([weight] * columns + bias, rows)


def _factors(part, gamma, size):
    """Return what elements are multiplied by, 0 where a matrix does it."""
    if part.is_full:
        return np.zeros(size)
    inverse = np.array([1.]) if part.moment is None else part.inverse
    return np.tile(gamma * inverse, size // len(inverse))

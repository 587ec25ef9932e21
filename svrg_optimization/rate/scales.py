r"""What steps are multiplied by where the columns of the inputs have different scales.

.. math:: w \leftarrow w - \eta\, D (g + wd \cdot w), \quad
          D_j = \frac{1}{\sum_i x_{ij}^2 / |\{i: x_{ij} \ne 0\}| + wd}

for each weight on the column j of inputs that come from the data; 1 for all others. It is
the training on columns that are divided by the root of their mean square, with weights, weight
decay and regularizers as they were.
"""

import contextlib

import numpy as np
from mxnet import ndarray as nd

from ..core.arrays import as_float32
from ..proximal import GroupLasso, is_ours

_LARGEST = 1e30  # D that float32 can hold, and its inverse


class Scales:
    """D of each weight that has one, as an array that broadcasts to it.

    Parameters
    ----------
    by_name : dict of str to numpy.ndarray
        The arrays.

    Attributes
    ----------
    by_name : dict of str to numpy.ndarray
        The argument.
    """

    def __init__(self, by_name=()):
        self.by_name, self._arrays = dict(by_name), {}

    def __getstate__(self):
        return {'by_name': self.by_name, '_arrays': {}}

    def __bool__(self):
        return bool(self.by_name)

    def renamed(self, names):
        """Return these for parameters with other names, which a dict maps theirs to."""
        return Scales({names[name]: scale for name, scale in self.by_name.items()})

    def times(self, name, factor, like=None, power=1):
        """Return a factor times D to a power; the factor itself if the parameter has no D.

        Parameters
        ----------
        name : str
            The parameter.
        factor : NDArray or float
            The factor.
        like : NDArray, optional
            Has the shape, context and dtype of D, by default the factor.
        power : float
            The power.
        """
        if name not in self.by_name:
            return factor
        like = factor if like is None else like
        key = name, like.context, np.dtype(like.dtype), power
        if key not in self._arrays:
            self._arrays[key] = nd.array(  # as large as the weight: broadcasting is slow
                np.broadcast_to(self.by_name[name] ** power, like.shape), like.context, like.dtype)
        return factor * self._arrays[key]

    @contextlib.contextmanager
    def applied(self, optimizer, keys, weights, gradients):
        """Yield the gradients with which sgd or nag makes scaled steps in the block.

        There it does not decay weights that have a D: that is part of their gradients.
        """
        decays, scaled = dict(zip(keys, optimizer._get_wds(keys))), {}
        for key, weight, gradient in zip(keys, weights, gradients):
            name = _name_of(optimizer, key)
            if name in self.by_name:
                if gradient.stype != 'default':
                    gradient = gradient.tostype('default')
                if decays[key]:
                    gradient = gradient + weight * (decays[key] / optimizer.rescale_grad)
                scaled[key], decays[key] = self.times(name, gradient, weight), 0.
        optimizer._get_wds = lambda indices: [decays[key] for key in indices]
        try:
            yield [scaled.get(key, gradient) for key, gradient in zip(keys, gradients)]
        finally:
            del optimizer._get_wds

    def step_size(self, optimizer, key, weight):
        """Return the learning rate of a parameter, as MXNet steps with it, times its D."""
        rate, = as_float32(optimizer._get_lrs([key]))
        return self.times(_name_of(optimizer, key), rate, weight)


class Columns:
    """Squares of the columns of inputs, and how many are not 0: what D is made of.

    Parameters
    ----------
    reference : Reference
        Knows the inputs of weights.
    source : BatchesOfPass
        The pass.
    """

    def __init__(self, reference, source):
        self._reference, self._source, self._sums = reference, source, {}

    def add(self, batch):
        """Add a batch of the pass."""
        for name, axis, inputs in self._reference.inputs_of_weights(batch, self._source):
            shape = [1] * len(self._reference.weights()[name][0].shape)
            shape[axis] = self._reference.weights()[name][0].shape[axis]
            self._sums[name] = self._sums.get(name, 0.) + np.array([
                each.reshape(shape) for each in _squares_and_counts(inputs, shape[axis])])

    def scales(self, gradient, full_gradient, workers):
        """Return the Scales, the same on all workers, and the weights that cannot be scaled.

        Parameters
        ----------
        gradient : MeanGradient
            What the optimizer makes of a gradient.
        full_gradient : FullGradient
            That of the pass.
        workers : Workers
            Devices and workers of the pass.
        """
        names = [name for name in gradient.updated(full_gradient) if name in self._sums]
        totals, scales, others = [], {}, []
        for place in range(2):
            part = self._reference.new_sum()  # which workers can sum
            part.rows = part.yielded = 1
            for name in names:
                share = part.shares[0][name]
                share[:] = nd.array(np.broadcast_to(self._sums[name][place], share.shape),
                                    share.context, share.dtype)
            workers.sum(part)
            totals.append(part.mean().totals())
        for name in names:
            weight, operator = self._reference.weights()[name][0], gradient.proximal.get(name)
            if (weight.stype != 'default' or weight.dtype == np.float16
                    or not (operator is None or is_ours(operator))):
                others.append(name)
            else:
                corner = tuple(map(slice, self._sums[name].shape[1:]))
                squares, counts = (total[name].asnumpy()[corner] for total in totals)
                if isinstance(operator, GroupLasso):  # one D for each group
                    axes = tuple(axis for axis in range(weight.ndim)
                                 if axis != operator.axis % weight.ndim)
                    squares, counts = (each.sum(axes, keepdims=True)
                                       for each in (squares, counts))
                with np.errstate(all='ignore'):
                    scale = 1 / (squares.astype('float64') / counts
                                 + gradient.decay_per_row(name, full_gradient))
                scales[name] = np.where((scale > 1 / _LARGEST) & (scale < _LARGEST), scale, 1)
        return Scales(scales), others


def _name_of(optimizer, key):
    param = optimizer.param_dict.get(key)
    return param.name if param else optimizer.idx2name.get(key, key)


def _squares_and_counts(inputs, columns):
    if getattr(inputs, 'stype', '') == 'csr':
        values, places = inputs.data.asnumpy().astype('float64'), inputs.indices.asnumpy()
        return [np.bincount(places, each, columns) for each in (values * values, values != 0)]
    values = inputs if isinstance(inputs, np.ndarray) else inputs.asnumpy()
    values = values.reshape(-1, columns).astype('float64')
    return [(values * values).sum(0), np.count_nonzero(values, 0)]

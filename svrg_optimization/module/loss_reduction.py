"""Reduction of a symbol's losses over the rows of a batch: sums or means."""

import contextlib

import mxnet as mx
import numpy as np
from mxnet import nd

from ..data.batch_rows import batch_axis, resized
from ..mxnet_repair.executors import without_fusion
from .graph import check_sizes, is_random, is_set
from .losses import LAYERS

# Layers that compute each row of a batch independently of the others, beside loss layers.
_ROW_WISE = ('null', 'FullyConnected', 'dot', 'broadcast_add', 'Convolution', 'Activation',
             'Pooling', 'Flatten', 'BlockGrad')
# What the loss of a batch is of those of its rows: their sum, their mean, a mean with weights, or
# neither.
_SUM, _MEAN, _WEIGHTED, _MIXED = range(4)
_ROWS = 2
# Weights of w elements are w to this power: large sums do not overflow, and small ones count.
_POWER = -0.75
_PRECISION = 3e-4


class LossReduction:
    """Dependence of a batch's gradient on the number of its rows.

    Where layers are not known to compute each row by itself it is measured: the losses of some
    rows, of others, and of both together tell it. These rows are no data.

    Parameters
    ----------
    losses : Losses
        Those of the symbol.
    inputs : list of DataDesc
        The bound data and labels.
    loss_is_mean : bool or None
        Whether the user says so.

    Attributes
    ----------
    is_known : bool
        Whether it is measured, said by the user, or that of MXNet's layers with labels.
    is_mean, is_mixed : bool
        Whether all losses are means, or some are sums and some means.
    is_row_wise : bool
        Whether the gradient of several batches in one is the sum of theirs.
    is_masked : bool
        Whether they are means over some of the rows, as their labels or values say.
    mask : tuple of (str, float), or None
        Input that is the label of the only one that is masked, and the value to ignore.
    """

    def __init__(self, losses, inputs, loss_is_mean=None):
        layers, nodes, names = losses.layers, losses.graph['nodes'], {each.name for each in inputs}
        by_rows = is_row_wise(nodes, names) and all(batch_axis(each) == 0 for each in inputs)
        self.is_known, kinds = True, [_MEAN if loss_is_mean else _SUM]
        if loss_is_mean is None:
            kinds = [] if by_rows else _measured(losses, inputs)
            if not kinds:
                self.is_known = not losses.has_own and all(
                    LAYERS[layer['op']].inputs == 2 for layer in layers)
                kinds = [_MEAN if _normalization(layer) in ('batch', 'valid') else _SUM
                         for layer in layers]
        means = [kind in (_MEAN, _WEIGHTED) for kind in kinds]
        self.is_mean = bool(means) and all(means)
        self.is_mixed = _MIXED in kinds or any(means) and not self.is_mean
        self.is_row_wise = by_rows and {*kinds} == {_SUM}
        masked = [layer for layer in layers if _normalization(layer) == 'valid' and (
            LAYERS[layer['op']].inputs == 1 or is_set(layer['attrs'], 'use_ignore'))]
        self.is_masked = self.is_mean and (bool(masked) or _WEIGHTED in kinds)
        self.mask = None
        if self.is_masked and layers == masked[:1] and LAYERS[layers[0]['op']].inputs == 2:
            label = nodes[layers[0]['inputs'][1][0]]['name']
            if label in names:
                self.mask = label, float(layers[0]['attrs'].get('ignore_label', -1))

    def weights(self, rows, real_part, batch_size):
        """Return the weight of each device's gradient of a batch in the sum over the data.

        The full gradient is the sum of all weighted gradients, times B over the
        number of real rows of all batches. A loss that is a mean is averaged
        over the rows of each device. The gradient of a batch is then the sum of
        the devices' means, which on K devices is K times the mean over the
        batch. `rows` are those of each device, of which the `real_part` is not padding.
        """
        if not self.is_mean:
            return [real_part] * len(rows)
        return [real_part * len(rows) * part / batch_size for part in rows]


def _normalization(layer):
    return layer.get('attrs', {}).get('normalization')


def is_row_wise(nodes, inputs):
    """Tell whether the layers of a network are known to compute each row by itself.

    The first axis of `inputs`, by name, counts the rows.
    """
    has_rows = []
    for node in nodes:
        from_rows = [has_rows[source[0]] for source in node['inputs']]
        if node['op'] in LAYERS and LAYERS[node['op']].inputs == 2:
            if not all(from_rows):
                return False  # a term without rows would count once instead of once a batch
        elif node['op'] not in _ROW_WISE or any(from_rows[1:]):
            return False  # or rows are used as weights
        has_rows.append(node['name'] in inputs if node['op'] == 'null' else any(from_rows))
    return True


def _measured(losses, inputs):
    """List what each loss is that is not 0; none where that cannot be measured."""
    if losses.layers and not any(map(_hides, losses.graph['nodes'])):
        bound = next(each.shape[batch_axis(each)] for each in inputs if batch_axis(each) >= 0)
        for rows in (_ROWS, bound):  # rows may come in groups
            try:
                return [_kind(*each) for each in zip(*_samples(losses, inputs, rows)) if any(each)]
            except (RuntimeError, ValueError):  # or their number is fixed
                with contextlib.suppress(RuntimeError):
                    nd.waitall()  # it raises again what has failed in the background
    return []


def _hides(node):
    """Tell whether an operator is a user's own, or draws numbers where nothing is trained."""
    return node['op'] == 'Custom' or is_random(node) and (
        node['op'] not in ('Dropout', '_npx_dropout', 'RNN')
        or node.get('attrs', {}).get('mode') == 'always')


def _kind(first, other, both, twice):
    """Tell what a loss is of some rows, of others, of both, and of the first ones twice."""
    return next((kind for kind, value, *parts in (
        (_SUM, both, first, other), (_MEAN, both, first / 2, other / 2),
        (_SUM, twice, first, first), (_WEIGHTED, twice, first))
        if abs(value - sum(parts)) <= _PRECISION * sum(map(abs, parts))), _MIXED)


def _samples(losses, inputs, rows):
    """List for such rows the value of each loss."""
    def bound(rows):
        shapes = {each.name: each.shape for each in resized(inputs, rows)}
        check_sizes(losses.graph, shapes)
        return losses.symbol.simple_bind(mx.cpu(), 'null', {
            each.name: each.dtype for each in inputs}, **shapes)

    with without_fusion():
        few, many = bound(rows), bound(2 * rows)
    samples, rng = ({}, {}, {}, {}), np.random.RandomState(0)
    for name, array in few.arg_dict.items():
        changes = np.not_equal(array.shape, many.arg_dict[name].shape).tolist()
        if not any(changes):
            array[:] = many.arg_dict[name][:] = max(np.prod(array.shape), 1) ** _POWER
            continue
        one, two = (rng.uniform(0.5, 1.5, array.shape) for _ in range(2))
        for sample, parts in zip(samples, ([one], [two], [one, two], [one, one])):
            sample[name] = nd.array(np.concatenate(parts, changes.index(True)),
                                    dtype=array.dtype).tostype(array.stype)
    for state in (*few.aux_dict.values(), *many.aux_dict.values()):
        state[:] = 1  # a variance
    found = [losses.of(executor.forward(**sample))
             for executor, sample in zip((few, few, many, many), samples)]
    values = [[factor * float(array.asnumpy().sum(dtype='float64')) for array, factor in each]
              for each in found if each]
    if not (all(found) and np.isfinite(values).all()):
        raise ValueError('the loss is not known')
    return values

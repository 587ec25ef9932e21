"""Loss layers: the table of what each one is, and the losses of those of a symbol."""

import json
from collections import namedtuple
from functools import lru_cache, partial

import mxnet as mx
from mxnet import ndarray as nd

from .._labels import CLASSES, PROBABILITIES, check_layer
from .graph import GRADIENT_STOPS, computed_from, is_set


class Losses:
    r"""Sum of a symbol's losses over a batch, whose gradient is the one of the loss layers.

    It is computed from the inputs of the loss layers. Their outputs, such as probabilities, may be
    rounded to 0 or 1, and then do not tell the loss. `symbol` has these inputs as further
    outputs, after its own, unless the loss is not known.

    Attributes
    ----------
    symbol, graph
        The symbol with these outputs, and its JSON.
    layers : list of dict
        Nodes of the loss layers that a parameter has a gradient of.
    has_own : bool
        Whether the gradient is also that of operators whose loss is not known.
    """

    def __init__(self, symbol, graph, inputs):
        nodes, heads = list(graph['nodes']), list(graph['heads'])
        self.layers = [node for node in nodes if node['op'] in LAYERS
                       and _moves_a_parameter(node, nodes, inputs)]
        self.symbol, self.graph, self._places = symbol, graph, []
        self.has_own = any(nodes[place]['op'] in _UNKNOWN for place in computed_from(
            nodes, [place for place, *_ in heads], _STOPS))
        if self.has_own or not self.layers:
            return
        for layer in self.layers:
            count = LAYERS[layer['op']].inputs
            self._places.append(slice(len(heads), len(heads) + count))
            for place in range(count):
                nodes.append({'op': 'BlockGrad', 'name': '%s_input%d' % (layer['name'], place),
                              'inputs': [layer['inputs'][place]]})
                heads.append([len(nodes) - 1, 0, 0])
        self.graph = {**graph, 'nodes': nodes, 'heads': heads}
        self.symbol = mx.sym.load_json(json.dumps(self.graph))

    def of(self, outputs):
        """Return the losses of a batch, from all outputs of an executor of `symbol`.

        For each loss layer there is an array and a factor of the sum of its elements; None if
        the loss is not known.
        """
        values = [LAYERS[layer['op']].loss(layer.get('attrs', {}), *outputs[places])
                  for layer, places in zip(self.layers, self._places)]
        return values if values and all(value is not None for value in values) else None

    def check_labels(self, outputs, warn_once):
        """Warn once of labels that a layer cannot learn, and of which MXNet says nothing."""
        for layer, places in zip(self.layers, self._places):
            rule = LAYERS[layer['op']].labels
            if rule:
                check_layer(warn_once, layer, rule, *outputs[places])


def _moves_a_parameter(loss, nodes, inputs):
    """Tell whether a parameter, which is none of the inputs, has a gradient of a loss layer."""
    reached = computed_from(nodes, [loss['inputs'][0][0]], _STOPS)
    return _scale(loss.get('attrs', {})) != 0 and any(
        nodes[place]['op'] == 'null' and nodes[place]['name'] not in inputs for place in reached)


# The `loss` of each LossLayer. It returns a factor, since an operation takes longer than its
# arithmetic.

def _scale(attrs):
    return float(attrs.get('grad_scale', 1))


def _of_regression(loss, factor, attrs, scores, labels):
    outputs = labels.size // labels.shape[0]
    return loss(scores, labels.reshape(scores.shape)), factor * _scale(attrs) / outputs


@lru_cache(maxsize=None)
def _log_probability(axis):
    """Return the operation that takes scores and classes, and returns the log of each softmax."""
    scores, classes = mx.sym.Variable('scores'), mx.sym.Variable('classes')
    logs = mx.sym.pick(mx.sym.log_softmax(scores, axis=axis), classes, axis=axis)
    return nd.CachedOp(mx.sym.minimum(logs, 0))  # what is more is rounding


def _softmax(attrs, scores, labels):
    is_spatial = is_set(attrs, 'multi_output')
    if scores.ndim > 2 and not (is_spatial or is_set(attrs, 'preserve_shape')):
        return None
    axis = 1 if is_spatial else -1
    scale, shape = _scale(attrs), scores.shape
    if labels.size == scores.size:  # probabilities
        return labels.reshape(shape) * nd.log_softmax(scores, axis=axis), -scale
    classes, of_labels = shape[axis], shape[:axis] + shape[axis:][1:]
    if labels.shape != of_labels:
        labels = labels.reshape(of_labels)
    logs_of_class = _log_probability(axis)(scores, labels)
    smoothed = float(attrs.get('smooth_alpha', 0))
    if smoothed:
        others = nd.log_softmax(scores, axis=axis).sum(axis=axis) - logs_of_class
        logs_of_class = logs_of_class * (1 - smoothed) + others * (smoothed / (classes - 1))
    normalization, counted = attrs.get('normalization', 'null'), labels.size
    if is_set(attrs, 'use_ignore'):
        is_counted = labels != float(attrs.get('ignore_label', -1))
        logs_of_class = nd.where(is_counted, logs_of_class, nd.zeros_like(logs_of_class))
        if normalization == 'valid':
            return nd.broadcast_div(logs_of_class, nd.maximum(is_counted.sum(), 1)), -scale
    if is_spatial and normalization != 'valid':
        counted = labels.shape[0]
        scale /= labels.size // counted
    return logs_of_class, -scale / (1 if normalization == 'null' else counted)


def _of_make_loss(attrs, values):
    normalization = attrs.get('normalization', 'null')
    if normalization == 'valid':
        counted = (values > float(attrs.get('valid_thresh', 0))).sum()
        values = nd.broadcast_div(values, nd.maximum(counted, 1))
    # MXNet treats a vector of losses as a single row.
    rows = values.shape[0] if normalization == 'batch' and values.ndim > 1 else 1
    return values.copy(), _scale(attrs) / rows  # the next run overwrites them


def _svm(attrs, scores, labels):
    margin = float(attrs.get('margin', 1))
    strength = float(attrs.get('regularization_coefficient', 1))
    signs = 2 * nd.one_hot(labels.reshape((-1,)), scores.shape[1]).astype(scores.dtype) - 1
    short = nd.relu(margin - signs * scores)
    return short if is_set(attrs, 'use_linear') else nd.square(short), strength


# What an operator is whose gradient is that of a loss, whatever comes from above. How a batch is
# reduced is measured.
# - `loss` takes the attributes of a layer and its inputs, and returns an array and a factor of the
#   sum of its elements, or None if the loss is not known.
# - `inputs` is how many inputs that needs: 2, scores and labels of rows, or 1, the loss itself,
#   which may be multiplied by weights of rows.
# - `labels` is the rule of `_labels` for the labels that it can learn; None if it can learn all.
LossLayer = namedtuple('LossLayer', 'loss inputs labels', defaults=(2, None))

LAYERS = {
    'LinearRegressionOutput': LossLayer(partial(
        _of_regression, lambda x, y: nd.square(x - y), 0.5)),
    'LogisticRegressionOutput': LossLayer(partial(
        _of_regression, lambda x, y: nd.Activation(x, act_type='softrelu') - y * x, 1), 2,
        PROBABILITIES),
    'MAERegressionOutput': LossLayer(partial(_of_regression, lambda x, y: nd.abs(x - y), 1)),
    **dict.fromkeys(['SoftmaxOutput', 'Softmax'], LossLayer(_softmax, 2, CLASSES)),
    'SVMOutput': LossLayer(_svm, 2, CLASSES),
    **dict.fromkeys(['MakeLoss', 'make_loss'], LossLayer(_of_make_loss, 1))}
_STOPS = {*LAYERS, *GRADIENT_STOPS}  # of gradients from above
_UNKNOWN = 'Custom', 'IdentityAttachKLSparseReg'

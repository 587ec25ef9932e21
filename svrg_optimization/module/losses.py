"""Losses of the rows of a batch, from what the loss layers of a symbol get."""

import json
from functools import lru_cache, partial

import mxnet as mx
from mxnet import ndarray as nd

from .._labels import check_layer
from .loss_reduction import computed_from, is_set, moves_a_parameter


class Losses:
    r"""Sum of a symbol's losses over a batch, whose gradient is the one of the loss layers.

    It is computed from the inputs of the loss layers. Their outputs, such as probabilities, may be
    rounded to 0 or 1, and then do not tell the loss. `symbol` has these inputs as further
    outputs, after its own, unless the loss is not known.
    """

    def __init__(self, symbol, graph, inputs):
        nodes, heads = list(graph['nodes']), list(graph['heads'])
        layers = [node for node in nodes if node['op'] in _LOSS_OF
                  and moves_a_parameter(node, nodes, inputs)]
        # With the places of what they get; none where the loss is not known.
        self.symbol, self._layers = symbol, []
        inside = computed_from(nodes, [place for layer in layers for place, *_ in layer['inputs']])
        if not layers or any(node['op'] in _UNKNOWN and place not in inside
                             for place, node in enumerate(nodes)):
            return
        for layer in layers:
            loss, count = _LOSS_OF[layer['op']]
            self._layers.append((layer, partial(loss, layer.get('attrs', {})),
                                 slice(len(heads), len(heads) + count)))
            for place in range(count):
                nodes.append({'op': 'BlockGrad', 'name': '%s_input%d' % (layer['name'], place),
                              'inputs': [layer['inputs'][place]]})
                heads.append([len(nodes) - 1, 0, 0])
        self.symbol = mx.sym.load_json(json.dumps({
            **{key: value for key, value in graph.items() if key in ('attrs', 'arg_nodes')},
            'nodes': nodes, 'heads': heads}))

    def of(self, outputs):
        """Return the losses of a batch, from all outputs of an executor of `symbol`.

        For each loss layer there is an array and a factor of the sum of its elements; None if
        the loss is not known.
        """
        if not self._layers:
            return None
        values = [loss(*outputs[places]) for _, loss, places in self._layers]
        return values if all(value is not None for value in values) else None

    def check_labels(self, outputs, warn_once):
        """Warn once of labels that a layer cannot learn, and of which MXNet says nothing."""
        for layer, _, places in self._layers:
            if len(outputs[places]) == 2:
                check_layer(warn_once, layer, *outputs[places])


# Each of the following takes the attributes of a layer and its inputs, and returns an array and a
# factor: an operation takes longer than its arithmetic.

def _scale(attrs):
    return float(attrs.get('grad_scale', 1))


def _of_regression(loss, factor, attrs, scores, labels):
    outputs = labels.size // labels.shape[0]
    return loss(scores, labels.reshape(scores.shape)), factor * _scale(attrs) / outputs


@lru_cache(maxsize=None)
def _log_probability(axis):
    """Return the operation that takes scores and classes, and returns the log of each softmax."""
    scores, classes = mx.sym.Variable('scores'), mx.sym.Variable('classes')
    return nd.CachedOp(mx.sym.pick(mx.sym.log_softmax(scores, axis=axis), classes, axis=axis))


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


_LOSS_OF = {  # the loss, and how many inputs it needs
    'LinearRegressionOutput': (partial(_of_regression, lambda x, y: nd.square(x - y), 0.5), 2),
    'LogisticRegressionOutput': (partial(
        _of_regression, lambda x, y: nd.Activation(x, act_type='softrelu') - y * x, 1), 2),
    'MAERegressionOutput': (partial(_of_regression, lambda x, y: nd.abs(x - y), 1), 2),
    'SoftmaxOutput': (_softmax, 2), 'Softmax': (_softmax, 2), 'SVMOutput': (_svm, 2),
    'MakeLoss': (_of_make_loss, 1), 'make_loss': (_of_make_loss, 1)}
_UNKNOWN = ('Custom', 'IdentityAttachKLSparseReg')

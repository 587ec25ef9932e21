"""Reduction of a symbol's losses over a batch: sums or means."""

import re

_LOSSES = ('SoftmaxOutput', 'Softmax', 'MakeLoss', 'LinearRegressionOutput', 'make_loss',
           'LogisticRegressionOutput', 'MAERegressionOutput', 'SVMOutput')
# These layers, like loss layers, pass no gradient from their outputs to their inputs.
GRADIENT_STOPS = ('BlockGrad', 'stop_gradient')
# Layers that compute each row of a batch independently of the others.
_ROW_WISE = ('null', 'FullyConnected', 'dot', 'broadcast_add', 'Convolution', 'Activation',
             'Pooling', 'Flatten', 'SoftmaxOutput', 'LinearRegressionOutput',
             'LogisticRegressionOutput', 'MAERegressionOutput', 'SVMOutput')
_REDUCTION = re.compile('(?:_np_|_npi_)?(sum|mean)(?:_axis)?')
_NONE, _SUM, _MEAN, _ROWS = range(4)  # what a node has of the rows of a batch


def is_row_wise(nodes, inputs):
    """Tell whether a network's loss is known to be a sum of one term for each row.

    The first axis of `inputs`, by name, counts the rows.
    """
    has_rows = []
    for node in nodes:
        if (node['op'] not in _ROW_WISE
                or node.get('attrs', {}).get('normalization', 'null') != 'null'):
            return False
        from_rows = [has_rows[source[0]] for source in node['inputs']]
        if node['op'] in _LOSSES:
            if not all(from_rows):
                return False  # a term without rows would count once instead of once a batch
        elif any(from_rows[1:]):
            return False  # rows are used as weights
        has_rows.append(node['name'] in inputs if node['op'] == 'null' else any(from_rows))
    return True


class LossReduction:
    """Dependence of a batch's gradient on the number of its rows.

    `loss_is_mean` tells whether the loss is a mean over the rows of a batch; by default the loss
    layers do, and operators such as in ``MakeLoss(mean(...))``.

    Attributes
    ----------
    is_mean, is_mixed : bool
        Whether all losses are means, or some are sums and some means.
    is_row_wise : bool
        Whether the gradient of several batches in one is the sum of theirs.
    is_masked : bool
        Whether they are means over some of the rows, as their labels or values say.
    mask : tuple of (str, float), or None
        Input that is the label of the only one that is masked, and the value to ignore.
    """

    def __init__(self, symbol, nodes, shapes, loss_is_mean=None):
        losses = [node for node in nodes
                  if node['op'] in _LOSSES and float(node.get('attrs', {}).get('grad_scale', 1))
                  and moves_a_parameter(node, nodes, shapes)]
        rows = _rows_of(nodes, shapes)
        means = ([_is_normalized(node, symbol, shapes) or rows[node['inputs'][0][0]] == _MEAN
                  for node in losses]
                 if loss_is_mean is None else [loss_is_mean])
        self.is_mean = bool(means) and all(means)
        self.is_mixed = any(means) and not self.is_mean
        self.is_row_wise = bool(means) and not any(means) and is_row_wise(nodes, shapes)
        self.is_masked = self.is_mean and any(
            node.get('attrs', {}).get('normalization') == 'valid'
            and (node['op'] == 'MakeLoss' or is_set(node['attrs'], 'use_ignore'))
            for node in losses)
        self.mask = None
        if self.is_masked and len(losses) == 1 and losses[0]['op'] != 'MakeLoss':
            label = nodes[losses[0]['inputs'][1][0]]['name']
            if label in shapes:
                self.mask = label, float(losses[0]['attrs'].get('ignore_label', -1))

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


def is_set(attrs, name):
    """Tell whether one of the attributes of a node is True."""
    return attrs.get(name) in ('True', 'true', '1')


def moves_a_parameter(loss, nodes, inputs):
    """Tell whether a parameter, which is none of the inputs, has a gradient of a loss layer."""
    reached = computed_from(nodes, [loss['inputs'][0][0]], _LOSSES + GRADIENT_STOPS)
    return any(nodes[place]['op'] == 'null' and nodes[place]['name'] not in inputs
               for place in reached)


def computed_from(nodes, places, stops=()):
    """Return the places of the nodes that some are computed from, up to the operators `stops`."""
    reached, to_visit = set(), list(places)
    while to_visit:
        place = to_visit.pop()
        if place not in reached and nodes[place]['op'] not in stops:
            reached.add(place)
            to_visit.extend(source for source, *_ in nodes[place]['inputs'])
    return reached


def _rows_of(nodes, inputs):
    """List for each node whether it has the rows of the inputs, or what is made of them."""
    found = []
    for node in nodes:
        of_inputs = [found[place] for place, *_ in node['inputs']]
        rows = max(of_inputs, default=_ROWS if node['name'] in inputs else _NONE)
        reduction = _REDUCTION.fullmatch(node['op'])
        if reduction and rows == _ROWS:
            attrs = node.get('attrs', {})
            axes = re.findall(r'-?\d+', attrs.get('axis', ''))
            if not axes or ('0' in axes) != is_set(attrs, 'exclude'):
                rows = _MEAN if reduction.group(1) == 'mean' else _SUM
        elif of_inputs == [_SUM, _SUM] and 'div' in node['op']:
            rows = _MEAN
        found.append(rows)
    return found


def _is_normalized(node, symbol, shapes):
    normalization = node.get('attrs', {}).get('normalization')
    if node['op'] == 'MakeLoss' and normalization == 'batch':
        # MXNet treats a vector of losses as a single row and divides by 1.
        internals = symbol.get_internals()
        _, outputs, _ = internals.infer_shape_partial(**shapes)
        return len(outputs[internals.list_outputs().index(node['name'] + '_output')]) > 1
    return normalization in ('batch', 'valid')

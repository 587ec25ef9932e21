"""Whether a symbol's losses are sums or means over a batch, and what follows."""

import contextlib
import json

import mxnet as mx

# Of MXNet's loss layers only these can be means; the others are sums.
_NORMALIZED_LOSSES = ('SoftmaxOutput', 'Softmax', 'MakeLoss')
_SUM_LOSSES = ('LinearRegressionOutput', 'LogisticRegressionOutput', 'MAERegressionOutput',
               'SVMOutput', 'make_loss')
_LOSSES = _NORMALIZED_LOSSES + _SUM_LOSSES
# Neither they nor a loss layer hand down the gradient of what is above them.
_GRADIENT_STOPS = ('BlockGrad', 'stop_gradient')


# Layers that compute each row of a batch by itself.
_ROW_WISE = ('null', 'FullyConnected', 'Convolution', 'Activation', 'Pooling', 'Flatten',
             'SoftmaxOutput', 'LinearRegressionOutput', 'LogisticRegressionOutput',
             'MAERegressionOutput', 'SVMOutput')


class NoLossError(ValueError):
    """A symbol has no full gradient, since the gradients of its outputs are not its own."""


@contextlib.contextmanager
def missing_loss_named(symbol):
    """Make a NoLossError of MXNet's error about outputs that need gradients."""
    try:
        yield
    except mx.MXNetError as error:
        if 'head_gradient is required' not in str(error):
            raise
        graph = json.loads(symbol.tojson())
        heads = {name: graph['nodes'][node]['op']
                 for name, (node, *_) in zip(symbol.list_outputs(), graph['heads'])}
        without = ([name for name, op in heads.items()
                    if op not in (*_LOSSES, *_GRADIENT_STOPS, 'Custom')]
                   or [name for name, op in heads.items() if op == 'Custom'])
        if len(without) == len(graph['heads']):
            raise NoLossError('the symbol has no loss, and so no full gradient') from error
        raise NoLossError('the symbol has outputs without a loss beside those with one, and so no '
                          'full gradient: put %s into mx.sym.BlockGrad'
                          % ', '.join(without)) from error


def is_row_wise(nodes, inputs):
    """Tell whether a network's loss is known to be a sum of one term for each row.

    Parameters
    ----------
    nodes : list of dict
        The network's, as its JSON has them.
    inputs : iterable of str
        Names of data and labels, whose first axis counts the rows.
    """
    has_rows = []
    for node in nodes:
        if node['op'] not in _ROW_WISE or not _is_sum(node):
            return False
        from_rows = [has_rows[source[0]] for source in node['inputs']]
        if node['op'] in _LOSSES:
            if not all(from_rows):
                return False  # its term would count once and not for each batch
        elif any(from_rows[1:]):
            return False  # rows as weights
        has_rows.append(node['name'] in inputs if node['op'] == 'null' else any(from_rows))
    return True


def _is_sum(node):
    return node.get('attrs', {}).get('normalization', 'null') == 'null'


class LossReduction:
    """How the gradient of a batch scales with the batch's rows.

    Parameters
    ----------
    symbol : mxnet.symbol.Symbol
        The network.
    nodes : list of dict
        Its nodes, as its JSON has them.
    shapes : dict of str to tuple of int
        The shapes of its inputs.
    loss_is_mean : bool, optional
        Whether its loss is a mean over the rows of a batch; by default its
        loss layers tell. A mean made of operators, ``MakeLoss(mean(...))``,
        does not show in them.

    Attributes
    ----------
    is_mean : bool
        Whether all losses are means.
    is_mixed : bool
        Whether some losses are sums and some are means.
    is_row_wise : bool
        Whether several batches may be computed as one.
    """

    def __init__(self, symbol, nodes, shapes, loss_is_mean=None):
        means = _means(symbol, nodes, shapes) if loss_is_mean is None else [loss_is_mean]
        self.is_mean = bool(means) and all(means)
        self.is_mixed = any(means) and not self.is_mean
        self.is_row_wise = bool(means) and not any(means) and is_row_wise(nodes, shapes)

    def weights(self, rows, real_part, batch_size):
        """Weigh a batch's gradients in a sum over the data.

        The sum of all weighted gradients, times B over the real rows of all
        batches, is the full gradient. A loss that is a mean is one over the
        rows of each device, and so the gradient of a batch is, in Module, the
        sum of the devices' means: K times the mean over the batch, on K
        devices.

        Parameters
        ----------
        rows : list of int
            Rows of which the gradient was computed, on each device.
        real_part : float
            The part of them that is no padding.
        batch_size : int
            B, the rows of a full batch.

        Returns
        -------
        list of float
            One weight a device; 1 for an evenly split full batch.
        """
        if not self.is_mean:
            return [real_part] * len(rows)
        return [real_part * len(rows) * part / batch_size for part in rows]


def _means(symbol, nodes, shapes):
    """Tell of each loss layer that moves a parameter whether its loss is a mean."""
    return [_is_normalized(node, symbol, shapes) for node in nodes
            if node['op'] in _LOSSES and _moves_a_parameter(node, nodes, shapes)]


def _moves_a_parameter(loss, nodes, inputs):
    to_visit = [loss['inputs'][0][0]]
    visited = set()
    while to_visit:
        index = to_visit.pop()
        node = nodes[index]
        if index in visited or node['op'] in _LOSSES + _GRADIENT_STOPS:
            continue
        if node['op'] == 'null' and node['name'] not in inputs:
            return True
        visited.add(index)
        to_visit.extend(source[0] for source in node['inputs'])
    return False


def _is_normalized(node, symbol, shapes):
    normalization = node.get('attrs', {}).get('normalization')
    if node['op'] == 'MakeLoss' and normalization == 'batch':
        # MXNet takes a vector of losses for a single row, and divides by 1.
        internals = symbol.get_internals()
        _, outputs, _ = internals.infer_shape_partial(**shapes)
        return len(outputs[internals.list_outputs().index(node['name'] + '_output')]) > 1
    return normalization in ('batch', 'valid')

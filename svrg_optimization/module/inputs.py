"""Weights of a symbol that its inputs are multiplied by."""

from .loss_reduction import is_set

# Operators that leave the columns of an input as they are, in their order.
_ORDER_STAYS = 'Flatten', 'flatten', 'Reshape', 'reshape', 'identity', '_copy', 'Cast', 'cast'


def weights_of_inputs(nodes, data_names):
    """Map each weight that inputs are multiplied by to the input's place, and to its own axis.

    This axis has one element for each column.
    """
    weights = {}
    for node in nodes:
        attrs, is_dense = node.get('attrs', {}), node['op'] == 'FullyConnected'
        if is_dense or (node['op'] == 'dot' and not is_set(attrs, 'transpose_a')
                        and not is_set(attrs, 'transpose_b')):
            place, weight = node['inputs'][0][0], nodes[node['inputs'][1][0]]
            while nodes[place]['op'] in _ORDER_STAYS:
                place = nodes[place]['inputs'][0][0]
            if nodes[place]['name'] in data_names and weight['op'] == 'null':
                weights[weight['name']] = data_names.index(nodes[place]['name']), int(is_dense)
    return weights

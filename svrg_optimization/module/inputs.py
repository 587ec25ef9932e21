"""Layers of a symbol that its inputs go into."""

from ..rate.metric import Layer
from .loss_reduction import is_set

# Operators that leave the columns of an input as they are, in their order.
_ORDER_STAYS = 'Flatten', 'flatten', 'Reshape', 'reshape', 'identity', '_copy', 'Cast', 'cast'


def layers_of_inputs(nodes, data_names):
    """Map each Layer whose weight an input is multiplied by to the input's place.
    """
    layers = {}
    for node in nodes:
        attrs, is_dense = node.get('attrs', {}), node['op'] == 'FullyConnected'
        if is_dense or (node['op'] == 'dot' and not is_set(attrs, 'transpose_a')
                        and not is_set(attrs, 'transpose_b')):
            place, (weight, *bias) = node['inputs'][0][0], [
                nodes[place]['name'] for place, *_ in node['inputs'][1:]
                if nodes[place]['op'] == 'null'] or [None]
            while nodes[place]['op'] in _ORDER_STAYS:
                place = nodes[place]['inputs'][0][0]
            if nodes[place]['name'] in data_names and weight:
                layers[Layer(weight, bias[0] if bias else None, int(is_dense))] = (
                    data_names.index(nodes[place]['name']))
    return layers

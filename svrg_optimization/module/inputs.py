"""Layers of a symbol that its inputs go into."""

from ..rate.metric import Layer
from .loss_reduction import is_set

# Operators that leave the columns of an input as they are, in their order.
_ORDER_STAYS = 'Flatten', 'flatten', 'Reshape', 'reshape', 'identity', '_copy', 'Cast', 'cast'
_ADDS = 'broadcast_add', 'broadcast_plus', 'elemwise_add', '_plus', '_Plus'


def layers_of_inputs(nodes, data_names):
    """Map each Layer that is applied to an input to the place of this input."""
    layers = {}
    for number, node in enumerate(nodes):
        attrs, is_dense = node.get('attrs', {}), node['op'] == 'FullyConnected'
        if not is_dense and (node['op'] != 'dot' or is_set(attrs, 'transpose_a')
                             or is_set(attrs, 'transpose_b')):
            continue
        place, others = node['inputs'][0][0], node['inputs'][1:]
        if not is_dense:  # its bias is added by another node
            others = others + [other for added in nodes if added['op'] in _ADDS
                               and [number, 0, 0] in added['inputs'] for other in added['inputs']]
        weight, *bias = [nodes[other]['name'] for other, *_ in others
                         if nodes[other]['op'] == 'null'] or [None]
        while nodes[place]['op'] in _ORDER_STAYS:
            place = nodes[place]['inputs'][0][0]
        if nodes[place]['name'] in data_names and weight:
            layers[Layer(weight, bias[0] if bias else None, int(is_dense))] = (
                data_names.index(nodes[place]['name']))
    return layers

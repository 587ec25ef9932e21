"""What a symbol's graph, as its JSON has it, says of its nodes."""

import json
import re

import mxnet as mx
import numpy as np

_RANDOM = re.compile(
    r'Dropout|_npx_dropout|_image_random_\w+|_?random_(?!pdf)\w+|_?sample_\w+|_?shuffle|normal'
    r'|uniform|_npi_(bernoulli|choice|exponential|gamma|multinomial|normal|normal_n|random_randint'
    r'|shuffle|uniform|uniform_n)')
# These layers, like loss layers, pass no gradient from their outputs to their inputs.
GRADIENT_STOPS = ('BlockGrad', 'stop_gradient')
_RESHAPES = 'Reshape', 'reshape', '_np_reshape', '_npi_reshape', '_npx_reshape'


def is_set(attrs, name):
    """Tell whether one of the attributes of a node is True."""
    return attrs.get(name) in ('True', 'true', '1')


def computed_from(nodes, places, stops=()):
    """Return the places of the nodes that some are computed from, up to the operators `stops`."""
    reached, to_visit = set(), list(places)
    while to_visit:
        place = to_visit.pop()
        if place not in reached and nodes[place]['op'] not in stops:
            reached.add(place)
            to_visit.extend(source for source, *_ in nodes[place]['inputs'])
    return reached


def is_random(node):
    """Tell whether an operator draws random numbers."""
    attrs = node.get('attrs', {})
    return (_RANDOM.fullmatch(node['op']) is not None
            or (node['op'] == 'RNN' and float(attrs.get('p', 0)) > 0)
            or (node['op'] == 'LeakyReLU' and attrs.get('act_type') == 'rrelu')
            or any(map(is_random, (inner for graph in node.get('subgraphs', [])
                                   for inner in graph['nodes']))))


def check_sizes(graph, shapes):
    """Raise a ValueError unless each reshape keeps the size, given the shapes of inputs by name.

    MXNet does not look, and reads or writes behind the end of an array.
    """
    pairs = [entry for place, node in enumerate(graph['nodes']) if node['op'] in _RESHAPES
             for entry in (node['inputs'][0], [place, 0, 0])]
    symbol = mx.sym.load_json(json.dumps({**graph, 'heads': pairs + graph['heads']}))
    shapes = symbol.infer_shape_partial(**shapes)[1][:len(pairs)]
    for before, after in zip(shapes[::2], shapes[1::2]):
        if before and 0 not in before and np.prod(before) != np.prod(after):
            raise ValueError('the network has the size of %s in it' % (after,))

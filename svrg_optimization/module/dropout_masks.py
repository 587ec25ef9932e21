"""Dropout with masks that two modules share, as nodes of their symbols.

``x * Dropout(ones_like(x))`` is bit-identical to ``Dropout(x)`` and draws as
many random numbers. The symbol of the module being trained has each mask as an
output, and the symbol of the module at the snapshot has it as an input.
"""

import json
import re

import mxnet as mx

_RANDOM = re.compile(
    r'_npx_dropout|_image_random_\w+|_?random_(?!pdf)\w+|_?sample_\w+|_?shuffle|normal|uniform'
    r'|_npi_(bernoulli|choice|exponential|gamma|multinomial|normal|normal_n|random_randint|shuffle'
    r'|uniform|uniform_n)')


class DropoutMasks:
    """Dropout layers of a symbol, and two symbols that share their masks.

    `symbol_giving` has the masks as further outputs, after its own; `symbol_taking` has them as
    further arguments. Layers that draw other random numbers are `unshared`.
    """

    def __init__(self, symbol, graph):
        taken = {node['name'] for node in graph['nodes']}
        self._drawing = {}
        self.layers, self.unshared = [], []
        for number, node in enumerate(graph['nodes']):
            if node['op'] == 'Dropout':
                name = node['name'] + '_mask'
                while name in taken:
                    name += '_mask'
                taken.add(name)
                self.layers.append(node['name'])
                self._drawing[number] = (name, node.get('attrs', {}))
            elif _is_random(node):
                self.unshared.append(node['name'])
        self.names = [name for name, _ in self._drawing.values()]
        self.symbol = self.symbol_giving = self.symbol_taking = symbol
        self.graph_taking = graph
        if self.names:
            self.symbol_giving = _symbol_of(self._rewritten(graph, gives=True))
            self.graph_taking = self._rewritten(graph, gives=False)
            self.symbol_taking = _symbol_of(self.graph_taking)

    def draw(self, arrays):
        """Draw new masks into the arrays of their names."""
        with mx.autograd.train_mode():
            for name, attrs in self._drawing.values():
                settings = {key: value for key, value in attrs.items() if not key.startswith('__')}
                mx.nd.Dropout(mx.nd.ones_like(arrays[name]), out=arrays[name], **settings)

    def _rewritten(self, graph, gives):
        """Return the network with each Dropout replaced by a product with its mask."""
        nodes, places, masks = [], [], []

        def add(op, name, inputs, attrs):
            nodes.append({'op': op, 'name': name, 'inputs': inputs, 'attrs': attrs})
            return [len(nodes) - 1, 0, 0]

        for number, node in enumerate(graph['nodes']):
            inputs = [[places[place], *rest] for place, *rest in node['inputs']]
            if number in self._drawing:
                name, attrs = self._drawing[number]
                scope = {key: value for key, value in attrs.items() if key.startswith('__')}
                if gives:
                    ones = add('ones_like', name + '_ones', inputs, scope)
                    mask = add('Dropout', name + '_drawn', [ones], attrs)
                    mask = add('BlockGrad', name, [mask], scope)
                    masks.append(mask)
                else:
                    mask = add('null', name, [], scope)
                place, _, _ = add('elemwise_mul', node['name'], [*inputs, mask], scope)
            else:
                place = len(nodes)
                nodes.append({**node, 'inputs': inputs})
            places.append(place)
        heads = [[places[place], *rest] for place, *rest in graph['heads']]
        arguments = [place for place, node in enumerate(nodes) if node['op'] == 'null']
        return {**{key: value for key, value in graph.items() if key == 'attrs'},
                'nodes': nodes, 'arg_nodes': arguments, 'heads': heads + masks}


def _symbol_of(graph):
    return mx.sym.load_json(json.dumps(graph))


def _is_random(node):
    attrs = node.get('attrs', {})
    inside = [inner for graph in node.get('subgraphs', []) for inner in graph['nodes']]
    return (_RANDOM.fullmatch(node['op']) is not None
            or (node['op'] == 'RNN' and float(attrs.get('p', 0)) > 0)
            or (node['op'] == 'LeakyReLU' and attrs.get('act_type') == 'rrelu')
            or any(inner['op'] == 'Dropout' or _is_random(inner) for inner in inside))

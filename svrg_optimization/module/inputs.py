"""Inputs of a symbol's first layers: what is computed from data and labels alone."""

import json

import mxnet as mx
import numpy as np

from ..core.front_end import Layer
from .graph import GRADIENT_STOPS, computed_from, is_random, is_set
from .losses import LAYERS

_ADDS = 'broadcast_add', 'broadcast_plus', 'elemwise_add', '_plus', '_Plus'
_PRODUCTS = 'broadcast_mul', 'elemwise_mul', '_mul', '_Mul'
_OF_THE_WHOLE = 'sum', 'mean', 'negative', '_mul_scalar', '_div_scalar'


class Inputs:
    """Layers of a symbol whose input has no parameter, state or random number in it.

    `names` are those of data and labels. A layer whose weight is applied to other things too does
    not count.
    """

    def __init__(self, graph, names):
        self._graph, self._nodes = graph, graph['nodes']
        uses, free = _layers(self._nodes), set()
        for place, node in enumerate(self._nodes):
            if node['name'] in names if node['op'] == 'null' else not is_random(node) and (
                    free.issuperset(source for source, *_ in node['inputs'])):
                free.add(place)
        others = {layer.weight for layer, (place, _) in uses
                  if place not in free or self._variables(place).isdisjoint(names)}
        self._uses = [(layer, entry) for layer, entry in uses if layer.weight not in others]
        self._factors = self._factors_of_loss(free)
        self._computed = [entry for entry in [*(entry for _, entry in self._uses), *self._factors]
                          if self._nodes[entry[0]]['op'] != 'null']
        self._symbol = None  # of those

    def of(self, arrays):
        """List the layers, the input of each and what its rows' losses are multiplied by.

        `arrays` are those of a batch by name. Without them inputs have no rows.
        """
        nothing, values = np.empty(0), {**arrays, **self._compute(arrays)} if arrays else {}

        def value(entry):
            return values.get(entry, values.get(self._nodes[entry[0]]['name'], nothing))

        return [(layer, value(entry), *map(value, self._factors)) for layer, entry in self._uses]

    def _factors_of_loss(self, free):
        """List the entries without parameters that the only loss, as a whole, is multiplied by."""
        losses, found = [place for place, *_ in self._graph['heads']
                         if self._nodes[place]['op'] not in GRADIENT_STOPS], []
        while len(losses) == 1:
            node = self._nodes[losses.pop()]
            factors = ([entry for entry in node['inputs'] if entry[0] in free]
                       if node['op'] in _PRODUCTS else [])
            found.extend(tuple(entry[:2]) for entry in factors)
            if factors or node['op'] in _OF_THE_WHOLE or (
                    node['op'] in LAYERS and LAYERS[node['op']].inputs == 1):
                losses = [place for place, *_ in node['inputs'] if place not in free]
        return found

    def _compute(self, arrays):
        if not self._computed:
            return {}
        if self._symbol is None:
            self._symbol = mx.sym.load_json(json.dumps({
                **self._graph, 'heads': [[*entry, 0] for entry in self._computed]}))
        try:
            given = {name: arrays[name] for name in self._symbol.list_arguments()}
            return dict(zip(self._computed, self._symbol.eval(
                next(iter(given.values())).context, **given)))
        except (mx.MXNetError, KeyError):  # another batch size in it, or data without labels
            return {}

    def _variables(self, place):
        return {self._nodes[each]['name'] for each in computed_from(self._nodes, [place])
                if self._nodes[each]['op'] == 'null'}


def _layers(nodes):
    """List each Layer with the entry of the graph that it is applied to."""
    found = []
    for number, node in enumerate(nodes):
        attrs, is_dense = node.get('attrs', {}), node['op'] == 'FullyConnected'
        if not is_dense and (node['op'] != 'dot' or is_set(attrs, 'transpose_a')):
            continue
        entry, *others = node['inputs']
        sums = {number}
        for place, added in enumerate(nodes):  # its bias may be added to it, or to a sum with it
            if added['op'] in _ADDS and not sums.isdisjoint(each for each, *_ in added['inputs']):
                sums.add(place)
                others += [other for other in added['inputs'] if other[0] not in sums]
        weight, *bias = [nodes[other]['name'] for other, *_ in others
                         if nodes[other]['op'] == 'null'] or [None]
        if weight:
            found.append((Layer(weight, bias[0] if bias else None, int(
                is_dense or is_set(attrs, 'transpose_b'))), tuple(entry[:2])))
    return found

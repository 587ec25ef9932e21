"""What is learned, as a checkpoint has it: dicts and lists of numbers, strings and arrays."""

import dataclasses

from .learned import Learned, Noise
from .metric import Block, Metric
from .moments import Moments
from .path import Path
from .secant_pairs import SecantPairs

_PLAIN = [field.name for field in dataclasses.fields(Learned) if field.name not in (
    'noise', 'metric', 'pairs', 'path', 'point')]


def state_of(learned):
    """Return what `learned_of` takes, of what is learned in a metric."""
    metric, pairs = learned.metric, learned.pairs
    return {
        **{name: getattr(learned, name) for name in _PLAIN}, 'noise': list(learned.noise),
        'path': learned.path and learned.path._asdict(),
        'pairs': vars(pairs),
        'metric': {
            'shapes': [[name, list(shape)] for name, shape in metric.shapes.items()],
            'multipliers': metric.multipliers,
            'blocks': [[list(block.names), block.axis, *block.moments[:2],
                        [list(part[:2]) for part in block.moments.parts], block.decays, block.dtype,
                        block.is_invariant, block.sums_up, block.largest_gradient]
                       for block in metric.blocks],
            'unseen': [list(each) for each in metric.unseen], 'common': metric.common}}


def learned_of(state, names):
    """Return the Learned that had a state; `names` maps names of then to those of now."""
    learned = Learned(**{name: state[name] for name in _PLAIN}, noise=Noise(*state['noise']),
                      path=state['path'] and Path(**state['path']))
    metric, pairs = state['metric'], state['pairs']
    learned.metric = Metric(
        {names.get(name, name): tuple(shape) for name, shape in metric['shapes']},
        {names.get(name, name): value for name, value in metric['multipliers'].items()},
        [_block([names.get(name, name) for name in of_block], *others)
         for of_block, *others in metric['blocks']])
    learned.metric.unseen = [([names.get(name, name) for name in some], rows)
                             for some, rows in metric['unseen']]
    learned.metric.common = [names.get(name, name) for name in metric['common']]
    learned.pairs = SecantPairs(learned.metric.size, pairs['gamma'], pairs['room'])
    learned.pairs.moves, learned.pairs.changes = pairs['moves'], pairs['changes']
    return learned


def _block(names, axis, mean, spread, parts, decays, dtype, is_invariant, sums_up,
           largest_gradient):
    moments = Moments(mean, spread, tuple(Moments(*part) for part in parts))
    block = Block(names, axis, moments, decays, dtype, is_invariant, largest_gradient)
    block.sums_up = sums_up
    return block

"""What is learned, as a checkpoint has it: dicts and lists of numbers, strings and arrays."""

import dataclasses

import numpy as np

from .._argument_checks import check_like
from .composite import Composite
from .learned import Learned, Noise
from .metric import Block, Metric
from .moments import Moments
from .regime import Regime

_REGIMES = {regime.__name__: regime for regime in (Regime, Composite)}
_LEARNED = [field.name for field in dataclasses.fields(Learned) if field.name not in (
    'noise', 'regime', 'point', 'way', 'end')]
_REGIME = 'dtype', 'is_whole'
_PAIRS = 'gamma', 'moves', 'changes', 'flat'


def state_of(learned):
    """Return what `learned_of` takes."""
    return {**_values(learned, _LEARNED), 'noise': list(learned.noise),
            'regime': learned.regime and _state_of_regime(learned.regime)}


def _state_of_regime(regime):
    metric = regime.metric
    return {'kind': type(regime).__name__, **_values(regime, _REGIME),
            **_values(regime.pairs, _PAIRS), 'multipliers': metric.multipliers,
            'shapes': [[name, list(shape)] for name, shape in metric.shapes.items()],
            'blocks': [[list(block.names), block.axis, *block.moments, block.decays, block.dtype,
                        block.is_invariant, block.largest_gradient] for block in metric.blocks]}


def _values(owner, names):
    return {name: getattr(owner, name) for name in names}


def learned_of(state, names=None):
    """Return the Learned that had a state, which is of a file.

    Parameters
    ----------
    state : dict
        Result of `state_of`.
    names : dict of str to str, optional
        Maps those of the state to those of now.

    Raises
    ------
    ValueError
        If a value is not of the type that it must have. Others come from values of other kinds.
    """
    learned, saved, expected = Learned(), state['regime'], None
    if saved is not None:
        learned.regime = _regime_of(saved, names or {})
        expected = _expected(learned.regime, len(saved['moves']))
    check_like(state.file_name, 'learned', state, {**state_of(learned), 'regime': expected})
    if saved is not None:
        vars(learned.regime).update({name: saved[name] for name in _REGIME})
        vars(learned.regime.pairs).update({name: saved[name] for name in _PAIRS})
    return dataclasses.replace(learned, noise=Noise(*state['noise']),
                               **{name: state[name] for name in _LEARNED})


def _regime_of(saved, names):
    def new(name):
        return names.get(name, name)

    return _REGIMES[saved['kind']](Metric(
        {new(name): tuple(shape) for name, shape in saved['shapes']},
        {new(name): value for name, value in saved['multipliers'].items()},
        [Block(list(map(new, of_block)), axis, Moments(mean, spread), *others)
         for of_block, axis, mean, spread, *others in saved['blocks']]), saved['dtype'],
        saved['is_whole'])


def _expected(regime, number):
    """Return a state of the form that one with this metric, and some pairs, must have."""
    pairs = np.zeros((number, regime.pairs.moves.shape[1]))
    return {**_state_of_regime(regime), 'dtype': '', 'gamma': None, 'moves': pairs,
            'changes': pairs, 'shapes': [['', [0]]],
            'multipliers': dict.fromkeys(regime.metric.multipliers, 1.),
            'blocks': [[[''], 0, *(np.zeros(part.shape) for part in block.moments), [0.], '',
                        True, 0.] for block in regime.metric.blocks]}

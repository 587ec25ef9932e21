"""What a file of a trainer's states has: the optimizer's states and numbers, and the snapshot."""

import copy
import re

import numpy as np
from mxnet import util

from .._warn_once import warn
from ..core.random_numbers import RandomNumbers
from ..rate.svrg_lbfgs import rule_of
from ..svrg_optimizer import set_update_counts, update_counts


def state(trainer):
    """Return what a file has. Parameters are known by their place in the optimizer's states."""
    reference, optimizer = trainer._reference, trainer._optimizer
    scheduler, rule = optimizer.lr_scheduler, rule_of(optimizer)
    return {
        'names': reference.names, 'loss': reference.rows.kind, 'random': reference.numbers.state(),
        'was_random': reference.numbers.were_drawn,
        'optimizer': {
            'class': type(optimizer).__name__, 'numbers': _numbers(optimizer),
            **update_counts(optimizer), 'states': trainer._all_updaters[0].states},
        'scheduler': scheduler and {'class': type(scheduler).__name__,
                                    'state': rule.state() if rule else _numbers(scheduler)},
        'svrg': trainer._svrg.state()}


def _numbers(owner):
    return {name: value for name, value in vars(owner).items()
            if value is None or isinstance(value, (bool, int, float, str, np.generic))}


def load_state(trainer, state):
    """Go on with what `state` has returned.

    A ValueError tells of a file of other parameters or of another optimizer; nothing has changed
    then.
    """
    reference, svrg, optimizer = trainer._reference, trainer._svrg, trainer._optimizer
    names, saved, snapshot = reference.names, state['optimizer'], state['svrg']
    if _structure(state['names']) != _structure(names):
        raise ValueError('%s has states of other parameters, or in another order: %s, and not %s. '
                         'Give blocks their prefixes again'
                         % (state.file_name, state['names'], names))
    if saved['class'] != type(optimizer).__name__:
        raise ValueError('%s has states of the optimizer %s, and not of %s'
                         % (state.file_name, saved['class'], type(optimizer).__name__))
    ours, gradient = dict(zip(state['names'], names)), snapshot['full_gradient']
    if gradient:
        reference.allocate()
        snapshot['values'] = _renamed(snapshot['values'], ours)
        gradient['shares'] = [_renamed(share, ours) for share in gradient['shares']]
        theirs = {name: value.shape for name, value in snapshot['values'].items()}
        shapes = {name: arrays[0].shape for name, arrays in reference.values().items()}
        if theirs != shapes or reference.weights().keys() - gradient['shares'][0].keys():
            raise ValueError('%s has a snapshot of other parameters: of the shapes %s, and not %s'
                             % (state.file_name, theirs, shapes))

    trainer._init_all()
    vars(optimizer).update(saved['numbers'], allow_np_array=util.is_np_array())
    saved['counts'] = _by_place(saved['counts'])
    set_update_counts(optimizer, saved, trainer._devices)
    for updater in trainer._all_updaters:
        updater.states = copy.deepcopy(_by_place(saved['states']))
        updater.states_synced = dict.fromkeys(updater.states, False)
    _load_scheduler(optimizer, state['scheduler'], trainer._proximal.by_name, ours)
    reference.rows.kind = reference.rows.kind or state['loss']
    reference.load_random_numbers(RandomNumbers(state['random'], state['was_random']))
    svrg.load_state(snapshot)


def _renamed(arrays, names):
    return {names[name]: array for name, array in arrays.items()}


def _by_place(values):
    return {int(place): value for place, value in values.items()}


def _load_scheduler(optimizer, saved, proximal, ours):
    """Let an optimizer's scheduler go on; `ours` maps former names of parameters to others."""
    scheduler, rule = optimizer.lr_scheduler, rule_of(optimizer)
    if not (scheduler and saved):
        return
    if saved['class'] != type(scheduler).__name__:
        warn('the states were saved with a %s: the %s of this run begins anew'
             % (saved['class'], type(scheduler).__name__))
    elif rule:
        rule.load_state(saved['state'], proximal, ours)
    else:
        vars(scheduler).update(saved['state'])


def _structure(names):
    """Return names without numbers and their places, in order of creation, which Gluon counts."""
    created = sorted((re.split('[0-9]+', name), [int(digits) for digits in re.findall(
        '[0-9]+', name)], place) for place, name in enumerate(names))
    return [(words, place) for words, _, place in created]

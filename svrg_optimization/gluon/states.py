"""What a file of a trainer's states has: the optimizer's states and numbers, and the snapshot."""

import copy
import re
from inspect import signature

import numpy as np
from mxnet import util

from .._argument_checks import check_like
from .._warn_once import warn
from ..core.random_numbers import RandomNumbers
from ..rate.snapshot_rule import SnapshotRule
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
            if name != 'lr_scheduler' and (
                value is None or isinstance(value, (bool, int, float, str, np.generic)))}


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

    numbers = RandomNumbers(state['random'], state['was_random'])
    trainer._init_all()
    _check_like_ours(trainer, state, ours)
    vars(optimizer).update(saved['numbers'], allow_np_array=util.is_np_array())
    saved['counts'] = _by_place(saved['counts'])
    set_update_counts(optimizer, saved, trainer._devices)
    for updater in trainer._all_updaters:
        updater.states = copy.deepcopy(_by_place(saved['states']))
        updater.states_synced = dict.fromkeys(updater.states, False)
    _load_scheduler(optimizer, state['scheduler'], trainer._proximal.by_name, ours)
    reference.rows.kind = reference.rows.kind or state['loss']
    reference.load_random_numbers(numbers)
    svrg.load_state(snapshot)


def _check_like_ours(trainer, saved, ours):
    """Raise a ValueError unless what `state` has returned has the form of this trainer's own."""
    expected, optimizer, scheduler = state(trainer), trainer._optimizer, saved['scheduler']
    values = [param.list_data()[0] for param in trainer._params]
    expected['optimizer'].update(
        numbers=_as_ours(saved['optimizer']['numbers'], optimizer),
        counts=dict.fromkeys(saved['optimizer']['counts'], 0),
        states={place: optimizer.create_state_multi_precision(int(place), values[int(place)])
                for place in saved['optimizer']['states']})
    expected.update(
        loss=None if saved['loss'] is None else '', names=[''], svrg=saved['svrg'],
        random=saved['random'] and np.random.RandomState(0).get_state(),
        scheduler=scheduler and {'class': '', 'state': {}})
    if scheduler:
        rule, of_file = rule_of(optimizer), scheduler['state']
        if scheduler['class'] != type(optimizer.lr_scheduler).__name__:
            expected['scheduler']['state'] = of_file  # it is not loaded
        elif rule:
            SnapshotRule().load_state(of_file, trainer._proximal.by_name, ours)
            expected['scheduler']['state'] = of_file
        else:
            expected['scheduler']['state'] = _as_ours(of_file, optimizer.lr_scheduler)
    check_like(saved.file_name, 'states', saved, expected)
    trainer._svrg.check_state(saved['svrg'])


def _as_ours(saved, owner):
    """Return the numbers of an object, and None for what it has not got, or may be None."""
    may_be_none = {name for name, value in saved.items() if value is None and name in {
        parameter.name for klass in type(owner).__mro__[:-1]
        for parameter in signature(klass).parameters.values() if parameter.default is None}}
    known = {**{name: value for name, value in saved.items() if isinstance(value, (bool, str))},
             **_numbers(owner)}
    return {name: None if name in may_be_none else known.get(name) for name in saved}


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

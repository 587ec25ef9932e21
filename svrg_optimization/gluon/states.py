"""What a file of a trainer's states has: the optimizer's states and numbers, and the snapshot."""

import copy
import numbers
import re

import numpy as np
from mxnet import util

from .._warn_once import warn
from ..core.random_numbers import RandomNumbers
from ..svrg_optimizer import check_rates, check_state, set_update_counts, update_counts

_PLAIN = numbers.Real, str, type(None)


def state(trainer):
    """Return what a file has. Parameters are known by their place in the optimizer's states."""
    reference, optimizer = trainer._reference, trainer._optimizer
    scheduler = optimizer.lr_scheduler
    return {
        'names': reference.names, 'loss': reference.rows.kind, 'random': reference.numbers.state(),
        'was_random': reference.numbers.were_drawn,
        'optimizer': {
            'class': type(optimizer).__name__, 'numbers': _numbers(optimizer),
            **update_counts(optimizer), 'states': trainer._all_updaters[0].states},
        'scheduler': scheduler and {'class': type(scheduler).__name__,
                                    'state': _numbers(scheduler)},
        'svrg': trainer._svrg.state()}


def _numbers(owner):
    values = {name: value.item() if isinstance(value, np.generic) else value
              for name, value in vars(owner).items() if name != 'lr_scheduler'}
    return {name: value for name, value in values.items() if isinstance(value, _PLAIN)}


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
        reference.allocate()  # the arrays that it is compared with
        snapshot['values'] = _renamed(snapshot['values'], ours)
        gradient['share'] = _renamed(gradient['share'], ours)
    svrg.check_state(snapshot)
    random_numbers = RandomNumbers(state['random'], state['was_random'])
    trainer._init_all()
    saved['counts'], saved['states'] = _by_place(saved['counts']), _by_place(saved['states'])
    _check_states_fit(trainer, saved, state.file_name)
    _set_numbers(optimizer, saved['numbers'])
    set_update_counts(optimizer, saved, trainer._devices)
    for updater in trainer._all_updaters:
        updater.states = copy.deepcopy(saved['states'])
        updater.states_synced = dict.fromkeys(updater.states, False)
    _load_scheduler(optimizer.lr_scheduler, state['scheduler'])
    reference.rows.kind = reference.rows.kind or state['loss']
    reference.numbers, reference.never_used = random_numbers, None
    svrg.load_state(snapshot, ours)
    svrg.drop_snapshot_without(param.name for param in reference.trained())


def _set_numbers(optimizer, saved):
    vars(optimizer).update(saved, allow_np_array=util.is_np_array())


def _check_states_fit(trainer, saved, source):
    """Raise a ValueError if the trainer's optimizer, with its saved numbers, has other states."""
    optimizer = copy.copy(trainer._optimizer)
    _set_numbers(optimizer, saved['numbers'])
    check_rates(optimizer)
    for place, of_weight in saved['states'].items():
        param = trainer._params[place]
        check_state(source, param.name, of_weight, optimizer.create_state_multi_precision(
            place, param.list_data()[0]))


def _renamed(arrays, names):
    return {names[name]: array for name, array in arrays.items()}


def _by_place(values):
    return {int(place): value for place, value in values.items()}


def _load_scheduler(scheduler, saved):
    """Let an optimizer's scheduler go on."""
    if not (scheduler and saved):
        return
    if saved['class'] != type(scheduler).__name__:
        warn('the states were saved with a %s: the %s of this run begins anew'
             % (saved['class'], type(scheduler).__name__))
    else:
        vars(scheduler).update(saved['state'])


def _structure(names):
    """Return names without numbers and their places, in order of creation, which Gluon counts."""
    created = sorted((re.split('[0-9]+', name), [int(digits) for digits in re.findall(
        '[0-9]+', name)], place) for place, name in enumerate(names))
    return [(words, place) for words, _, place in created]

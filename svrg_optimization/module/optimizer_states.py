"""States and update counts of a Module's optimizer, for checkpoints and for a rollback."""

import copy

from ..svrg_optimizer import check_state, class_name_and_arguments, set_update_counts
from . import executor_group
from .workers import counts_of_updates, servers_hold_states


def updater_keys(module):
    """Map each key of a module's MXNet Updater to its parameter and the place of its device.

    The Updater of a KVStore has the names as keys.
    """
    copies = 0 if module._update_on_kvstore else len(module._context)
    return {number * copies + device if copies else name: (name, device)
            for number, name in enumerate(module._param_names) for device in range(copies or 1)}


def state(module, with_states):
    """Return what a file has of an optimizer; its states are on all devices, by parameter."""
    by_name = {}
    if with_states:
        states = updater_of(module).states
        for key, (name, _) in updater_keys(module).items():
            if key in states:
                by_name.setdefault(name, []).append(states[key])
    klass, *_ = class_name_and_arguments(module._optimizer, {})
    return {**counts_of_updates(module), 'class': klass.__name__,
            'states': by_name if with_states else None,
            'were_on_servers': servers_hold_states(module)}


def has_states(saved):
    """Tell whether what `state` has returned, or None, has states."""
    return saved is not None and saved['states'] is not None


def load_counts(module, optimizer, keeps_counts):
    """Set the update counts of a new optimizer, unless it keeps its own.

    It raises a ValueError if the states that wait are those of another optimizer.
    """
    saved = module._waiting.get('optimizer')
    if has_states(saved) and saved['class'] != type(optimizer).__name__:
        raise ValueError('optimizer must be %s, whose states %s has, and not %s: '
                         'load_optimizer_states=False leaves them out'
                         % (saved['class'], saved.file_name, type(optimizer).__name__))
    if saved is not None and not keeps_counts:
        set_update_counts(optimizer, saved, module._context)


def load_state(module):
    """Set the states of an installed optimizer."""
    saved = module._waiting.get('optimizer')
    if has_states(saved):
        updater, by_name = updater_of(module), saved['states']
        weights, states = executor_group.parameters(module), {}
        for key, (name, place) in updater_keys(module).items():
            if name in by_name:
                fresh = module._optimizer.create_state_multi_precision(key, weights[name][place])
                is_for_device = len(by_name[name]) == len(module._context)
                states[key] = copy.deepcopy(by_name[name][place if is_for_device else 0])
                check_state(saved.file_name, name, states[key], fresh)
        updater.states.update(states)
        updater.states_synced.update(dict.fromkeys(states, False))
    module._waiting = {name: part for name, part in module._waiting.items() if name == 'svrg'}


def updater_of(module):
    """Return the MXNet Updater with the states of a module's optimizer."""
    return module._kvstore._updater if module._update_on_kvstore else module._updater


def reset_states(module):
    """Let the optimizer go on from the module's present weights, without its states."""
    updater = updater_of(module)
    updater.states.clear()
    updater.states_synced.clear()
    module._set_weights_of_kvstore()

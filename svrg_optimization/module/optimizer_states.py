"""States and update counts of a Module's optimizer, as a checkpoint and a way back need them."""

import contextlib
import copy

import numpy as np

from ..mxnet_repair.kvstore import set_weights


def devices_that_update(module):
    """Return the number of devices that update their own weights, 0 if a KVStore updates them."""
    return 0 if module._update_on_kvstore else len(module._context)


def update_counts(optimizer):
    """Return the number of updates of an optimizer.

    Parameters
    ----------
    optimizer : mxnet.optimizer.Optimizer
        The optimizer.

    Returns
    -------
    dict
        The optimizer's `num_update` under 'num_update', and under 'by_name' a
        dict from parameter name to count.
    """
    by_name = {}
    for counts in optimizer._all_index_update_counts.values():
        for index, count in counts.items():
            name = optimizer.idx2name.get(index, index)
            by_name[name] = max(count, by_name.get(name, 0))
    return {'num_update': optimizer.num_update, 'by_name': by_name}


def set_update_counts(optimizer, counts, device_ids):
    """Set the update counts of an optimizer.

    Parameters
    ----------
    optimizer : mxnet.optimizer.Optimizer
        The optimizer.
    counts : dict
        Result of `update_counts`.
    device_ids : iterable of int
        Devices that weights are updated on.
    """
    by_name = counts['by_name']
    by_index = {index: by_name[name] for index, name in optimizer.idx2name.items()
                if name in by_name}
    optimizer.num_update = counts['num_update']
    for device_id in device_ids:
        optimizer._set_current_context(device_id)
        optimizer._index_update_count.update({**by_name, **by_index})


def updater_keys(names, copies):
    """Return the parameter and the device that each key of an MXNet Updater stands for.

    Parameters
    ----------
    names : list of str
        All parameters of the module, in its order.
    copies : int
        Number of devices that update their own weights; 0 if a KVStore does,
        whose Updater has the names as keys.

    Returns
    -------
    dict of (str or int) to (str, int)
    """
    return {number * copies + device if copies else name: (name, device)
            for number, name in enumerate(names) for device in range(copies or 1)}


def states_in_layout(states, names, copies, saved_copies):
    """Return the states of an optimizer under the keys for another number of devices.

    Parameters
    ----------
    states : dict
        States of an MXNet Updater, under the `updater_keys` for `saved_copies`.
    names : list of str
        All parameters of the module, in its order.
    copies : int
        Number of devices that update their own weights now; 0 if a KVStore does.
    saved_copies : int
        The same number when the states were saved.

    Returns
    -------
    dict
        States under the keys for `copies`.
    """
    if copies == saved_copies:
        return states
    saved = {parameter: key for key, parameter in updater_keys(names, saved_copies).items()}
    return {key: copy.deepcopy(states[saved[name, 0]])
            for key, (name, _) in updater_keys(names, copies).items() if saved[name, 0] in states}


def state_fits(state, optimizer, key, weight):
    """Tell whether an optimizer can update a weight with a loaded state.

    The shapes of arrays are compared. A state that begins as None or as a list
    always fits, because it may change its form later. The state of a float16
    weight always fits, because it may or may not include a copy of the weight.
    """
    return weight.dtype == np.float16 or _has_shapes_of(
        optimizer.create_state_multi_precision(key, weight), state)


def _has_shapes_of(expected, state):
    if isinstance(expected, tuple):
        return (isinstance(state, tuple) and len(state) == len(expected)
                and all(map(_has_shapes_of, expected, state)))
    shape = getattr(expected, 'shape', None)
    return shape is None or getattr(state, 'shape', None) == shape


def updater_of(module):
    """Return the MXNet Updater with the states of a module's optimizer."""
    return module._kvstore._updater if module._update_on_kvstore else module._updater


def begin_anew(module, weights):
    """Let the optimizer of a module go on from other weights, with states that begin anew.

    Parameters
    ----------
    module : mxnet.module.Module
        The module, whose own arrays have these weights already.
    weights : dict of str to list of NDArray
        For each parameter the weight, one array per device.
    """
    updater = updater_of(module)
    for key in updater_keys(module._param_names, devices_that_update(module)):
        updater.states.pop(key, None)
        updater.states_synced.pop(key, None)
    if module._update_on_kvstore:
        set_weights(module._kvstore, weights, updater)


@contextlib.contextmanager
def kept_on_error(owner, names):
    """Restore attributes of an object if the block fails."""
    before = {name: getattr(owner, name) for name in names}
    try:
        yield
    except BaseException:
        vars(owner).update(before)  # at once, so that Ctrl-C cannot part them
        raise

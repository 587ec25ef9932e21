"""States, counts of updates and weight decays that an MXNet optimizer keeps."""

import contextlib
import copy
import math
import numbers

import numpy as np


def update_counts(optimizer):
    """Read how many updates an optimizer has made.

    Parameters
    ----------
    optimizer : mxnet.optimizer.Optimizer

    Returns
    -------
    dict
        Under 'num_update' the optimizer's own, under 'by_name' a dict from
        parameter name to count.
    """
    by_name = {}
    for counts in optimizer._all_index_update_counts.values():
        for index, count in counts.items():
            name = optimizer.idx2name.get(index, index)
            by_name[name] = max(count, by_name.get(name, 0))
    return {'num_update': optimizer.num_update, 'by_name': by_name}


def set_update_counts(optimizer, counts, device_ids):
    """Make an optimizer go on from the counts of another one.

    Parameters
    ----------
    optimizer : mxnet.optimizer.Optimizer
    counts : dict
        As `update_counts` returns it.
    device_ids : iterable of int
        The devices that weights are updated on.
    """
    by_name = counts['by_name']
    by_index = {index: by_name[name] for index, name in optimizer.idx2name.items()
                if name in by_name}
    optimizer.num_update = counts['num_update']
    for device_id in device_ids:
        optimizer._set_current_context(device_id)
        optimizer._index_update_count.update({**by_name, **by_index})


def check_learning_rate(optimizer):
    """Raise a ValueError where the rate of an optimizer without a schedule is infinite or a NaN."""
    rate = optimizer.lr
    if isinstance(rate, numbers.Real) and not math.isfinite(rate):
        raise ValueError('learning_rate must be a finite number, not %r' % (rate,))


def weight_decays(optimizer, names, by_number):
    """Map parameters to the weight decay that an optimizer applies to them.

    Parameters
    ----------
    optimizer : mxnet.optimizer.Optimizer
    names : list of str
    by_number : bool
        Whether it is called with their numbers, and not with their names.

    Returns
    -------
    dict of str to float
    """
    numbers = {name: number for number, name in optimizer.idx2name.items()} if by_number else {}
    return dict(zip(names, optimizer._get_wds([numbers.get(name, name) for name in names])))


def states_in_layout(states, names, copies, saved_copies):
    """Give the states of an optimizer the keys of another layout.

    Parameters
    ----------
    states : dict
        Of an MXNet Updater: keyed by parameter name where a KVStore updates
        the weights, else by the parameter's number times `saved_copies` plus
        the device's.
    names : list of str
        All parameters of the module, in its order.
    copies : int
        Devices that update weights of their own now, 0 for a KVStore.
    saved_copies : int
        The same when the states were saved.

    Returns
    -------
    dict
    """
    if copies == saved_copies:
        return states
    result = {}
    for number, name in enumerate(names):
        key = number * saved_copies if saved_copies else name
        if key not in states:
            continue
        if not copies:
            result[name] = states[key]
        for device in range(copies):
            result[number * copies + device] = copy.deepcopy(states[key])
    return result


def state_fits(state, optimizer, key, weight):
    """Tell whether an optimizer can step a weight with a state that was loaded.

    Where it begins with None or with a list, it may come to have more. States
    of float16 may or may not have a copy of the weight with them.
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
    """Return the MXNet Updater that holds the states of a module's optimizer."""
    return module._kvstore._updater if module._update_on_kvstore else module._updater


@contextlib.contextmanager
def unchanged_on_error(updater):
    """Give an MXNet Updater back what it had if the block fails."""
    before = dict(vars(updater))
    try:
        yield
    except BaseException:
        vars(updater).update(before)
        raise

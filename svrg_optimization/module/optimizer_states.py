"""States and update counts of a Module's optimizer, for checkpoints and for a rollback."""

import contextlib
import pickle

import numpy as np

from ..mxnet_repair.kvstore import set_weights
from . import executor_group


def devices_that_update(module):
    """Return the number of devices that update their own weights, 0 if a KVStore updates them."""
    return 0 if module._update_on_kvstore else len(module._context)


def set_update_counts(optimizer, saved, device_ids):
    """Set the counts that `update_counts` has returned, on some devices."""
    by_name = saved['counts']
    by_index = {index: by_name[name] for index, name in optimizer.idx2name.items()
                if name in by_name}
    optimizer.num_update = saved['num_update']
    for device_id in device_ids:
        optimizer._set_current_context(device_id)
        optimizer._index_update_count.update({**by_name, **by_index})


def updater_keys(module):
    """Map each key of a module's MXNet Updater to its parameter and the place of its device.

    The Updater of a KVStore has the names as keys.
    """
    copies = devices_that_update(module)
    return {number * copies + device if copies else name: (name, device)
            for number, name in enumerate(module._param_names) for device in range(copies or 1)}


def load_optimizer_states(module, fname, load):
    """Load a pickle of states as Module does, and check that they belong to the parameters."""
    updater = updater_of(module)
    with kept_on_error(updater, ('states', 'states_synced', 'optimizer')):
        try:
            load(fname)
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError,
                ValueError) as error:
            raise ValueError('%s is truncated or no file of optimizer states' % fname) from error
        check_states_fit(module, updater.states, fname)


def check_states_fit(module, states, source):
    """Raise a ValueError if a step with these states would fail.

    Shapes are compared. A state that begins as None or as a list always fits, because it may
    change its form, and so does that of a float16 weight, which may have a copy of it.
    """
    weights, optimizer = executor_group.parameters(module), module._optimizer
    keys = updater_keys(module)
    of_weights = states.keys() - set(module._membership.keys.summed)  # none after a rollback
    if of_weights and not keys.keys() & of_weights:
        module._svrg.warn_once('%s holds no states of the parameters of this module, as it was '
                               'saved by another kind of KVStore or module: they begin anew'
                               % source)
    for key, (name, device) in keys.items():
        weight = weights[name][device]
        if key in states and weight.dtype != np.float16:
            fresh = optimizer.create_state_multi_precision(key, weight)
            if not isinstance(fresh, list) and _shapes_of(fresh) not in (
                    None, _shapes_of(states[key])):
                raise ValueError('%s holds states of other parameters, of another optimizer or of '
                                 'other arguments of it: that of %s does not fit' % (source, name))


def _shapes_of(state):
    """Return the shape of an array, a list of shapes for a tuple or list, None for all else."""
    return ([_shapes_of(part) for part in state] if isinstance(state, (tuple, list))
            else getattr(state, 'shape', None))


def updater_of(module):
    """Return the MXNet Updater with the states of a module's optimizer."""
    return module._kvstore._updater if module._update_on_kvstore else module._updater


def begin_anew(module, weights):
    """Let the optimizer go on from the module's present weights, without its states."""
    updater = updater_of(module)
    for key in updater_keys(module):
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

"""What a loaded checkpoint restores once a module is bound and has its optimizer."""

import functools
from typing import NamedTuple, Optional

import mxnet as mx

from .._warn_once import warn
from ..module import executor_group
from ..module.optimizer_states import (
    devices_that_update,
    kept_on_error,
    set_update_counts,
    state_fits,
    states_in_layout,
    updater_keys,
    updater_of,
)
from ..rate.secant_pairs import Moves
from .format import arrays_of_kind, errors_of_states


class Loaded(NamedTuple):
    """Loaded parts of a checkpoint that wait for the module's binding and its optimizer.

    Each method that restores a part returns what still waits.

    Attributes
    ----------
    snapshot : tuple of (dict, dict), optional
        Facts and arrays of the snapshot, until the module is bound for training.
    counts : dict, optional
        Update counts of the optimizer.
    continues_counts : bool
        Whether the next optimizer continues these counts.
    step_size : dict, optional
        State of a Rule.
    moves : Moves
        The moves that belong to it.
    """

    snapshot: Optional[tuple] = None
    counts: Optional[dict] = None
    continues_counts: bool = False
    step_size: Optional[dict] = None
    moves: Moves = Moves()

    @classmethod
    def from_checkpoint(cls, checkpoint):
        """Return the parts of a Checkpoint; of one of plain Module there are none."""
        facts = checkpoint.facts
        if not facts:
            return cls(continues_counts=checkpoint.with_states)
        return cls(facts['snapshot'] and (facts['snapshot'], checkpoint.arrays),
                   facts['optimizer'], checkpoint.with_states, facts['step_size'],
                   Moves(*(arrays_of_kind(kind, checkpoint.arrays).values()
                           for kind in ('move', 'change'))))

    def without_snapshot(self):
        """Return the parts without the snapshot."""
        return self._replace(snapshot=None)

    def restore_snapshot(self, svrg):
        """Activate the snapshot of a module that is bound for training."""
        if self.snapshot is None:
            return self
        facts, arrays = self.snapshot
        full_gradient = svrg.reference.new_full_gradient()
        lacking = full_gradient.unpack(facts, functools.partial(arrays_of_kind, arrays=arrays))
        if lacking:
            svrg.warn_of_dropped_snapshot(lacking)
            return self.without_snapshot()
        svrg.reference.executors.module.set_params(
            *({name: mx.nd.array(value, dtype=value.dtype)
               for name, value in arrays_of_kind(kind, arrays).items()} for kind in ('arg', 'aux')))
        svrg.snapshot.replace(full_gradient, facts['taken_at'])
        svrg.snapshot.is_stale = facts['is_stale']
        svrg.snapshot.jump = arrays.get('jump:all')
        return self.without_snapshot()

    def restore_counts(self, wrapped, optimizer, optimizer_params, contexts):
        """Continue the update counts in an optimizer, unless `begin_num_update` is given.

        Parameters
        ----------
        wrapped : mxnet.optimizer.Optimizer
            Optimizer of the weights.
        optimizer, optimizer_params
            Arguments of ``init_optimizer``.
        contexts : list of Context
            Devices of the module.
        """
        if self.continues_counts and self.counts:
            if isinstance(optimizer, str):
                begins = 'begin_num_update' in dict(optimizer_params)
            else:
                begins = optimizer.begin_num_update > 0
            if not begins:
                set_update_counts(wrapped, self.counts,
                                  {0, *(context.device_id for context in contexts)})
        return self._replace(continues_counts=False)

    def restore_step_size(self, rule):
        """Let the Rule of an optimizer, or None, go on or restart."""
        if rule is not None:
            rule.restart()
            saved = self.step_size and self.step_size.get('class', 'BarzilaiBorwein')
            if saved == type(rule).__name__:
                rule.resume(self.step_size, self.moves)
            elif saved:
                warn('the checkpoint was saved with a %s: the %s of this run begins anew'
                     % (saved, type(rule).__name__))
        return self._replace(step_size=None, moves=Moves())


def load_optimizer_states(module, fname, load, loaded, param_names, warn_once):
    """Load the states of an optimizer, and check that they belong to the parameters.

    Parameters
    ----------
    module : mxnet.module.Module
        Module with an optimizer.
    fname : str
        File of the states.
    load : callable
        Takes `fname` and loads it as Module does.
    loaded : Loaded or None
        What was loaded with the module, if the file is part of its checkpoint.
    param_names : list of str
        Parameters of the module.
    warn_once : callable
        Takes a message and warns once of it.
    """
    updater = updater_of(module)
    with kept_on_error(updater, ('states', 'states_synced', 'optimizer')):
        with errors_of_states(fname):
            load(fname)
        if loaded and loaded.counts:
            updater.states = states_in_layout(updater.states, param_names,
                                              devices_that_update(module),
                                              loaded.counts['copies'])
            updater.states_synced = dict.fromkeys(updater.states, False)
        _check_states_fit(module, updater.states, param_names, fname, warn_once)


def _check_states_fit(module, states, param_names, fname, warn_once):
    """Raise a ValueError if a step with these states would fail."""
    weights = executor_group.parameters(module)
    keys = updater_keys(param_names, devices_that_update(module))
    of_weights = states.keys() - set(module._membership.keys.summed)  # none after a way back
    if of_weights and not keys.keys() & of_weights:
        warn_once('%s holds no states of the parameters of this module, as it was saved '
                  'by another kind of KVStore or module: they begin anew' % fname)
    for key, (name, device) in keys.items():
        if key in states and not state_fits(states[key], module._optimizer, key,
                                            weights[name][device]):
            raise ValueError('%s holds states of other parameters, of another optimizer or of '
                             'other arguments of it: that of %s does not fit' % (fname, name))

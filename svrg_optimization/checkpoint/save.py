"""Saving of a checkpoint: what it contains beside the files of Module."""

import functools

from ..module.membership import servers_hold_states
from ..module.optimizer_states import devices_that_update
from ..module.trained_module import TrainedModule
from .files import save_arrays, save_symbol
from .format import with_prefix, write_checkpoint


def save(module, live, names, symbols, with_states, remove_amp_cast, **writers):
    """Save a module, all files whole or none.

    Parameters
    ----------
    module : SVRGModule or SVRGBucketingModule
        The module.
    live : SVRGModule
        The same, or the module of the default bucket.
    names : dict of str to str
        Names of the files.
    symbols : dict of object to Symbol
        Symbol of each file of a symbol, under its key in `names`.
    with_states : bool
        Whether to save the optimizer's states.
    remove_amp_cast : bool
        Whether to leave casts of mixed precision out of the symbols.
    **writers : callable
        Writers of further files: each takes a name.

    Returns
    -------
    set
        The keys in `names` of all files that were written.
    """
    writers = {**{kind: functools.partial(save_symbol, symbol, remove_amp_cast)
                  for kind, symbol in symbols.items()},
               'params': functools.partial(save_arrays, module.save_params), **writers}
    if with_states and servers_hold_states(live):
        live._svrg.warn_once('the states of the optimizer are on the servers, and MXNet cannot '
                             'save them: all else is saved. With MXNET_UPDATE_ON_KVSTORE=0 '
                             'the workers hold them')
    elif with_states:
        writers['states'] = live.save_optimizer_states
    write_checkpoint(names, writers, *_facts_and_arrays(live))
    return set(writers)


def _facts_and_arrays(module):
    """Return the state of SVRG in a form that can be saved.

    Returns
    -------
    facts : dict
        Values of types that JSON supports.
    arrays : dict of str to NDArray or numpy.ndarray
        Arrays by prefixed name.
    """
    rule, svrg, loaded = TrainedModule(module).rule, module._svrg, module._loaded
    snapshot = svrg.snapshot
    facts = {**svrg.settings.facts(), 'num_update': snapshot.num_update,
             'num_taken': snapshot.num_taken,
             'optimizer': loaded.counts, 'snapshot': None, 'step_size': loaded.step_size}
    moves = loaded.moves
    if rule is not None:
        facts['step_size'] = {**rule.state(), 'class': type(rule).__name__}
        moves = rule.moves
    if module.optimizer_initialized:
        counts = module._membership.update_counts(module, snapshot.num_update, module._trainable)
        facts['optimizer'] = {**counts, 'copies': devices_that_update(module),
                              'on_servers': servers_hold_states(module)}
    if loaded.snapshot is not None:
        facts['snapshot'], arrays = loaded.snapshot
        return facts, arrays
    if not snapshot.is_active:
        return facts, {}
    packed, kinds = snapshot.full_gradient.pack()
    facts['snapshot'] = {**packed, 'taken_at': snapshot.taken_at,
                         'is_stale': snapshot.is_stale}
    kinds['arg'], kinds['aux'] = svrg.reference.params()
    kinds['move'], kinds['change'] = (dict(enumerate(arrays))
                                      for arrays in (moves.moves, moves.changes))
    kinds['jump'] = {} if snapshot.jump is None else {'all': snapshot.jump}
    return facts, {name: array for kind, arrays in kinds.items()
                   for name, array in with_prefix(kind, arrays).items()}

"""What a checkpoint contains beside the files of Module."""

from ..kvstore.membership import servers_hold_states
from ..module import executor_group
from ..module.optimizer_states import devices_that_update
from ..module.step_size_from_snapshots import step_size_rule_of
from .format import with_prefix


def facts_and_arrays(module, svrg, loaded, update_counts):
    """Return the state of SVRG in a form that can be saved.

    Parameters
    ----------
    module : mxnet.module.Module
        Module being trained.
    svrg : SVRG
        Its state.
    loaded : Loaded
        What still waits since it was loaded itself.
    update_counts : dict or None
        Update counts of its optimizer.

    Returns
    -------
    facts : dict
        Values of types that JSON supports.
    arrays : dict of str to NDArray or numpy.ndarray
        Arrays by prefixed name.
    """
    rule, snapshot = step_size_rule_of(module), svrg.snapshot
    facts = {'num_update': snapshot.num_update, 'num_taken': snapshot.num_taken,
             'optimizer': loaded.counts, 'snapshot': None,
             'step_size': rule and {'rate': rule.rate, 'curvature': rule.curvature}}
    if rule is None:
        facts['step_size'] = loaded.step_size
    if update_counts:
        facts['optimizer'] = {**update_counts, 'copies': devices_that_update(module),
                              'on_servers': servers_hold_states(module)}
    if loaded.snapshot is not None:
        facts['snapshot'], arrays = loaded.snapshot
        return facts, arrays
    if not snapshot.is_active:
        return facts, {}
    packed, kinds = snapshot.full_gradient.pack()
    facts['snapshot'] = {**packed, 'epoch': snapshot.epoch, 'taken_at': snapshot.taken_at,
                         'is_stale': snapshot.is_stale}
    at_snapshot = svrg.at.module
    arg_params, aux_params = (executor_group.weights_of_first_device(at_snapshot)
                              if at_snapshot.binded else at_snapshot.get_params())
    kinds.update(arg=arg_params, aux=aux_params)
    return facts, {name: array for kind, arrays in kinds.items()
                   for name, array in with_prefix(kind, arrays).items()}

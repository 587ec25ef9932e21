"""The optimizer of a module, wrapped for the keys that the module has in its KVStore."""

from ..kvstore.kinds import batches_of_rescaling, will_update
from ..svrg_optimizer import _SVRGOptimizer
from . import executor_group
from .optimizer_states import updater_keys


def wrapped_optimizer(module, keys, proximal, default_opt, kvstore, optimizer_params):
    """Return an _SVRGOptimizer around an optimizer, which is created as in Module.

    Parameters
    ----------
    module : mxnet.module.Module
        Module being trained.
    keys : KVStoreKeys
        Its keys.
    proximal : ProximalOperators
        Its proximal operators.
    default_opt, kvstore, optimizer_params
        As in ``SVRGModule._create_optimizer``.
    """
    updates = will_update(kvstore, len(module._context), module._arg_params)
    copies = 1 if updates else len(module._context)
    idx2name = {key: name for key, (name, _) in updater_keys(keys.params, copies).items()}
    proximal = proximal.steps(module._arg_params, idx2name)
    if isinstance(default_opt, _SVRGOptimizer):
        default_opt = default_opt.default_opt
    rows = executor_group.batch_size(module) * batches_of_rescaling(kvstore)
    given = dict(optimizer_params) if isinstance(default_opt, str) else {}
    return _SVRGOptimizer(default_opt, full_keys=keys.summed, proximal=proximal, sym=module.symbol,
                          param_idx2name=idx2name, **{'rescale_grad': 1 / rows, **given})

"""Checks of the arguments of an SVRGTrainer."""

from ..core.exclusions import check_together, row_sparse
from ..kvstore.horovod import with_horovod
from ..kvstore.kinds import features_of, is_distributed
from ..mxnet_repair.kvstore import open_distributed
from ..rate.optimizer import features_of_optimizer
from ..svrg_optimizer import check_optimizer


def opened_kvstore(kvstore, optimizer, optimizer_params, settings, others):
    """Return the KVStore to train with, connected if it is distributed, after all checks.

    `others` are further arguments, by name.
    """
    check_optimizer(optimizer, optimizer_params)
    kvstore = with_horovod(kvstore, optimizer)
    check_together({'an SVRGTrainer': True}, others, settings.features(), features_of(kvstore),
                   features_of_optimizer(optimizer, optimizer_params))
    is_name = isinstance(kvstore, str) and is_distributed(kvstore)
    return open_distributed(kvstore) if is_name else kvstore


def check_params(params, kvstore):
    """Raise a ValueError unless parameters can be trained with a KVStore."""
    names = sorted(param.name for param in params)
    if len(set(names)) < len(names):
        raise ValueError('params must have different names, and not %s' % names)

    def sparse(kind):
        return row_sparse([param.name for param in params if getattr(param, kind) != 'default'])

    check_together({'an SVRGTrainer': True, 'row_sparse parameters': sparse('_stype'),
                    'row_sparse gradients of dense parameters': sparse('_grad_stype')},
                   features_of(kvstore))

"""A snapshot of a Module, for a call of the user and for ``fit``."""

from .._argument_checks import checked_iterator
from ..core import snapshots
from ..core.requirements import ALL_ROWS, require
from ..data.iterators import rewind, rewind_for_pass
from .membership import workers_of
from .passes import Pass
from .trained_module import TrainedModule

_UNMOVED = 5  # snapshots after the first: whoever compares some gradients takes fewer


def take_snapshot(module, train_data):
    """Do what ``SVRGModule.update_full_grads`` says; of several buckets with the default one."""
    if not (module.binded and module.for_training and module.params_initialized):
        raise RuntimeError('update_full_grads needs a module that is bound with '
                           'for_training=True and has its parameters initialized')
    checked_iterator('train_data', train_data)
    svrg, trained = module._svrg, TrainedModule(module)
    source = Pass(train_data, svrg.settings.batches_after(svrg.snapshot.num_taken))
    if source.count is not None:
        require(ALL_ROWS, {'rule': trained.rule}, 'full_grad_batches', source.count)
    of_fit, is_rewound = module._pass_of_fit
    trains_on_pass = train_data is of_fit
    if not trains_on_pass:
        rewind(train_data)
    elif not is_rewound:
        rewind_for_pass(train_data)
    if svrg.settings.is_plain:
        for _ in source.batches():
            pass
        return
    is_unmoved = (svrg.epoch is None and module.optimizer_initialized and svrg.snapshot.is_active
                  and svrg.snapshot.taken_at == svrg.snapshot.num_update and is_at_snapshot(module))
    module._unmoved = module._unmoved + 1 if is_unmoved else 0
    module._membership.synchronize(module, svrg.snapshot.num_update)
    svrg.reference.warn_of_noise(module)
    taken = snapshots.take_snapshot(svrg, trained, source, workers_of(module, trains_on_pass))
    snapshots.log_rate(module.logger, svrg, trained, taken)
    if module._unmoved == _UNMOVED:
        svrg.warn_once('no step was made between the last six snapshots: a loop of your own '
                       'calls train_data.reset() before it reads the batches')


def begin_steps(module):
    """Set a module to where the steps from its snapshot begin: before the first step."""
    snapshots.jump(module._svrg, TrainedModule(module))


def is_at_snapshot(module):
    """Tell whether a module has the weights of its snapshot, and the full gradient there."""
    snapshot = module._snapshot
    return (snapshot.is_active and not snapshot.is_stale
            and snapshot.taken_at == snapshot.num_update
            and module._svrg.reference.has_weights_of(module))

"""A snapshot of a Module, for a call of the user and for ``fit``."""

from mxnet.base import _as_list
from mxnet.model import BatchEndParam

from .._argument_checks import checked_callbacks, checked_iterator
from ..core import snapshots
from ..core.requirements import ALL_ROWS, require
from ..data.iterators import rewind
from .membership import workers_of
from .passes import Pass
from .trained_module import TrainedModule

_UNMOVED = 5  # snapshots after the first: whoever compares some gradients takes fewer


def take_snapshot(module, train_data, batch_end_callback):
    """Do what ``SVRGModule.update_full_grads`` says; of several buckets with the default one."""
    if not (module.binded and module.for_training and module.params_initialized):
        raise RuntimeError('update_full_grads needs a module that is bound with '
                           'for_training=True and has its parameters initialized')
    checked_iterator('train_data', train_data)
    checked_callbacks('batch_end_callback', batch_end_callback)
    svrg, trained = module._svrg, TrainedModule(module)
    source = train_data
    if not isinstance(train_data, Pass):
        source = Pass(train_data, svrg.settings.batches_after(svrg.snapshot.num_taken))
    if source.count is not None:
        require(ALL_ROWS, {'rule': trained.rule}, 'full_grad_batches', source.count)
    if source is train_data:
        source.reset()  # an override may have read it
    else:
        rewind(train_data)
    if svrg.settings.is_plain:
        for _ in source.batches():
            pass
        return
    is_unmoved = (svrg.epoch is None and module.optimizer_initialized and svrg.snapshot.is_active
                  and svrg.snapshot.taken_at == svrg.snapshot.num_update and is_at_snapshot(module))
    module._unmoved = module._unmoved + 1 if is_unmoved else 0
    module._membership.synchronize(module, svrg.snapshot.num_update)
    svrg.reference.warn_of_noise(module)
    callbacks = batch_end_callback or svrg.settings.full_grad_callback
    taken = snapshots.take_snapshot(
        svrg, trained, source, workers_of(module, source.is_of_training),
        _callback_of_pass(module, source, callbacks) if callbacks else None)
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


def _callback_of_pass(module, source, callbacks):
    """Return a function of a batch's number and the batch that calls callbacks."""
    epoch = module._svrg.epoch or 0

    def done(nbatch, batch):
        parameter = BatchEndParam(epoch, nbatch, None, {
            'self': module, 'train_data': source.train_data, 'data_batch': batch,
            'epoch': epoch, 'nbatch': nbatch, 'batch_end_callback': callbacks})
        for callback in _as_list(callbacks):
            callback(parameter)

    return done

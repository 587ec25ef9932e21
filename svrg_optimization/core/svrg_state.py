"""State that SVRG adds to a Module: its snapshot, and the gradients there in a step."""

import contextlib
import functools

import mxnet as mx
from mxnet.base import _as_list
from mxnet.model import BatchEndParam

from .._warn_once import WarnOnce
from ..data.iterators import rewind_for_pass
from ..data.ndarray_iter import views_of_batches, views_of_copies
from ..data.passes import Pass
from ..kvstore.agreement import check_batch_counts
from ..kvstore.kinds import kvstore_of, kvstore_of_weights
from ..mxnet_bridge import executor_group
from ..mxnet_bridge.storage import is_row_sparse
from .full_gradient import FullGradient
from .gradient_pass import GradientPass
from .loss_reduction import LossReduction, missing_loss_named
from .snapshot import Snapshot
from .snapshot_module import SnapshotModule
from .step_size_from_snapshots import step_size_advanced
from .stored_batches import StoredBatch

# How many batches the iterator may run ahead of the arithmetic: queued batches take memory.
_BATCHES_AHEAD = 64


class SVRGState:
    """State that SVRG adds to a Module.

    The "live" module, which is being trained, is an argument of the methods. An
    attribute would be a reference cycle, and the memory of both would be freed
    late.

    Parameters
    ----------
    masks : DropoutMasks
        Dropout masks of the network.
    nodes : list of dict
        Nodes of the network, from its JSON.
    new_module : callable
        Takes a `work_load_list` and returns an unbound Module for the snapshot.
    work_load_list : list of number
        Work loads of the devices.
    coefficient : Coefficient
        α.
    stored : StoredGradients
        Storage of batches and their gradients.
    loss_is_mean : bool or None
        Constructor argument of this name.
    counts_rows : bool
        Whether the full gradient of row_sparse parameters is applied only to
        the rows of a batch.
    raises_if_nonfinite : bool
        Whether a full gradient that is not finite is an error.
    next_states : dict of str to str, optional
        Constructor argument of this name.

    Attributes
    ----------
    coefficient : Coefficient
        α.
    warn_once : WarnOnce
        Warnings of the module.
    snapshot : Snapshot
        The snapshot, which modules with the same weights share.
    snapshot_module : SnapshotModule
        Module that computes gradients at the snapshot.
    loss_reduction : LossReduction or None
        Reduction of the loss over a batch; None before `bind`.
    batch_size : int or None
        B, the number of rows that the live module is bound for; None before
        `bind`.
    gradients_at_snapshot : dict of str to list of NDArray, or None
        Gradients of the latest backward pass at the snapshot, until they have
        corrected the live gradients.
    awaits_backward, awaits_update : bool
        Whether a step stands between `forward` and `backward`, or between
        `backward` and `update`.
    """

    def __init__(self, masks, nodes, new_module, work_load_list, coefficient, stored,
                 loss_is_mean, counts_rows, raises_if_nonfinite, next_states):
        self.masks = masks
        self.coefficient = coefficient
        self.stored = stored
        self.warn_once = WarnOnce()
        self.snapshot = Snapshot()
        self.snapshot_module = SnapshotModule(new_module, work_load_list, masks)
        self.loss_reduction = self.batch_size = None
        self.gradients_at_snapshot = None
        self.awaits_backward = self.awaits_update = False
        self._nodes = nodes
        self._loss_is_mean = loss_is_mean
        self._devices = len(work_load_list)
        self._counts_rows = counts_rows
        self._raises_if_nonfinite = raises_if_nonfinite
        self.next_states = next_states
        self._forwarded_for_training = self._stored_batch = None
        self._correction_has_begun = False
        self._activations_are_live = True
        self._has_out_grads = False

    def share_settings_of(self, other):
        """Use α and the warnings of another SVRGState from now on."""
        self.coefficient, self.warn_once = other.coefficient, other.warn_once

    # Binding

    def bind(self, live, param_names, shared=None):
        """Bind the module at the snapshot if the live module is bound for training.

        Parameters
        ----------
        live : mxnet.module.Module
            Module being trained, which is bound.
        param_names : list of str
            Names of its parameters.
        shared : SVRGState, optional
            State of a module with the same weights, whose snapshot is shared.
        """
        self.batch_size = executor_group.batch_size(live)
        shapes = dict(live.data_shapes + (live.label_shapes or []))
        self.loss_reduction = LossReduction(live.symbol, self._nodes, shapes, self._loss_is_mean)
        if live.for_training:
            if shared:
                self.snapshot = shared.snapshot
            self.snapshot_module.bind(live, param_names, shared and shared.snapshot_module)

    def drop_snapshot(self):
        """Deactivate the snapshot. Steps are those of plain Module until the next one."""
        self.snapshot.replace(self.new_full_gradient())

    def drop_snapshot_without(self, names):
        """Drop the snapshot if its full gradient lacks one of these parameters."""
        if self.snapshot.is_active:
            lacking = set(names) - set(self.snapshot.full_gradient.shares[0])
            if lacking:
                self.warn_of_dropped_snapshot(lacking)
                self.drop_snapshot()

    def warn_of_dropped_snapshot(self, lacking):
        """Warn once that a snapshot is dropped because its full gradient lacks parameters."""
        self.warn_once('the snapshot is dropped, since it has no full gradient of %s'
                       % ', '.join(sorted(lacking)))

    def new_full_gradient(self):
        """Return a full gradient that is 0."""
        return FullGradient(executor_group.gradients(self.snapshot_module.module), self._devices,
                            self.batch_size, self.loss_reduction.is_mean, self.counted_by_row())

    def counted_by_row(self):
        """List the parameters whose full gradient is applied only to the rows of a batch."""
        gradients = executor_group.gradients(self.snapshot_module.module)
        return [name for name, arrays in gradients.items()
                if self._counts_rows and is_row_sparse(arrays[0])]

    # A step

    def after_forward(self, live, batch, is_train):
        """Note which batch the live module has been run forward on."""
        self._forwarded_for_training = live.for_training if is_train is None else is_train
        self.awaits_backward = bool(self._forwarded_for_training)
        self._stored_batch = batch if isinstance(batch, StoredBatch) else None
        self._take_outputs_out_of_pool(live)

    def _take_outputs_out_of_pool(self, live):
        self._activations_are_live = True
        if self.snapshot_module.shares_pool:
            executor_group.take_outputs_out_of_pool(live)

    def before_backward(self, live):
        """Restore the live module's activations if the snapshot has used their memory."""
        self.gradients_at_snapshot = None
        self._correction_has_begun = False
        if self._forwarded_for_training is None:
            raise RuntimeError('backward needs a forward before it')
        if not self._activations_are_live:
            executor_group.repeat_forward(live, self._forwarded_for_training)
            self._take_outputs_out_of_pool(live)

    def after_backward(self, live, out_grads):
        """Compute `gradients_at_snapshot` of the batch, or take those that are stored."""
        self.awaits_backward, self.awaits_update = False, True
        self._has_out_grads = out_grads is not None
        if not self.snapshot.is_active or self.coefficient.is_always_zero:
            return
        at_snapshot = None
        batch = self._stored_batch
        if (batch is not None and out_grads is None and self._forwarded_for_training
                and batch.full_gradient is self.snapshot.full_gradient):
            at_snapshot = batch.at_snapshot
        if at_snapshot is None:
            self.snapshot_module.run_on_inputs_of(live, self._forwarded_for_training, out_grads)
            at_snapshot = self.snapshot_module.latest_gradients()
            self._activations_are_live = not self.snapshot_module.shares_pool
        self.gradients_at_snapshot = at_snapshot

    def correct(self, live, rule=None):
        """Turn the live gradients into SVRG gradients, in place.

        Parameters
        ----------
        live : mxnet.module.Module
            Module being trained.
        rule : callable, optional
            As in `FullGradient.correct`.

        Raises
        ------
        RuntimeError
            If an error has stopped the last call in the middle.
        """
        if self.gradients_at_snapshot is None:
            return
        if self._correction_has_begun:
            raise RuntimeError('update needs another forward and backward: an error has stopped '
                               'the correction of these gradients')
        rows = self._stored_batch and self._stored_batch.cut_from
        alpha = self.coefficient.at(self.snapshot.num_update)
        self._correction_has_begun = True
        self.snapshot.full_gradient.correct(
            executor_group.gradients(live), self.gradients_at_snapshot,
            rows or executor_group.batch_size(live), alpha, rule)
        self.gradients_at_snapshot = None

    def after_update(self):
        """Count an update of the weights."""
        self.awaits_update = False
        self.snapshot.num_update += 1
        if self.coefficient.is_always_zero:
            self.snapshot.is_stale = True
        elif not (self.snapshot.is_active or self.snapshot.is_stale or self._has_out_grads):
            self.warn_once('update takes steps of plain Module without a snapshot: call '
                           'update_full_grads(train_data) before, or set alpha = 0 until then if '
                           'that is meant', 'plain Module')

    @contextlib.contextmanager
    def steps_undone(self, live, kvstore):
        """Undo all that passes without updates change, except outputs and gradients.

        Parameters
        ----------
        live : mxnet.module.Module
            Module being trained.
        kvstore : mxnet.kvstore.KVStore or None
            KVStore that updates the weights, if one does.
        """
        shapes, batch_size = (live.data_shapes, live.label_shapes), self.batch_size
        kept = [state for module in (live, self.snapshot_module.module)
                for state in executor_group.auxiliary_states(module)]
        sparse = executor_group.sparse_weights(live) if kvstore else []
        mx.nd.waitall()  # MXNet's BatchNorm writes its states behind the engine's back
        with executor_group.kept(kept + sparse + executor_group.added_gradients(live)):
            try:
                if sparse:
                    executor_group.pull_sparse_weights(kvstore, live)
                yield
            finally:
                mx.nd.waitall()
                self.awaits_backward = self.awaits_update = False
                self.gradients_at_snapshot = None
                if (live.data_shapes, live.label_shapes) != shapes:
                    live.reshape(*shapes)
                    self.batch_size = batch_size

    # Snapshots

    def take_snapshot(self, live, data_pass, membership, epoch=None, batch_end_callback=None,
                      module_of=None):
        """Take a snapshot of the weights and compute the full gradient there.

        Parameters
        ----------
        live : mxnet.module.Module
            Module being trained.
        data_pass : Pass or Stream
            Batches of the pass.
        membership : Membership
            Keys of the module in its KVStore.
        epoch : int, optional
            Epoch of ``fit`` that begins with the snapshot.
        batch_end_callback : callable or list of callable, optional
            Called with a BatchEndParam after each batch.
        module_of : callable, optional
            Takes a batch and returns the module of its bucket, and that
            module's SVRGState.

        Raises
        ------
        FloatingPointError
            If the full gradient is not finite and that is an error. As after
            all errors, the previous snapshot stays active.
        """
        membership.synchronize(live, self.snapshot.num_update)
        if self.masks.unshared:
            self.warn_once('%s: these layers draw random numbers anew at the snapshot, and the '
                           'difference of the gradients is as noisy as they are; only Dropout '
                           'layers share theirs' % ', '.join(self.masks.unshared))
        with step_size_advanced(live, self.snapshot, self.snapshot_module, epoch):
            self._replace_snapshot(live, data_pass, membership, epoch, batch_end_callback,
                                   module_of)
            self.snapshot.num_taken += 1

    def _replace_snapshot(self, live, data_pass, membership, epoch, batch_end_callback,
                          module_of):
        before = self.snapshot_module.copy_of_weights() if self.snapshot.is_active else []
        with self.snapshot.being_replaced(lambda: self.snapshot_module.set_weights(before)):
            self.snapshot_module.move_to_weights_of(live, kvstore_of_weights(live))
            full_gradient = self._full_gradient_at_snapshot(
                live, data_pass, membership, epoch, batch_end_callback, module_of)
            self.snapshot_module.copy_auxiliary_states_of(live)
            self.snapshot.replace(full_gradient, epoch)

    def store_again(self, live, train_data, membership, epoch):
        """Store the batches of an iterator for the active snapshot.

        Parameters
        ----------
        live, membership, epoch
            As in `take_snapshot`.
        train_data : DataIter
            The iterator.

        Returns
        -------
        callable
            Function that sets the iterator to its beginning again.
        """
        go_back = rewind_for_pass(train_data)
        with self.snapshot_module.auxiliary_states_restored():
            full_gradient = self._full_gradient_at_snapshot(live, Pass(train_data), membership,
                                                            epoch)
        self.snapshot.exchange_full_gradient(full_gradient)
        return go_back

    def _full_gradient_at_snapshot(self, live, data_pass, membership, epoch,
                                   batch_end_callback=None, module_of=None):
        self._stored_batch = None
        full_gradient = self.new_full_gradient()
        stored = self.stored.begin(full_gradient) if module_of is None else None
        if live._state_names and self.next_states is None:
            self.warn_once('the full gradient is computed with the states as they are now, %s: if '
                           'they are carried from batch to batch, next_states must map each to '
                           'its output; next_states={} declares that none is carried'
                           % ', '.join(live._state_names))
        gradient_pass = GradientPass(full_gradient, data_pass, live, self, stored, module_of)
        if isinstance(data_pass, Pass):
            if stored and data_pass.count is None:
                data_pass.read = functools.partial(views_of_copies, most_bytes=self.stored.budget)
            elif not stored and batch_end_callback is None:  # nobody else sees the batches
                data_pass.read = views_of_batches
        with self._live_inputs_kept(live), missing_loss_named(lambda: gradient_pass.live.symbol):
            self._activations_are_live = not self.snapshot_module.shares_pool
            executor_group.fill_inputs(live, self.next_states or (), 0)
            yielded = self._sum_gradients(gradient_pass, live, data_pass, epoch or 0,
                                          batch_end_callback)
        membership.forget_agreement()
        full_gradient.finish(yielded, membership.keys, membership.kvstore_for_sums(live),
                             add_devices=kvstore_of(live) is not None)
        if not full_gradient.finished:
            raise ValueError('train_data must yield at least one row of data, and %r yielded '
                             'none' % (data_pass.train_data,))
        if epoch is not None and data_pass.is_of_training:
            check_batch_counts(kvstore_of(live), full_gradient.batches_of_workers)
        self._report_if_not_finite(full_gradient)
        if stored and data_pass.is_whole(yielded):
            self.stored.keep(stored, yielded, data_pass.stands_for, self.warn_once)
        return full_gradient

    def _live_inputs_kept(self, live):
        """Protect the live module's inputs, for a backward to come or a Monitor, from a pass."""
        return executor_group.kept(executor_group.inputs(live) if self.snapshot_module.shares_inputs
                                   else executor_group.states(live))

    @staticmethod
    def _sum_gradients(gradient_pass, live, data_pass, epoch, batch_end_callback):
        """Sum the gradients over the batches and return the number of batches."""
        train_data = data_pass.train_data
        yielded = 0
        for nbatch, data_batch in enumerate(data_pass):
            yielded += 1
            gradient_pass.add(data_batch)
            if batch_end_callback is not None or yielded % _BATCHES_AHEAD == 0:
                gradient_pass.wait()
            if batch_end_callback is not None:
                param = BatchEndParam(epoch, nbatch, None, {
                    'self': live, 'train_data': train_data, 'data_batch': data_batch,
                    'epoch': epoch, 'nbatch': nbatch, 'batch_end_callback': batch_end_callback})
                for callback in _as_list(batch_end_callback):
                    callback(param)
        gradient_pass.finish()
        return yielded

    def _report_if_not_finite(self, full_gradient):
        names = full_gradient.nonfinite()
        if not names:
            return
        message = 'the full gradient is not finite: %s' % ', '.join(names)
        if self._raises_if_nonfinite:
            raise FloatingPointError(message)
        self.warn_once(message, 'nonfinite')

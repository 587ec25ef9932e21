"""Module that computes gradients at the snapshot."""

import contextlib

from ..data.batch_rows import count_rows, shapes_of
from ..mxnet_bridge import executor_group
from .side_by_side import SideBySide

# Number of small batches that are computed at once, since calls take longer than arithmetic,
# and their bytes with their activations. Twice as many bytes would save 2 % of an epoch of the
# MLP, but SVRG would take a fifth more memory.
_BATCHES_AT_ONCE = 16
_BYTES_AT_ONCE = 1 << 21
# Where each batch has gradients of its own, this helps only with at most so many parameters.
_FEW_PARAMETERS = 1 << 15
# Bytes from which sharing memory is worth a copy of the outputs in each step. LeNet's
# activations are 25 MB, and SVRG takes 1.16 of Module's memory instead of 2.
_WORTH_SHARING = 1 << 18


class SnapshotModule:
    """Module at the snapshot, with a second one for batches of another shape.

    The second module shares the parameters of the first. The first cannot be
    reshaped instead, because MXNet does not reshape executors with csr data or
    with masks. The "live" module below is the module being trained.

    Parameters
    ----------
    new_module : callable
        Takes a `work_load_list` and returns an unbound Module.
    work_load_list : list of number
        Work loads of the live module's devices.
    masks : DropoutMasks
        Dropout masks, which are inputs of the module.

    Attributes
    ----------
    module : mxnet.module.Module
        The first module. It uses the input arrays of the live module if possible.
    shares_inputs : bool
        Whether it uses the input arrays of the live module.
    shares_pool : bool
        Whether it also uses the memory of the live module's activations.
    """

    def __init__(self, new_module, work_load_list, masks):
        self._new_module = new_module
        self._masks = masks
        self.module = new_module(work_load_list=work_load_list)
        self._forget_further_executors()
        self._latest = self.module
        self.shares_inputs = self.shares_pool = False

    def bind(self, live, param_names, shared_snapshot_module=None):
        """Bind for the same batches and gradients as the live module.

        Parameters
        ----------
        live : mxnet.module.Module
            Module being trained, which is bound.
        param_names : list of str
            Names of the parameters. Inputs have no gradients here.
        shared_snapshot_module : SnapshotModule, optional
            SnapshotModule to share the parameters with.
        """
        requests = {name: 'write' if name in param_names and request != 'null' else 'null'
                    for name, request in executor_group.gradient_requests(live).items()}
        if shared_snapshot_module:
            executor_group.share_no_inputs(shared_snapshot_module.module)
        self.module.bind(live.data_shapes, live.label_shapes, grad_req=requests,
                         shared_module=shared_snapshot_module and shared_snapshot_module.module)
        self.module.params_initialized = True  # the first snapshot sets them
        is_random = self._masks.names or self._masks.unshared
        self.shares_inputs = (shared_snapshot_module is None and not is_random
                              and executor_group.has_dense_inputs(live))
        # MXNet shares the auxiliary states together with the pool.
        self.shares_pool = (self.shares_inputs and not executor_group.auxiliary_states(live)
                            and executor_group.bytes_of_activations(live) > _WORTH_SHARING)
        if self.shares_inputs:
            executor_group.bind_on_inputs_of(live, self.module, self.shares_pool)
        elif shared_snapshot_module:
            self.shares_pool = shared_snapshot_module.shares_pool
        executor_group.fill_inputs(self.module, self._masks.names, 1)  # they drop nothing

    def reset_bind(self):
        """Forget the executors, but not the parameters."""
        if not self.module.params_initialized:
            executor_group.forget_parameters(self.module)
        elif self.module.binded:
            self.module.get_params()  # copied from the old executors for the next ones
        self.module._reset_bind()
        self._forget_further_executors()
        self._latest = self.module
        self.shares_inputs = self.shares_pool = False

    def _forget_further_executors(self):
        self._other = self._merged = self._side_by_side = None
        self._most_to_merge = self._most_side_by_side = None

    def copy_of_weights(self):
        """Return copies of the weights and auxiliary states of the snapshot."""
        return [weight.copy() for weight in executor_group.weights(self.module)]

    def set_weights(self, weights):
        """Set the weights and auxiliary states of the snapshot to given values."""
        executor_group.copy_all(weights, executor_group.weights(self.module))

    def move_to_weights_of(self, live, kvstore):
        """Set the weights of the snapshot to those of the live module.

        Parameters
        ----------
        live : mxnet.module.Module
            Module being trained.
        kvstore : mxnet.kvstore.KVStore or None
            KVStore that updates the weights, if one does.
        """
        self.set_weights(executor_group.weights(live))
        if kvstore:
            executor_group.pull_sparse_weights(kvstore, self.module)
        executor_group.weights_have_moved(self.module)

    def copy_auxiliary_states_of(self, live):
        """Set the auxiliary states, which a pass has changed, to those of the live module."""
        executor_group.copy_all(executor_group.auxiliary_states(live),
                                executor_group.auxiliary_states(self.module))

    @contextlib.contextmanager
    def auxiliary_states_restored(self):
        """Restore the auxiliary states after the block."""
        with executor_group.kept(executor_group.auxiliary_states(self.module)):
            yield

    def gradients_of(self, module, batch, live):
        """Compute the gradients of a batch with new Dropout masks and the live module's states.

        Parameters
        ----------
        module : mxnet.module.Module
            Result of `module_for`.
        batch : DataBatch or list of DataBatch
            The batch, or one batch for each device.
        live : mxnet.module.Module
            Module being trained.

        Returns
        -------
        dict of str to list of NDArray
            For each parameter one gradient per device. The next run overwrites
            these arrays.
        """
        executor_group.copy_states(live, module)
        executor_group.draw_masks(module, self._masks)
        executor_group.run(module, batch)
        return executor_group.gradients(module)

    @property
    def most_to_merge(self):
        """Largest number of batches to compute as one, if rows are independent."""
        if self._most_to_merge is None:
            self._most_to_merge = (
                self._most_at_once if executor_group.can_merge_batches(self.module) else 1)
        return self._most_to_merge

    @property
    def most_side_by_side(self):
        """Largest number of batches to compute at once, with separate gradients."""
        if self._most_side_by_side is None:
            suits = (executor_group.count_of_weights(self.module) <= _FEW_PARAMETERS
                     and executor_group.can_run_side_by_side(self.module))
            self._most_side_by_side = self._most_at_once if suits else 1
        return self._most_side_by_side

    @property
    def _most_at_once(self):
        return max(1, min(_BATCHES_AT_ONCE,
                          _BYTES_AT_ONCE // executor_group.bytes_of_batch(self.module)))

    def gradients_of_merged(self, batches):
        """Return the sum of the gradients of several batches of the bound size."""
        rows = len(batches) * executor_group.batch_size(self.module)
        if self._merged is None or executor_group.batch_size(self._merged) != rows:
            merged = self._new_module()
            executor_group.bind_for_merged(merged, self.module, len(batches))
            self._merged = merged  # not before it is bound: an error can stop that
        executor_group.run_merged(self._merged, batches)
        return executor_group.gradients(self._merged)

    def gradients_side_by_side(self, batches):
        """List the gradients of several batches of the bound size."""
        if self._side_by_side is None or len(self._side_by_side.gradients) != len(batches):
            self._side_by_side = SideBySide(self.module, len(batches))
        self._side_by_side.run(batches, self.module)
        return self._side_by_side.gradients

    def run_on_inputs_of(self, live, is_train, out_grads):
        """Compute gradients with the current batch, states and masks of the live module."""
        if self.shares_inputs and not (executor_group.has_been_reshaped(live)
                                       or executor_group.has_been_reshaped(self.module)):
            self._latest, copies_inputs = self.module, False
        else:
            shapes = live.data_shapes, live.label_shapes, executor_group.rows_bound(live)
            self._latest = self._already_bound_for(*shapes) or self._bind_other(*shapes)
            copies_inputs = True
        executor_group.forward_on_inputs_of(live, self._latest, is_train, self._masks.names,
                                            copies_inputs)
        executor_group.backward(self._latest, out_grads)

    def latest_gradients(self):
        """Map each parameter to its gradients of the last `run_on_inputs_of`, one per device."""
        return executor_group.gradients(self._latest)

    def module_for(self, batch, cuts_states=False):
        """Return a module that is bound for a batch, None if that is not possible.

        It is not possible if a device would have no row, or if the symbol
        contains another batch size. With `cuts_states` the states may lose
        their last rows, on one device.
        """
        if not isinstance(batch, list) and executor_group.is_bound_for(self.module, batch):
            return self.module
        data_shapes, label_shapes = shapes_of(batch, self.module.data_shapes,
                                              self.module.label_shapes)
        rows, _ = count_rows(batch, data_shapes)
        parts = executor_group.split_rows(self.module, rows)
        module = self._already_bound_for(data_shapes, label_shapes, parts)
        resizable = self._masks.names
        if cuts_states and len(parts) == 1:
            resizable = self.module._state_names  # the masks are among them
        if module is None and executor_group.can_bind(self.module, data_shapes, label_shapes, parts,
                                                      resizable):
            module = self._bind_other(data_shapes, label_shapes, parts)
        return module

    def _already_bound_for(self, data_shapes, label_shapes, parts):
        for module in (self.module, self._other):
            if module is not None and executor_group.rows_bound(module) == parts and (
                    module.data_shapes, module.label_shapes) == (data_shapes, label_shapes):
                return module
        return None

    def _bind_other(self, data_shapes, label_shapes, parts):
        other = self._new_module(work_load_list=parts)
        other.bind(data_shapes, label_shapes, shared_module=self.module,
                   grad_req=executor_group.gradient_requests(self.module))
        self._other = other  # not before it is bound: an error can stop that
        return other

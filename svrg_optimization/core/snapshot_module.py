"""The module that computes gradients at the snapshot."""

import contextlib

from ..data.batch_rows import count_rows, shapes_of
from ..mxnet_bridge import executor_group
from .side_by_side import SideBySide

# Where parameters are few and batches small, a batch takes longer than its
# arithmetic: several are computed at once. Larger batches that wait for that
# would cost more, in pages of memory that come and go.
_FEW_PARAMETERS = 1 << 15
_SMALL_BATCH = 1 << 17
_BATCHES_AT_ONCE = 16
# To share less memory would not be worth a copy of the outputs in each step.
_WORTH_SHARING = 1 << 18


class SnapshotModule:
    """An auxiliary module at the snapshot, with a second one for batches of another shape.

    The second shares the parameters of the first. To reshape the first would
    not do: MXNet reshapes no executor with csr data, and none with masks.

    Parameters
    ----------
    new_module : callable
        Takes a `work_load_list` and returns an unbound Module.
    work_load_list : list of number
        That of the live module.
    masks : DropoutMasks
        Which the module takes in.

    Attributes
    ----------
    module : mxnet.module.Module
        The first. Where it can be, it has the inputs of the live module.
    shares_inputs : bool
        Whether it has.
    shares_pool : bool
        Whether it has the memory of the live module's activations too.
    """

    def __init__(self, new_module, work_load_list, masks):
        self._new_module = new_module
        self._masks = masks
        self.module = new_module(work_load_list=work_load_list)
        self._forget_further_executors()
        self._latest = self.module
        self.shares_inputs = self.shares_pool = False

    def bind(self, live, param_names, shared_snapshot_module=None):
        """Bind for the batches and gradients that a live module is bound for.

        Parameters
        ----------
        live : mxnet.module.Module
        param_names : list of str
            The parameters, which alone have gradients here.
        shared_snapshot_module : SnapshotModule, optional
            One to share the parameters with.
        """
        requests = {name: 'write' if name in param_names and request != 'null' else 'null'
                    for name, request in executor_group.gradient_requests(live).items()}
        if shared_snapshot_module:
            executor_group.share_no_inputs(shared_snapshot_module.module)
        self.module.bind(live.data_shapes, live.label_shapes, grad_req=requests,
                         shared_module=shared_snapshot_module and shared_snapshot_module.module)
        self.module.params_initialized = True  # by the first snapshot at the latest
        is_random = self._masks.names or self._masks.unshared
        self.shares_inputs = (shared_snapshot_module is None and not is_random
                              and executor_group.has_dense_inputs(live))
        # MXNet shares the auxiliary states with the pool.
        self.shares_pool = (self.shares_inputs and not executor_group.auxiliary_states(live)
                            and executor_group.bytes_of_activations(live) > _WORTH_SHARING)
        if self.shares_inputs:
            executor_group.bind_on_inputs_of(live, self.module, self.shares_pool)
        elif shared_snapshot_module:
            self.shares_pool = shared_snapshot_module.shares_pool
        executor_group.set_masks_to_ones(self.module, self._masks.names)

    def reset_bind(self):
        """Forget the executors, but not the parameters."""
        if not self.module.params_initialized:
            executor_group.forget_parameters(self.module)
        elif self.module.binded:
            self.module.get_params()  # from the executors that go away, for the next ones
        self.module._reset_bind()
        self._forget_further_executors()
        self._latest = self.module
        self.shares_inputs = self.shares_pool = False

    def _forget_further_executors(self):
        self._other = self._merged = self._side_by_side = self._is_small = None

    def copy_of_weights(self):
        """Copy the weights and auxiliary states of the snapshot."""
        return [weight.copy() for weight in executor_group.weights(self.module)]

    def set_weights(self, weights):
        """Set weights and auxiliary states to a copy of them."""
        executor_group.copy_all(weights, executor_group.weights(self.module))

    def move_to_weights_of(self, live, kvstore):
        """Move the snapshot to the weights of a module.

        Parameters
        ----------
        live : mxnet.module.Module
        kvstore : mxnet.kvstore.KVStore or None
            That updates its weights.
        """
        self.set_weights(executor_group.weights(live))
        if kvstore:
            executor_group.pull_sparse_weights(kvstore, self.module)
        executor_group.weights_have_moved(self.module)

    def set_auxiliary_states_to_those_of(self, live):
        """Give the auxiliary states, which a pass has moved on, the values of a module."""
        executor_group.copy_all(executor_group.auxiliary_states(live),
                           executor_group.auxiliary_states(self.module))

    @contextlib.contextmanager
    def staying_where_it_is(self):
        """Let a pass leave no trace in the auxiliary states."""
        with executor_group.kept(executor_group.auxiliary_states(self.module)):
            yield

    def gradients_of(self, module, batch, live):
        """Compute the gradients of a batch under new masks, with the states of the live module.

        Parameters
        ----------
        module : mxnet.module.Module
            What `module_for` returned.
        batch : DataBatch or list of DataBatch
        live : mxnet.module.Module

        Returns
        -------
        dict of str to list of NDArray
            From parameter name to one gradient a device.

        """
        executor_group.copy_states(live, module)
        executor_group.draw_masks(module, self._masks)
        executor_group.run(module, batch)
        return executor_group.gradients(module)

    def batches_to_merge(self):
        """Tell how many batches of rows that do not depend on each other to compute as one."""
        if self._batches_are_small() and executor_group.can_merge_batches(self.module):
            return _BATCHES_AT_ONCE
        return 1

    def batches_side_by_side(self):
        """Tell how many batches to compute at once, each with gradients of its own."""
        if self._batches_are_small() and executor_group.can_run_side_by_side(self.module):
            return _BATCHES_AT_ONCE
        return 1

    def _batches_are_small(self):
        if self._is_small is None:
            self._is_small = (executor_group.count_of_weights(self.module) <= _FEW_PARAMETERS
                              and executor_group.bytes_of_batch(self.module) <= _SMALL_BATCH)
        return self._is_small

    def gradients_of_merged(self, batches):
        """Sum the gradients of `batches_to_merge` batches of the size that is bound."""
        if self._merged is None:
            self._merged = self._new_module()
            executor_group.bind_for_merged(self._merged, self.module, len(batches))
        executor_group.run_merged(self._merged, batches)
        return executor_group.gradients(self._merged)

    def gradients_of_each(self, batches):
        """List the gradients of `batches_side_by_side` batches of the size that is bound."""
        if self._side_by_side is None:
            self._side_by_side = SideBySide(self.module, len(batches))
        self._side_by_side.run(batches, self.module)
        return self._side_by_side.gradients

    def run_on_inputs_of(self, live, is_train, out_grads):
        """Compute gradients on the batch, the states and the masks that the live module has."""
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
        """Map each parameter to its gradients of that run, one a device."""
        return executor_group.gradients(self._latest)

    def module_for(self, batch):
        """Return the module that computes a batch's gradients, None if there can be none.

        There is none where a device would be without a row, or where the
        symbol has another batch size written into it.
        """
        if not isinstance(batch, list) and executor_group.is_bound_for(self.module, batch):
            return self.module
        data_shapes, label_shapes = shapes_of(batch, self.module.data_shapes,
                                              self.module.label_shapes)
        rows, _ = count_rows(batch, data_shapes)
        parts = executor_group.split_rows(self.module, rows)
        module = self._already_bound_for(data_shapes, label_shapes, parts)
        if module is None and executor_group.can_bind(self.module, data_shapes, label_shapes, parts,
                                                 self._masks.names):
            module = self._bind_other(data_shapes, label_shapes, parts)
        return module

    def _already_bound_for(self, data_shapes, label_shapes, parts):
        for module in (self.module, self._other):
            if module is not None and executor_group.rows_bound(module) == parts and (
                    module.data_shapes, module.label_shapes) == (data_shapes, label_shapes):
                return module
        return None

    def _bind_other(self, data_shapes, label_shapes, parts):
        self._other = self._new_module(work_load_list=parts)
        self._other.bind(data_shapes, label_shapes, shared_module=self.module,
                         grad_req=executor_group.gradient_requests(self.module))
        return self._other

"""What computes gradients at the snapshot: executors of a second Module."""

import contextlib
import functools

import numpy as np
from mxnet.module import Module

from ..core.arrays import is_row_sparse
from ..core.front_end import GradientsAtSnapshot
from ..core.full_gradient import FullGradient
from ..data.batch_rows import as_list, count_rows, labels_of, shapes_of
from . import executor_group
from .gradients_of_pass import GradientsOfPass
from .loss_reduction import LossReduction, missing_loss_named
from .optimizer_states import kvstore_of_weights

# Number of small batches that are computed at once, since calls take longer than arithmetic,
# and their bytes with their activations. Twice as many bytes would save 2 % of an epoch of the
# MLP, but SVRG would take a fifth more memory.
_BATCHES_AT_ONCE = 16
_BYTES_AT_ONCE = 1 << 21
# Bytes from which sharing memory is worth a copy of the outputs in each step. LeNet's
# activations are 25 MB, and SVRG takes 1.16 of Module's memory instead of 2.
_WORTH_SHARING = 1 << 18


class AtSnapshot(GradientsAtSnapshot):
    """Gradients at the snapshot of a Module that is being trained, the "live" one.

    A second Module of the same network holds the weights of the snapshot. A
    third one, for batches of another shape, shares its parameters. The second
    cannot be reshaped instead, because MXNet does not reshape executors with csr
    data or with masks.

    Parameters
    ----------
    live : SVRGModule
        Module being trained, which is not bound yet.
    masks : DropoutMasks
        Dropout masks of the network, which are inputs of the module.
    nodes : list of dict
        Nodes of the network, from its JSON.
    warn_once : WarnOnce
        Warnings of the module.
    loss_is_mean, sparse_full_grad, next_states
        Constructor arguments of these names.

    Attributes
    ----------
    module : mxnet.module.Module
        The second module. It uses the input arrays of the live one if possible.
    batch_size : int or None
        B, the number of rows that the live module is bound for; None before
        `bind`.
    loss_reduction : LossReduction or None
        Reduction of the loss over a batch; None before `bind`.
    shares_inputs : bool
        Whether `module` uses the input arrays of the live module.
    shares_pool : bool
        Whether it also uses the memory of the live module's activations.
    bucket_of : callable or None
        Takes a batch of the pass under way and returns the module of its bucket. None
        if all batches are of one network.
    """

    bucket_of = None

    def __init__(self, live, masks, nodes, warn_once, loss_is_mean, sparse_full_grad, next_states):
        self.masks, self.warn_once = masks, warn_once
        self._nodes, self._loss_is_mean = nodes, loss_is_mean
        self._sparse_full_grad, self.next_states = sparse_full_grad, next_states
        self._devices = len(live._context)
        self._new_module = functools.partial(
            Module, masks.symbol_taking, live._data_names, live._label_names, live.logger,
            live._context, fixed_param_names=live._fixed_param_names,
            group2ctxs=live._group2ctxs, state_names=live._state_names + masks.names)
        self.module = self._new_module(work_load_list=live._work_load_list)
        self.batch_size = self.loss_reduction = None
        self._forget_further_executors()

    def bind(self, live, shared=None):
        """Bind for the same batches and gradients as the live module.

        Parameters
        ----------
        live : SVRGModule
            Module being trained, which is bound.
        shared : AtSnapshot, optional
            AtSnapshot to share the parameters with.
        """
        self.batch_size = executor_group.batch_size(live)
        shapes = dict(live.data_shapes + (live.label_shapes or []))
        self.loss_reduction = LossReduction(live.symbol, self._nodes, shapes, self._loss_is_mean)
        if not live.for_training:
            return
        requests = {name: 'write' if name in live._param_names and request != 'null' else 'null'
                    for name, request in executor_group.gradient_requests(live).items()}
        if shared:
            executor_group.share_no_inputs(shared.module)
        self.module.bind(live.data_shapes, live.label_shapes, grad_req=requests,
                         shared_module=shared and shared.module)
        self.module.params_initialized = True  # the first snapshot sets them
        self.shares_inputs = (shared is None and not self.is_random
                              and executor_group.has_dense_inputs(live))
        # MXNet shares the auxiliary states together with the pool.
        self.shares_pool = (self.shares_inputs and not executor_group.auxiliary_states(live)
                            and executor_group.bytes_of_activations(live) > _WORTH_SHARING)
        if self.shares_inputs:
            executor_group.bind_on_inputs_of(live, self.module, self.shares_pool)
        elif shared:
            self.shares_pool = shared.shares_pool
        executor_group.fill_inputs(self.module, self.masks.names, 1)  # they drop nothing

    def reset_bind(self):
        """Forget the executors, but not the parameters."""
        if not self.module.params_initialized:
            executor_group.forget_parameters(self.module)
        elif self.module.binded:
            self.module.get_params()  # copied from the old executors for the next ones
        self.module._reset_bind()
        self._forget_further_executors()

    def _forget_further_executors(self):
        self._other = self._merged = self._most_to_merge = None
        self._latest = self.module
        self.shares_inputs = self.shares_pool = False
        self._activations_are_live = True

    def warn_of_noise(self, live):
        """Warn once of layers and states that make the correction noisy or biased."""
        if self.masks.unshared:
            self.warn_once('%s: these layers draw random numbers anew at the snapshot, and the '
                           'difference of the gradients is as noisy as they are; only Dropout '
                           'layers share theirs' % ', '.join(self.masks.unshared))
        if live._state_names and self.next_states is None:
            self.warn_once('the full gradient is computed with the states as they are now, %s: if '
                           'they are carried from batch to batch, next_states must map each to '
                           'its output; next_states={} declares that none is carried'
                           % ', '.join(live._state_names))

    @property
    def is_random(self):
        """Whether the gradient of a batch is another each time."""
        return bool(self.masks.names or self.masks.unshared)

    @property
    def is_repeatable(self):
        """Whether a batch has the same gradient again with the same masks."""
        return not self.masks.unshared

    def counted_by_row(self):
        """List the parameters whose full gradient is applied only to the rows of a batch."""
        return [name for name, arrays in executor_group.gradients(self.module).items()
                if self._sparse_full_grad and is_row_sparse(arrays[0])]

    def new_full_gradient(self):
        """Return a full gradient that is 0."""
        return FullGradient(executor_group.gradients(self.module), self._devices,
                            self.batch_size, loss_is_mean=self.loss_reduction.is_mean,
                            counted=self.counted_by_row())

    # Weights

    def weights(self):
        """Map each parameter to a list of its arrays at the snapshot, one per device."""
        return executor_group.parameters(self.module)

    def values(self):
        """Map each parameter and auxiliary state likewise."""
        return executor_group.values(self.module)

    def values_of(self, live):
        """Map the same names to the arrays of the live module."""
        return executor_group.values(live)

    def params(self):
        """Return two dicts with the parameters and auxiliary states, of one device."""
        return (executor_group.weights_of_first_device(self.module) if self.module.binded
                else self.module.get_params())

    def set_params(self, arg_params, aux_params):
        """Set the parameters and auxiliary states, on all devices."""
        self.module.set_params(arg_params, aux_params)

    def move_to(self, live):
        """Set the values at the snapshot to those of the live module."""
        super().move_to(live)
        kvstore = kvstore_of_weights(live)
        if kvstore:
            executor_group.pull_sparse_weights(kvstore, self.module)
        executor_group.weights_have_moved(self.module)

    def has_weights_of(self, live):
        """Tell whether the live module has the weights of the snapshot."""
        pairs = zip(*(executor_group.parameters(of).values() for of in (live, self.module)))
        return all(np.array_equal(ours[0].asnumpy(), theirs[0].asnumpy())
                   for ours, theirs in pairs)

    # A pass

    @contextlib.contextmanager
    def inputs_kept(self, live):
        """Protect the live module's inputs, for a backward to come or a Monitor, from a pass.

        States that the pass carries are 0 when it begins.
        """
        with executor_group.kept(executor_group.inputs(live) if self.shares_inputs
                                 else executor_group.states(live)):
            self._activations_are_live = not self.shares_pool
            executor_group.fill_inputs(live, self.next_states or (), 0)
            yield

    def gradients_of_pass(self, batches, live, source, full_gradient, stores):
        """Yield the gradients of the batches of a pass, each as a Part."""
        return GradientsOfPass(self, source, full_gradient, stores).parts(batches, live)

    def arrays_of(self, batch):
        """List the data and labels of a batch."""
        return [array for piece in as_list(batch) for array in [*piece.data, *labels_of(piece)]]

    def gradients_of(self, module, batch, live, draws_masks=True):
        """Compute the gradients of a batch with the live module's states.

        Parameters
        ----------
        module : mxnet.module.Module
            Result of `module_for`.
        batch : DataBatch or list of DataBatch
            The batch, or one batch for each device.
        live : mxnet.module.Module
            Module being trained.
        draws_masks : bool
            Whether Dropout masks are new. Otherwise they are those of the last run.

        Returns
        -------
        dict of str to list of NDArray
            For each parameter one gradient per device. The next run overwrites
            these arrays.
        """
        executor_group.copy_states(live, module)
        if draws_masks:
            executor_group.draw_masks(module, self.masks)
        with missing_loss_named(self.masks.symbol):
            executor_group.run(module, batch)
        return executor_group.gradients(module)

    def carry_states(self, module, live):
        """Set the live module's states to the outputs of a module that they become next."""
        executor_group.carry_states(module, live, self.next_states or {})

    @property
    def most_to_merge(self):
        """Largest number of batches to compute as one, if rows are independent."""
        if self._most_to_merge is None:
            most = 1
            if executor_group.can_merge_batches(self.module):
                most = max(1, min(_BATCHES_AT_ONCE,
                                  _BYTES_AT_ONCE // executor_group.bytes_of_batch(self.module)))
            self._most_to_merge = most
        return self._most_to_merge

    def gradients_of_merged(self, batches):
        """Return the sum of the gradients of several batches of the bound size."""
        rows = len(batches) * executor_group.batch_size(self.module)
        if self._merged is None or executor_group.batch_size(self._merged) != rows:
            merged = self._new_module()
            executor_group.bind_for_merged(merged, self.module, len(batches))
            self._merged = merged  # not before it is bound: an error can stop that
        with missing_loss_named(self.masks.symbol):
            executor_group.run_merged(self._merged, batches)
        return executor_group.gradients(self._merged)

    # A step

    def keep_outputs(self, live):
        """Protect the outputs of a forward pass from the run at the snapshot."""
        self._activations_are_live = True
        if self.shares_pool:
            executor_group.take_outputs_out_of_pool(live)

    def restore_activations(self, live, is_training):
        """Run the live module forward again if a run at the snapshot has used its memory."""
        if not self._activations_are_live:
            executor_group.repeat_forward(live, is_training)
            self.keep_outputs(live)

    def gradients_of_step(self, live, is_training, out_grads):
        """Compute the gradients of the live module's latest batch, with its states and masks.

        Returns
        -------
        dict of str to list of NDArray
            For each parameter one gradient per device. The next run overwrites
            these arrays.
        """
        if self.shares_inputs and not (executor_group.has_been_reshaped(live)
                                       or executor_group.has_been_reshaped(self.module)):
            self._latest, copies_inputs = self.module, False
        else:
            shapes = live.data_shapes, live.label_shapes, executor_group.rows_bound(live)
            self._latest = self._already_bound_for(*shapes) or self._bind_other(*shapes)
            copies_inputs = True
        executor_group.run_on_inputs_of(live, self._latest, is_training, self.masks.names,
                                        copies_inputs, out_grads)
        self._activations_are_live = not self.shares_pool
        return executor_group.gradients(self._latest)

    # Executors

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
        resizable = self.masks.names
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

"""Executors at the snapshot: those of a second Module of the network, and further ones."""

import functools

from mxnet.module import Module

from ..data.batch_rows import as_list, count_rows, shapes_of
from . import executor_group
from .loss_reduction import LossReduction, missing_loss_named
from .losses import Losses

# Number of small batches that are computed at once, since calls take longer than arithmetic,
# and their bytes with their activations. Twice as many bytes would save 2 % of an epoch of the
# MLP, but SVRG would take a fifth more memory.
_BATCHES_AT_ONCE = 16
_BYTES_AT_ONCE = 1 << 21
# Bytes from which sharing memory is worth a copy of the outputs in each step. LeNet's
# activations are 25 MB, and SVRG takes 1.16 of Module's memory instead of 2.
_WORTH_SHARING = 1 << 18


class Executors:
    """Executors with the weights of the snapshot of a Module that is trained, the "live" one.

    A second Module of the same network holds the weights. A third one, for
    batches of another shape, shares its parameters, and so does a fourth. The second
    cannot be reshaped instead, because MXNet does not reshape executors with csr data or
    with masks.

    Parameters
    ----------
    live : SVRGModule
        Module being trained, which is not bound yet.
    masks : DropoutMasks
        Dropout masks of the network, which are inputs of the module.
    nodes : list of dict
        Nodes of the network, from its JSON.
    loss_is_mean
        Constructor argument of this name.

    Attributes
    ----------
    module : mxnet.module.Module
        The second module. It uses the input arrays of the live one if possible.
    loss_reduction : LossReduction or None
        Reduction of the loss over a batch; None before `bind`.
    looks_at_labels : bool
        Whether this is the first pass, which looks at the labels.
    shares_inputs : bool
        Whether `module` uses the input arrays of the live module.
    shares_pool : bool
        Whether it also uses the memory of the live module's activations.
    """

    def __init__(self, live, masks, nodes, loss_is_mean):
        self.masks, self._nodes, self._loss_is_mean = masks, nodes, loss_is_mean
        self._losses = Losses(masks.symbol_taking, masks.graph_taking, {
            *live._data_names, *live._label_names, *live._state_names, *masks.names})
        self._new_module = functools.partial(
            Module, self._losses.symbol, live._data_names, live._label_names, live.logger,
            live._context, fixed_param_names=live._fixed_param_names,
            group2ctxs=live._group2ctxs, state_names=live._state_names + masks.names)
        self.module = self._new_module(work_load_list=live._work_load_list)
        self.loss_reduction, self.looks_at_labels = None, True
        self._forget_further_ones()

    def _forget_further_ones(self):
        self._others, self._most_to_merge = [], None
        self.shares_inputs = self.shares_pool = False

    def bind(self, live, shared=None):
        """Bind for the same batches and gradients as the live module, which is bound.

        With `shared`, Executors too, the parameters are theirs.
        """
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
        is_random = self.masks.names or self.masks.unshared
        self.shares_inputs = (shared is None and not is_random
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
        self._forget_further_ones()

    # Which module

    def for_batch(self, batch, cuts_states=False):
        """Return a module that is bound for a batch, None if that is not possible.

        It is not possible if a device would have no row, or if the symbol
        contains another batch size. With `cuts_states` the states may lose
        their last rows, on one device.
        """
        if self.is_whole(batch):
            return self.module
        data_shapes, label_shapes = shapes_of(batch, self.module.data_shapes,
                                              self.module.label_shapes)
        rows, _ = count_rows(batch, data_shapes)
        parts = executor_group.split_rows(self.module, rows)
        resizable = self.masks.names
        if cuts_states and len(parts) == 1:
            resizable = self.module._state_names  # the masks are among them
        return self._bound_for(data_shapes, label_shapes, parts) or (
            self._bind_other(data_shapes, label_shapes, parts)
            if executor_group.can_bind(self.module, data_shapes, label_shapes, parts, resizable)
            else None)

    def bound_for(self, argument, batch):
        """Return the module that is bound for a batch of an argument, or raise a ValueError."""
        module = self.for_batch(batch)
        if module is None:
            raise ValueError('%s must yield batches of the shapes that the module is bound for, '
                             '%s, or such as it can be bound for, and not %s' % (
                                 argument, [shape for _, shape in self.module.data_shapes],
                                 [array.shape for piece in as_list(batch)
                                  for array in piece.data]))
        return module

    def for_inputs_of(self, live):
        """Return a module for the batch that the live one has, and whether it shares the inputs."""
        if self.shares_inputs and not (executor_group.has_been_reshaped(live)
                                       or executor_group.has_been_reshaped(self.module)):
            return self.module, True
        shapes = live.data_shapes, live.label_shapes, executor_group.rows_bound(live)
        return self._bound_for(*shapes) or self._bind_other(*shapes), False

    def _bound_for(self, data_shapes, label_shapes, parts):
        for module in (self.module, *self._others):
            if executor_group.rows_bound(module) == parts and (
                    module.data_shapes, module.label_shapes) == (data_shapes, label_shapes):
                return module
        return None

    def _bind_other(self, data_shapes, label_shapes, parts):
        executor_group.share_no_inputs(self.module)
        other = self._new_module(work_load_list=parts)
        other.bind(data_shapes, label_shapes, shared_module=self.module,
                   grad_req=executor_group.gradient_requests(self.module))
        self._others = [*self._others[-1:], other]  # several batches as one, and the last one
        return other

    def is_whole(self, batch):
        """Tell whether a batch has the bound shapes and dtypes, and no padding."""
        return (isinstance(getattr(batch, 'data', None), (list, tuple))
                and not getattr(batch, 'pad', None)
                and executor_group.is_bound_for(self.module, batch))

    def most_to_merge(self, batch):
        """Return how many batches to compute as one, if they are like this one and whole."""
        if not self.is_whole(batch):
            return 1
        if self._most_to_merge is None:
            self._most_to_merge = 1
            if self.loss_reduction.is_row_wise and executor_group.can_merge_batches(self.module):
                self._most_to_merge = max(1, min(
                    _BATCHES_AT_ONCE,
                    _BYTES_AT_ONCE // executor_group.bytes_of_batch(self.module, batch)))
        return self._most_to_merge

    # Gradients and losses. The next run overwrites them.

    def gradients(self, module, batch, live, draws_masks=True, warn_once=None):
        """Return the gradients and losses of a batch, by device, with the live module's states.

        Parameters
        ----------
        module : mxnet.module.Module
            Result of `for_batch`.
        batch : DataBatch or list of DataBatch
            The batch, or one batch for each device.
        live : mxnet.module.Module
            Module being trained.
        draws_masks : bool
            Whether Dropout masks are new. Otherwise they are those of the last run.
        warn_once : WarnOnce, optional
            Warns of labels, if the batch has no padding.

        Returns
        -------
        gradients, losses
            As in Part.
        """
        executor_group.copy_states(live, module)
        if draws_masks:
            executor_group.draw_masks(module, self.masks)
        with missing_loss_named(self.masks.symbol):
            executor_group.run(module, batch)
        losses = [self._losses.of(outputs) for outputs in executor_group.outputs(module)]
        if self.looks_at_labels and warn_once:
            for outputs in executor_group.outputs(module):
                self._losses.check_labels(outputs, warn_once)
        return executor_group.gradients(module), None if None in losses else losses

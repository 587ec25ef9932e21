"""Executors at the snapshot: those of a second Module of the network, and further ones."""

import functools
import math

import mxnet as mx
from mxnet.module import Module

from ..core.arrays import bytes_of
from ..core.front_end import NoLossError
from ..core.full_gradient import BatchGradient
from ..data.batch_rows import arrays_of, labels_of, resized, shapes_of
from ..data.iterators import rows_of_batch
from . import executor_group
from .graph import check_sizes
from .loss_reduction import LossReduction
from .losses import Losses

# Number of small batches that are computed at once, since calls take longer than arithmetic,
# and their bytes with their activations. Twice as many bytes would save 2 % of an epoch of the
# MLP, but SVRG would take a fifth more memory. Where activations have less than a quarter of the
# inputs' bytes, as in linear models, four times as many save a fifth of newton_cg's time.
_BATCHES_AT_ONCE = 64
_BYTES_AT_ONCE = 1 << 21
_LARGEST = 2 ** 31 - 1  # elements of an array, also of those that csr data do not store


class Executors:
    """Executors with the weights of the snapshot of a Module.

    A second Module of the same network, `module`, holds the weights. A third and a fourth one,
    for batches of other shapes, share its parameters. The second one cannot be reshaped
    instead, because MXNet does not reshape executors with csr data.
    """

    def __init__(self, model, graph, loss_is_mean):
        self._loss_is_mean, self._inputs = loss_is_mean, []
        self._losses = Losses(model.symbol, graph, {
            *model._data_names, *model._label_names, *model._state_names})
        self._new_module = functools.partial(
            Module, self._losses.symbol, model._data_names, model._label_names, model.logger,
            model._context, fixed_param_names=model._fixed_param_names,
            state_names=model._state_names, group2ctxs=model._group2ctxs)
        self.module = self._new_module(work_load_list=model._work_load_list)
        self._others, self._most_to_merge = [], None

    def bind(self, model, shared=None):
        """Bind as the model is bound, with the parameters of `shared`, further Executors."""
        self._inputs = model.data_shapes + (model.label_shapes or [])
        vars(self).pop('loss_reduction', None)
        if not model.for_training:
            return
        requests = {name: 'write' if name in model._param_names and request != 'null' else 'null'
                    for name, request in executor_group.gradient_requests(model).items()}
        if shared:
            executor_group.share_no_inputs(shared.module)
        self.module.bind(model.data_shapes, model.label_shapes, grad_req=requests,
                         shared_module=shared and shared.module)
        if not shared:
            executor_group.share_inputs(self.module, model)
            if self.module.params_initialized:
                self.module._exec_group.set_params(
                    self.module._arg_params, self.module._aux_params)
        self.module.params_initialized = True  # the first snapshot sets them

    def reset_bind(self):
        """Forget the executors, but not the parameters."""
        if not self.module.params_initialized:
            self.module._arg_params = self.module._aux_params = None
        elif self.module.binded:
            self.module.get_params()  # copied from the old executors for the next ones
        self.module._reset_bind()
        self._others, self._most_to_merge = [], None

    @functools.cached_property
    def loss_reduction(self):
        """The LossReduction of what is bound, which is measured when it is needed."""
        return LossReduction(self._losses, self._inputs, self._loss_is_mean)

    # Which module

    def for_batch(self, batch, cuts_states=False):
        """Return a module that is bound for a batch, None if MXNet cannot bind one.

        With `cuts_states` the states may lose their last rows, on one device.
        """
        if self.is_whole(batch):
            return self.module
        module = self.for_shapes(*shapes_of(batch, self.module.data_shapes,
                                            self.module.label_shapes))
        may_cut = cuts_states and len(self.module._context) == 1
        return module if module and (may_cut or executor_group.have_equal_shapes(
            module, self.module, module._state_names)) else None

    def bound_for(self, argument, batch):
        """Return the module that is bound for a batch of an argument, or raise a ValueError."""
        module = self.for_batch(batch)
        if module is None:
            bound = [(each.name, each.shape)
                     for each in self.module.data_shapes + (self.module.label_shapes or [])]
            given = [array.shape for array in arrays_of(batch)]
            raise ValueError('%s must yield batches that the module can be bound for, like %s, and '
                             'not %s' % (argument, bound, given))
        return module

    def for_shapes(self, data_shapes, label_shapes):
        """Return a module that is bound for these shapes, None if MXNet cannot bind one."""
        for module in (self.module, *self._others):
            if (module.data_shapes, module.label_shapes) == (data_shapes, label_shapes):
                return module
        executor_group.share_no_inputs(self.module)
        other = self._new_module(work_load_list=executor_group.work_loads(
            self.module, rows_of_batch(None, data_shapes)))
        try:
            check_sizes(self._losses.graph, dict([*data_shapes, *(label_shapes or [])]))
            other.bind(data_shapes, label_shapes, shared_module=self.module,
                       grad_req=executor_group.gradient_requests(self.module))
        except (RuntimeError, ValueError):
            return None  # the network has another batch size in it, or a device would have no row
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
            module = self.module
            of_layers = executor_group.bytes_of_activations(module)
            size = sum(map(bytes_of, [*batch.data, *labels_of(batch)]))
            size = size // 4 if of_layers < size // 4 else size + of_layers
            most = min(_BATCHES_AT_ONCE, _BYTES_AT_ONCE // size,
                       _LARGEST // max(math.prod(array.shape) for array in batch.data))
            can_merge = (most > 1 and self.loss_reduction.is_row_wise
                         and executor_group.can_merge_batches(module)
                         and self.for_shapes(*[
                             descriptions and resized(descriptions, most * batch.data[0].shape[0])
                             for descriptions in (module.data_shapes, module.label_shapes)]))
            self._most_to_merge = most if can_merge else 1
        return self._most_to_merge

    # Gradients and losses. The next run overwrites them.

    def run(self, module, batch, model, warn_once=None):
        """Return the BatchGradient of a batch, with the model's states.

        `module` is what `for_batch` has returned for it. With `warn_once` labels are looked at.
        """
        try:
            by_device = executor_group.run(module, batch, model)
        except mx.MXNetError as error:
            if 'head_gradient is required' not in str(error):
                raise
            raise NoLossError('the symbol has outputs without a loss, and so no full gradient: put '
                              'such of %s into mx.sym.BlockGrad, or, if backward gets its '
                              'out_grads, the loss that these come from into mx.sym.MakeLoss'
                              % ', '.join(model.symbol.list_outputs())) from error
        losses = [self._losses.of(outputs) for outputs in by_device]
        for outputs in by_device if warn_once else ():
            self._losses.check_labels(outputs, warn_once)
        return BatchGradient(executor_group.gradients(module), executor_group.batch_size(module),
                             losses=None if None in losses else losses)

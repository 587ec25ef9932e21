"""What computes gradients at the snapshot of a Module."""

from ..core.arrays import set_all
from ..core.front_end import Reference
from ..core.full_gradient import BatchGradient, Sum
from ..core.random_numbers import RandomNumbers
from ..data.batch_rows import (
    arrays_of,
    as_list,
    check_batch,
    count_rows,
    labels_of,
    without_padding,
)
from ..data.iterators import pads_in_front
from . import executor_group
from .executors import Executors
from .graph import is_random, is_set
from .inputs import Inputs
from .workers import kvstore_of_weights


class ModuleReference(Reference):
    """Gradients at the snapshot of a Module.

    Its `batch_size` is B, the rows that the model is bound for. `bucket_of` takes a batch
    of the pass under way and returns the module of its bucket, if there are buckets.
    """

    bucket_of = None
    _is_first_pass = None  # which looks at labels

    def __init__(self, model, graph, warn_once, settings):
        nodes = graph['nodes']
        self.executors = Executors(model, graph, settings.loss_is_mean)
        self.random_layers = [node['name'] for node in nodes if is_random(node)]
        self._numbers, self._runs = RandomNumbers(), executor_group.RunsOnInputs()
        self.warn_once, self._devices = warn_once, len(model._context)
        self._inputs = Inputs(graph, {*model._data_names, *model._label_names})
        self._has_batch_statistics = any(  # which a frozen BatchNorm does not change
            nodes[place]['name'] in model._aux_names for node in nodes
            if not is_set(node.get('attrs', {}), 'use_global_stats')
            for place, *_ in node['inputs'])
        self.fixed_gammas = {  # gammas that a pass sets to 1: they are no part of the objective
            nodes[node['inputs'][1][0]]['name'] for node in nodes
            if node['op'] in ('BatchNorm', 'BatchNorm_v1')
            and is_set({'fix_gamma': 'True', **node.get('attrs', {})}, 'fix_gamma')}

    def bind(self, model, shared=None):
        """Bind as the model is bound, with the parameters of `shared`, another one, if given."""
        self.batch_size = executor_group.batch_size(model)
        self.adds = 'add' in executor_group.gradient_requests(model).values()
        self.executors.bind(model, shared and shared.executors)

    def noise_sources(self):
        """List the layers that draw random numbers, and the use of a batch's own statistics."""
        return [*self.random_layers, *['BatchNorm'] * self._has_batch_statistics]

    def draw(self, is_new=True):
        """Let random layers draw new numbers, or the last ones again."""
        if self.random_layers:
            self._numbers.set_seed(is_new)

    def new_sum(self):
        """Return a Sum that is 0."""
        return Sum(executor_group.gradients(self.executors.module), self._devices, self.batch_size,
                   self.executors.loss_reduction.is_mean)

    # Weights

    def weights(self):
        """Map each parameter to a list of its arrays at the snapshot, one per device."""
        return executor_group.parameters(self.executors.module)

    def values(self):
        """Map each parameter and auxiliary state to a list of its arrays there, one per device."""
        return executor_group.values(self.executors.module)

    def values_of(self, model):
        """Map the same names to the arrays of the model."""
        return executor_group.values(model)

    def state(self):
        """Map each name to its array on one device, or on the host if nothing is bound."""
        module = self.executors.module
        if module.binded:
            return super().state()
        weights, auxiliary = module.get_params()
        return {**weights, **auxiliary}

    def set_values(self, values):
        """Set some or all values at the snapshot to copies of others."""
        set_all(self.values(), values)
        executor_group.mark_host_copies_stale(self.executors.module)

    def copy_from(self, model):
        """Set the values at the snapshot to those of the model."""
        self.set_values(self.values_of(model))
        kvstore = kvstore_of_weights(model)
        if kvstore:
            executor_group.pull_sparse_weights(kvstore, self.executors.module)

    # A pass

    def begin_pass(self):
        """Warn of what makes the full gradient another one than that of the steps."""
        self._is_first_pass = self._is_first_pass is None
        reduction = self.executors.loss_reduction
        if reduction.is_masked and not reduction.mask:
            self.warn_once("the loss is a mean that normalization='valid' or weights of rows make: "
                           'the full gradient counts each row, so another shuffling has another '
                           'optimum. Take MakeLoss of the sum, or one SoftmaxOutput whose label is '
                           'an input')

    def inputs_kept(self, model):
        """Return a context after which a model has its inputs again, which passes may share."""
        return executor_group.inputs_kept(model)

    # The gradient

    def gradient(self, model, batch, a_pass=None, draws=False, is_training=True, out_grads=None):
        """Return the BatchGradient of a batch; None is the model's latest one."""
        if batch is None:
            if self.random_layers:
                self.draw(is_new=False)
            module, shapes = self.executors.module, (model.data_shapes, model.label_shapes)
            if (module.data_shapes, module.label_shapes) != shapes:
                module = self.executors.for_shapes(*shapes)
            return BatchGradient(*self._runs.run(model, module, is_training, out_grads))
        if self.bucket_of:
            model = self.bucket_of(batch)
        executors = model._svrg.reference.executors
        if a_pass is None or a_pass.is_repeated:
            model._svrg.reference.draw(is_new=draws)
        if a_pass is None:
            return executors.run(executors.bound_for('data', batch), batch, model)
        part, module, real = self._real_rows(executors, batch, a_pass)
        if not real:
            return BatchGradient({}, executor_group.batch_size(executors.module))
        reduction = executors.loss_reduction
        found = executors.run(module, part, model,
                              self.warn_once if self._is_first_pass else None)
        if not reduction.is_known:
            self.warn_once('loss_is_mean must be True or False, and not None, where an operator of '
                           "one's own, random numbers or a fixed batch size hide whether the loss "
                           'is a mean over the rows of a batch: it is taken for a %s'
                           % ('mean' if reduction.is_mean else 'sum'))
        parts = executor_group.rows_on_devices(module, reduction.mask)
        return found._replace(rows=round(real * sum(parts)),
                              weights=reduction.weights(parts, real, self.batch_size))

    def _real_rows(self, executors, batch, a_pass):
        """Return what is left of a batch without its padding, and the module that is bound for it.

        The last one returned is which part of its rows are real: 1 where all padding is cut off.
        """
        shapes = executors.module.data_shapes, executors.module.label_shapes or []
        check_batch('train_data', batch, *shapes)
        rows, padding = count_rows(batch, shapes[0])
        if padding == rows:
            return batch, None, 0
        if executors.loss_reduction.is_mixed:
            if rows - padding != self.batch_size:
                self.weighs_padding = True
                self.warn_once(
                    'the symbol has losses that are sums and losses that are means: a short batch '
                    'is weighted by its real rows, which is right for one kind only. Choose a '
                    'batch size that divides the rows, or loss_is_mean if all that matter are of '
                    'one kind')
        elif padding:
            in_front = pads_in_front(a_pass.train_data)
            part = without_padding(batch, *shapes, in_front)
            bound = executors.for_batch(part, cuts_states=not in_front)
            if bound is not None:
                return part, bound, 1
            self.weighs_padding = True
            self.warn_once(
                'the module cannot be bound for the real rows of a padded batch alone: it is '
                'weighted by its real rows, padding included. Choose a batch size that divides '
                "the rows, or last_batch_handle='discard'")
        return batch, executors.bound_for('train_data', batch), (rows - padding) / rows

    def batches_at_once(self, batch):
        """Return how many batches like this one may be computed as one."""
        return 1 if self.bucket_of else self.executors.most_to_merge(batch)

    def inputs(self, batch, a_pass):
        """List the names of the data and the labels in a batch, and their real rows."""
        module = self._bucket(batch).executors.module
        labels = labels_of(as_list(batch)[0]) and module.label_shapes or []
        rows, padding = count_rows(batch, module.data_shapes)
        if padding == rows:
            return []
        if padding or isinstance(batch, list):
            batch = without_padding(batch, module.data_shapes, labels,
                                    pads_in_front(a_pass.train_data))
        return [(each.name, array.astype(each.dtype, copy=False))
                for each, array in zip([*module.data_shapes, *labels], arrays_of(batch))]

    def inputs_of_weights(self, batch, a_pass):
        """List the layers that are applied to inputs, and these inputs without padding."""
        inputs, weights = dict(self.inputs(batch, a_pass)), self.weights()
        return [found for found in self._bucket(batch)._inputs.of(inputs or None)
                if found[0].weight in weights]

    def _bucket(self, batch):
        return self.bucket_of(batch)._svrg.reference if self.bucket_of else self

"""What computes gradients at the snapshot of a Module."""

import numpy as np

from ..core.front_end import Reference, number_in
from ..core.full_gradient import BatchGradient, Sum
from ..data.batch_rows import as_list, check_batch, count_rows, labels_of, without_padding
from ..data.iterators import pads_in_front
from . import executor_group
from .executors import Executors
from .inputs import layers_of_inputs
from .loss_reduction import is_set
from .workers import kvstore_of_weights


class ModuleReference(Reference):
    """Gradients at the snapshot of a Module.

    Its `batch_size` is B, the rows that the model is bound for. `bucket_of` takes a batch
    of the pass under way and returns the module of its bucket, if there are buckets.
    """

    bucket_of = batch_size = None

    def __init__(self, model, masks, nodes, warn_once, settings):
        self.executors = Executors(model, masks, nodes, settings.loss_is_mean)
        self.warn_once, self._devices = warn_once, len(model._context)
        self._layers_of_inputs = layers_of_inputs(nodes, model._data_names)
        self._has_batch_statistics = any(  # which a frozen BatchNorm does not change
            nodes[place]['name'] in model._aux_names for node in nodes
            if not is_set(node.get('attrs', {}), 'use_global_stats')
            for place, *_ in node['inputs'])
        self.set_in_pass = {  # gammas that a pass sets to 1: they are no part of the objective
            nodes[node['inputs'][1][0]]['name'] for node in nodes
            if node['op'] in ('BatchNorm', 'BatchNorm_v1')
            and is_set({'fix_gamma': 'True', **node.get('attrs', {})}, 'fix_gamma')}

    def bind(self, model, shared=None):
        """Bind as the model is bound, with the parameters of `shared`, another one, if given."""
        self.batch_size = executor_group.batch_size(model)
        self.executors.bind(model, shared and shared.executors)

    def disturbances(self):
        """List the layers that draw random numbers, and the use of a batch's own statistics."""
        masks = self.executors.masks
        return [*masks.layers, *masks.unshared, *['BatchNorm'] * self._has_batch_statistics]

    @property
    def is_repeatable(self):
        """Whether a batch has the same gradient again with the same masks."""
        return not self.executors.masks.unshared

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
        super().set_values(values)
        executor_group.mark_host_copies_stale(self.executors.module)

    def copy_from(self, model):
        """Set the values at the snapshot to those of the model."""
        super().copy_from(model)
        kvstore = kvstore_of_weights(model)
        if kvstore:
            executor_group.pull_sparse_weights(kvstore, self.executors.module)

    # A pass

    def inputs_kept(self, model):
        """Protect the model's inputs from a pass, for a later backward or a Monitor."""
        return executor_group.inputs_kept(model if self.executors.shares_inputs else None)

    def gradients_of_pass(self, batches, model, source, total, stores):
        """Yield the gradients of the batches of a pass, a BatchGradient for each."""
        reduction, unshared = self.executors.loss_reduction, self.executors.masks.unshared
        if unshared:
            self.warn_once('%s: these layers draw random numbers anew at the snapshot, noise in '
                           'each step; only Dropout layers share theirs' % ', '.join(unshared))
        if reduction.is_masked and not reduction.mask:
            self.warn_once("normalization='valid' counts what only the loss knows: the full "
                           'gradient counts each row, so another shuffling has another optimum. '
                           'Take MakeLoss of the sum, or one SoftmaxOutput whose label is an input')
        is_first = not model._svrg.snapshot.num_taken
        for batch in batches:
            if stores and isinstance(batch, list):
                raise ValueError('store_snapshot_grads must be False where train_data yields '
                                 'lists of batches')
            yield self._without_padding(batch, model, source, self.warn_once if is_first else None)

    def _without_padding(self, batch, model, source, warn_of_labels):
        """Return the BatchGradient of a batch."""
        model, executors = self._of_bucket(batch, model)
        module, reduction = executors.module, executors.loss_reduction
        run, rows, padding = batch, executor_group.batch_size(module), 0
        if not executors.is_whole(batch):
            shapes = module.data_shapes, module.label_shapes or []
            check_batch('train_data', batch, *shapes)
            rows, padding = count_rows(batch, shapes[0])
            if padding == rows:
                return BatchGradient(batch, {}, batches=0, is_of_step=False)
            module = None
        real_rows = rows - padding
        real = real_rows / rows
        if reduction.is_mixed:
            if real_rows != self.batch_size:
                self.warn_once(
                    'the symbol has losses that are sums and losses that are means: a short batch '
                    'is weighted by its real rows, which is right for one kind only. Choose a '
                    'batch size that divides the rows, or loss_is_mean if all that matter are of '
                    'one kind')
        elif padding:
            in_front = pads_in_front(source.train_data)
            cut = without_padding(batch, *shapes, in_front)
            module = executors.for_batch(cut, cuts_states=not in_front)
            if module is None:
                self.warn_once(
                    'the module cannot be bound for the real rows of a padded batch alone: it is '
                    'weighted by its real rows, padding included. Choose a batch size that divides '
                    "the rows, or last_batch_handle='discard'")
            else:
                run, real = cut, 1
        module = module or executors.bound_for('train_data', batch)
        gradients, losses = executors.run(module, run, model, source.draws_random_numbers,
                                          warn_of_labels)
        parts = executor_group.rows_on_devices(module, reduction.mask)
        weights = reduction.weights(parts, real, self.batch_size)
        return BatchGradient(batch, gradients, weights, round(real * sum(parts)),
                             number_in(batch), losses, is_of_step=run is batch)

    def _of_bucket(self, batch, model):
        """Return the module of a batch that is trained, and its executors at the snapshot."""
        if self.bucket_of:
            model = self.bucket_of(batch)
        return model, model._svrg.reference.executors

    def batches_at_once(self, batch):
        """Return how many batches like this one may be computed as one."""
        return 1 if self.bucket_of else self.executors.most_to_merge(batch)

    def inputs_of_weights(self, batch, source):
        """List the layers that are applied to inputs, and these inputs without padding."""
        bucket = self.bucket_of(batch)._svrg.reference if self.bucket_of else self
        shapes = bucket.executors.module.data_shapes
        rows, padding = count_rows(batch, shapes)
        if 0 < padding < rows:
            batch = without_padding(batch, shapes, None, pads_in_front(source.train_data))
        return [(layer, piece.data[place] if padding < rows else np.empty(0))
                for piece in as_list(batch) for layer, place in bucket._layers_of_inputs.items()
                if layer.weight in self.weights()]

    def gradients_of_batch(self, model, batch, draws):
        """Return the gradients of a batch with its padding, and the number of its rows."""
        model, executors = self._of_bucket(batch, model)
        module = executors.bound_for('data', batch)
        gradients, _ = executors.run(module, batch, model, draws)
        return gradients, executor_group.batch_size(module)

    def arrays_of(self, batch):
        """List the data and labels of a batch."""
        return [array for piece in as_list(batch) for array in [*piece.data, *labels_of(piece)]]

    # A step

    def gradients_of_step(self, model, batch, is_training, out_grads):
        """Compute the gradients of the model's latest batch, with its states and masks."""
        executors = self.executors
        module = executors.module
        shares_inputs = executors.shares_inputs
        if (module.data_shapes, module.label_shapes) != (model.data_shapes, model.label_shapes):
            module, shares_inputs = executors.for_shapes(
                model.data_shapes, model.label_shapes), False
        executor_group.run_on_inputs_of(model, module, is_training, executors.masks.names,
                                        shares_inputs, out_grads)
        return executor_group.gradients(module)

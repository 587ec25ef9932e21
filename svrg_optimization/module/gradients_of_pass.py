"""Gradients at the snapshot of the batches of a pass, without their padding."""

from ..core.full_gradient import BATCH, STEP, SUM, Part
from ..data.batch_rows import as_list, check_batch, count_rows, repeated, without_padding
from ..data.iterators import batches_stay, pads_in_front
from . import executor_group

# Number of batches from which on it is faster to compute them as one, and their gradients again
# in the steps, than one by one to store the gradients.
_WORTH_RECOMPUTING = 4


class GradientsOfPass:
    """Gradients at the snapshot of the batches of one pass.

    Whole batches have the bound shapes and no padding. Where rows are
    independent, several small ones are computed as one: they have no gradients
    of their own to store, and a short batch among them stores none either. All
    other batches are computed one by one.

    Parameters
    ----------
    executors : Executors
        They compute the gradients; of several buckets those of the default one.
    bucket_of : callable or None
        Takes a batch and returns the module of its bucket, if there are several.
    source : Pass or Stream
        The pass.
    full_gradient : FullGradient
        Full gradient that they are for.
    stores : bool
        Whether the batches are stored.
    warn_once : WarnOnce
        Warnings of the module.
    """

    def __init__(self, executors, bucket_of, source, full_gradient, stores, warn_once):
        self._executors, self._full_gradient, self._stores = executors, full_gradient, stores
        self._bucket_of, self._source, self._warn_once = bucket_of, source, warn_once
        self._draws_masks = source.draws_random_numbers
        self._padding_first = pads_in_front(source.train_data)
        self._batches_stay = batches_stay(source.train_data)
        self._first_is_whole = None
        self._at_once = self._number_at_once()

    def _number_at_once(self):
        """Return how many whole batches to compute as one; 0 if whole ones are like others.

        None if the first one must tell.
        """
        source, mu = self._source, self._full_gradient
        reduction = self._executors.loss_reduction
        weights = reduction.weights(executor_group.rows_bound(self._executors.module), 1,
                                    mu.batch_size)
        if reduction.is_masked and not reduction.mask:
            self._warn_once("normalization='valid' counts what only the loss knows: the full "
                            'gradient takes each row for one that counts, so another shuffling '
                            'has another optimum. Take MakeLoss of the sum, with loss_is_mean='
                            'False, or one SoftmaxOutput whose label is an input')
        if reduction.is_mixed or reduction.mask or mu.row_counts or set(weights) != {1}:
            return 0
        if not reduction.is_row_wise:
            return 1
        if not self._batches_stay:
            is_dense = executor_group.has_dense_inputs(self._executors.module)
            return 1 if self._stores or is_dense else None
        data = source.train_data
        whole = data.num_data // data.batch_size
        whole = whole if source.count is None else min(whole, source.count)
        # With as few runs as possible; batches that are left over run one by one.
        _, count = min([(whole // count + whole % count, -count)
                        for count in range(1, self._executors.most_to_merge() + 1)])
        count = -count
        return 1 if self._stores and count < _WORTH_RECOMPUTING else count

    def parts(self, batches, live):
        """Yield the gradients of all batches, with the states of the live module or bucket."""
        waiting, used = [], {self._executors}
        for batch in batches:
            if self._bucket_of:
                bucket = self._bucket_of(batch)
                used.add(bucket._svrg.reference.executors)
                yield from self._others(batch, bucket, bucket._svrg.reference.executors)
            elif self._at_once != 0 and self._is_whole(batch):
                if self._at_once is None:
                    self._at_once = self._executors.most_to_merge(batch)
                if self._at_once == 1:
                    yield self._whole(batch, live)
                    continue
                waiting.append(batch if self._batches_stay else self._source.kept(batch))
                if len(waiting) == self._at_once:
                    rows = len(waiting) * self._full_gradient.batch_size
                    gradients, losses = self._executors.gradients_of_merged(
                        waiting, self._warn_once)
                    yield Part(gradients, None, rows, len(waiting), SUM, losses=losses)
                    if self._stores:
                        yield from (Part({}, kind=STEP, batch=one) for one in waiting)
                    waiting = []
            else:
                yield from self._others(batch, live, self._executors)
        for batch in waiting:
            yield self._whole(batch, live)
        for executors in used:
            executors.looks_at_labels = False

    def _is_whole(self, batch):
        """Tell whether a batch has the bound shapes and dtypes, and no padding.

        The batches of an NDArrayIter are alike, so only its first one is compared.
        """
        if getattr(batch, 'pad', None) or not isinstance(getattr(batch, 'data', 0), (list, tuple)):
            return False
        if self._first_is_whole is None or not self._batches_stay:
            self._first_is_whole = executor_group.is_bound_for(self._executors.module, batch)
        return self._first_is_whole

    def _whole(self, batch, live):
        executors, module = self._executors, self._executors.module
        gradients, losses = executors.gradients(module, batch, live, self._draws_masks,
                                                self._warn_once)
        return Part(gradients, None, executor_group.batch_size(module), 1, batch=batch,
                    losses=losses)

    def _others(self, batch, live, executors):
        """Yield the gradients of a batch with its padding cut off, and those that its step has."""
        mu = self._full_gradient
        if self._stores and isinstance(batch, list):
            raise ValueError('store_snapshot_grads must be False where train_data yields lists of '
                             'batches')
        bound = executors.module
        check_batch(self._source.argument_name, batch, bound.data_shapes, bound.label_shapes or [])
        rows, padding = count_rows(batch, bound.data_shapes)
        real_rows = rows - padding
        of_step = Part({}, kind=STEP, batch=batch)
        if real_rows <= 0:
            yield of_step
            return
        cut, module, real = self._without_padding(batch, executors, rows, real_rows)
        gradients, losses = executors.gradients(module, cut, live, self._draws_masks,
                                                self._warn_once)
        parts, counted = executor_group.rows_bound(module), real_rows
        mask = executors.loss_reduction.mask
        if mask:
            parts = executor_group.labels_bound(module, *mask)
            counted = round(real * sum(parts))
        weights = executors.loss_reduction.weights(parts, real, mu.batch_size)
        summed = Part(gradients, weights, counted, 1, SUM, losses=losses)
        if cut is batch:
            yield summed._replace(kind=BATCH, batch=batch)
        elif self._stores and self._at_once > 1:  # a step on the cut batch would bind anew
            yield summed
            yield of_step
        elif self._stores and real == 1 and not self._bucket_of and (
                executor_group.can_reshape(live, real_rows)):
            yield summed._replace(kind=BATCH, batch=cut, cut_from=rows)
        else:
            yield summed
            if self._stores or mu.row_counts:  # a step computes the padding rows too
                padded = self._module_for(batch, executors)
                gradients, _ = executors.gradients(padded, batch, live, self._draws_masks)
                yield of_step._replace(gradients=gradients)

    def _module_for(self, batch, executors):
        module = executors.for_batch(batch)
        if module is None:
            raise ValueError('%s must yield batches of the shapes that the module is bound for, '
                             '%s, or such as it can be bound for, and not %s' % (
                                 self._source.argument_name,
                                 [shape for _, shape in executors.module.data_shapes],
                                 [array.shape for piece in as_list(batch)
                                  for array in piece.data]))
        return module

    def _without_padding(self, batch, executors, rows, real_rows):
        """Cut the padding off a batch, or weight the batch by its real rows.

        Returns
        -------
        batch : DataBatch or list of DataBatch
            The rows to compute.
        module : Module
            Module at the snapshot that is bound for them.
        real : float
            Fraction of the rows that counts: less than 1 if padding could not be
            cut off, or if rows are repeated.
        """
        if executors.loss_reduction.is_mixed:
            if real_rows != self._full_gradient.batch_size:
                self._warn_once('the symbol has losses that are sums over a batch and losses '
                                'that are means: a batch with fewer real rows than are bound is '
                                'weighted by its real rows, which is right for one kind only. '
                                'Choose a batch size that divides the rows, or pass '
                                'loss_is_mean=True or False if all that matter are of one kind')
        elif real_rows < rows:
            shapes = executors.module.data_shapes, executors.module.label_shapes
            cut = without_padding(batch, *shapes, self._padding_first)
            # Fewer rows than devices: each device gets all of them.
            devices = len(self._full_gradient.shares)
            copies = devices if real_rows < devices else 1
            cut = repeated(cut, copies, *shapes)
            module = executors.for_batch(cut, cuts_states=not self._padding_first)
            if module is not None:
                return cut, module, 1 / copies
            self._warn_once('the module cannot be bound for the real rows of a padded batch '
                            'alone: the batch is weighted by its real rows, padding included. '
                            "Choose a batch size that divides the rows, or "
                            "last_batch_handle='discard'")
        return batch, self._module_for(batch, executors), real_rows / rows

"""Gradients at the snapshot of a batch of a pass, without its padding."""

from ..core.front_end import number_in
from ..core.full_gradient import BatchGradient
from ..data.batch_rows import check_batch, count_rows, without_padding
from ..data.iterators import pads_in_front
from . import executor_group


def gradient_of_batch(reference, executors, batch, model, source):
    """Return the BatchGradient of a batch, computed with the states of the model or bucket."""
    bound, reduction = executors.module, executors.loss_reduction
    if executors.is_whole(batch):
        rows = real_rows = executor_group.batch_size(bound)
    else:
        check_batch('train_data', batch, bound.data_shapes, bound.label_shapes or [])
        rows, padding = count_rows(batch, bound.data_shapes)
        real_rows = rows - padding
        if real_rows <= 0:
            return BatchGradient(batch, {}, batches=0, is_of_step=False)
    run, module, real = batch, None, real_rows / rows
    if reduction.is_mixed:
        if real_rows != reference.batch_size:
            reference.warn_once(
                'the symbol has losses that are sums and losses that are means: a short batch is '
                'weighted by its real rows, which is right for one kind only. Choose a batch size '
                'that divides the rows, or loss_is_mean if all that matter are of one kind')
    elif real_rows < rows:
        in_front = pads_in_front(source.train_data)
        cut = without_padding(batch, bound.data_shapes, bound.label_shapes, in_front)
        module = executors.for_batch(cut, cuts_states=not in_front)
        if module is None:
            reference.warn_once(
                'the module cannot be bound for the real rows of a padded batch alone: it is '
                'weighted by its real rows, padding included. Choose a batch size that divides '
                "the rows, or last_batch_handle='discard'")
        else:
            run, real = cut, 1
    module = module or executors.bound_for('train_data', batch)
    gradients, losses = executors.gradients(module, run, model, source.draws_random_numbers,
                                            reference.warn_once)
    parts, counted = executor_group.rows_bound(module), real_rows
    if reduction.mask:
        parts = executor_group.labels_bound(module, *reduction.mask)
        counted = round(real * sum(parts))
    weights = reduction.weights(parts, real, reference.batch_size)
    return BatchGradient(batch, gradients, weights, counted, number_in(batch), losses,
                         is_of_step=run is batch)

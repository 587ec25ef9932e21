"""Pass over the data that sums the gradients at the snapshot."""

from ..data.batch_rows import (
    as_list,
    check_batch,
    count_rows,
    padding_of,
    repeated,
    without_padding,
)
from ..data.iterators import pads_in_front, yields_new_arrays
from ..mxnet_bridge import executor_group


class GradientPass:
    """Sum the gradients of batches and, if wanted, store the batches and gradients.

    Parameters
    ----------
    full_gradient : FullGradient
        Full gradient that the sum is added to.
    train_data : DataIter
        Iterator of the batches.
    module : SVRGModule or None
        Module of all batches; None if each bucket has its own module.
    stored : StoredBatches, optional
        Storage of the batches and their gradients.
    """

    def __init__(self, full_gradient, train_data, module, stored=None):
        self.full_gradient = full_gradient
        self._padding_first = pads_in_front(train_data)
        self._copies = not yields_new_arrays(train_data)
        self._module = module
        self._stored = stored
        self._waiting, self._like_first = [], None
        self._sums_stored = (
            stored is not None and not module._loss_reduction.is_mixed
            and full_gradient.sums_stored(executor_group.gradients(module._mod_aux))
            and set(module._loss_reduction.weights(executor_group.rows_bound(module._mod_aux), 1,
                                                   full_gradient.batch_size)) == {1})
        self._unsummed = []
        self._at_once = self._batches_at_once()

    def _batches_at_once(self):
        """Return the number of batches that are computed at once."""
        if self._module is None or self._copies or self.full_gradient.row_counts:
            return 1
        snapshot_module = self._module._snapshot_module
        if self._sums_stored:
            return snapshot_module.batches_side_by_side()
        if self._stored is None and self._module._loss_reduction.is_row_wise:
            return snapshot_module.batches_to_merge()
        return 1

    def finish(self):
        """Add the batches that wait for others, and the stored gradients that are not added yet."""
        for batch in self._waiting:
            self._compute(self._module._snapshot_module, batch)
        self.full_gradient.add_stored(self._unsummed)

    def wait(self):
        """Wait for the arithmetic of all batches except those that wait for others."""
        self.full_gradient.wait()
        for gradients in self._unsummed[-1:]:
            for arrays in gradients.values():
                for array in arrays:
                    array.wait_to_read()

    def add(self, module, batch):
        """Add the gradients of a batch, without its padding if that can be cut off.

        Parameters
        ----------
        module : SVRGModule
            Module that the batch is for.
        batch : DataBatch or list of DataBatch
            The batch, or one batch for each device.
        """
        if self._at_once > 1 and not padding_of(batch) and self._is_as_bound(module, batch):
            self._let_wait(batch)
            return
        snapshot_module, full_gradient = module._snapshot_module, self.full_gradient
        check_batch(batch, module._mod_aux.data_shapes, module._mod_aux.label_shapes or [])
        rows, padding = count_rows(batch, module._mod_aux.data_shapes)
        real_rows = rows - padding
        if real_rows <= 0:
            self._store_batch(batch)
            return
        if (self._sums_stored and not padding and not isinstance(batch, list)
                and executor_group.is_bound_for(module._mod_aux, batch)):
            self._compute(snapshot_module, self._store_batch(batch))
            return
        cut, copies, bound = self._without_padding(module, batch, real_rows, padding)
        real_part = 1 / copies
        if bound is None:
            cut, bound = batch, self._module_for_all_rows(snapshot_module, batch)
            real_part = real_rows / rows
        gradients = snapshot_module.gradients_of(bound, cut, module)
        full_gradient.add(gradients, module._loss_reduction.weights(
            executor_group.rows_bound(bound), real_part, full_gradient.batch_size))
        steps_on_cut = cut is batch or (self._stored is not None and copies == 1
                                        and executor_group.can_reshape(module, real_rows))
        if not steps_on_cut and (full_gradient.row_counts or self._stored is not None):
            # A step includes the padding rows too.
            cut, bound = batch, self._module_for_all_rows(snapshot_module, batch)
            gradients = snapshot_module.gradients_of(bound, cut, module)
        full_gradient.count(gradients, real_rows)
        if self._stored is not None:
            cut_from = rows if cut is not batch else None
            self._stored.store([self._store_batch(cut, cut_from)], [gradients])

    def _module_for_all_rows(self, snapshot_module, batch):
        bound = snapshot_module.module_for(batch)
        if bound is None:
            raise ValueError('train_data must yield batches of the shapes that the module is bound '
                             'for, %s, or such as it can be bound for, and not %s' % (
                                 [shape for _, shape in snapshot_module.module.data_shapes],
                                 [array.shape for piece in as_list(batch)
                                  for array in piece.data]))
        return bound

    def _without_padding(self, module, batch, real_rows, padding):
        """Cut the padding off a batch.

        Returns
        -------
        cut : DataBatch or list of DataBatch
            The real rows.
        copies : int
            How often each row is repeated in `cut`.
        bound : Module or None
            Module that computes the gradients of `cut`; None if there is no
            padding or it cannot be cut off.
        """
        if module._loss_reduction.is_mixed:
            if real_rows != module._batch_size:
                module._warn_once('the symbol has losses that are sums over a batch and losses '
                                  'that are means: a batch with fewer real rows than are bound is '
                                  'weighted by its real rows, which is right for one kind only')
            return batch, 1, None
        if not padding:
            return batch, 1, None
        shapes = module._mod_aux.data_shapes, module._mod_aux.label_shapes
        cut = without_padding(batch, *shapes, self._padding_first)
        # Fewer rows than devices: each device gets all of them.
        copies = module._ctx_len if real_rows < module._ctx_len else 1
        cut = repeated(cut, copies, *shapes)
        bound = module._snapshot_module.module_for(cut)
        if bound is None:
            module._warn_once('the module cannot be bound for the real rows of a padded batch '
                              'alone: the batch is weighted by its real rows, padding included')
        return cut, copies, bound

    def _is_as_bound(self, module, batch):
        """Tell whether a batch has the bound shapes and dtypes.

        Only the first batch is compared. This is used only for NDArrayIter, which
        yields all batches alike.
        """
        if self._like_first is None:
            self._like_first = (executor_group.is_bound_for(module._mod_aux, batch)
                                and executor_group.has_dtypes_of(module._mod_aux, batch))
        return self._like_first

    def _let_wait(self, batch):
        """Let a batch wait until there are enough batches to compute at once."""
        self._waiting.append(self._store_batch(batch))
        if len(self._waiting) < self._at_once:
            return
        snapshot_module = self._module._snapshot_module
        if self._stored is None:
            self.full_gradient.add(snapshot_module.gradients_of_merged(self._waiting), [1])
        else:
            self._store_gradients(self._waiting, snapshot_module.gradients_of_each(self._waiting))
        rows = self._at_once * executor_group.batch_size(self._module._mod_aux)
        self.full_gradient.count({}, rows, self._at_once)
        self._waiting = []

    def _compute(self, snapshot_module, batch):
        """Compute the gradients of a batch of the bound shapes, and add or store them."""
        gradients = snapshot_module.gradients_of(snapshot_module.module, batch, self._module)
        if self._stored is None:
            self.full_gradient.add(gradients, [1] * len(self.full_gradient.shares))
        else:
            self._store_gradients([batch], [gradients])
        self.full_gradient.count(gradients, executor_group.batch_size(snapshot_module.module))

    def _store_gradients(self, batches, gradients):
        """Store gradients, and add those that there is no room for."""
        self._stored.store(batches, gradients)
        for stored, of_batch in zip(batches, gradients):
            if stored.at_snapshot is None:
                self.full_gradient.add(of_batch, [1] * len(self.full_gradient.shares))
            else:
                self._unsummed.append(stored.at_snapshot)

    def _store_batch(self, batch, cut_from=None):
        """Store a batch if that is wanted; return the stored batch or the batch itself.

        `cut_from` is the number of rows of the padded batch that it was cut from.
        """
        if self._stored is None:
            return batch
        if isinstance(batch, list):
            raise ValueError('store_snapshot_grads must be False where train_data yields lists of '
                             'batches')
        # A cut batch shares memory with the original and is copied.
        stored = self._stored.add(batch, self._copies or cut_from is not None)
        stored.cut_from = cut_from
        for dropped in self._stored.dropped:
            if any(dropped is gradients for gradients in self._unsummed):
                self.full_gradient.add_stored([dropped])
                self._unsummed = [gradients for gradients in self._unsummed
                                  if gradients is not dropped]
        self._stored.dropped.clear()
        return stored

"""Pass over the data that sums the gradients at the snapshot."""

from typing import Any, NamedTuple

from ..data.batch_rows import (
    as_list,
    check_batch,
    count_rows,
    padding_of,
    repeated,
    without_padding,
)
from ..data.iterators import batches_stay, pads_in_front
from ..data.passes import whole_batches_in
from ..mxnet_bridge import executor_group

# Number of batches from which running them side by side is faster: five of the softmax model
# take a tenth longer than alone.
_FEWEST_SIDE_BY_SIDE = 6


class _Part(NamedTuple):
    """Rows of a batch that are computed.

    Attributes
    ----------
    batch : DataBatch or list of DataBatch
        The rows.
    module : Module
        Module at the snapshot that is bound for them.
    real : float
        Fraction of the rows that counts: less than 1 if padding could not be
        cut off, or if rows are repeated.
    """

    batch: Any
    module: Any
    real: float


# Ways to compute whole batches. Each yields some of the batches and a list of gradients: one
# for each of these batches, or the sum of all. The next run overwrites them.


def _one_by_one(batches, snapshot_module, live):
    for batch in batches:
        yield [batch], [snapshot_module.gradients_of(snapshot_module.module, batch, live)]


def _merged(batches, snapshot_module, _):
    yield batches, [snapshot_module.gradients_of_merged(batches)]


def _side_by_side(batches, snapshot_module, _):
    yield batches, snapshot_module.gradients_side_by_side(batches)


def _for_fewest_runs(batches, fewest, most):
    """Return how many batches to compute at once; those that are left over run one by one.

    It is 1 if `most` is less than the `fewest` for which it pays.
    """
    return min(range(most, fewest - 1, -1), default=1,
               key=lambda count: batches // count + batches % count)


class GradientPass:
    """Sum the gradients of batches and, if wanted, store the batches and gradients.

    Whole batches, which have the bound shapes and no padding, are computed in
    the one way that suits the network: several as one, several side by side, or
    each alone. All other batches are computed one by one.

    Parameters
    ----------
    full_gradient : FullGradient
        Full gradient that the sum is added to.
    data_pass : Pass or Stream
        The pass.
    live : SVRGModule
        Module being trained; of several buckets the default one.
    state : SVRGState
        State of `live`.
    stored : StoredBatches, optional
        Storage of the batches and their gradients.
    module_of : callable, optional
        Takes a batch and returns the module of its bucket, and that module's
        SVRGState. By default `live` is the module of all batches.

    Attributes
    ----------
    live : SVRGModule
        Module of the latest batch.
    """

    def __init__(self, full_gradient, data_pass, live, state, stored=None, module_of=None):
        self._full_gradient = full_gradient
        self.live, self._snapshot_module = live, state.snapshot_module
        self._module_of = module_of or (lambda _: (live, state))
        self._stored = stored
        self._next_states = state.next_states or {}
        self._padding_first = pads_in_front(data_pass.train_data)
        self._batches_stay = batches_stay(data_pass.train_data)
        self._waiting, self._unsummed = [], []
        self._first_is_whole = None
        self._at_once, self._way = 0, None
        if module_of is None:
            self._at_once, self._way = self._chosen_way(state.loss_reduction, data_pass)

    def _chosen_way(self, loss_reduction, data_pass):
        """Return how many whole batches are computed at once, and the way in which they are."""
        snapshot_module, full_gradient = self._snapshot_module, self._full_gradient
        weights = loss_reduction.weights(executor_group.rows_bound(snapshot_module.module), 1,
                                         full_gradient.batch_size)
        if loss_reduction.is_mixed or full_gradient.row_counts or set(weights) != {1}:
            return 0, None
        if self._stored is None:
            most = snapshot_module.most_to_merge if loss_reduction.is_row_wise else 1
            way, fewest = _merged, 2
        elif full_gradient.sums_stored(executor_group.gradients(snapshot_module.module)):
            most = snapshot_module.most_side_by_side
            way, fewest = _side_by_side, _FEWEST_SIDE_BY_SIDE
        else:
            return 0, None
        count = 1
        if self._batches_stay:
            count = _for_fewest_runs(whole_batches_in(data_pass), fewest, most)
        return (count, way) if count > 1 else (1, _one_by_one)

    def add(self, batch):
        """Add the gradients of a batch, without its padding if that can be cut off.

        Parameters
        ----------
        batch : DataBatch or list of DataBatch
            The batch, or one batch for each device.
        """
        self.live, state = self._module_of(batch)
        if self._at_once and self._is_whole(batch):
            self._waiting.append(self._keep(batch))
            if len(self._waiting) == self._at_once:
                self._add_whole(self._way)
        else:
            self._add_other(batch, state)

    def finish(self):
        """Add the batches that wait for others, and the stored gradients that are not added yet."""
        self._add_whole(_one_by_one)
        self._sum_stored()

    def wait(self):
        """Wait for the arithmetic of all batches except those that wait for others."""
        self._full_gradient.wait()
        for gradients in self._unsummed[-1:]:
            for arrays in gradients.values():
                for array in arrays:
                    array.wait_to_read()

    # Whole batches

    def _is_whole(self, batch):
        """Tell whether a batch has the bound shapes and dtypes, and no padding.

        The batches of an NDArrayIter are alike, so only its first one is compared.
        """
        if isinstance(batch, list) or padding_of(batch):
            return False
        if self._first_is_whole is None or not self._batches_stay:
            module = self._snapshot_module.module
            check_batch(batch, module.data_shapes, module.label_shapes or [])
            self._first_is_whole = (executor_group.is_bound_for(module, batch)
                                    and executor_group.has_dtypes_of(module, batch))
        return self._first_is_whole

    def _add_whole(self, way):
        batches, self._waiting = self._waiting, []
        for some, gradients in way(batches, self._snapshot_module, self.live):
            self._carry_states(self._snapshot_module.module)  # only with batches one by one
            self._full_gradient.count(
                {}, len(some) * executor_group.batch_size(self._snapshot_module.module), len(some))
            if self._stored is not None:
                self._store(some, gradients)
            else:
                for summand in gradients:
                    self._full_gradient.add(summand)

    def _store(self, batches, gradients):
        """Store gradients to be summed later, and add those that there is no room for."""
        self._stored.store(batches, gradients)
        for batch, of_batch in zip(batches, gradients):
            if batch.at_snapshot is None:
                self._full_gradient.add(of_batch)
            else:
                self._unsummed.append(batch.at_snapshot)

    def _sum_stored(self):
        self._full_gradient.add_stored(self._unsummed)
        self._unsummed = []

    def _keep(self, batch, cut_from=None):
        """Store a batch if that is wanted; return the stored batch or the batch itself.

        `cut_from` is the number of rows of the padded batch that it was cut from.
        """
        if self._stored is None:
            return batch
        if isinstance(batch, list):
            raise ValueError('store_snapshot_grads must be False where train_data yields lists of '
                             'batches')
        before = self._stored.num_with_gradients
        # A cut batch shares memory with the original and is copied.
        stored = self._stored.add(batch, not self._batches_stay or cut_from is not None)
        stored.cut_from = cut_from
        if self._stored.num_with_gradients < before:
            self._sum_stored()  # data have taken the room of gradients, which can go now
        return stored

    # Other batches

    def _add_other(self, batch, state):
        module, full_gradient = state.snapshot_module.module, self._full_gradient
        check_batch(batch, module.data_shapes, module.label_shapes or [])
        rows, padding = count_rows(batch, module.data_shapes)
        real_rows = rows - padding
        if real_rows <= 0:
            self._keep(batch)
            return
        part = self._without_padding(batch, state, rows, real_rows)
        gradients = state.snapshot_module.gradients_of(part.module, part.batch, self.live)
        full_gradient.add(gradients, state.loss_reduction.weights(
            executor_group.rows_bound(part.module), part.real, full_gradient.batch_size))
        steps_on_part = part.batch is batch or (
            self._stored is not None and part.real == 1
            and executor_group.can_reshape(self.live, real_rows))
        if not steps_on_part and (full_gradient.row_counts or self._stored is not None
                                  or self._next_states):
            # A step includes the padding rows too, and so does its next state.
            part = self._with_padding(batch, state)
            gradients = state.snapshot_module.gradients_of(part.module, part.batch, self.live)
        self._carry_states(part.module)
        full_gradient.count(gradients, real_rows)
        if self._stored is not None:
            cut_from = None if part.batch is batch else rows
            self._stored.store([self._keep(part.batch, cut_from)], [gradients])

    def _carry_states(self, module):
        executor_group.carry_states(module, self.live, self._next_states)

    def _with_padding(self, batch, state, real=1):
        """Return a batch with its padding as a _Part."""
        bound = state.snapshot_module.module_for(batch)
        if bound is None:
            raise ValueError('train_data must yield batches of the shapes that the module is bound '
                             'for, %s, or such as it can be bound for, and not %s' % (
                                 [shape for _, shape in state.snapshot_module.module.data_shapes],
                                 [array.shape for piece in as_list(batch)
                                  for array in piece.data]))
        return _Part(batch, bound, real)

    def _without_padding(self, batch, state, rows, real_rows):
        """Cut the padding off a batch, or weight the batch by its real rows."""
        if state.loss_reduction.is_mixed:
            if real_rows != self._full_gradient.batch_size:
                state.warn_once('the symbol has losses that are sums over a batch and losses '
                                'that are means: a batch with fewer real rows than are bound is '
                                'weighted by its real rows, which is right for one kind only. '
                                'Choose a batch size that divides the rows, or pass '
                                'loss_is_mean=True or False if all that matter are of one kind')
        elif real_rows < rows:
            module = state.snapshot_module.module
            shapes = module.data_shapes, module.label_shapes
            cut = without_padding(batch, *shapes, self._padding_first)
            # Fewer rows than devices: each device gets all of them.
            devices = len(self._full_gradient.shares)
            copies = devices if real_rows < devices else 1
            cut = repeated(cut, copies, *shapes)
            bound = state.snapshot_module.module_for(cut, cuts_states=not self._padding_first)
            if bound is not None:
                return _Part(cut, bound, 1 / copies)
            state.warn_once('the module cannot be bound for the real rows of a padded batch '
                            'alone: the batch is weighted by its real rows, padding included. '
                            "Choose a batch size that divides the rows, or "
                            "last_batch_handle='discard'")
        return self._with_padding(batch, state, real_rows / rows)

"""What a front end gives the algorithm, as four base classes. A new front end begins here.

| base class | Module | Gluon |
|---|---|---|
| Reference | module/reference.py | gluon/reference.py |
| TrainedModel | module/trained_module.py | gluon/trained_parameters.py |
| BatchesOfPass | module/passes.py | gluon/batches.py |
| Workers | kvstore/workers.py | kvstore/workers.py |

`model` is the front end's own object for what is trained. The algorithm only passes it
on. Gradients and weights are dicts of parameter name to a list of NDArrays, one per
device. This is the loop of a front end whose gradients are sums over rows::

    svrg = SVRG(reference, Settings(tol=1e-6), WarnOnce(), Training())
    run = Run(svrg, trained, logging, rows,
              lambda: algorithm.take(svrg, trained, BatchesOfPass(rows), Workers()))
    for epoch in range(epochs):
        if not run.begin_epoch(epoch, epoch % 2 == 0):  # a snapshot every two epochs
            break
        for batch in batches:
            svrg.step = Step()
            ...                                       # the gradients at the current weights
            svrg.correct(model, gradients, batch)     # in place
            ...                # w - rate * (gradient / rows + wd * w), as `mean_gradient` says
            svrg.end_step()
        run.end_epoch()
    run.finish(epochs - 1)

Where `trained.moves`, as with 'newton_cg', an epoch has no batches.
tests/core/test_front_end.py has the smallest front end.
"""

import contextlib
from typing import NamedTuple, Optional

from .arrays import as_float32, set_all


class NoLossError(ValueError):
    """Error for a model without a loss, whose gradients depend on what a step is given."""


class Layer(NamedTuple):
    """A layer that multiplies an input by a weight, which has the columns of the input.

    Attributes
    ----------
    weight : str
        Name of the weight.
    bias : str or None
        Name of the bias that is added to the product.
    axis : int
        Axis of the weight that counts the columns: 0 for x w, 1 for x w^T.
    """

    weight: str
    bias: Optional[str]
    axis: int


class Reference:
    """Holder of the weights w̃ of the snapshot, which computes gradients there."""

    adds = False  # whether a step's gradients are added to those that its arrays have
    weighs_padding = False  # whether a pass has had padding that could not be cut off
    batch_size = None  # rows that the model is bound for

    def noise_sources(self):
        """List the layers, such as Dropout, that make the objective differ from batch to batch."""
        return []

    def inputs_of_weights(self, batch, a_pass):
        """List the weights that inputs of the model are multiplied by, and these inputs.

        Parameters
        ----------
        batch : object
            A batch of the pass.
        a_pass : BatchesOfPass
            The pass.

        Returns
        -------
        list of (Layer, NDArray, ...)
            The layer and its input. The last axis of the input counts the columns, or several last
            axes do so together. Arrays that the losses of the rows are multiplied by may follow.
        """
        return []

    def inputs(self, batch, a_pass):
        """List the names of the inputs in a batch of the pass, and their rows without padding."""
        return []

    # The weights

    def weights(self):
        """Map each trained parameter to its arrays at the snapshot."""
        raise NotImplementedError

    def values(self):
        """Map these and each auxiliary state, such as BatchNorm's, to their arrays there."""
        return self.weights()

    def values_of(self, model):
        """Map the names of `values` to the current arrays."""
        raise NotImplementedError

    def copy_of_values(self):
        """Return copies of the values at the snapshot."""
        return {name: [array.copy() for array in arrays]
                for name, arrays in self.values().items()}

    def set_values(self, values):
        """Set some or all values at the snapshot to copies of others."""
        set_all(self.values(), values)

    def state(self):
        """Map each name of `values` to its array on one device, for a file."""
        return {name: arrays[0] for name, arrays in self.values().items()}

    def load_state(self, state):
        """Set the values on all devices to what `state` has returned."""
        self.set_values({name: [state[name]] * len(arrays)
                         for name, arrays in self.values().items()})

    def copy_from(self, model):
        """Set the values to the current ones of the model, with which a snapshot begins."""
        self.set_values(self.values_of(model))

    def copy_auxiliary_states_of(self, model):
        """Set the auxiliary states, which a pass has changed, to the current ones."""
        weights = self.weights()
        self.set_values({name: arrays for name, arrays in self.values_of(model).items()
                         if name not in weights})

    # A pass

    def new_sum(self):
        """Return a Sum that is 0."""
        raise NotImplementedError

    def begin_pass(self):
        """Prepare for the batches of a pass."""

    def inputs_kept(self, model):
        """Return a context for passes, after which a model has the inputs of its step again."""
        return contextlib.nullcontext()

    def batches_at_once(self, batch):
        """Return how many batches like this one may be joined into one, with the rows of all."""
        return 1

    # The gradient

    def gradient(self, model, batch, a_pass=None, draws=False, is_training=True, out_grads=None):
        """Return the BatchGradient of a batch at the snapshot.

        Parameters
        ----------
        model : object
            What is trained.
        batch : object
            The batch. None is the one that the model has just computed the gradients of.
        a_pass : BatchesOfPass, optional
            The pass that the batch is of, without its padding then. It may be a SampledBatch, which
            has only the attributes of BatchesOfPass, in the place of the front end's own pass.
            Without a pass the gradient is that of a step, in which padding counts.
        draws : bool
            Whether random layers draw new numbers. Otherwise they repeat the last ones, in a step
            those of the gradients at the current weights.
        is_training, out_grads
            Of the step.
        """
        raise NotImplementedError


class TrainedModel:
    """What the optimizer of the model does with a gradient.

    Parameters
    ----------
    model : object
        What is trained.

    Attributes
    ----------
    model : object
        The argument.
    moves : bool
        Whether the optimizer is 'newton_cg', which makes no steps.
    """

    moves = False

    def __init__(self, model):
        self.model = model

    def rounded_like_a_step(self, numbers):
        """List wd or `rescale_grad` as float32, to which an optimizer rounds them.

        Without steps they are returned as they are.
        """
        return list(numbers) if self.moves else as_float32(numbers)

    def mean_gradient(self):
        """Return the MeanGradient that the optimizer steps along."""
        raise NotImplementedError

    def go_to(self, weights):
        """Set the model to weights; the optimizer begins anew there."""
        raise NotImplementedError


class BatchesOfPass:
    """The batches of one pass.

    Parameters
    ----------
    train_data : iterable
        What the user gave, for messages.
    count : int, optional
        Largest number of batches, all by default.

    Attributes
    ----------
    train_data, count
        The arguments.
    states : object
        What the model carries from batch to batch.
    is_repeated : bool
        Whether a batch is computed once more, which tells whether it draws random numbers.
    reads_inputs : bool
        Whether `inputs_of_weights` of each batch is asked after its gradients.
    """

    is_repeated, reads_inputs, states = False, False, ()

    def __init__(self, train_data, count=None):
        self.train_data, self.count = train_data, count

    def batches(self, at_once=None):
        """Return an iterator over the batches, which may be views of the data.

        `at_once` takes a batch, and returns how many like it may be joined into one.
        """
        raise NotImplementedError

    def again(self):
        """Return the same pass once more, None if it cannot be read again."""

    def kept(self, batch):
        """Return a batch that stays as it is when the next one is read; by default itself."""
        return batch


def joined_count(batch):
    """Return how many batches of the data are joined in a batch of a pass."""
    return getattr(batch, 'number', 1)


class Workers:
    """Devices and workers that a full gradient is summed over.

    By default there is one worker, whose devices train by themselves: each keeps
    its own sum as its share.
    """

    def sum(self, total):
        """Add a Sum up over all devices and workers, and give each device its share."""

    def check_same(self, plan):
        """Raise a ValueError on all workers if a value of a dict is not the same on all."""

    def allreduce_max(self, numbers):
        """Return for each number the largest of all workers, so that they decide alike."""
        return numbers

    def total(self, array):
        """Return the sum of all workers' arrays, which are numpy.ndarrays of one shape."""
        return array

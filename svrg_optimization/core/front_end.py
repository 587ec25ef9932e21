"""What a front end gives the algorithm, as four base classes. A new front end begins here.

It makes an SVRG of its GradientsAtSnapshot. For a snapshot it calls
`rate.take_snapshot`, with its TrainedModel, the BatchesOfPass and the Workers. For a
step it calls the methods of SVRG: `begin_step`, `compute_at_snapshot` after its own
backward pass, `correct` and `end_step`.

Gradients and weights are dicts of parameter name to a list of NDArrays, one per
device. `live` is the front end's own object for what is trained: the algorithm
only hands it on.
"""

import contextlib

from .arrays import dense, set_all


class GradientsAtSnapshot:
    """What has the weights w̃ of the snapshot and computes gradients there.

    Attributes
    ----------
    is_repeatable : bool
        Whether a batch has the same gradient again with the same random numbers.
    """

    is_repeatable = True

    # The weights

    def weights(self):
        """Map each trained parameter to its arrays at the snapshot."""
        raise NotImplementedError

    def values(self):
        """Map these, and auxiliary states that a pass changes, such as BatchNorm's, likewise."""
        return self.weights()

    def values_of(self, live):
        """Map the same names to the current arrays."""
        raise NotImplementedError

    def copy_of_values(self):
        """Return copies of the values at the snapshot."""
        return {name: [array.copy() for array in arrays]
                for name, arrays in self.values().items()}

    def set_values(self, values):
        """Set values at the snapshot, some or all, to copies of others."""
        set_all(self.values(), values)

    def shift_weights(self, shift):
        """Subtract from the weights a dict of one NDArray a parameter."""
        weights = self.weights()
        for name, by in shift.items():
            for weight in weights[name]:
                shifted = dense(weight) - by.as_in_context(weight.context)
                shifted.astype(weight.dtype).tostype(weight.stype).copyto(weight)

    def move_to(self, live):
        """Set the values to the current ones. A snapshot begins with it."""
        self.set_values(self.values_of(live))

    def copy_auxiliary_states_of(self, live):
        """Set the auxiliary states to the current ones. A snapshot ends with it."""
        weights = self.weights()
        self.set_values({name: arrays for name, arrays in self.values_of(live).items()
                         if name not in weights})

    # A pass

    def new_full_gradient(self):
        """Return a FullGradient that is 0."""
        raise NotImplementedError

    def inputs_kept(self, live):
        """Return a context manager that restores what a pass changes in the live model."""
        return contextlib.nullcontext()

    def gradients_of_pass(self, batches, live, source, full_gradient, stores):
        """Yield the gradients of the batches, each as a Part.

        Parameters
        ----------
        batches : iterable
            The batches of `source`, or one that it has yielded.
        live : object
            What is trained.
        source : BatchesOfPass
            The pass. What a model carries from batch to batch is an attribute of it.
        full_gradient : FullGradient
            What they are for.
        stores : bool
            Whether the batches are stored: each is then the `batch` of a Part.
        """
        raise NotImplementedError

    def arrays_of(self, batch):
        """List the NDArrays of a batch, of a pass or of a step, by which the store knows it."""
        raise NotImplementedError

    # A step

    def gradients_of_step(self, live, is_training, out_grads):
        """Compute the gradients of the step's batch, with the random numbers of the live model."""
        raise NotImplementedError


class TrainedModel:
    """What the optimizer of the model does with a gradient.

    Parameters
    ----------
    live : object
        What is trained.

    Attributes
    ----------
    live : object
        The argument.
    rule : BarzilaiBorwein or None
        What sets the learning rate from snapshots.
    rate : float or None
        Learning rate, if it is known.
    """

    rule = rate = None

    def __init__(self, live):
        self.live = live

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
        What the user gave, for messages and the store.
    count : int, optional
        Largest number of batches, all by default.

    Attributes
    ----------
    train_data, count
        The arguments.
    states : object
        What the model carries from batch to batch.
    is_repeated : bool
        Whether a batch is computed several times, with the same random numbers.
    draws_random_numbers : bool
        Whether random layers draw anew. Otherwise they repeat their last draw.
    """

    is_repeated, draws_random_numbers, states = False, True, ()

    def __init__(self, train_data, count=None):
        self.train_data, self.count = train_data, count

    def batches(self, *, are_seen=True, are_kept=False):
        """Return an iterator over the batches.

        Parameters
        ----------
        are_seen : bool
            Whether code of others sees them. Otherwise they may be views.
        are_kept : bool
            Whether they are stored.
        """
        raise NotImplementedError

    def is_whole(self, yielded):
        """Tell whether `yielded` batches were all."""
        return self.count is None

    def kept(self, batch):
        """Return a batch that stays as it is when the next one is read."""
        raise NotImplementedError


class Workers:
    """Devices and workers that a full gradient is summed over.

    By default there is one worker, whose devices train by themselves: each keeps
    its own sum.
    """

    def sum(self, full_gradient):
        """Give each device its share of the sum; return how many rows a batch sums: B."""
        full_gradient.batches_of_workers = [full_gradient.yielded]
        full_gradient.shares_differ = len(full_gradient.shares) > 1
        return full_gradient.batch_size

    def check_batches(self, full_gradient):
        """Raise a ValueError if a worker has another number of batches, and others would wait."""

    def largest(self, numbers):
        """Return for each number the largest of all workers, so that they decide alike."""
        return numbers

    def within_process(self):
        """Return what sums over the devices of this process alone."""
        return self

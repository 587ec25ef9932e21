"""The door to a model, its data and its workers: the function that is minimised, as rate/ sees it.

All else that learns, judges or moves is mathematics on NumPy's vectors, and takes an Objective.
"""

import contextlib
from typing import Any, Dict, NamedTuple

import numpy as np

from ..core.arrays import like, shifted, with_dense_storage
from ..core.front_end import BatchesOfPass, joined_count
from ..data.iterators import leaves_out_other_rows
from .metric import Metric
from .moments import InputMoments


class Kept(NamedTuple):
    """A snapshot that the next one replaces: its weights and gradient, and the steps from it."""

    values: Dict[str, list]
    full_gradient: Any
    steps: int


class SampledBatch(BatchesOfPass):
    """A pass that keeps one batch, chosen uniformly, and adds all batches to InputMoments.

    `seed` is that of the choice, which does not use NumPy's global generator.
    """

    def __init__(self, a_pass, seed, moments=None):
        super().__init__(a_pass.train_data, a_pass.count)
        self.states = a_pass.states
        self.batch, self.read, self._a_pass, self._moments = None, 0, a_pass, moments
        self.reads_inputs = moments is not None
        self._generator = np.random.RandomState(seed)

    def batches(self, at_once=None):
        """Yield the batches; keep one, by reservoir sampling, and the states before it."""
        for batch in self._a_pass.batches(at_once):
            for place in range(joined_count(batch)):
                self.read += 1
                if self._generator.randint(self.read) == 0:
                    one = batch.part(place) if joined_count(batch) > 1 else batch
                    self.batch, states = self._a_pass.kept(one), self.states
            yield batch
            if self._moments is not None:
                self._moments.add(batch)
        if self.batch is not None:
            self.states = states

    def again(self):
        """Return the pass once more, without a choice."""
        return self._a_pass.again()


class Objective:
    """The mean objective of a model over its data, at and near the snapshot.

    Points and moves are vectors of a Metric. What is asked of workers they all must ask.

    Parameters
    ----------
    svrg : SVRG
        The snapshot of the model.
    trained : TrainedModel
        The model.
    a_pass, workers : optional
        As in ``SVRG.take_snapshot``. Without them there are only the numbers of the snapshot.

    Attributes
    ----------
    warn_once : callable
        Warns of each message once.
    tol : float or None
        The setting.
    moves : bool
        Whether the optimizer is 'newton_cg', so that moves between snapshots replace steps.
    is_active : bool
        Whether there is a snapshot.
    number : int
        That of the snapshot.
    units : float
        Factor from the objective per row to the one that a step follows, at that snapshot.
    names_of_layers : set of str
        Parameters of the layers whose inputs were read there.
    """

    def __init__(self, svrg, trained, a_pass=None, workers=None):
        self._svrg, self._trained, self._workers = svrg, trained, workers
        self._first_pass = self._pass = a_pass
        self._reference, self._is_read = svrg.reference, False
        self.tol, self.moves, self.warn_once = svrg.settings.tol, trained.moves, svrg.warn_once
        self.is_active = svrg.snapshot.is_active
        self.number = svrg.snapshot.number

    def agree(self, *numbers):
        """Return a number, or some, with the largest of all workers, so that they decide alike."""
        found = self._workers.allreduce_max(list(map(float, numbers)))
        return found if len(numbers) > 1 else found[0]

    # What it is

    @property
    def mean_gradient(self):
        """The MeanGradient, with multipliers, decays and proximal operators."""
        return self._trained.mean_gradient()

    @property
    def noise_sources(self):
        """The layers, such as Dropout, that make it another one in each batch."""
        return self._reference.noise_sources()

    @property
    def train_data(self):
        """The data of the pass."""
        return self._first_pass.train_data

    @property
    def leaves_out_rows(self):
        """Whether each pass is known to leave out other rows, or to have some of padding."""
        return self._reference.weighs_padding or leaves_out_other_rows(self.train_data)

    @property
    def weights(self):
        """The array of each parameter that is updated, on one device, by name."""
        found = self._reference.values_of(self._trained.model)
        return {name: found[name][0] for name in self.mean_gradient.updated(found)}

    @property
    def dtype(self):
        """Name of the least precise dtype of the weights."""
        return self.mean_gradient.dtype(self._reference.weights())

    # The snapshot

    @property
    def value(self):
        """The mean objective per row at the snapshot, None without one or if it is not known."""
        return self._at_snapshot('objective')

    @property
    def norm(self):
        """The norm of the mean gradient at the snapshot, None without one."""
        return self._at_snapshot('norm')

    def _at_snapshot(self, method):
        snapshot = self._svrg.snapshot
        return getattr(self.mean_gradient, method)(
            snapshot.full_gradient, self._reference.weights()) if snapshot.is_active else None

    def take_snapshot(self, reads_inputs=False, may_be_undone=False):
        """Take a snapshot of the model's weights; map each Layer to its Moments, if they are read.

        It also draws a batch. `may_be_undone` as in ``SVRG.take_snapshot``.
        """
        moments = InputMoments(self._reference, self._pass) if reads_inputs else None
        self._is_read = True
        self._sample = SampledBatch(self._pass, self.number, moments)
        self._svrg.training.passes += 1
        self._svrg.take_snapshot(self._trained.model, self._sample, self._workers, may_be_undone)
        snapshot = self._svrg.snapshot
        self.number = snapshot.number
        self.units = self.mean_gradient.per_row(snapshot.full_gradient)
        if moments is None:
            return {}
        self._sample.is_repeated = True
        self.point_of_batch(Metric({}, {}))  # gluon's layers tell whether they draw then
        self.names_of_layers = moments.names
        return moments.of_all(self._workers)

    @contextlib.contextmanager
    def stale_on_error(self, forget):
        """Let a new snapshot be stale if an error ends what is learned of it, and call `forget`."""
        former = self._svrg.snapshot.full_gradient
        try:
            yield
        except BaseException:
            if self._svrg.snapshot.full_gradient is not former:
                self._svrg.snapshot.is_stale = True  # nothing is known of it
                forget()
            raise

    def rewind(self):
        """Begin another pass, which what is asked next reads; tell whether there is one."""
        if self._is_read:
            self._pass = self._first_pass.again()
        return self._pass is not None

    def kept(self):
        """Return the snapshot as `go_back` takes it, None without one."""
        snapshot = self._svrg.snapshot
        return Kept(self._reference.copy_of_values(), snapshot.full_gradient,
                    snapshot.num_update - snapshot.taken_at) if snapshot.is_active else None

    def is_at_snapshot(self):
        """Tell whether the model has the weights of the snapshot, and batches as many rows."""
        snapshot, reference = self._svrg.snapshot, self._reference
        return snapshot.is_active and not snapshot.is_stale and (
            reference.batch_size in (None, snapshot.full_gradient.batch_size)) and (
                _are_equal(reference.weights(), reference.values_of(self._trained.model)))

    def has_moved_from(self, kept):
        """Tell whether the snapshot has other weights than one that was kept."""
        return not _are_equal(self._reference.weights(), kept.values)

    def go_back(self, kept):
        """Set the model and the snapshot to one that was kept."""
        def go():
            self._svrg.snapshot.replace(None)  # until it is whole again
            self._reference.set_values(kept.values)
            self._trained.go_to(kept.values)
            self._svrg.snapshot.replace(kept.full_gradient)

        try:
            go()
        except BaseException:  # a Ctrl-C in the middle
            go()
            raise

    def go_to(self, metric, weights):
        """Set the model to weights; tell whether it has moved from those of the snapshot."""
        at = self._reference.weights()
        there = {name: [like(old, part) for old in at[name]]
                 for name, part in metric.arrays(weights).items()}
        if _are_equal(there, at):
            return False
        self._trained.go_to(there)
        return True

    # Points

    def point(self, metric, kept=None):
        """Return the Point of the snapshot, or of one that was kept."""
        if kept is not None:
            return self.mean_gradient.point(metric, kept.full_gradient, kept.values)
        return self.mean_gradient.point(
            metric, self._svrg.snapshot.full_gradient, self._reference.weights())

    def point_at(self, metric, move=None):
        """Return the Point at the snapshot plus a move of the variables, by another pass."""
        self.rewind()
        self._is_read = True
        self._svrg.training.passes += 1
        return self._point_near(
            metric, move, self._pass.batches(self._reference.batches_at_once), self._pass)

    def point_of_batch(self, metric, move=None):
        """Return the Point that the drawn batch finds there, None if it is all padding."""
        return self._point_near(metric, move, [self._sample.batch], self._sample)

    def _point_near(self, metric, move, batches, a_pass):
        snapshot, reference = self._svrg.snapshot, self._reference
        before, weights = reference.copy_of_values(), reference.weights()
        with snapshot.being_replaced(lambda: reference.set_values(before)):
            for name, by in ({} if move is None else metric.arrays(metric.push(move))).items():
                for weight in weights[name]:
                    shifted(weight, by).copyto(weight)
            full_gradient = self._svrg.sum_of_gradients(
                self._trained.model, batches, a_pass, self._workers).mean()
            point = full_gradient and self.mean_gradient.point(metric, full_gradient, weights)
            reference.set_values(before)
            snapshot.replace(snapshot.full_gradient, snapshot.taken_at)
        return point


def _are_equal(some, others):
    """Tell whether arrays, by name and device, are equal to others on the first device."""
    return all((with_dense_storage(some[name][0]) == with_dense_storage(
        others[name][0])).min().asscalar() for name in some)

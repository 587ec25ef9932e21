r"""SVRG, stochastic variance reduced gradient: the algorithm in one place.

.. math::

    &\tilde w \leftarrow w \\
    &\mu \leftarrow \frac{B}{n} \sum_{j=1}^{n} \nabla f_j(\tilde w) \\
    &\text{for each batch:} \\
    &\quad g \leftarrow \nabla f_{batch}(w)
        - \alpha (\nabla f_{batch}(\tilde w) - \mu) \\
    &\quad w \leftarrow w - \eta g

The first two lines are `SVRG.take_snapshot`, g is `SVRG.correct`, and the last line
is the optimizer's. B is the number of rows of a batch: gradients are sums over the rows
of a batch, as MXNet's loss layers give them, unless `loss_is_mean` says otherwise.

The algorithm works on dicts of parameter name to a list of arrays, one per
device. What a front end gives it is in `front_end.py`.

R. Johnson and T. Zhang, "Accelerating Stochastic Gradient Descent using
Predictive Variance Reduction", NIPS 2013, Figure 1. With α: Y. Yin, Z. Xu,
Z. Li, T. Darrell and Z. Liu, "A Coefficient Makes SVRG Effective", ICLR 2025.
"""

import collections
import dataclasses
import enum
from typing import Any, Optional

import numpy as np

from .arrays import as_numpy, dense, distance
from .correction import correct_batch
from .front_end import joined_count
from .full_gradient import BatchGradient, FullGradient
from .snapshot import Snapshot

# How many batches the iterator may run ahead of the arithmetic: queued batches take memory.
_BATCHES_AHEAD = 64


class SVRG:
    """The snapshot of a model being trained, and the step under way.

    The `model` is an argument of the methods, which only pass it on
    to `reference`. As an attribute it would make a cycle of references, and the memory of both
    would be freed late. `training` is what rate/ knows of the training, with `state` and
    `load_state`.
    """

    def __init__(self, reference, settings, warn_once, training):
        self.reference, self.settings, self.warn_once = reference, settings, warn_once
        self.snapshot, self.step, self.training = Snapshot(), Step(stage=Stage.NOT_BEGUN), training
        self._draws_are_checked = False

    # A snapshot

    def take_snapshot(self, model, a_pass, workers, may_be_undone=False):
        """Take a snapshot of the weights and compute the full gradient there.

        Steps that have led to a gradient that is not finite are not told if they `may_be_undone`.
        """
        reference = self.reference
        before = reference.copy_of_values() if self.snapshot.is_active else {}
        with self.snapshot.being_replaced(lambda: reference.set_values(before)):
            reference.copy_from(model)                                                  # w̃ ← w
            batches = a_pass.batches(reference.batches_at_once)
            total = self.sum_of_gradients(model, batches, a_pass, workers)
            mu = total.mean()                                         # μ ← (B/n) Σ ∇f_j(w̃)
            self._check_full_gradient(mu, a_pass, may_be_undone)
            reference.copy_auxiliary_states_of(model)
            self.snapshot.replace(mu)
        self.snapshot.number += 1
        self.snapshot.num_taken += 1

    def _check_full_gradient(self, mu, a_pass, may_be_undone):
        """Raise an error or warn if there is no full gradient, or it is not finite."""
        if mu is None:
            raise ValueError('train_data must yield at least one row of data, and %r yielded none'
                             % (a_pass.train_data,))
        nonfinite, raises = mu.nonfinite(), self.settings.nonfinite == 'raise'
        if not nonfinite or may_be_undone and not raises:
            return
        message = 'the full gradient is not finite: %s' % ', '.join(nonfinite)
        if not self.snapshot.num_update:
            message += ('. No step has been made: look at the data and at the initial weights '
                        '(initializer=mx.init.Zero() begins at 0), and leave out batches whose '
                        'loss is not finite')
        rows = self._rows_not_finite(a_pass)
        message += ''.join('. Rows of %s that are not finite: %d' % row for row in rows.items())
        if raises:
            raise FloatingPointError(message)
        self.warn_once(message + ". With nonfinite='raise' training stops", 'nonfinite')

    def _rows_not_finite(self, a_pass):
        """Count the rows of each input that are not finite, where the weights are not the cause."""
        weights = [arrays[0] for arrays in self.reference.weights().values()]
        again = a_pass.again() if all(np.isfinite(dense(each).asnumpy()).all()
                                      for each in weights) else None
        counts = collections.Counter()
        for batch in again.batches() if again else ():
            for name, array in self.reference.inputs(batch, a_pass):
                finite = np.isfinite(np.atleast_1d(as_numpy(array)))
                counts[name] += np.sum(~finite.reshape(len(finite), -1).all(axis=1))
        return +counts  # without zeros

    def sum_of_gradients(self, model, batches, a_pass, workers):
        """Return the Sum of the gradients of batches, over all workers."""
        total = self.reference.new_sum()
        self.reference.begin_pass()
        for number, batch in enumerate(batches, 1):
            part = self.reference.gradient(model, batch, a_pass, draws=True)
            joined = joined_count(batch)
            total.yielded += joined
            if part.rows:
                total.add(part, joined)
            if number % _BATCHES_AHEAD == 0:
                total.wait()
        total.wait()
        workers.sum(total)
        return total

    def drop_snapshot(self):
        """Deactivate the snapshot. Steps are plain steps until the next one."""
        self.snapshot.replace(FullGradient(self.reference.new_sum()), is_active=False)

    def drop_snapshot_without(self, names):
        """Drop the snapshot if its full gradient lacks one of these parameters."""
        if self.snapshot.is_active:
            lacking = set(names) - set(self.snapshot.full_gradient.shares[0])
            if lacking:
                self.warn_once('the snapshot is dropped, since it has no full gradient of %s'
                               % ', '.join(sorted(lacking)))
                self.drop_snapshot()

    # A file

    def state(self):
        """Return what a file has: the counts, and the snapshot if there is one."""
        snapshot = self.snapshot
        return {**snapshot.state(), 'training': self.training.state(),
                'values': self.reference.state() if snapshot.is_active else None,
                'full_gradient': snapshot.full_gradient.state() if snapshot.is_active else None}

    def check_state(self, state):
        """Raise a ValueError if a file has a snapshot of other parameters."""
        if state['full_gradient'] is None:
            return
        theirs, ours = ({name: value.shape for name, value in values.items()}
                        for values in (state['values'], self.reference.state()))
        if theirs != ours:
            raise ValueError('%s has a snapshot of other parameters: of the shapes %s, and not %s'
                             % (state.file_name, theirs, ours))

    def load_state(self, state, names=None):
        """Go on with what `state` has returned, and `check_state` has passed.

        `names` maps former names of parameters to others, in what was learned.
        """
        full_gradient = None
        if state['full_gradient']:
            full_gradient = FullGradient(self.reference.new_sum())
            full_gradient.load_state(state['full_gradient'])
            self.reference.load_state(state['values'])
        self.snapshot.load_state(state, full_gradient)
        self.training.load_state(state['training'], names)

    # A step

    @property
    def corrects(self):
        """Whether gradients are corrected: there is a snapshot, and α is not the number 0."""
        return self.snapshot.is_active and self.settings.alpha != 0

    def correct(self, model, gradients, batch=None, formula=None):
        """Turn the gradients of the step at the current weights into SVRG gradients, in place.

        Called again in the step, it does nothing.

        Parameters
        ----------
        model, batch
            As in ``Reference.gradient``.
        gradients : dict of str to list of NDArray
            For each parameter one gradient per device.
        formula : callable, optional
            As in `correct_batch`.
        """
        step, snapshot = self.step, self.snapshot
        if step.stage is Stage.CORRECTING:
            raise RuntimeError('update needs another forward and backward: an error has stopped '
                               'the correction of these gradients')
        if step.stage is not Stage.COMPUTED:
            return
        alpha = self.settings.alpha
        if snapshot.is_active and alpha != 0:
            if callable(alpha):
                alpha = self.settings.alpha_after(snapshot.num_update)
            then = step.gradient
            if then is None:
                then = self.reference.gradient(model, batch, is_training=step.is_training,
                                               out_grads=step.out_grads)        # ∇f(w̃)
            if not self._draws_are_checked and snapshot.num_update == snapshot.taken_at:
                self._check_draws(model, gradients, then.gradients)
            step.stage = Stage.CORRECTING
            correct_batch(gradients, then, snapshot.full_gradient, alpha,
                          formula)                                   # ∇f(w) − α (∇f(w̃) − μ)
        step.gradient, step.stage = None, Stage.READY

    def _check_draws(self, model, gradients, then):
        """Warn if the first step from a snapshot, whose weights it has, finds other gradients."""
        self._draws_are_checked = True
        moved, _ = distance(self.reference.values_of(model), self.reference.weights())
        far, size = distance(gradients, then)
        if not (moved or self.reference.adds) and far > 0.01 * size:
            self.warn_once('random numbers of a layer are other ones at the snapshot, which is '
                           "noise in each step: they must be MXNet's, so that its seed repeats "
                           "them, and not NumPy's, Python's or a custom operator's")

    def end_step(self):
        """Count the update of the weights; warn once if it was a plain one by mistake."""
        if self.step.stage is not Stage.NOT_BEGUN:
            self.step.stage = Stage.BEGUN  # another step needs other gradients
        self.snapshot.num_update += 1
        if self.settings.alpha == 0:
            self.snapshot.is_stale = True
        elif not (self.snapshot.is_active or self.snapshot.is_stale
                  or self.step.out_grads is not None):
            self.warn_once('steps without a snapshot are plain steps: call update_full_grads('
                           'train_data) before, or set alpha = 0 until then', 'plain Module')


class Stage(enum.Enum):
    """What was done last in a step.

    After COMPUTED the gradients at the current weights are there, after READY those that the
    optimizer takes. CORRECTING stays only after an error.
    """

    NOT_BEGUN, BEGUN, COMPUTED, CORRECTING, READY = range(5)


@dataclasses.dataclass
class Step:
    """One batch from its forward pass to the update of the weights.

    Attributes
    ----------
    is_training, out_grads
        How its gradients are computed at both weights.
    stage : Stage
        What was done last.
    gradient : BatchGradient or None
        That at the snapshot, where it was computed before `SVRG.correct`.
    """

    is_training: bool = True
    out_grads: Any = None
    stage: Stage = Stage.COMPUTED
    gradient: Optional[BatchGradient] = None

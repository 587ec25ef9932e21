"""The rate of 'svrg_lbfgs', and the direction of its steps, as snapshots have taught them."""

from mxnet.lr_scheduler import LRScheduler

from .learned import Learned
from .preconditioner import Preconditioner
from .saved import learned_of, state_of


def _learned(name):
    return property(lambda rule: getattr(rule.learned, name),
                    lambda rule, value: setattr(rule.learned, name, value))


class SnapshotRule(LRScheduler):
    """The `lr_scheduler` of 'svrg_lbfgs'. `take` of `algorithm.py` changes what it has learned.

    Attributes
    ----------
    learned : Learned
        What snapshots have taught.
    rate, regime, num_rollbacks
        Those of `learned`.
    """

    rate, regime, num_rollbacks = map(_learned, ('rate', 'regime', 'num_rollbacks'))

    def __init__(self):
        super().__init__(1.)
        self.reset()

    def reset(self):
        """Forget all, for another model."""
        self.learned, self._preconditioners = Learned(), {}

    @property
    def gamma(self):
        """Inverse of the curvature of the loss in the outputs; None before it is known."""
        return self.regime and self.regime.pairs.gamma

    @property
    def metric(self):
        """The variables in which distances are measured, None before the first snapshot."""
        return self.regime and self.regime.metric

    def __call__(self, num_update):
        """Return the current rate.

        Raises
        ------
        RuntimeError
            If it is not known before the first snapshot.
        """
        if self.rate is None:
            raise RuntimeError('svrg_lbfgs has no learning rate before the first snapshot: call '
                               'update_full_grads(train_data) before the first update')
        return self.rate

    # A step

    @property
    def preconditions(self):
        """Whether steps have other directions than the gradient, with the weight decay."""
        return self.regime is not None and bool(self.regime.steps.blocks)

    def begin_steps(self):
        """Let steps be in the metric and with the weight decays of a new snapshot."""
        self._preconditioners = {}

    def precondition(self, trained, svrg, gradients, weights, scale, copies=1):
        """Divide the gradients of a step by the diagonal of the metric, in place.

        Parameters
        ----------
        trained, svrg
            The model and its snapshot.
        gradients, weights : dict of str to list of NDArray
            One array a device.
        scale : float
            What the optimizer multiplies a gradient by.
        copies : int
            Number of gradients that are summed before it.
        """
        if not self.preconditions:
            return
        for device in range(len(next(iter(gradients.values())))):
            here, there = ({name: arrays[device] for name, arrays in each.items()}
                           for each in (weights, gradients))
            if device not in self._preconditioners:
                self._preconditioners[device] = Preconditioner(
                    self.regime.steps, trained.mean_gradient().decays,
                    {name: svrg.reference.weights()[name][device] for name in self.metric.shapes})
            self._preconditioners[device].apply(there, here, scale, copies)

    def step_size(self, name, rate, like):
        """Return a rate for a proximal operator, as the regime has it for each element."""
        return self.regime.step_size(name, rate, like) if self.regime else rate

    # A file

    def state(self):
        """Return what `load_state` takes, for a file."""
        return state_of(self.learned)

    def load_state(self, state, proximal, names=None):
        """Go on with what `state` has returned. Arguments are those of `learned_of`."""
        self.learned = learned_of(state, proximal, names)
        self.begin_steps()

"""What lets Gluon's Estimator train with an SVRGTrainer: a batch processor and an event handler."""

import functools

from mxnet import gluon
from mxnet.gluon.contrib.estimator import (
    BatchProcessor,
    EpochBegin,
    EpochEnd,
    GradientUpdateHandler,
    TrainBegin,
    TrainEnd,
)

from .._argument_checks import checked_count
from ..kvstore.kinds import is_distributed
from ..rate.run import Run
from .batches import by_value
from .numpy_arrays import as_nd
from .trainer import SVRGTrainer


class SVRGBatchProcessor(BatchProcessor):
    """The batch processor of an Estimator whose trainer is an SVRGTrainer.

    The trainer's `objective` must return the loss and then the output of the network,
    for the metrics. Batches are split over several devices as
    `SVRGTrainer.update_full_grads` splits them, a short last batch too. Metrics get mx.nd
    arrays, which they need after ``npx.set_np()``.

    ``fit`` also needs a :class:`SnapshotHandler`.
    """

    _run = None  # that of the fit that runs, by a SnapshotHandler

    def _get_data_and_label(self, batch, ctx, batch_axis=0):
        return [gluon.utils.split_and_load(each, ctx, batch_axis, even_split=False)
                for each in batch[:2]]

    def evaluate_batch(self, estimator, val_batch, batch_axis=0):
        """Evaluate a batch as BatchProcessor does."""
        return tuple(as_nd(super().evaluate_batch(estimator, val_batch, batch_axis)))

    def fit_batch(self, estimator, train_batch, batch_axis=0):
        """Compute the SVRG gradients of a batch.

        Parameters
        ----------
        estimator : Estimator
            The estimator.
        train_batch : list of NDArray
            The arguments of `objective`: data, label, and whatever else the DataLoader yields.
        batch_axis : int
            It has no effect, because the trainer has its own.

        Returns
        -------
        data, label, pred, loss : list of NDArray
            One of each for each device.

        Raises
        ------
        TypeError
            If `objective` returns no output.
        RuntimeError
            If ``fit`` has no SnapshotHandler.
        """
        if self._run is None:
            raise RuntimeError('fit needs a SnapshotHandler(train_data) among its event_handlers, '
                               'besides the SVRGBatchProcessor of the Estimator')
        trainer = estimator.trainer
        batch = trainer._batches([train_batch]).first
        inputs = list(map(list, zip(*batch)))
        outputs = (by_value(trainer._reference.outputs(batch)[0])
                   if self._run.has_ended  # no step follows
                   else trainer.backward(*inputs))
        if not isinstance(outputs, tuple) or len(outputs) < 2:
            raise TypeError('objective must return the loss and the output of the network, as in '
                            'return loss(output, label), output, for the metrics of an Estimator')
        return tuple(as_nd([*inputs[:2], outputs[1], outputs[0]]))


class SnapshotHandler(GradientUpdateHandler, TrainBegin, EpochBegin, EpochEnd, TrainEnd):
    """Take the snapshots and the steps of an SVRGTrainer in ``Estimator.fit``.

    A snapshot is taken before the first epoch and after every `update_freq` epochs. If
    the trainer has a `tol`, ``fit`` ends after the epoch at whose end a snapshot finds
    convergence. With a `tol` or `svrg_lbfgs` a last snapshot is taken at the end of
    ``fit``. A run that CheckpointHandler resumes goes on with the saved snapshot.
    ::

        def objective(data, label):
            output = net(data)
            return loss(output, label), output

        trainer = SVRGTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1},
                              objective=objective)
        estimator = Estimator(net, loss, trainer=trainer,
                              batch_processor=SVRGBatchProcessor())
        estimator.fit(train_data, epochs=20, event_handlers=[SnapshotHandler(train_data)])

    It replaces Estimator's GradientUpdateHandler. To clip or to accumulate gradients, override
    `batch_end`, which makes the step. The gradient of a step is divided by the
    number of the loss's elements on all devices.

    Parameters
    ----------
    train_data : DataLoader
        What ``fit`` trains on.
    update_freq : int
        Number of epochs from one snapshot to the next.
    priority : float
        As in all handlers of MXNet, a handler with a lower number is called first. It must
        be lower than the numbers of handlers that save, evaluate or log.

    Raises
    ------
    TypeError
        If `train_data` cannot be read more than once, or `update_freq` is not an int. In
        ``fit``, if the Estimator's trainer is not an SVRGTrainer or its batch processor is
        not an SVRGBatchProcessor.
    ValueError
        If `update_freq` is below 1. In ``fit``, if the trainer has a distributed `kvstore`.

    Warns
    -----
    UserWarning
        If ``fit`` ends without convergence to `tol`, or the last snapshot went back.
    """

    def __init__(self, train_data, update_freq=2, priority=-2000):
        super().__init__(priority)
        if not hasattr(train_data, '__iter__') or hasattr(train_data, '__next__'):
            raise TypeError('train_data must be a DataLoader, and not %r' % (train_data,))
        self._train_data = train_data
        self._update_freq = checked_count('update_freq', update_freq)

    def train_begin(self, estimator, *args, **kwargs):
        """Check what the estimator has."""
        trainer, processor = given = estimator.trainer, estimator.batch_processor
        if not all(map(isinstance, given, (SVRGTrainer, SVRGBatchProcessor))):
            raise TypeError('trainer must be an SVRGTrainer and batch_processor an '
                            'SVRGBatchProcessor for a SnapshotHandler, not %r and %r' % given)
        if is_distributed(trainer._kvstore_params['kvstore']):
            raise ValueError('kvstore must be of one process in an Estimator, which does not know '
                             'how many rows the other workers have')
        self._run = processor._run = Run(
            trainer._svrg, trainer._trained, estimator.logger, self._train_data,
            functools.partial(trainer.update_full_grads, self._train_data))

    def epoch_begin(self, estimator, *args, **kwargs):
        """Take a snapshot if one is due."""
        self._begin_epoch(estimator.trainer)

    def batch_end(self, estimator, *args, **kwargs):
        """Make a step, unless training has ended before it: then stop."""
        if not self._run.has_ended:
            estimator.trainer.step(sum(loss.size for loss in kwargs['loss']))
        return self._run.has_ended

    def epoch_end(self, estimator, *args, **kwargs):
        """Stop if training has converged, by a snapshot if one is due."""
        if not self._run.has_ended:  # where it began
            self._run.end_epoch()
            if estimator.trainer._svrg.settings.tol is not None:
                self._begin_epoch(estimator.trainer)
        return self._run.has_ended

    def train_end(self, estimator, *args, **kwargs):
        """Let a last snapshot decide whether training has converged, and which weights are best."""
        trainer, run = estimator.trainer, self._run
        self._run = estimator.batch_processor._run = None
        run.finish(trainer._svrg.training.epochs)

    def _begin_epoch(self, trainer):
        """Take a snapshot if `update_freq` epochs were made from the last, or it is of others."""
        svrg, data = trainer._svrg, trainer._data_of_snapshot
        snapshot, is_of_others = svrg.snapshot, not (data is None or data is self._train_data)
        epochs = 0 if not snapshot.is_active else (
            (snapshot.num_update - snapshot.taken_at) / snapshot.full_gradient.batches)
        self._run.begin_epoch(svrg.training.epochs,
                              is_of_others or round(epochs) >= self._update_freq)

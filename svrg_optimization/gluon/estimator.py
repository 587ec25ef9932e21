"""What lets Gluon's Estimator train with an SVRGTrainer: a batch processor and an event handler."""

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
from .batches import by_value
from .epochs import end, has_ended, take_snapshot
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

    _handler = None  # the SnapshotHandler of the fit that runs

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
        if self._handler is None:
            raise RuntimeError('fit needs a SnapshotHandler(train_data) among its event_handlers, '
                               'besides the SVRGBatchProcessor of the Estimator')
        trainer = estimator.trainer
        batch = trainer._batches([train_batch]).first
        inputs = list(map(list, zip(*batch)))
        outputs = (by_value(trainer._reference.outputs(batch)[0])
                   if has_ended(trainer)  # no step follows
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
        If `update_freq` is below 1. In ``fit``, if the trainer has
        `store_snapshot_grads` or a distributed `kvstore`.

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
        trainer = estimator.trainer
        if not isinstance(trainer, SVRGTrainer):
            raise TypeError('trainer must be an SVRGTrainer for an SVRGBatchProcessor and a '
                            'SnapshotHandler, not %r' % (trainer,))
        if not isinstance(estimator.batch_processor, SVRGBatchProcessor):
            raise TypeError('batch_processor must be an SVRGBatchProcessor for a SnapshotHandler, '
                            'not %r' % (estimator.batch_processor,))
        if trainer._svrg.store.budget:
            raise ValueError('store_snapshot_grads must be False for an Estimator, which reads '
                             'all batches from train_data')
        if is_distributed(trainer._kvstore_params['kvstore']):
            raise ValueError('kvstore must be of one process in an Estimator, which does not know '
                             'how many rows the other workers have')
        estimator.batch_processor._handler = trainer._handler = self
        self._epoch = 0
        trainer._svrg.begin_fit(trainer._trained.rule)

    def epoch_begin(self, estimator, *args, **kwargs):
        """Take a snapshot if one is due."""
        trainer = estimator.trainer
        if self._is_due(trainer) or has_ended(trainer):
            take_snapshot(trainer, self._train_data, estimator.logger, self._epoch)

    def batch_end(self, estimator, *args, **kwargs):
        """Make a step, unless training has ended before it: then stop."""
        trainer = estimator.trainer
        if has_ended(trainer):
            return True
        trainer.step(sum(loss.size for loss in kwargs['loss']))
        return False

    def epoch_end(self, estimator, *args, **kwargs):
        """Stop if training has converged, by a snapshot if one is due."""
        trainer = estimator.trainer
        self._epoch += 1
        trainer._svrg.training.epochs += 1
        if trainer._svrg.settings.tol is not None and self._is_due(trainer):
            take_snapshot(trainer, self._train_data, estimator.logger, self._epoch)
        return has_ended(trainer)

    def train_end(self, estimator, *args, **kwargs):
        """Let a last snapshot decide whether training has converged, and which weights are best."""
        estimator.batch_processor._handler = estimator.trainer._handler = None
        snapshot = estimator.trainer._svrg.snapshot
        end(estimator.trainer, self._train_data, estimator.logger, self._epoch,
            takes_last=snapshot.num_update != snapshot.taken_at)

    def _is_due(self, trainer):
        """Tell whether there is no snapshot of use, or `update_freq` epochs were made from it."""
        settings, snapshot = trainer._svrg.settings, trainer._svrg.snapshot
        if settings.is_plain:
            return False
        data = trainer._data_of_snapshot
        if settings.is_due(snapshot) or not (
                data is None or data is self._train_data):
            return True
        epochs = (snapshot.num_update - snapshot.taken_at) / snapshot.full_gradient.batches
        return round(epochs) >= self._update_freq

r"""SVRGTrainer, Gluon's Trainer with stochastic variance reduced gradients."""

import math
import reprlib
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Sequence, Union

from mxnet import autograd, gluon
from mxnet.optimizer import Updater

from .._argument_checks import checked_count, checked_number
from .._warn_once import WarnOnce
from ..checkpoint.files import read, write
from ..core.exclusions import check_together
from ..core.settings import Settings
from ..core.svrg import SVRG, Stage, Step
from ..data.custom_loop import Watch
from ..findings import Findings
from ..kvstore.kinds import is_distributed, warn_of_devices
from ..kvstore.workers import workers_of_trainer
from ..mxnet_repair.finder import SWITCH
from ..mxnet_repair.kvstore import raise_updater_error, set_updater
from ..mxnet_repair.loader import mend_for_users
from ..proximal import ProximalOperator, ProximalOperators
from ..rate import algorithm
from ..rate.optimizer import with_default_arguments
from ..rate.training import Training
from ..svrg_optimizer import _SVRGOptimizer, agreed, check_rate, check_rates
from .batches import GluonPass, arrays_of, by_value, with_states
from .checks import check_params, opened_kvstore
from .epochs import epochs
from .reference import GluonReference
from .rows import Rows
from .states import load_state, state
from .trained_parameters import TrainedParameters

_SAVED_BY = 'SVRGTrainer'

mend_for_users(SWITCH)


class SVRGTrainer(Findings, gluon.Trainer):
    r"""Train Gluon blocks with SVRG, the stochastic variance reduced gradient.

    It replaces :class:`mxnet.gluon.Trainer`. The loop changes in three places::

        trainer = SVRGTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1},
                              objective=lambda data, label: loss(net(data), label))
        for batches in trainer.epochs(train_data, 20):  # with snapshots and full gradients
            for data, label in batches:
                L = trainer.backward(data, label)       # record(), the loss and its backward()
                trainer.step(len(data))

    A step uses

    .. math:: g = \nabla f_{batch}(w) - \alpha (\nabla f_{batch}(\tilde w) - \mu)

    where :math:`\tilde w` are the weights of the snapshot and :math:`\mu` is the
    mean gradient there, over all rows of `train_data`, in the scale of the batch
    [1]_ [2]_. `objective` computes both gradients and the mean, so they cannot
    be of different functions.

    Parameters
    ----------
    params : ParameterDict, dict or list of Parameter
        As in Trainer. Give all parameters of the network: running statistics that are
        not among them, such as BatchNorm's, would see each batch twice.
    optimizer, optimizer_params, kvstore, compression_params, update_on_kvstore
        As in Trainer, but without compression. A distributed `kvstore` must be synchronous or
        'horovod'. With such a `kvstore`, `newton_cg` or `proximal`, the KVStore does not
        update the weights.
    objective : callable
        Takes the arguments of `backward`, on one device, and returns the loss, or a
        tuple or list that begins with the loss. The loss has one element for each row
        (or word), or one for the batch.
    loss_is_mean : bool, optional
        Whether a loss of one element is a mean over the rows of the batch rather
        than a sum. By default it is a mean.
    batch_axis : int, or list of int or None
        Axis of the rows, along which the pass splits an input over devices; 1 for
        (T, N, C). A list has one axis for each input of a batch, and None for an
        input without rows, which each device gets whole.
    alpha : float or callable
        :math:`\alpha`, as in SVRGModule. It may be set later as an attribute. If it
        is the number 0, the trainer works as Trainer.
    nonfinite : {'warn', 'raise'}
        As in SVRGModule.
    proximal : object or dict of str to object, optional
        As in SVRGModule. One operator is applied to all parameters whose names end
        with ``weight``.
    tol : float, optional
        Largest `distance` in `result` at which `has_converged` is True, as in SVRGModule. It may
        be set later as an attribute.

    Raises
    ------
    TypeError
        If `objective` is not callable or another argument has the wrong type.
    ValueError
        If `batch_axis` is negative, `alpha` is not in [0, 1], `nonfinite` is neither
        'warn' nor 'raise', `tol` is not above 0,
        `tol` is given with ``alpha=0``, a weight is row_sparse, a learning rate, weight decay or
        multiplier of these is negative or not finite,
        `kvstore` is ``dist_async`` or gets compressed gradients, `update_on_kvstore` is
        set with a distributed `kvstore`, `newton_cg` or `proximal`, or these do not
        allow the optimizer. Also if `proximal` names a parameter that is not trained, or
        there is no weight for it.

    Warns
    -----
    UserWarning
        If `kvstore` is None with several devices: each device then trains by itself, as in
        Trainer.

    References
    ----------
    .. [1] R. Johnson and T. Zhang, "Accelerating Stochastic Gradient Descent
       using Predictive Variance Reduction", NIPS 2013.
    .. [2] Y. Yin, Z. Xu, Z. Li, T. Darrell and Z. Liu, "A Coefficient Makes SVRG
       Effective", ICLR 2025.
    """

    def __init__(self, params, optimizer, optimizer_params=None, kvstore='device',
                 compression_params=None, update_on_kvstore=None, *,
                 objective: Callable[..., Any], loss_is_mean: Optional[bool] = None,
                 batch_axis: Union[int, Sequence[Optional[int]]] = 0,
                 alpha: Union[float, Callable[[int], float]] = 1., nonfinite: str = 'warn',
                 proximal: Union[None, ProximalOperator, Dict[str, ProximalOperator]] = None,
                 tol: Optional[float] = None) -> None:
        if not callable(objective):
            raise TypeError('objective must be a function of a batch that returns its loss, not %r'
                            % (objective,))
        settings = Settings(
            loss_is_mean=loss_is_mean, alpha=alpha, nonfinite=nonfinite, proximal=proximal, tol=tol)
        rows = Rows(batch_axis, settings.loss_is_mean)
        optimizer_params = with_default_arguments(optimizer, optimizer_params)
        kvstore = opened_kvstore(
            kvstore, optimizer, optimizer_params, settings,
            {'compression_params': compression_params, 'update_on_kvstore': update_on_kvstore})
        super().__init__(params, optimizer, optimizer_params, kvstore, None, update_on_kvstore)
        check_rates(self._optimizer)
        check_params(self._params, kvstore)
        trained = [param.name for param in self._params if param.grad_req != 'null']
        self._proximal = ProximalOperators(
            settings.proximal, trained, [name for name in trained if name.endswith('weight')])
        self._trained = TrainedParameters(self)
        stepping = _SVRGOptimizer(self._optimizer, full_keys=(), proximal=self._proximal.steps(
            {number: param.name for number, param in enumerate(self._params)}))
        self._updaters = [Updater(stepping) for _ in self._updaters]
        if is_distributed(kvstore) or settings.proximal is not None or self._trained.moves:
            self._kvstore_params['update_on_kvstore'] = False
        self._reference = GluonReference(self._params, objective, rows)
        self._svrg = SVRG(self._reference, settings, WarnOnce(), Training())
        self._loop = {}  # numbers of the latest `epochs`, which workers compare
        self._batch_sizes = 0  # of the steps since the workers agreed last
        self._summed = None  # rows whose SVRG gradients `step` is to find
        self._keys_on_servers = set()
        self._watch = Watch(self._svrg.warn_once, arrays_of, 'training_batches', 'objective')

    def _conclude(self, reason):
        if reason == 'stopped early' and not self._trained.moves:
            self._svrg.training.epochs += 1  # its last one is not counted yet
        super()._conclude(reason)

    def set_learning_rate(self, lr):
        """Set the learning rate as Trainer does."""
        super().set_learning_rate(check_rate('learning_rate', lr))

    def update_full_grads(self, train_data: Iterable[Any], batches: Optional[int] = None,
                          states: Sequence[Any] = ()) -> None:
        r"""Take a snapshot of the weights and compute the full gradient there.

        If the pass fails, the previous snapshot stays active. A DataIter is reset
        before the pass and after it. If `alpha` is the number 0, nothing is done.

        Parameters
        ----------
        train_data : iterable
            DataLoader, DataIter or any other iterable. Its batches are tuples or lists of
            the arguments of `objective`, with any number of rows. A batch that is a dict or an
            array is one argument. Padding of a DataIter does not count. On several devices each
            NDArray is split, and a list with one NDArray for each device is not split.
        batches : int, optional
            Number of batches, from the beginning of the data, over which the mean is
            taken. By default all.
        states : tuple, optional
            States that a network carries from batch to batch, as they are at the
            beginning. `objective` gets them after the batch, and returns a tuple
            of the loss and the states for the next batch, which are detached. On
            several devices give a list with one such tuple for each device.

        Raises
        ------
        TypeError
            If `batches` is not an int, `states` or a batch is not a tuple or a list,
            or `objective` returns no loss.
        ValueError
            If `batches` is below 1 or given with `newton_cg` or a `tol`; if there is no
            batch; if `states` or a batch do not fit `batch_axis` and the devices; if no
            parameter is trained; if the network is hybridized with static_shape=True; if workers
            have different numbers of batches, settings or numbers of epochs; or if the KVStore
            compresses.
        RuntimeError
            If it is called within ``autograd.record()``.
        FloatingPointError
            If the full gradient is not finite, with ``nonfinite='raise'``.

        Warns
        -----
        UserWarning
            If the full gradient is not finite, with ``nonfinite='warn'``.
        """
        trained = self._trained
        if batches is not None:
            batches = checked_count('batches', batches, 'None or an int of 1 or more')
            check_together(self._svrg.settings.features(), {
                'batches': batches, 'newton_cg': trained.moves})
        if self._svrg.settings.is_plain:
            return
        self._check_ready()
        a_pass = self._batches(train_data, batches, self._of_devices(states))
        if a_pass.first and any(param._deferred_init for param in self._params):
            self._reference.outputs(with_states(a_pass.first, a_pass.states))  # finds the shapes
        self._init_all()
        workers = self._agreeing_workers(takes_snapshot=True)
        algorithm.take(self._svrg, trained, a_pass, workers)
        self._watch.end_pass(train_data, self._svrg.snapshot.num_update)
        a_pass.rewind()

    def epochs(self, train_data: Iterable[Any], num_epoch: int, update_freq: int = 2, *,
               begin_epoch: int = 0, states: Sequence[Any] = ()) -> Iterator[Iterable[Any]]:
        """Yield the batches of each epoch, as `training_batches` does, and take the snapshots.

        ::

            for batches in trainer.epochs(train_data, 100, update_freq=2):
                for data, label in batches:
                    trainer.backward(data, label)
                    trainer.step(len(data))

        It ends at the first snapshot that finds `has_converged`. With `tol` it takes a last
        snapshot after `num_epoch` epochs, which decides whether training has converged. Snapshots
        are logged as ``SVRGModule.fit`` logs them.

        With newton_cg an epoch is one iteration, as in ``SVRGModule.fit``, which has been made
        when its batches, of which there are none, are yielded.

        Parameters
        ----------
        train_data, states
            As in `update_full_grads`.
        num_epoch : int
            Number of epochs, including those before `begin_epoch`.
        update_freq : int
            Number of epochs from one snapshot to the next. Snapshots are taken before
            epoch 0, `update_freq` and so on, and also if there is none.
        begin_epoch : int
            Number of the first epoch, in a run that is resumed after `load_states`.

        Yields
        ------
        iterable of tuple
            The batches of one epoch.

        Raises
        ------
        TypeError, ValueError
            If a number is not an int, `update_freq` is below 1, another number is negative, or
            `train_data` can be read only once. Also if
            `update_full_grads` or `training_batches` raises one.

        Warns
        -----
        UserWarning
            If training has not converged to `tol`.
        """
        return epochs(self, train_data, num_epoch, update_freq, begin_epoch, states)

    def _batches(self, train_data, count=None, states=()):
        return GluonPass(train_data, count, self._devices, self._reference.rows, states)

    def _of_devices(self, states):
        """Return the states of each device."""
        if len(self._devices) == 1 or isinstance(states, (list, tuple)) and not states:
            states = [states for _ in self._devices]
        if not isinstance(states, (list, tuple)) or len(states) != len(self._devices) or not all(
                isinstance(of_device, (list, tuple)) for of_device in states):
            raise TypeError('states must be a tuple or list, on several devices a list of one for '
                            'each, and not %s' % reprlib.repr(states))
        return states

    def training_batches(self, train_data: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of one epoch, as `backward` takes them.

        Parameters
        ----------
        train_data : iterable
            What `update_full_grads` was called with.

        Returns
        -------
        iterable of tuple, dict or NDArray
            Those of `train_data`; a DataIter is reset. On several devices each input is a list
            with one part for each device, so you need no ``split_and_load``.

        Raises
        ------
        TypeError, ValueError
            If a batch is not one that `update_full_grads` takes.
        """
        a_pass = self._batches(train_data)

        def as_backward_takes_it(batch):
            inputs = tuple(batch[0]) if len(batch) == 1 else tuple(map(list, zip(*batch)))
            self._watch.add(inputs)
            return a_pass.in_form(inputs)

        return map(as_backward_takes_it, a_pass.batches())

    def _check_ready(self):
        if autograd.is_recording():
            raise RuntimeError('SVRGTrainer records by itself: call its methods outside of '
                               'autograd.record()')
        if not self._reference.trained():
            raise ValueError("params must have one that is trained, but grad_req is 'null' for all")
        if self._svrg.snapshot.is_active and not self._reference.arrays:
            self._svrg.warn_once('the snapshot is dropped, since parameters have got other arrays '
                                 '(cast, reset_ctx, grad_req)')
            self._svrg.snapshot.replace(None)
            self._svrg.training.forget()
            self._svrg.step.stage = Stage.BEGUN  # its gradients were in these arrays

    @property
    def _loss_scale(self):
        """What `amp.scale_loss` in the loss function has multiplied the latest loss by."""
        return self._amp_original_scale / self._scale if hasattr(self, '_amp_loss_scaler') else 1

    @property
    def _never_used(self):
        """Names of parameters that no batch uses: Trainer leaves them. Workers may see others."""
        return set() if self._distributed else self._reference.never_used or set()

    @property
    def _devices(self):
        return self._params[0].list_ctx()

    @property
    def _num_workers(self):
        return self._kvstore.num_workers if self._distributed else 1

    def _init_kvstore(self):
        super()._init_kvstore()
        if self._update_on_kvstore:
            set_updater(self._kvstore, self._kvstore._updater)
        warn_of_devices(self._kvstore, len(self._devices), self._svrg.warn_once)
        self._agreeing_workers()  # one with alpha=0 does not come to a snapshot

    def _agreeing_workers(self, takes_snapshot=None):
        """Return the workers; raise a ValueError on all if what must be alike is not."""
        reference, plan = self._reference, {} if takes_snapshot is None else {
            **self._loop, 'a snapshot (whether it is taken)': takes_snapshot}
        reference.trained()  # whose arrays a first pass has made
        workers = workers_of_trainer(self._kvstore, reference.names, reference.current_gradients,
                                     self._keys_on_servers)
        if self._distributed:
            workers.check_same({
                **self._svrg.settings.agreed(self._svrg.snapshot.num_taken),
                **agreed(self._optimizer), **plan, 'rescale_grad of the optimizer': self._scale,
                'lr_mult of params': [param.lr_mult for param in self._params],
                'wd_mult of params': [param.wd_mult for param in self._params],
                'batch_size of step (the sum since the last snapshot)': self._batch_sizes})
            self._batch_sizes = 0
        return workers

    def backward(self, *inputs: Any) -> Any:
        """Compute the loss of a batch and its SVRG gradients.

        Without a snapshot, or if `alpha` is the number 0, they are plain gradients.

        Parameters
        ----------
        *inputs
            Arguments of `objective`. On several devices give, for each argument, a list
            with one part for each device, as ``gluon.utils.split_and_load`` returns it.

        Returns
        -------
        NDArray, tuple or list
            What `objective` returned. If the inputs are lists, each value of it is a list
            with one NDArray for each device.

        Raises
        ------
        TypeError
            If `objective` returns no loss.
        ValueError
            If there are several devices and an input is not such a list.
        RuntimeError
            If it is called within ``autograd.record()``.

        Warns
        -----
        UserWarning
            Once if there was no step since the backward pass of as many rows before.
        """
        svrg, reference, devices = self._svrg, self._reference, len(self._devices)
        self._check_ready()
        in_lists = devices > 1 or isinstance(inputs[0], (list, tuple))
        if in_lists and not all(
                isinstance(of_devices, (list, tuple)) and len(of_devices) == devices
                for of_devices in inputs):
            raise ValueError('inputs must be lists of one for each of the devices, %s, as '
                             'gluon.utils.split_and_load returns them' % (self._devices,))
        self._watch.check_step(inputs)
        before, self._summed = self._summed, None
        batch = list(zip(*inputs)) if in_lists else [inputs]
        try:
            svrg.step = Step(stage=Stage.BEGUN)
            outputs, rows = reference.current_gradients_of(batch, svrg.corrects)
            svrg.step.stage = Stage.COMPUTED
            svrg.correct(self, reference.current_gradients, batch)
            if svrg.corrects:
                reference.mark()
                if before == rows and not reference.adds:
                    svrg.warn_once('backward was called twice without a step between, so that the '
                                   'gradients of the first batch are lost: call trainer.step('
                                   "batch_size) after it. grad_req = 'add' adds gradients up")
                self._summed = rows + (before or 0 if reference.adds else 0)
        except BaseException:
            svrg.step.stage = Stage.BEGUN  # its gradients are no longer what a step needs
            raise
        return by_value(outputs) if in_lists else outputs[0]

    def step(self, batch_size, ignore_stale_grad=False):
        """Update the weights with the gradients of `backward`.

        Parameters
        ----------
        batch_size : int
            The gradients are divided by it. It is the number of rows of the batch, on all
            devices and workers. For a loss of each word it is the number of words; for a
            loss that is a mean, the number of devices.
        ignore_stale_grad : bool
            Whether a batch may use only some parameters. The gradients of the others are
            then 0, and their steps are SVRG's too; what no batch uses stays. Without a snapshot it
            is as in Trainer.

        Raises
        ------
        ValueError
            If the batch has not used a parameter that is trained, without `ignore_stale_grad`.
        RuntimeError
            If there is a snapshot, and `backward` was not called or not finished before, or
            another backward pass has overwritten its gradients. Also with newton_cg, which makes
            no steps.

        Warns
        -----
        UserWarning
            Once if `batch_size` is another number, and there is weight decay or a proximal
            operator, or the loss is a mean.
        """
        self._begin_step(batch_size, ignore_stale_grad)
        super().step(batch_size, ignore_stale_grad)

    def update(self, batch_size, ignore_stale_grad=False):
        """Update the weights after `allreduce_grads`, with the errors and warnings of `step`."""
        self._begin_step(batch_size, ignore_stale_grad)
        super().update(batch_size, ignore_stale_grad)

    def _allreduce_grads(self):
        super()._allreduce_grads()
        raise_updater_error(self._kvstore)  # where it updates

    def _update(self, ignore_stale_grad=False):
        super()._update(ignore_stale_grad)
        self._svrg.end_step()

    def _begin_step(self, batch_size, ignore_stale_grad):
        """Check a step."""
        svrg, reference, summed = self._svrg, self._reference, self._summed
        checked_number('batch_size', batch_size, 'a number above 0',
                       lambda number: 0 < number < math.inf)
        overwritten = [] if summed is None else reference.overwritten()
        has_gradients = svrg.step.stage is Stage.READY and reference.has_current_arrays()
        if overwritten or svrg.corrects and not has_gradients:
            raise RuntimeError('a step needs trainer.backward(...) of its batch before it, and no '
                               'other backward pass after that%s; alpha = 0 makes plain steps' % (
                                   overwritten and ', which has overwritten the gradients of '
                                   + ', '.join(overwritten) or ''))
        if summed is not None:
            if reference.unused and not ignore_stale_grad:
                raise ValueError('objective must use all parameters that are trained, and not '
                                 "leave out %s: grad_req = 'null' fixes a parameter, and "
                                 'ignore_stale_grad=True of step takes 0 for its gradient'
                                 % ', '.join(reference.unused))
            self._warn_of_batch_size(batch_size, summed * self._num_workers)
            reference.set_fresh(True, but=self._never_used & {*reference.unused})
            self._summed = None
        self._batch_sizes += batch_size

    def _warn_of_batch_size(self, given, summed):
        is_mean = self._reference.rows.kind == 'mean'
        moves_optimum = self._proximal.by_name or any(
            self._optimizer._get_wds(range(len(self._params))))
        if given != summed and (moves_optimum or is_mean):
            workers = ' on all %d workers' % self._num_workers if self._distributed else ''
            self._svrg.warn_once(
                'batch_size of step is %s, and backward has summed the gradients of %d %s%s: such '
                'steps %s. It must be step(%d) for this batch%s'
                % (given, summed, 'mean losses, one for each device' if is_mean
                   else 'rows (or words)', workers, 'lead to another optimum' if moves_optimum
                   else 'are %.3g times as long as the learning rate says' % (summed / given),
                   summed, ', or loss_is_mean=False where objective returns a sum' * is_mean),
                'batch_size')

    def __getstate__(self):
        raise TypeError('an SVRGTrainer cannot be copied or pickled: save_states and load_states '
                        'move its states to another one')

    def save_states(self, fname):
        """Save the optimizer's states and numbers, and the snapshot, without pickles.

        The file is written whole or not at all. ``gluon.Trainer`` cannot read it. As with
        Trainer it does not hold the weights, nor does it hold the settings of the constructor.

        Raises
        ------
        TypeError
            If the optimizer's states are neither numbers nor arrays, nor lists or tuples of them.
        OSError
            If the file cannot be written. An earlier one stays as it was.
        """
        self._init_all()
        write(fname, _SAVED_BY, state(self))

    def load_states(self, fname):
        """Load what `save_states` has saved. The optimizer gets the saved settings.

        To load states that ``gluon.Trainer`` has saved, which are a pickle, call
        ``gluon.Trainer.load_states(trainer, fname)`` before the first snapshot.

        Raises
        ------
        ValueError
            If the file is damaged or was not saved by `save_states`, or it belongs to another
            optimizer or to other parameters. Numbers that Gluon counts in the names may differ,
            if they keep the order of the parameters.
        RuntimeError
            If the file has a snapshot, and a parameter has no shape yet.

        Warns
        -----
        UserWarning
            If it was saved with another kind of `lr_scheduler`. The schedule then begins anew.
        """
        try:
            load_state(self, read(fname, _SAVED_BY))
        except gluon.parameter.DeferredInitializationError as error:
            raise RuntimeError('load_states needs parameters whose shapes are known: call '
                               'net.load_parameters before it, or net once') from error

    def _init_all(self):
        """Initialize the KVStore and parameters, as Trainer does."""
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()

    @property
    def _all_updaters(self):
        return [self._kvstore._updater] if self._update_on_kvstore else self._updaters

"""SVRGModule, MXNet's Module trained with stochastic variance reduced gradients."""

import contextlib
import inspect
import json
import logging
import reprlib
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Union

import mxnet as mx
import numpy as np
from mxnet.module import Module

from ._argument_checks import check_iterator
from ._warn_once import WarnOnce
from .checkpoint.of_module import arguments_of, read_checkpoint, save
from .core.exclusions import check_together
from .core.settings import Settings, setting
from .core.svrg import SVRG, Stage, Step
from .data.batch_rows import arrays_of, resized
from .data.custom_loop import Watch
from .data.iterators import rewind, rewind_for_pass, rows_of_batch
from .findings import Findings
from .kvstore.keys import KVStoreKeys
from .kvstore.kinds import features_of, is_distributed
from .module import executor_group, loop
from .module.checks import check_has_parameters, check_lender, warn_of_ignored
from .module.contrib import ContribNames
from .module.install import install, optimizer_kept_on_error
from .module.passes import Pass
from .module.reference import ModuleReference
from .module.trained_module import TrainedModule
from .module.workers import kvstore_of_weights, synchronize, workers_of
from .mxnet_repair.casts import has_casts
from .mxnet_repair.executors import without_fusion
from .mxnet_repair.finder import SWITCH
from .mxnet_repair.kvstore import raise_updater_error, set_weights
from .mxnet_repair.loader import mend_for_users
from .proximal import ProximalOperator, ProximalOperators, weights_of
from .rate import algorithm
from .rate.optimizer import features_of_optimizer, with_default_arguments
from .rate.training import Training
from .svrg_optimizer import check_rate

mend_for_users(SWITCH)


class _CountsSteps(Module):
    """A Module whose steps are counted, also by ``super(SVRGModule, self).update()``."""

    def update(self):
        """Update the weights with the gradients, as Module does."""
        super().update()
        raise_updater_error(self._kvstore)
        self._svrg.end_step()


class SVRGModule(ContribNames, Findings, _CountsSteps):
    r"""Train a Module with SVRG, the stochastic variance reduced gradient.

    It replaces :class:`mxnet.module.Module`: change ``mx.mod.Module(symbol, ...)``
    to ``SVRGModule(symbol, ..., update_freq=2)``. Every `update_freq` epochs it
    takes a snapshot :math:`\tilde w` of the weights and computes the full gradient

    .. math:: \mu = \frac{B}{n} \sum_{j=1}^{n} \nabla f_j(\tilde w)

    over all n rows. It has the scale of the gradient of a batch of B rows, since
    MXNet's loss layers sum over a batch. Each step then gives the optimizer

    .. math:: g = \nabla f_{batch}(w) - \nabla f_{batch}(\tilde w) + \mu

    in place of :math:`\nabla f_{batch}(w)` [1]_. The optimizer applies weight
    decay; :math:`\mu` does not include it.

    Parameters
    ----------
    symbol : Symbol
        The network with its loss.
    data_names, label_names, logger, context, work_load_list, fixed_param_names, state_names
        As in Module.
    group2ctxs
        As in Module.
    compression_params : dict, optional
        Gradient compression between devices, as in Module. The full gradient
        is not compressed. A distributed KVStore does not accept it.
    update_freq : int, optional
        Epochs from one snapshot to the next, 1 or more; 2 by default. It may be set later as an
        attribute.
    loss_is_mean : bool, optional
        Whether the loss is a mean over the rows of a batch rather than a sum. By default it is
        measured what the symbol's loss of some rows is of the losses of their parts.
    alpha : float or callable
        The coefficient :math:`\alpha` of α-SVRG [2]_,

        .. math:: g = \nabla f_{batch}(w) - \alpha (\nabla f_{batch}(\tilde w) - \mu).

        A number in [0, 1], where 1 is SVRG and 0 plain Module, without snapshots; or a schedule
        like `LinearDecay`, which is called with the number of updates so far. It may be set later
        as an attribute.
    nonfinite : {'warn', 'raise'}
        What happens if the full gradient has an infinite value or a NaN: a warning that names the
        parameters, once, or a FloatingPointError. The previous snapshot then stays active.
    full_grad_batches : int or callable, optional
        Number of batches of a full gradient, from the beginning of the data, or a
        function of the number of snapshots so far that returns it [4]_. By default
        it is all batches. It may be set later as an attribute.
    proximal : object or dict of str to object, optional
        Proximal operator of a regularizer R that has no gradient, from
        `svrg_optimization.proximal` or of your own [3]_. After each step
        with the learning rate :math:`\eta` the optimizer sets

        .. math:: w \leftarrow \mathrm{prox}_{\eta R}(w).

        One operator is applied to all weights, which are the parameters whose ``wd_mult`` is not
        0, by default those whose names end with ``_weight``. A dict gives the operator of each
        parameter that it names. The optimizer must be newton_cg, or sgd without momentum.
    tol : float, optional
        `fit` ends at the first snapshot whose distance from the optimum, relative to the size of
        its weights, is at most `tol`. That is the `distance` of `result`. It may be set later as
        an attribute.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of its range, `proximal` names a parameter
        that is not trained, there is no weight for it, or two arguments exclude each other.

    References
    ----------
    .. [1] R. Johnson and T. Zhang, "Accelerating Stochastic Gradient Descent
       using Predictive Variance Reduction", NIPS 2013, Figure 1.
    .. [2] Y. Yin, Z. Xu, Z. Li, T. Darrell and Z. Liu, "A Coefficient Makes
       SVRG Effective", ICLR 2025.
    .. [3] L. Xiao and T. Zhang, "A Proximal Stochastic Gradient Method with
       Progressive Variance Reduction", SIAM J. Optim. 24(4), 2014.
    .. [4] R. Babanezhad, M. O. Ahmed, A. Virani, M. Schmidt, J. Konecny and
       S. Sallinen, "Stop Wasting My Gradients: Practical SVRG", NeurIPS 2015.

    Examples
    --------
    >>> import mxnet as mx
    >>> import numpy as np
    >>> from svrg_optimization import SVRGModule
    >>> rng = np.random.RandomState(0)
    >>> features = rng.normal(size=(100, 3))
    >>> train_data = mx.io.NDArrayIter(features, features.dot([1.0, -2.0, 3.0]),
    ...                                batch_size=10, label_name='target')
    >>> output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    >>> loss = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('target'), name='loss')
    >>> module = SVRGModule(loss, label_names=('target',), update_freq=1)
    >>> module.fit(train_data, eval_metric='mse', num_epoch=20,
    ...            optimizer_params={'learning_rate': 0.2})
    >>> module.get_params()[0]['fc_weight'].asnumpy().round(4).tolist()
    [[1.0, -2.0, 3.0]]
    """

    _default = None  # of a bucket the one that has the optimizer's names
    _counts_at_start = None  # updates of the optimizer and of the snapshot

    def __init__(self, symbol, data_names=('data',), label_names=('softmax_label',),
                 logger=logging, context=mx.cpu(), work_load_list=None,
                 fixed_param_names=None, state_names=None, group2ctxs=None,
                 compression_params=None, update_freq: Optional[int] = None, *,
                 loss_is_mean: Optional[bool] = None,
                 alpha: Union[float, Callable[[int], float]] = 1., nonfinite: str = 'warn',
                 full_grad_batches: Union[None, int, Callable[[int], int]] = None,
                 proximal: Union[None, ProximalOperator, Dict[str, ProximalOperator]] = None,
                 tol: Optional[float] = None) -> None:
        settings = Settings(
            update_freq=2 if update_freq is None else update_freq, loss_is_mean=loss_is_mean,
            alpha=alpha, nonfinite=nonfinite,
            full_grad_batches=full_grad_batches, proximal=proximal, tol=tol)
        super().__init__(symbol, data_names, label_names, logger, context, work_load_list,
                         fixed_param_names, state_names, group2ctxs, compression_params)
        self._proximal = ProximalOperators(
            settings.proximal, self._trainable, weights_of(symbol, self._trainable))
        graph = json.loads(symbol.tojson(remove_amp_cast=has_casts(symbol)))
        warn_once = WarnOnce()
        self._svrg = SVRG(ModuleReference(self, graph, warn_once, settings), settings, warn_once,
                          Training())
        self._keys = KVStoreKeys(self._param_names, self._trainable)
        self._waiting = {}  # parts of a checkpoint, for bind and init_optimizer
        self._pass_of_fit = None, False  # its iterator, and whether it stands at the beginning
        self._watch = Watch(warn_once, arrays_of, 'train_data', 'symbol')

    update_freq, full_grad_batches = setting('update_freq'), setting('full_grad_batches')

    @property
    def learning_rate(self) -> Optional[float]:
        """Rate of the next step; None before there is an optimizer.

        It can be set, to 0 or more, unless the optimizer has an `lr_scheduler` or servers
        update the weights. Rates of parameters with an `lr_mult` are multiples of it.

        Raises
        ------
        TypeError, ValueError
            If it cannot be set.
        RuntimeError
            If it is set before `init_optimizer`.
        """
        module = self._default_bucket
        return module._optimizer.learning_rate if module.optimizer_initialized else None

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        module = self._default_bucket
        rate = check_rate('learning_rate', rate)
        if not module.optimizer_initialized:
            raise RuntimeError('learning_rate needs an optimizer: call init_optimizer first')
        check_together({'another learning_rate': str(rate)}, features_of(
            module._kvstore, module._update_on_kvstore), features_of_optimizer(
                module._optimizer, {}))
        module._optimizer.set_learning_rate(rate)

    _default_bucket = property(lambda module: module._default or module)
    _snapshot = property(lambda module: module._svrg.snapshot)
    _trained = property(lambda module: TrainedModule(module._default_bucket))
    _trainable = property(lambda module: [
        name for name in module._param_names if name not in module._fixed_param_names])

    # Binding and parameters

    def bind(self, data_shapes, label_shapes=None, for_training=True, inputs_need_grad=False,
             force_rebind=False, shared_module=None, grad_req='write'):
        """Bind the module and, for training, the module at the snapshot.

        An active snapshot stays active after `force_rebind`. If binding fails,
        the module is not bound. An SVRGModule as `shared_module` shares its
        snapshot too. Gradients of inputs are not corrected.

        Warns
        -----
        UserWarning
            If the snapshot is dropped, because its full gradient lacks a parameter.
        """
        if self.binded and not force_rebind:
            super().bind(data_shapes, label_shapes)  # only logs that it is bound already
            return
        svrg, snapshot, shared = self._svrg, self._snapshot, None
        if for_training and label_shapes is not None:
            unknown = set(self._label_names or ()) - set(self._symbol.list_arguments())
            if unknown:
                raise ValueError('label_names must be inputs of the symbol, which has %s, and not '
                                 '%s' % (self._symbol.list_arguments(), sorted(unknown)))
        try:
            with contextlib.nullcontext() if for_training else without_fusion():
                super().bind(data_shapes, label_shapes, for_training, inputs_need_grad,
                             force_rebind, shared_module, grad_req)
            if isinstance(shared_module, SVRGModule) and shared_module._mod_aux.binded:
                shared = shared_module._svrg
            svrg.reference.bind(self, shared and shared.reference)
            svrg.step = Step(stage=Stage.NOT_BEGUN)
            if for_training:
                svrg.snapshot = shared.snapshot if shared else snapshot
                waiting = self._waiting.get('svrg')
                if waiting:
                    svrg.check_state(waiting)
                    svrg.load_state(waiting)
                self._waiting.pop('svrg', None)  # only now: a Ctrl-C would have lost it
                svrg.drop_snapshot_without(executor_group.gradients(self))
        except BaseException:
            svrg.snapshot = snapshot
            self._reset_bind()
            raise

    def _reset_bind(self):
        if self.binded and self._params_dirty:
            self._sync_params_from_devices()  # Module would go back to older weights
        super()._reset_bind()
        if not self.params_initialized:
            self._arg_params = self._aux_params = None
        self._svrg.reference.executors.reset_bind()

    def reshape(self, data_shapes, label_shapes=None):
        """Reshape the module for batches of another shape, and that at the snapshot when needed.

        Without `label_shapes` the labels get as many rows. If it fails, nothing is changed.
        """
        if self._label_shapes and not label_shapes:
            rows = rows_of_batch(None, [each if isinstance(each, mx.io.DataDesc)
                                        else mx.io.DataDesc(*each) for each in data_shapes])
            label_shapes = resized(self._label_shapes, rows)
        bound = [*self.data_shapes, *(self.label_shapes or [])]
        try:
            with executor_group.shapes_kept_on_error(self):
                super().reshape(data_shapes, label_shapes)
        except mx.MXNetError as error:  # which names a weight and no shape
            raise ValueError('batches must be such that the module can be bound for, like %s, and '
                             'not %s' % tuple([(name, shape) for name, shape, *_ in shapes]
                                              for shapes in (bound, [
                                                  *data_shapes, *(label_shapes or [])]))) from error
        self._svrg.reference.batch_size = executor_group.batch_size(self)

    def init_params(self, initializer=mx.init.Uniform(0.01), arg_params=None, aux_params=None,
                    allow_missing=False, force_init=False, allow_extra=False):
        """Initialize the parameters.

        With `force_init` the snapshot is dropped, and steps are plain Module's until the
        next one. With ``initializer=None`` it does not change, as in `set_params`.
        """
        initializes = force_init or not self.params_initialized
        super().init_params(initializer, arg_params, aux_params, allow_missing, force_init,
                            allow_extra)
        if initializes:
            self._set_weights_of_kvstore()
            self._forget_training()
        if initializes and initializer is not None:  # as it is where set_params calls this
            self._waiting.pop('svrg', None)
            self._snapshot.num_taken = 0
            if self._snapshot.is_active:
                self._svrg.drop_snapshot()

    def set_params(self, arg_params, aux_params, allow_missing=False, force_init=True,
                   allow_extra=False):
        """Set the parameters. The snapshot does not change."""
        super().set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)
        if allow_missing:  # else init_params has done it
            self._set_weights_of_kvstore()
        self._forget_training()

    def _set_weights_of_kvstore(self):
        kvstore = kvstore_of_weights(self)
        if kvstore is not None and not is_distributed(kvstore):
            set_weights(kvstore, executor_group.parameters(self),
                        executor_group.gradients(self))  # or the next step undoes it

    def _forget_training(self):
        self._default_bucket._svrg.training.forget()

    # Optimizer

    def init_optimizer(self, kvstore='local', optimizer='sgd',
                       optimizer_params=(('learning_rate', 0.01),), force_init=False):
        """Install the optimizer.

        It is wrapped, so that the KVStore updates weights with gradients and
        only sums full gradients. A KVStore takes one module; a process has one
        distributed KVStore.

        With ``kvstore='horovod'`` all workers of Horovod train as with ``dist_sync``.

        Raises
        ------
        ValueError
            If MXNet would abort, hang or give wrong results with this `kvstore`, a learning rate,
            weight decay or multiplier of these is negative or not finite, or a setting of the
            module does not allow the optimizer or the KVStore. No key of a weight has been
            created then.
        TypeError
            If `optimizer` is neither a str nor an Optimizer.

        Warns
        -----
        UserWarning
            If `kvstore` is None with several devices: each device then trains by itself, as in
            Module.
        """
        check_has_parameters(self, 'init_optimizer')
        if self.optimizer_initialized and not force_init:
            warn_of_ignored(self, optimizer, optimizer_params)
            super().init_optimizer(kvstore, optimizer, optimizer_params, force_init)
            return
        optimizer_params = with_default_arguments(optimizer, optimizer_params)
        with optimizer_kept_on_error(self):
            init_optimizer = super().init_optimizer
            install(self, kvstore, optimizer, optimizer_params,
                    lambda kvstore, wrapped: init_optimizer(kvstore, wrapped, optimizer_params,
                                                            force_init))

    def borrow_optimizer(self, shared_module):
        """Use the optimizer of another module, which shares its parameters.

        Raises
        ------
        ValueError
            If `shared_module` is a plain Module with a distributed KVStore or Horovod, or the
            settings of this module do not allow its optimizer.
        """
        is_ours = isinstance(shared_module, SVRGModule)
        check_lender(self, shared_module, is_ours)
        if is_ours:
            self._keys = shared_module._keys
            self._counts_at_start = shared_module._counts_at_start
        super().borrow_optimizer(shared_module)

    # A step

    def set_states(self, states=None, value=None):
        """Set the states as Module does. That steps carry them over batches is warned of once."""
        snapshot = self._snapshot
        if states is not None and snapshot.is_active and snapshot.num_update > snapshot.taken_at:
            self._svrg.warn_once(
                'set_states carries states over batches, and a full gradient takes those from the '
                'beginning of its pass for all: it is biased. alpha=0 takes plain steps')
        super().set_states(states, value)

    def forward(self, data_batch, is_train=None):
        """Compute the outputs at the current weights.

        A batch of another size is accepted; the full gradient is scaled to it.
        """
        if not (self.binded and self.params_initialized):
            check_has_parameters(self, 'forward')
        reference = self._svrg.reference
        is_training = self.for_training if is_train is None else is_train
        batch_size = reference.batch_size
        if reference.random_layers and is_training and self._svrg.corrects:
            reference.draw()
        try:
            super().forward(data_batch, is_train)
        finally:
            reference.batch_size = batch_size  # a batch of another size does not change B
        self._svrg.step = Step(is_training, stage=Stage.BEGUN)
        watch = (self._default or self)._watch
        if is_training and watch.is_waiting:
            watch.check_step(data_batch)

    def predict(self, eval_data, *args, **kwargs):
        """Predict as Module does."""
        check_has_parameters(self, 'predict')
        if not isinstance(eval_data, (np.ndarray, mx.nd.NDArray, mx.io.DataIter)):
            raise TypeError('eval_data must be a DataIter or an array, as to_numpy() makes of a '
                            'DataFrame, and not %s' % reprlib.repr(eval_data))
        return super().predict(eval_data, *args, **kwargs)

    predict.__signature__ = inspect.signature(Module.predict)

    def score(self, eval_data, *args, **kwargs):
        """Evaluate a metric as Module does."""
        check_has_parameters(self, 'score')
        check_iterator('eval_data', eval_data)
        return super().score(eval_data, *args, **kwargs)

    score.__signature__ = inspect.signature(Module.score)

    def get_params(self):
        """Return the parameters as Module does."""
        if not self.params_initialized:
            check_has_parameters(self, 'get_params')
        return super().get_params()

    def __getstate__(self):
        raise TypeError('an SVRGModule cannot be copied or pickled: save_checkpoint(prefix, epoch) '
                        'and SVRGModule.load(prefix, epoch) make another one')

    def backward(self, out_grads=None):
        """Compute the SVRG gradients of the batch.

        The gradient arrays of the module contain them afterwards, so clipping,
        noise and logs between `backward` and `update` work on SVRG gradients.
        With `grad_req` 'add' each backward pass adds its SVRG gradient. Before
        the first snapshot plain Module's gradients are computed. `out_grads` are
        used at the current weights and at the snapshot.

        Raises
        ------
        RuntimeError
            If there was no `forward` before it.
        """
        if not (self.binded and self.params_initialized):
            check_has_parameters(self, 'backward')
        svrg, step = self._svrg, self._svrg.step
        if step.stage is Stage.NOT_BEGUN:
            raise RuntimeError('backward needs a forward before it')
        step.stage, step.gradient = Stage.BEGUN, None
        super().backward(out_grads)
        step.stage, step.out_grads = Stage.COMPUTED, out_grads
        if type(self)._update_svrg_gradients is not SVRGModule._update_svrg_gradients:
            if svrg.corrects:  # an override may read it in `_mod_aux`
                step.gradient = svrg.reference.gradient(
                    self, None, is_training=step.is_training, out_grads=out_grads)
            else:
                step.stage = Stage.READY
            if type(self).update is not SVRGModule.update:
                return  # as in mxnet.contrib: `update` calls the other method
        if step.stage is Stage.COMPUTED:
            self._update_svrg_gradients()
        step.stage, step.gradient = Stage.READY, None  # a subclass may not have called ours

    def update(self):
        """Update the weights with the SVRG gradients, or as plain Module without a snapshot.

        Raises
        ------
        RuntimeError
            If an error has stopped `backward` while it corrected the gradients, or the optimizer is
            newton_cg, which makes no steps.

        Warns
        -----
        UserWarning
            Once if there is no snapshot, `alpha` has not been 0, and `backward` got no
            `out_grads`.
        """
        if not (self.binded and self.optimizer_initialized):
            check_has_parameters(self, 'update', and_optimizer=True)
        if self._svrg.step.stage in (Stage.COMPUTED, Stage.CORRECTING):  # an error stopped backward
            self._update_svrg_gradients()
        super().update()

    def _update_svrg_gradients(self):
        """Turn the gradients of the latest backward pass into SVRG gradients, in place, once."""
        rule = self._svrg_grads_update_rule
        is_ours = getattr(rule, '__func__', None) is ContribNames._svrg_grads_update_rule
        self._svrg.correct(self, executor_group.gradients(self), formula=None if is_ours else rule)

    # Snapshot and full gradient

    def fit(self: Any, train_data: Any, eval_data: Any = None, eval_metric: Any = 'acc',
            epoch_end_callback: Any = None, batch_end_callback: Any = None,
            kvstore: Any = 'local', optimizer: Any = 'sgd',
            optimizer_params: Any = (('learning_rate', 0.01),), eval_end_callback: Any = None,
            eval_batch_end_callback: Any = None, initializer: Any = mx.init.Uniform(0.01),
            arg_params: Optional[Dict[str, Any]] = None,
            aux_params: Optional[Dict[str, Any]] = None, allow_missing: bool = False,
            force_rebind: bool = False, force_init: bool = False, begin_epoch: int = 0,
            num_epoch: Optional[int] = None, validation_metric: Any = None,
            monitor: Any = None, sparse_row_id_fn: Optional[Callable[[Any], Any]] = None) -> None:
        """Train the module for some epochs, with snapshots.

        With newton_cg an epoch is one iteration of Newton's method: passes over the data find a
        point where the objective is lower, and then callbacks and the validation see its weights.
        There are no steps, no training metric and no `batch_end_callback`, and `update_freq` does
        not matter. `fit` ends after the epoch that finds convergence, or no lower objective.

        With another optimizer a snapshot is taken at the beginning of the epochs 0, `update_freq`,
        2 `update_freq` and so on. One is also taken before the first step if
        there is none, if updates were made with ``alpha=0`` since the last one, or if
        `train_data` is another object than in the last `fit`.
        In an epoch with a snapshot `train_data` is read twice.

        For each snapshot the log has the seconds that it took (``Epoch[%d] Full gradient
        time=%.3f``, a part of the epoch's ``Time cost``), the `gradient_norm` (``Full
        gradient norm``), the `objective` and the distance from the optimum if they are known
        (``Full objective``, ``Distance``), and with `full_grad_batches` the number of batches
        (``Full gradient batches``). The last line of the log is the `result`.

        With `tol`, `fit` ends at the first snapshot that finds convergence; the epoch is not
        trained then. After `num_epoch` epochs a last snapshot is taken, which decides whether
        training has converged.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type, `train_data` yields no batch in an epoch, or the
            workers of a distributed run differ in what must be the same on all. Also if
            `init_optimizer` or `update_full_grads` raises one.
        FloatingPointError
            If a full gradient is not finite, with ``nonfinite='raise'``.

        Warns
        -----
        UserWarning
            If the symbol has no loss: `fit` then trains as plain Module. Also if training
            has not converged to `tol`.
        """
        loop.fit(**locals())

    def update_full_grads(self, train_data: Any) -> None:
        r"""Take a snapshot of the weights and compute the full gradient there.

        The iterator is reset, read to its end or for `full_grad_batches` batches, and
        left there. Padding rows are ignored. If the pass fails, the previous snapshot
        stays active. If `alpha` is the number 0, nothing is done.

        Parameters
        ----------
        train_data : DataIter
            The n rows to average over. It yields DataBatches, or lists with one
            DataBatch for each device.

        Raises
        ------
        RuntimeError
            If the module is not bound for training or has no parameters yet.
        TypeError
            If `train_data` is not an iterator or does not yield batches.
        ValueError
            If `train_data` yields no row or a batch that the module cannot be bound for, the
            symbol has no loss, or `full_grad_batches` is set with newton_cg.
        FloatingPointError
            If the full gradient is not finite, with ``nonfinite='raise'``.

        Warns
        -----
        UserWarning
            Once if the full gradient is not finite, with ``nonfinite='warn'``, a loop after the
            last snapshot has found no batch of an NDArrayIter, the network has random layers
            other than Dropout, the padding of a batch cannot be cut off: its
            gradient then includes the padding, weighted by the fraction of real rows, or
            `loss_is_mean` cannot be measured.
        """
        if not (self.binded and self.for_training and self.params_initialized):
            raise RuntimeError('update_full_grads needs a module that is bound with '
                               'for_training=True and has its parameters initialized')
        check_iterator('train_data', train_data)
        svrg, trained = self._svrg, TrainedModule(self)
        if svrg.settings.is_plain:
            return
        a_pass = Pass(train_data, svrg.settings.batches_after(svrg.snapshot.num_taken))
        check_together(svrg.settings.features(), {'newton_cg': trained.moves})
        of_fit, is_rewound = self._pass_of_fit
        if train_data is not of_fit:
            self._watch.begin_pass(train_data, svrg.snapshot.num_update)
            rewind(train_data)
        elif not is_rewound:
            rewind_for_pass(train_data)
        a_pass.rewind = rewind_for_pass(train_data, is_rewound=True)
        synchronize(self)
        workers = workers_of(self, train_data is of_fit)
        with svrg.reference.inputs_kept(self):
            algorithm.take(svrg, trained, a_pass, workers)
        if train_data is not of_fit or not is_rewound:  # else nobody can change batches
            self._watch.end_pass(train_data, svrg.snapshot.num_update)

    # Checkpoints

    def save_checkpoint(self, prefix: Union[str, Path], epoch: int,
                        save_optimizer_states: bool = False,
                        remove_amp_cast: bool = True) -> None:
        """Save the module with all that is needed to resume the training run.

        All of it is in ``prefix-%04d.svrg``, which has no pickles, and is written whole or not at
        all. Then Module saves its own files, for plain ``Module.load``.

        Raises
        ------
        TypeError
            If the optimizer's states are neither numbers nor arrays, nor lists or tuples of them.
        OSError
            If the file cannot be written. An earlier one stays as it was.

        Warns
        -----
        UserWarning
            Once if the optimizer's states are on servers: they are not saved.
        """
        remove_amp_cast = remove_amp_cast and has_casts(self.symbol)
        with_states = save(self, prefix, epoch, save_optimizer_states, remove_amp_cast)
        super().save_checkpoint(prefix, epoch, with_states, remove_amp_cast)

    def _sync_params_from_devices(self):
        if self._aux_names:
            mx.nd.waitall()  # BatchNorm writes its statistics behind the engine's back
        super()._sync_params_from_devices()

    @classmethod
    def load(cls, prefix: Union[str, Path], epoch: int, load_optimizer_states: bool = False,
             **kwargs: Any) -> 'SVRGModule':
        """Make a module, not bound yet, from a checkpoint of this class or of plain Module.

        If there was an active snapshot when it was saved, it becomes active at `bind`.

        Parameters
        ----------
        prefix : str or path
            Beginning of the file names.
        epoch : int
            Number of the epoch in the file names.
        load_optimizer_states : bool
            Whether to load the optimizer's states and update counts when the optimizer
            is installed. If you give it a `begin_num_update`, the counts are not loaded. The
            states of a plain Module are a pickle: load only files that you trust.
        **kwargs
            Further arguments of the constructor, also for another number of devices.
            Settings, `fixed_param_names` and `compression_params` default to the saved values. For
            a checkpoint of plain Module `update_freq` is 1 by default.

        Raises
        ------
        FileNotFoundError
            If there is neither ``prefix-%04d.svrg`` nor the files of a plain Module.
        ValueError
            If a file is damaged or not a checkpoint, or the states were not saved and are to be
            loaded.
        TypeError
            If an argument has the wrong type.

        Warns
        -----
        UserWarning
            If a setting that a file cannot hold is not given: a schedule, or operators of another
            package. If the states were on servers: only the counts are loaded. If there is
            no ``.svrg`` file: only what plain Module saves is loaded.
        """
        state = read_checkpoint(prefix, epoch, load_optimizer_states)
        module = cls(state['symbol'], **arguments_of(state, kwargs))
        module._load_state(state)
        return module

    def _load_state(self, state):
        self._arg_params, self._aux_params = state['weights'], state['auxiliary']
        self.params_initialized = True
        self._preload_opt_states = state.get('file_of_states')  # of plain Module
        self._waiting = {name: state[name] for name in ('svrg', 'optimizer')}

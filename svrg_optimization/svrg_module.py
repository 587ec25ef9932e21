"""SVRGModule, MXNet's Module trained with stochastic variance reduced gradients."""

import contextlib
import functools
import json
import logging
import traceback

import mxnet as mx
from mxnet.base import _as_list
from mxnet.model import BatchEndParam
from mxnet.module import Module, SequentialModule

from ._argument_checks import check_callbacks, checked_bool
from .checkpoint.resume import Loaded, SnapshotCheckpoints
from .core.correction import correct, correct_fused
from .core.full_gradient import FullGradient
from .core.gradient_pass import GradientPass
from .core.loss_reduction import LossReduction, missing_loss_named
from .core.row_sparse import correct_rows_of_batch
from .core.schedule import SnapshotSchedule
from .core.snapshot import Snapshot
from .core.snapshot_module import SnapshotModule
from .core.stored_gradients import StoredBatch, StoredGradients
from .data.iterators import check_iterator, read_to_end, rewind, rows_left_over, rows_of_batch
from .kvstore.agreement import (
    Plan,
    check_batch_counts,
    count_batches,
)
from .kvstore.keys import KVStoreKeys
from .kvstore.kinds import batches_of_a_step, is_distributed, is_synchronous
from .kvstore.membership import Membership
from .kvstore.operations import compresses
from .kvstore.optimizer_setup import OptimizerSetup
from .mxnet_bridge import executor_group
from .mxnet_bridge.docstrings import with_docstrings_of_mxnet
from .mxnet_bridge.dropout_masks import DropoutMasks
from .mxnet_bridge.optimizer_states import check_learning_rate, weight_decays
from .mxnet_bridge.storage import dense
from .proximal import ProximalOperators
from .step_size import BarzilaiBorwein
from .svrg_optimizer import _SVRGOptimizer

# How many batches the iterator may run ahead of the arithmetic: queued batches take memory.
_BATCHES_AHEAD = 64


def _nothing_to_correct():
    """Do nothing: replaces `_update_svrg_gradients` from one `backward` to the next."""


def _is_bound_by_chain():
    """Tell whether a SequentialModule binds the module: only the call stack shows it."""
    return any(frame.f_code is SequentialModule.bind.__code__
               for frame, _ in traceback.walk_stack(None))


@with_docstrings_of_mxnet
class SVRGModule(SnapshotSchedule, SnapshotCheckpoints, OptimizerSetup, Module):
    r"""Train a Module with SVRG, the stochastic variance reduced gradient.

    It replaces :class:`mxnet.module.Module`: change ``mx.mod.Module(symbol, ...)``
    to ``SVRGModule(symbol, ..., update_freq=1)``. Every `update_freq` epochs it
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
    data_names, label_names : list of str
        Names of the data and label variables, as in Module.
    logger : Logger
        Logger of the epochs and snapshots of `fit`.
    context : Context or list of Context
        Device or devices. The snapshot and the full gradient are stored there too.
    work_load_list : list of number, optional
        Work load of each device, as in Module.
    fixed_param_names : list of str, optional
        Parameters that are not trained, as in Module.
    state_names : list of str, optional
        States, as in Module.
    group2ctxs : dict of str to Context, or list of dict, optional
        Devices of the context groups, as in Module.
    compression_params : dict, optional
        Gradient compression between devices, as in Module. The full gradient
        is not compressed. A distributed KVStore does not accept it.
    update_freq : int
        Epochs from one snapshot to the next, 1 or more. It is required; the
        signature has a default only because mxnet.contrib has one. It may be
        set later as an attribute.
    loss_is_mean : bool, optional
        Whether the loss is a mean over the rows of a batch rather than a sum.
        By default this is read from the loss layers of the symbol
        (``normalization='batch'`` or ``'valid'``). A mean made of operators,
        ``MakeLoss(mean(...))``, cannot be recognized and needs True.
    full_grad_callback : callable or list of callable, optional
        Called with a BatchEndParam after each batch of the pass for the full
        gradient, as `batch_end_callback` is in an epoch of training.
    sparse_full_grad : bool
        Whether to apply the full gradient of row_sparse parameters only to the
        rows that the batch contains. Each row of it is divided by the fraction
        of the batches that contain the row [2]_ [3]_. The cost of a step then
        depends on the rows of the batch and not on the size of the table. The
        gradient stays unbiased; its variance is larger. By default a step is
        exact SVRG and updates the whole table.
    store_snapshot_grads : bool or int
        Whether to store the batches of the pass for the full gradient, each
        with its gradient at the snapshot. True allows 1 GiB; a number is the
        limit in bytes. `fit` then trains on the stored batches until the next
        snapshot, in a new random order in each epoch. A step takes one forward
        and one backward pass, so an epoch takes 1 + 1/update_freq passes. The
        method is SVRG on the finite sum of these batches: random augmentation
        does not change them until the next snapshot ("transform locking" [4]_).
    alpha : float or callable
        The coefficient :math:`\alpha` of α-SVRG [5]_,

        .. math:: g = \nabla f_{batch}(w) - \alpha (\nabla f_{batch}(\tilde w) - \mu).

        A number in [0, 1], where 1 is SVRG, or a schedule like `LinearDecay`,
        which is called with the number of updates so far. It may be set later
        as an attribute. With the number 0 the module is plain Module: no
        snapshot is taken. A schedule that returns 0 skips no pass.
    nonfinite : {'warn', 'raise'}
        What happens if the full gradient has an infinite value or a NaN: a
        warning that names the parameters, once, or a FloatingPointError. After
        the error the previous snapshot stays active.
    proximal : object or dict of str to object, optional
        Proximal operator of a regularizer R that has no gradient, from
        `svrg_optimization.proximal` or one of your own [6]_. After each step
        with the learning rate :math:`\eta` the optimizer sets

        .. math:: w \leftarrow \mathrm{prox}_{\eta R}(w).

        One operator is for all weights: the parameters whose names end with
        ``_weight``, or have a ``wd_mult`` other than 0. A dict has an operator
        for each parameter that it names. The optimizer must be sgd without
        momentum.

    Raises
    ------
    ValueError
        If `update_freq` is below 1, `alpha` is not in [0, 1], `nonfinite` is
        neither 'warn' nor 'raise', or `store_snapshot_grads` is below 1. Also
        if `store_snapshot_grads` is set for a network with random layers or
        states: these would differ between the pass and the step. Also if
        `proximal` names a parameter that is not trained, finds no weight, or
        is given together with `sparse_full_grad`.
    TypeError
        If `symbol` is not a Symbol, `context` is not a Context or a list of
        Contexts, `update_freq` is not an int, `loss_is_mean` is not None, True
        or False, `sparse_full_grad` is not a bool, `full_grad_callback` is not
        callable, `store_snapshot_grads` is not a bool or an int, `alpha` is
        neither a number nor callable, or `proximal` contains something else
        than operators.

    Warns
    -----
    UserWarning
        If the memory for `store_snapshot_grads` is too small. Without room for
        all gradients, the others are computed again at each step. Without room
        for the data, nothing is stored until the next snapshot. Each warning
        appears once, with the counts.

    References
    ----------
    .. [1] R. Johnson and T. Zhang, "Accelerating Stochastic Gradient Descent
       using Predictive Variance Reduction", NIPS 2013, Figure 1.
    .. [2] H. Mania, X. Pan, D. Papailiopoulos, B. Recht, K. Ramchandran and
       M. I. Jordan, "Perturbed Iterate Analysis for Asynchronous Stochastic
       Optimization", arXiv:1507.06970, 2015.
    .. [3] R. Leblond, F. Pedregosa and S. Lacoste-Julien, "ASAGA: Asynchronous
       Parallel SAGA", AISTATS 2017.
    .. [4] A. Defazio and L. Bottou, "On the Ineffectiveness of Variance
       Reduced Optimization for Deep Learning", NeurIPS 2019, Section 3.
    .. [5] Y. Yin, Z. Xu, Z. Li, T. Darrell and Z. Liu, "A Coefficient Makes
       SVRG Effective", ICLR 2025.
    .. [6] L. Xiao and T. Zhang, "A Proximal Stochastic Gradient Method with
       Progressive Variance Reduction", SIAM J. Optim. 24(4), 2014.

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

    def __init__(self, symbol, data_names=('data',), label_names=('softmax_label',),
                 logger=logging, context=mx.cpu(), work_load_list=None,
                 fixed_param_names=None, state_names=None, group2ctxs=None,
                 compression_params=None, update_freq=None, *,
                 loss_is_mean=None, full_grad_callback=None, sparse_full_grad=False,
                 store_snapshot_grads=False, alpha=1.0, nonfinite='warn', proximal=None):
        self._set_schedule(update_freq, full_grad_callback, alpha)
        loss_is_mean = checked_bool('loss_is_mean', loss_is_mean, or_none=True)
        sparse_full_grad = checked_bool('sparse_full_grad', sparse_full_grad)
        if not isinstance(symbol, mx.sym.Symbol):
            raise TypeError('symbol must be an mxnet Symbol, not %r' % (symbol,))
        if nonfinite not in ('warn', 'raise'):
            raise ValueError("nonfinite must be 'warn' or 'raise', not %r" % (nonfinite,))
        contexts = _as_list(context)
        if not contexts or not all(isinstance(device, mx.Context) for device in contexts):
            raise TypeError('context must be a Context or a list of Contexts, not %r' % (context,))
        super().__init__(symbol, data_names, label_names, logger, context, work_load_list,
                         fixed_param_names, state_names, group2ctxs, compression_params)
        self._proximal = ProximalOperators(proximal, symbol, self._trainable, sparse_full_grad)
        graph = json.loads(symbol.tojson())  # once: each call leaks three times the JSON in MXNet
        self._nodes = graph['nodes']
        self._masks = DropoutMasks(symbol, graph)
        self._stored = StoredGradients(store_snapshot_grads)
        if self._stored.budget:
            self._check_batches_can_be_held()
        new_snapshot_module = functools.partial(
            Module, self._masks.symbol_taking, self._data_names, self._label_names, self.logger,
            self._context, fixed_param_names=self._fixed_param_names, group2ctxs=self._group2ctxs,
            state_names=self._state_names + self._masks.names)
        self._snapshot_module = SnapshotModule(new_snapshot_module, self._work_load_list,
                                               self._masks)
        self._ctx_len = len(self._context)
        self._loss_is_mean = loss_is_mean
        self._loss_reduction = None
        self._sparse_full_grad = sparse_full_grad
        self._raises_if_nonfinite = nonfinite == 'raise'
        self._membership = Membership(KVStoreKeys(self._param_names, self._trainable))
        self._snapshot = Snapshot()
        self._keeps_snapshot = False
        self._batch_size = None
        self._forwarded_for_training = self._stored_batch = None
        self._awaits_backward = self._awaits_update = False
        self._gradients_at_snapshot = None
        self._activations_are_live = True
        self._loaded = Loaded()

    def _check_batches_can_be_held(self):
        for kind, names in (('random layers', self._masks.layers + self._masks.unshared),
                            ('states', self._state_names)):
            if names:
                raise ValueError('store_snapshot_grads must be False for a network with %s: %s '
                                 'would be others at a step than in the pass'
                                 % (kind, ', '.join(names)))

    @property
    def _trainable(self):
        return [name for name in self._param_names if name not in self._fixed_param_names]

    @property
    def _mod_aux(self):
        return self._snapshot_module.module

    @property
    def _param_dict(self):
        full_gradient = self._snapshot.full_gradient
        return full_gradient.shares if full_gradient else None

    @_param_dict.setter
    def _param_dict(self, shares):
        full_gradient = self._new_full_gradient()
        full_gradient.shares = shares
        full_gradient.finished = True
        self._snapshot.replace(full_gradient)

    # Binding and parameters

    def bind(self, data_shapes, label_shapes=None, for_training=True, inputs_need_grad=False,
             force_rebind=False, shared_module=None, grad_req='write'):
        """Bind the module and, for training, the module at the snapshot.

        An active snapshot stays active after `force_rebind`. If binding fails,
        the module is not bound.

        Parameters
        ----------
        data_shapes : list of DataDesc or list of (str, tuple of int)
            Name and shape of each input, usually ``train_data.provide_data``.
        label_shapes : list of DataDesc or list of (str, tuple of int), optional
            Name and shape of each label, usually ``train_data.provide_label``.
        for_training : bool
            Whether to bind for training. Without it there is no module at the
            snapshot.
        inputs_need_grad : bool
            Whether to compute the gradients of the inputs too. These are not
            corrected.
        force_rebind : bool
            Whether to bind again a module that is already bound.
        shared_module : Module, optional
            A bound module to share parameters with. An SVRGModule shares its
            snapshot too.
        grad_req : str, list of str or dict of str to str
            'write', 'add' or 'null', for all gradients or for each.

        Warns
        -----
        UserWarning
            If the network has random layers other than Dropout, if a
            SequentialModule binds the module, which then trains as plain
            Module, or if the snapshot is dropped because its full gradient
            lacks a parameter. Each appears once.
        """
        if self.binded and not force_rebind:
            super().bind(data_shapes, label_shapes)  # only logs that it is bound already
            return
        snapshot = self._snapshot
        try:
            self._bind_anew(data_shapes, label_shapes, for_training, inputs_need_grad,
                            force_rebind, shared_module, grad_req)
        except BaseException:
            self._symbol, self._snapshot = self._masks.symbol, snapshot
            self._reset_bind()
            raise

    def _bind_anew(self, data_shapes, label_shapes, for_training, inputs_need_grad, force_rebind,
                   shared_module, grad_req):
        if for_training:
            self._symbol = self._masks.symbol_giving
        super().bind(data_shapes, label_shapes, for_training, inputs_need_grad, force_rebind,
                     shared_module, grad_req)
        self._symbol = self._masks.symbol
        executor_group.hide_outputs_behind(self, self._symbol)
        self._batch_size = executor_group.batch_size(self)
        shapes = dict(self.data_shapes + (self.label_shapes or []))
        self._loss_reduction = LossReduction(self.symbol, self._nodes, shapes, self._loss_is_mean)
        if for_training:
            shared_snapshot_module = None
            if isinstance(shared_module, SVRGModule) and shared_module._mod_aux.binded:
                shared_snapshot_module = shared_module._snapshot_module
                self._snapshot = shared_module._snapshot
            self._snapshot_module.bind(self, self._param_names, shared_snapshot_module)
            if not self._coefficient.is_always_zero:
                self._warn_of_random_layers()
                if _is_bound_by_chain():
                    self._warn_once('a SequentialModule takes no snapshots: it trains this module '
                                    'as plain Module')
            self._restore_snapshot()
            self._check_snapshot_covers_parameters()

    def _warn_of_random_layers(self):
        if self._masks.unshared:
            self._warn_once('%s: these layers draw random numbers anew at the snapshot, and the '
                            'difference of the gradients is as noisy as they are; only Dropout '
                            'layers share theirs' % ', '.join(self._masks.unshared))

    def _check_snapshot_covers_parameters(self):
        if self._snapshot.is_active:
            lacking = set(executor_group.gradients(self)) - set(self._param_dict[0])
            if lacking:
                self._warn_of_dropped_snapshot(lacking)
                self._snapshot.replace(self._new_full_gradient())

    def _warn_of_dropped_snapshot(self, lacking):
        self._warn_once('the snapshot is dropped, since it has no full gradient of %s'
                        % ', '.join(sorted(lacking)))

    def _reset_bind(self):
        super()._reset_bind()
        if not self.params_initialized:
            executor_group.forget_parameters(self)
        self._snapshot_module.reset_bind()

    def reshape(self, data_shapes, label_shapes=None):
        """Reshape the module for batches of another shape.

        The module at the snapshot is reshaped when its gradients are next needed.

        Parameters
        ----------
        data_shapes : list of DataDesc or list of (str, tuple of int)
            Name and new shape of each input.
        label_shapes : list of DataDesc or list of (str, tuple of int), optional
            Name and new shape of each label.
        """
        super().reshape(data_shapes, label_shapes)
        self._batch_size = executor_group.batch_size(self)

    def init_params(self, initializer=mx.init.Uniform(0.01), arg_params=None, aux_params=None,
                    allow_missing=False, force_init=False, allow_extra=False):
        """Initialize the parameters.

        With `force_init` the snapshot is dropped, and the module takes plain
        Module's steps until the next one.

        Parameters
        ----------
        initializer : Initializer
            Sets the parameters that are not given.
        arg_params : dict of str to NDArray, optional
            Values of parameters.
        aux_params : dict of str to NDArray, optional
            Values of auxiliary states.
        allow_missing : bool
            Whether `initializer` sets parameters that `arg_params` or
            `aux_params` lacks. Otherwise they are an error.
        force_init : bool
            Whether to initialize again parameters that are already initialized.
        allow_extra : bool
            Whether to ignore names that the network does not have. Otherwise
            they are an error.

        Raises
        ------
        TypeError
            If a given value is not an NDArray.
        ValueError
            If a given value has another shape than the bound parameter.
        """
        initializes = force_init or not self.params_initialized
        if initializes and self.binded:
            executor_group.check_given(self, arg_params=arg_params, aux_params=aux_params)
        super().init_params(initializer, arg_params, aux_params, allow_missing, force_init,
                            allow_extra)
        if initializes and not self._keeps_snapshot:
            self._loaded = self._loaded._replace(snapshot=None)
            if self._snapshot.is_active:
                self._snapshot.replace(self._new_full_gradient())
            if self._step_size_rule:
                self._step_size_rule.restart()

    def set_params(self, arg_params, aux_params, allow_missing=False, force_init=True,
                   allow_extra=False):
        """Set the parameters. The snapshot does not change.

        Parameters
        ----------
        arg_params : dict of str to NDArray
            Values of parameters.
        aux_params : dict of str to NDArray
            Values of auxiliary states.
        allow_missing : bool
            Whether parameters without a given value keep theirs. Otherwise they
            are an error.
        force_init : bool
            Whether to set parameters that are already initialized.
        allow_extra : bool
            Whether to ignore names that the network does not have. Otherwise
            they are an error.

        Raises
        ------
        TypeError
            If a given value is not an NDArray.
        ValueError
            If a given value has another shape than the bound parameter.
        """
        if self.binded and (force_init or not self.params_initialized):
            executor_group.check_given(self, arg_params=arg_params, aux_params=aux_params)
        with self._keeping_snapshot():
            super().set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)

    @contextlib.contextmanager
    def _keeping_snapshot(self):
        """Keep the snapshot when Module's set_params calls init_params."""
        self._keeps_snapshot = True
        try:
            yield
        finally:
            self._keeps_snapshot = False

    # A step

    def forward(self, data_batch, is_train=None):
        """Compute the outputs at the current weights.

        Parameters
        ----------
        data_batch : DataBatch or list of DataBatch
            The batch, or one batch for each device. A batch of another size is
            accepted; the full gradient is scaled to it.
        is_train : bool, optional
            Whether layers run in training mode. By default they do if the
            module is bound for training.
        """
        batch_size = self._batch_size
        try:
            super().forward(data_batch, is_train)
        finally:
            self._batch_size = batch_size  # a batch of another size does not change B
        self._forwarded_for_training = self.for_training if is_train is None else is_train
        self._awaits_backward = bool(self._forwarded_for_training)
        self._stored_batch = data_batch if isinstance(data_batch, StoredBatch) else None
        self._take_outputs_out_of_pool()

    def _take_outputs_out_of_pool(self):
        self._activations_are_live = True
        if self._snapshot_module.shares_pool:
            executor_group.take_outputs_out_of_pool(self)

    def backward(self, out_grads=None):
        """Compute the SVRG gradients of the batch.

        The gradient arrays of the module contain them afterwards, so clipping,
        noise and logs between `backward` and `update` work on SVRG gradients.
        With `grad_req` 'add' each backward pass adds its SVRG gradient. Before
        the first snapshot plain Module's gradients are computed.

        Parameters
        ----------
        out_grads : NDArray or list of NDArray, optional
            Gradients of the outputs, where these are not losses. They are used
            at the current weights and at the snapshot.

        Raises
        ------
        RuntimeError
            If there was no `forward` before it.
        """
        self._compute_gradients(out_grads)
        if self._gradients_at_snapshot is not None:
            self._update_svrg_gradients()
            self._gradients_at_snapshot = None
            # An `update` that was written for mxnet.contrib calls it once more.
            self._update_svrg_gradients = _nothing_to_correct

    def _compute_gradients(self, out_grads=None):
        """Compute the gradients at the current weights and, in other arrays, at the snapshot."""
        assert self.binded and self.params_initialized
        self._gradients_at_snapshot = None
        vars(self).pop('_update_svrg_gradients', None)
        if self._forwarded_for_training is None:
            raise RuntimeError('backward needs a forward before it')
        if not self._activations_are_live:
            executor_group.repeat_forward(self, self._forwarded_for_training)
            self._take_outputs_out_of_pool()
        super().backward(out_grads)
        self._awaits_backward, self._awaits_update = False, True
        if not self._snapshot.is_active or self._coefficient.is_always_zero:
            return
        at_snapshot = self._stored_gradients(out_grads)
        if at_snapshot is None:
            self._snapshot_module.run_on_inputs_of(self, self._forwarded_for_training, out_grads)
            at_snapshot = self._snapshot_module.latest_gradients()
            self._activations_are_live = not self._snapshot_module.shares_pool
        self._gradients_at_snapshot = at_snapshot

    def _stored_gradients(self, out_grads):
        """Return the stored gradients of the batch at the snapshot, None if there are none."""
        batch = self._stored_batch
        if (batch is None or out_grads is not None or not self._forwarded_for_training
                or batch.full_gradient is not self._snapshot.full_gradient):
            return None
        return batch.at_snapshot

    def update(self):
        """Update the weights with the SVRG gradients.

        If the gradients were computed before the first snapshot, this is a step
        of plain Module.

        Raises
        ------
        ValueError
            If the optimizer's learning rate is infinite or NaN.
        """
        if self.optimizer_initialized:
            check_learning_rate(self._optimizer)  # MXNet would fail in the middle of the step
        if self._gradients_at_snapshot is not None:  # an error stopped backward before it
            self._update_svrg_gradients()
        super().update()
        self._awaits_update = False
        self._snapshot.num_update += 1
        if self._coefficient.is_always_zero:
            self._snapshot.is_stale = True

    def _update_svrg_gradients(self):
        """Turn the gradients of the latest backward pass into SVRG gradients, in place.

        It is the last part of `backward`. Calling it again before the next
        `backward` does nothing, even if a subclass overrides it.
        """
        at_snapshot = self._gradients_at_snapshot
        if at_snapshot is None:
            return
        full_gradient = self._snapshot.full_gradient
        alpha = self._coefficient.at(self._snapshot.num_update)
        cut_from = self._stored_batch and self._stored_batch.cut_from
        units = full_gradient.units_for(cut_from or executor_group.batch_size(self))
        gradients = executor_group.gradients(self)
        rule_is_ours = (getattr(self._svrg_grads_update_rule, '__func__', None)
                        is SVRGModule._svrg_grads_update_rule)
        fused = [[name for name in names if name in gradients] for names in full_gradient.small
                 if rule_is_ours and units == 1]
        for device, shares in enumerate(full_gradient.shares):
            for names in fused:
                correct_fused([gradients[name][device] for name in names],
                              [at_snapshot[name][device] for name in names],
                              [shares[name] for name in names], alpha)
        for name in gradients.keys() - set().union(*fused):
            for device, gradient in enumerate(gradients[name]):
                by_row = full_gradient.by_row[device]
                full = by_row.get(name, full_gradient.shares[device][name])
                if units != 1:
                    full = full * units
                then = at_snapshot[name][device]
                if name in by_row:
                    correct_rows_of_batch(gradient, then, full, alpha)
                elif rule_is_ours:
                    correct(gradient, then, full, alpha)
                else:
                    if alpha != 1:
                        then, full = then * alpha, full * alpha
                    corrected = self._svrg_grads_update_rule(gradient, then, full)
                    if corrected is not gradient:
                        corrected.copyto(gradient)
        self._gradients_at_snapshot = None

    @contextlib.contextmanager
    def _between_steps(self):
        """Undo all that passes without updates change, except outputs and gradients."""
        if not (self.binded and self.for_training and self.params_initialized):
            raise RuntimeError('mod must be bound with for_training=True and have its parameters '
                               'initialized')
        if not (self._snapshot.is_active or self._coefficient.is_always_zero):
            raise RuntimeError('mod must have a snapshot: call update_full_grads first')
        if self._awaits_backward or self._awaits_update:
            raise RuntimeError('mod must not stand between forward and update: call %s first'
                               % ('update' if self._awaits_update else 'backward and update'))
        shapes, batch_size = (self.data_shapes, self.label_shapes), self._batch_size
        kept = [state for module in (self, self._mod_aux)
                for state in executor_group.auxiliary_states(module)]
        sparse = executor_group.sparse_weights(self) if self._update_on_kvstore else []
        mx.nd.waitall()  # MXNet's BatchNorm writes its states behind the engine's back
        with executor_group.kept(kept + sparse + executor_group.added_gradients(self)):
            try:
                if sparse:
                    executor_group.pull_sparse_weights(self._kvstore, self)
                yield
            finally:
                mx.nd.waitall()
                self._awaits_backward = self._awaits_update = False
                self._gradients_at_snapshot = None
                if (self.data_shapes, self.label_shapes) != shapes:
                    self.reshape(*shapes)
                    self._batch_size = batch_size

    def _svrg_grads_update_rule(self, g_curr_batch_curr_weight, g_curr_batch_special_weight,
                                g_special_weight_all_batch):
        r"""Compute :math:`g = \nabla f_{batch}(w) - \nabla f_{batch}(\tilde w) + \mu`.

        Parameters
        ----------
        g_curr_batch_curr_weight : NDArray
            Gradient of the batch at the current weights, with the shape and
            dtype of one parameter. It is overwritten with g.
        g_curr_batch_special_weight : NDArray
            Gradient of the batch at the snapshot, of the same shape and dtype,
            times α.
        g_special_weight_all_batch : NDArray
            One device's share of the full gradient, of the same shape, times α
            and scaled to the rows of the batch. It is dense; its dtype is
            float32 where the gradient's is float16.

        Returns
        -------
        NDArray
            The array `g_curr_batch_curr_weight`, which contains g.
        """
        correct(g_curr_batch_curr_weight, g_curr_batch_special_weight, g_special_weight_all_batch)
        return g_curr_batch_curr_weight

    # Snapshot and full gradient

    def update_full_grads(self, train_data, batch_end_callback=None):
        r"""Take a snapshot of the weights and compute the full gradient there.

        The iterator is reset, read to its end and left there. Padding rows are
        ignored. If the pass fails, the previous snapshot and full gradient stay
        active. With the number 0 as `alpha` the data are read and nothing is
        computed, so that shuffled iterators yield the same batches afterwards.

        Parameters
        ----------
        train_data : DataIter
            The n rows to average over. It yields DataBatches, or lists with one
            DataBatch for each device.
        batch_end_callback : callable or list of callable, optional
            Called with a BatchEndParam after each batch. Its epoch is 0 outside
            of `fit`. The default is the constructor's `full_grad_callback`.

        Raises
        ------
        RuntimeError
            If the module is not bound for training or has no parameters yet.
        TypeError
            If `train_data` is not an iterator or does not yield batches, or
            `batch_end_callback` is not callable.
        ValueError
            If `train_data` yields no row, a batch without labels, or a batch of
            shapes that the module cannot be bound for. Also if the symbol has
            no loss.
        FloatingPointError
            If the full gradient is not finite, with ``nonfinite='raise'``.

        Warns
        -----
        UserWarning
            If the full gradient is not finite, with ``nonfinite='warn'``. Also
            if the padding of a batch cannot be cut off, because the symbol
            cannot be bound for the real rows or a device would have no row. The
            gradient then includes the padding, and its weight is the fraction
            of real rows. Each warning appears once.
        """
        self._check_ready_for_snapshot(train_data, batch_end_callback)
        if self._coefficient.is_always_zero:
            read_to_end(train_data)
        else:
            self._take_snapshot(train_data, batch_end_callback or self._full_grad_callback,
                                self._epoch)

    def _check_ready_for_snapshot(self, train_data, batch_end_callback):
        if not (self.binded and self.for_training and self.params_initialized):
            raise RuntimeError('update_full_grads needs a module that is bound with '
                               'for_training=True and has its parameters initialized')
        check_iterator('train_data', train_data)
        check_callbacks('batch_end_callback', batch_end_callback)

    def _take_snapshot(self, train_data, batch_end_callback, epoch, module_of=None):
        rewind(train_data)
        kvstore = self._kvstore if self._update_on_kvstore else None
        if is_distributed(self._kvstore):
            self._membership.synchronize(self._kvstore, self, self._update_on_kvstore,
                                         self._snapshot.num_update)
        advance_step_size = self._prepare_step_size(epoch)
        self._warn_of_random_layers()
        snapshot_module = self._snapshot_module
        before = snapshot_module.copy_of_weights() if self._snapshot.is_active else []
        with self._snapshot.being_replaced(functools.partial(snapshot_module.set_weights, before)):
            snapshot_module.move_to_weights_of(self, kvstore)
            full_gradient = self._full_gradient_at_snapshot(
                train_data, batch_end_callback, epoch, module_of)
            self._report_if_not_finite(full_gradient)
            snapshot_module.copy_auxiliary_states_of(self)
            self._snapshot.replace(full_gradient, epoch)
        advance_step_size(full_gradient)

    def _report_if_not_finite(self, full_gradient):
        names = full_gradient.nonfinite()
        if not names:
            return
        message = 'the full gradient is not finite: %s' % ', '.join(names)
        if self._raises_if_nonfinite:
            raise FloatingPointError(message)
        self._warn_once(message, 'nonfinite')

    @property
    def _step_size_rule(self):
        """The optimizer's BarzilaiBorwein, None if it has none."""
        scheduler = self._optimizer.lr_scheduler if self.optimizer_initialized else None
        return scheduler if isinstance(scheduler, BarzilaiBorwein) else None

    def _prepare_step_size(self, epoch):
        """Return a function that sets the next learning rate from the next full gradient."""
        rule = self._step_size_rule
        if rule is None or not self._snapshot.is_active:
            return lambda _: None
        weights = executor_group.parameters(self._mod_aux)
        before = {name: arrays[0].copy() for name, arrays in weights.items()}
        full_before = self._snapshot.full_gradient
        steps = self._snapshot.num_update - self._snapshot.taken_at
        unit = self._optimizer.rescale_grad * batches_of_a_step(self._kvstore)

        def advance(full_gradient):
            totals, totals_before = full_gradient.totals(), full_before.totals()
            decays = weight_decays(self._optimizer, list(totals), not self._update_on_kvstore)
            moved = {name: dense(weights[name][0]) - dense(before[name]) for name in totals}
            units = full_before.units_for(full_gradient.batch_size)
            rule.advance(list(moved.values()), [
                unit * (totals[name] - units * totals_before[name]) + decays[name] * moved[name]
                for name in totals], steps, units)
            if epoch is not None:
                self.logger.info('Epoch[%d] Learning rate=%g', epoch, rule(None))

        return advance

    def _full_gradient_at_snapshot(self, train_data, batch_end_callback, epoch, module_of=None):
        self._stored_batch = None
        full_gradient = self._new_full_gradient()
        stored = self._stored.begin(full_gradient) if module_of is None else None
        with self._live_inputs_kept(), missing_loss_named(self._symbol):
            self._activations_are_live = not self._snapshot_module.shares_pool
            yielded = self._sum_gradients(full_gradient, train_data, module_of,
                                          batch_end_callback, epoch or 0, stored)
        self._membership.allow_next()
        full_gradient.finish(yielded, self._membership.keys, self._kvstore_of_full_gradient(),
                             add_devices=self._kvstore is not None)
        if not full_gradient.finished:
            raise ValueError('train_data must yield at least one row of data, and %r yielded '
                             'none' % (train_data,))
        if epoch is not None:
            check_batch_counts(self._kvstore, full_gradient.batches_of_workers)
        if stored:
            self._stored.keep(stored, yielded, train_data, self._warn_once)
        return full_gradient

    def _live_inputs_kept(self):
        """Protect the inputs of a forward whose backward is still to come from a pass."""
        if self._awaits_backward and self._snapshot_module.shares_inputs:
            return executor_group.kept(executor_group.inputs(self))
        return contextlib.nullcontext()

    def _check_workers_agree(self, train_data, update_freq, epoch, takes_snapshot):
        """Raise a ValueError on all workers if ``fit`` would hang or go wrong on some of them.

        The numbers of batches are compared here only if there is no pass for
        the full gradient first. That pass compares them itself.
        """
        kvstore, membership = self._kvstore, self._membership
        if not is_distributed(kvstore):
            return
        membership.check_plan(kvstore, Plan(
            rows_of_batch(train_data, self.data_shapes),
            0 if self._update_on_kvstore else self._optimizer.rescale_grad,
            update_freq, epoch, takes_snapshot, rows_left_over(train_data)))
        if not takes_snapshot:
            membership.allow_next()
            if is_synchronous(kvstore):
                check_batch_counts(kvstore, count_batches(kvstore, membership.keys.tally,
                                                          train_data))

    def _sum_gradients(self, full_gradient, train_data, module_of, batch_end_callback, epoch,
                       stored):
        """Sum the gradients over all batches and return the number of batches."""
        alone = self if module_of is None else None
        gradient_pass = GradientPass(full_gradient, train_data, alone, stored)
        yielded = 0
        for nbatch, data_batch in enumerate(train_data):
            yielded += 1
            gradient_pass.add(self if module_of is None else module_of(data_batch), data_batch)
            if batch_end_callback is not None or yielded % _BATCHES_AHEAD == 0:
                gradient_pass.wait()
            if batch_end_callback is not None:
                param = BatchEndParam(epoch=epoch, nbatch=nbatch, eval_metric=None, locals=locals())
                for callback in _as_list(batch_end_callback):
                    callback(param)
                del param  # its own locals would contain it, and it would never be freed
        gradient_pass.finish()
        return yielded

    def _kvstore_of_full_gradient(self):
        """Return the KVStore that sums the full gradient over the devices, or None.

        A KVStore with compression would quantize the full gradient. The KVStore
        of an optimizer that was borrowed from a plain Module has no keys for it.
        """
        if self._kvstore is None or not isinstance(self._optimizer, _SVRGOptimizer):
            return None
        if self._compression_params or compresses(self._kvstore, self._membership.keys.first,
                                                  self._context):
            return None
        return self._kvstore

    def _new_full_gradient(self):
        return FullGradient(executor_group.gradients(self._mod_aux), self._ctx_len,
                            self._batch_size, self._loss_reduction.is_mean,
                            self._sparse_full_grad)

    def _accumulate_kvstore(self, key, value):
        """Sum one parameter's full gradient over all devices in the KVStore.

        Parameters
        ----------
        key : str
            Name of the parameter.
        value : list of NDArray
            One array for each device. Each is overwritten with the sum.
        """
        self._snapshot.full_gradient.exchange(self._kvstore, self._membership.keys, {key: value})

    def _allocate_gradients(self, key, value):
        """Give each device its share of one parameter's full gradient.

        Parameters
        ----------
        key : str
            Name of the parameter.
        value : list of NDArray
            The whole full gradient, once on each device.
        """
        self._snapshot.full_gradient.share_out(key, value)

    # Stored batches

    def _store_again(self, train_data):
        if not self._stored.budget or self._stored.is_of(train_data):
            return
        rewind(train_data)
        with self._snapshot_module.auxiliary_states_restored():
            full_gradient = self._full_gradient_at_snapshot(train_data, None, self._epoch)
        self._snapshot.exchange_full_gradient(full_gradient)
        train_data.reset()

    def _stored_batches(self):
        return self._stored.shuffled()

    def training_batches(self, train_data):
        """Return the batches of one epoch, for a custom loop.

        Parameters
        ----------
        train_data : DataIter
            The iterator that `update_full_grads` was called with.

        Returns
        -------
        iterable of DataBatch
            The batches that `store_snapshot_grads` stored at the last
            `update_full_grads`, in a new random order. If there are none, the
            iterator itself, which has been reset.

        Raises
        ------
        TypeError
            If `train_data` is not an iterator.
        """
        check_iterator('train_data', train_data)
        batches = None if self._coefficient.is_always_zero else self._stored_batches()
        if batches is None:
            rewind(train_data)
            return train_data
        return batches

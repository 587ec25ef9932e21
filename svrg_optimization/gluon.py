r"""SVRGTrainer, Gluon's Trainer with stochastic variance reduced gradients."""

import contextlib
import hashlib
import itertools
import os
import pickle
import re
import reprlib
import tempfile
from types import SimpleNamespace

import numpy as np
from mxnet import autograd, gluon, nd, random, util
from mxnet.optimizer import Optimizer

from ._argument_checks import check_epoch, checked_bool, checked_count
from ._warn_once import WarnOnce
from .checkpoint.files import files_written_together
from .core import rate
from .core.arrays import dense, dtype_of_sum
from .core.divergence import Divergence
from .core.full_gradient import FullGradient, Part
from .core.optimality import MeanGradient
from .core.schedule import Schedule
from .core.store import Store
from .core.svrg import COMPUTED, SVRG
from .data.batch_rows import without_padding
from .data.iterators import pads_in_front, rewind
from .kvstore.agreement import tally
from .kvstore.kinds import is_asynchronous, is_distributed
from .kvstore.operations import probe_of_compression, quantizes
from .kvstore.reduction import OverWorkers, WithinProcess
from .kvstore.worker_exit import prepare_exit
from .step_size import BarzilaiBorwein, check_step_size

_COUNTS = 'taken_at', 'is_stale', 'num_update', 'num_taken'
_GENERATORS = 8  # a multiple of MXNet's number of generators, 4 on a CPU
_CALL_CACHED_OP = gluon.HybridBlock._call_cached_op
_ARRAYS = nd.NDArray, np.ndarray
_BAD_INPUT = AssertionError, AttributeError, TypeError, ValueError  # what a network raises


class SVRGTrainer(gluon.Trainer):
    r"""Train Gluon blocks with SVRG, the stochastic variance reduced gradient.

    It replaces :class:`mxnet.gluon.Trainer`. The loop changes in three places::

        trainer = SVRGTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1},
                              objective=lambda data, label: loss(net(data), label))
        for epoch in range(20):
            if epoch % 2 == 0:
                trainer.update_full_grads(train_data)   # a snapshot and its full gradient
            for data, label in train_data:
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
        As in Trainer. All parameters of the network should be among them:
        running statistics of others, such as BatchNorm's, would see each batch
        twice.
    optimizer, optimizer_params, kvstore, compression_params, update_on_kvstore
        As in Trainer. With a distributed `kvstore`, which must be synchronous,
        or a `BarzilaiBorwein`, the KVStore does not update the weights.
    objective : callable
        Takes what `backward` is given, on one device, and returns the loss, or a
        tuple or list that begins with it. The loss has one element for each row
        (or word), or one for the batch.
    loss_is_mean : bool, optional
        Whether a loss of one element is a mean over the rows of the batch rather
        than a sum. By default it is a mean.
    batch_axis : int, or list of int or None
        Axis of the rows, along which the pass splits an input over devices; 1 for
        (T, N, C). A list has one for each input of a batch, None if it has no
        rows: each device gets it whole.
    alpha : float or callable
        :math:`\alpha`, as in SVRGModule. It may be set later as an attribute. With
        the number 0 this is Trainer.
    nonfinite : {'warn', 'raise'}
        As in SVRGModule.

    Raises
    ------
    TypeError
        If `objective` is not callable or another argument is of another type.
    ValueError
        If `batch_axis` is negative, `alpha` is not in [0, 1], `nonfinite` is neither
        'warn' nor 'raise',
        a weight is row_sparse, `kvstore` is ``dist_async`` or gets compressed
        gradients, `update_on_kvstore` is set with a distributed `kvstore` or a
        `BarzilaiBorwein`, or the optimizer is not one for this rate.

    References
    ----------
    .. [1] R. Johnson and T. Zhang, "Accelerating Stochastic Gradient Descent
       using Predictive Variance Reduction", NIPS 2013.
    .. [2] Y. Yin, Z. Xu, Z. Li, T. Darrell and Z. Liu, "A Coefficient Makes SVRG
       Effective", ICLR 2025.
    """

    def __init__(self, params, optimizer, optimizer_params=None, kvstore='device',
                 compression_params=None, update_on_kvstore=None, *, objective,
                 loss_is_mean=None, batch_axis=0, alpha=1.0, nonfinite='warn'):
        if not callable(objective):
            raise TypeError('objective must be a function of a batch that returns its loss, not %r'
                            % (objective,))
        if nonfinite not in ('warn', 'raise'):
            raise ValueError("nonfinite must be 'warn' or 'raise', not %r" % (nonfinite,))
        if is_distributed(kvstore):
            if is_asynchronous(kvstore):
                raise ValueError("kvstore must be 'dist_sync' or of one process for an SVRGTrainer,"
                                 ' not %r: a snapshot needs weights that all workers share'
                                 % (getattr(kvstore, 'type', kvstore),))
            if update_on_kvstore:
                raise ValueError('update_on_kvstore must be None or False with a distributed '
                                 'kvstore, whose servers would need the batch size before the '
                                 'first step, not True')
            update_on_kvstore = False
        if compression_params:
            raise ValueError('compression_params must be None: full gradients would be compressed '
                             'too, and not %r' % (compression_params,))
        rule = (optimizer_params or {}).get('lr_scheduler',
                                            getattr(optimizer, 'lr_scheduler', None))
        schedule = Schedule(alpha=alpha)
        check_step_size(optimizer, optimizer_params or {}, schedule.alpha, bool(update_on_kvstore))
        if isinstance(rule, BarzilaiBorwein):
            update_on_kvstore = False
            rule.restart()
        super().__init__(params, optimizer, optimizer_params, kvstore, None, update_on_kvstore)
        for param in self._params:
            if param._stype != 'default':
                raise ValueError('params must be dense, and %s is %s' % (param.name, param._stype))
        if len({param.name for param in self._params}) < len(self._params):
            raise ValueError('params must have different names, and not %s'
                             % sorted(param.name for param in self._params))
        warn_once = WarnOnce()
        self._at = _AtSnapshot(self._params, objective,
                               checked_bool('loss_is_mean', loss_is_mean, or_none=True),
                               _checked_axes(batch_axis), warn_once)
        self._summed = None  # rows whose SVRG gradients `step` is to find
        self._svrg = SVRG(self._at, schedule, Store(False), warn_once, nonfinite == 'raise')
        self._divergence = Divergence()
        self._keys_on_servers = set()

    @property
    def alpha(self):
        """Coefficient of the variance reduction, a number in [0, 1] or a schedule of it."""
        return self._svrg.schedule.alpha

    @alpha.setter
    def alpha(self, alpha):
        self._svrg.schedule.set(alpha=alpha)

    @property
    def gradient_norm(self):
        r"""Largest component of the gradient at the latest snapshot; None before the first.

        It is that of the mean objective per row, with the weight decay that the
        optimizer applies, :math:`\max_i |\mu_i / B + wd_i \tilde w_i|`, over the
        parameters that are updated. With a `rescale_grad` of one's own, wd is
        divided by it.
        """
        snapshot = self._svrg.snapshot
        if not snapshot.is_active:
            return None
        return self._mean_gradient().norm(snapshot.full_gradient, self._at.weights())

    @property
    def _rule(self):
        scheduler = self._optimizer.lr_scheduler
        return scheduler if isinstance(scheduler, BarzilaiBorwein) else None

    def _mean_gradient(self):
        """Return the gradient that a step follows, whatever the size of its batch."""
        updated = [param for param in self._params if param.lr_mult]
        decays = dict(zip(self._params, self._optimizer._get_wds(range(len(self._params)))))
        return MeanGradient(lambda full_gradient: self._scale / full_gradient.batch_size,
                            {param.name: param.lr_mult for param in updated},
                            {param.name: decays[param] for param in updated}, self._optimizer)

    def update_full_grads(self, train_data, batches=None, states=()):
        r"""Take a snapshot of the weights and compute the full gradient there.

        If the pass fails, the previous snapshot stays active. A DataIter is reset
        before it and after it. With the number 0 as `alpha` nothing is done.

        Parameters
        ----------
        train_data : iterable
            DataLoader, DataIter or any other iterable, whose batches are tuples or
            lists of what `objective` takes, of any number of rows. Padding of a
            DataIter does not count. On several devices each NDArray is split, and
            a list of one NDArray a device is taken as it is.
        batches : int, optional
            Number of batches, from the beginning, that the mean is over. By
            default it is all.
        states : tuple, optional
            States that a network carries from batch to batch, as they are at the
            beginning. `objective` gets them after the batch, and returns a tuple
            of the loss and the states for the next batch, which are detached. On
            several devices it is a list of such a tuple for each.

        Raises
        ------
        TypeError
            If `batches` is not an int, `states` or a batch is not a tuple or a list,
            or `objective` returns no loss.
        ValueError
            If `batches` is below 1 or given with a `BarzilaiBorwein`, if there is no
            batch, if `states` or a batch is
            not as `batch_axis` and the devices demand, if no parameter is trained,
            if one is not part of the objective, if its network is hybridized with
            static_shape=True, or if workers have different numbers of batches or a
            KVStore that compresses.
        RuntimeError
            Within ``autograd.record()`` or after ``mx.npx.set_np()``.
        FloatingPointError
            If the full gradient is not finite, with ``nonfinite='raise'``.

        Warns
        -----
        UserWarning
            If `gradient_norm` and the weights have grown a thousandfold since the
            first snapshot, without a `BarzilaiBorwein`: training diverges.
        """
        if batches is not None:
            batches = checked_count('batches', batches, 'None or an int of 1 or more')
            if self._rule:
                raise ValueError('batches must be None with BarzilaiBorwein, as differences of '
                                 'samples are noise, and not %d' % batches)
        if self._svrg.schedule.is_off:
            return
        self._check_ready()
        in_list = isinstance(states, (list, tuple))
        if in_list and not (len(self._devices) > 1 and states):
            states = [states for _ in self._devices]
        if not in_list or len(states) != len(self._devices) or not all(
                isinstance(of_device, (list, tuple)) for of_device in states):
            raise TypeError('states must be a tuple or list of what objective takes after the '
                            'batch, on several devices a list of one for each, and not %s'
                            % reprlib.repr(states))
        is_iterator = hasattr(train_data, 'reset')
        if is_iterator:
            rewind(train_data)
        read = (self._split(batch, train_data)
                for batch in itertools.islice(train_data, batches))
        first = list(itertools.islice(read, 1))
        if first and any(param._deferred_init for param in self._params):
            self._at.outputs(_with_states(first[0], states))  # finds the shapes
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()
        self._drop_outdated_snapshot()
        source = _Batches(itertools.chain(first, read), train_data, states)
        if self._rule:
            rate.take_snapshot(self._svrg, self, self._rule, self._mean_gradient(), self._go_to,
                               source, self._reduction())
        else:
            self._svrg.take_snapshot(self, source, self._reduction())
            self._divergence.look_at(self.gradient_norm, self._at.weights(), self.learning_rate,
                                     self._svrg.warn_once)
        if is_iterator:
            rewind(train_data)

    def _go_to(self, weights):
        """Set the weights, by name and device; the optimizer begins anew there."""
        for param in self._params:
            for value, target in zip(weights.get(param.name, []), param._data):
                value.copyto(target)
        for updater in self._updaters:
            updater.states.clear()
            updater.states_synced.clear()

    def _check_ready(self):
        if autograd.is_recording():
            raise RuntimeError('SVRGTrainer records by itself: call its methods outside of '
                               'autograd.record()')
        if util.is_np_array():
            raise RuntimeError('SVRGTrainer needs mx.nd arrays: call mx.npx.reset_np() after '
                               'mx.npx.set_np()')
        if not self._at.trained():
            raise ValueError("params must have one that is trained, and grad_req is 'null' for all")

    def _drop_outdated_snapshot(self):
        if self._svrg.snapshot.is_active and self._at.is_outdated():
            self._svrg.warn_once('the snapshot is dropped, since parameters have got other arrays '
                                 '(cast, reset_ctx, grad_req)')
            self._svrg.snapshot.replace(None)

    @property
    def _devices(self):
        return self._params[0].list_ctx()

    def _split(self, batch, train_data):
        """Return the inputs of the objective for each device; for the first alone if few."""
        if hasattr(batch, 'data'):
            batch = without_padding(batch, train_data.provide_data, train_data.provide_label,
                                    pads_in_front(train_data))
            batch = [*batch.data, *(batch.label or [])]
        if not isinstance(batch, (list, tuple)) or not batch:
            raise TypeError('train_data must yield tuples or lists of what objective takes, not %s'
                            % reprlib.repr(batch))
        devices, axes, rows = self._devices, self._at.axes_of(batch), self._at.rows_of(batch)
        if len(axes) != len(batch):
            raise ValueError('batch_axis must have one for each of the %d inputs in a batch of '
                             'train_data, and not be %s' % (len(batch), axes))
        if len(devices) > 1 and (None in rows or len(set(rows)) > 1):
            raise ValueError('batch_axis must be the axis of the rows in each input, or None: the '
                             'inputs have %s rows along %s' % (rows, axes))
        in_lists = any(isinstance(value, (list, tuple)) for value in batch)
        if len(devices) == 1 or not in_lists and (not rows or rows[0] < len(devices)):
            return [[_moved(value, devices[0]) for value in batch]]

        def parts_of(value, axis):
            if isinstance(value, (list, tuple)):
                if len(value) != len(devices):
                    raise ValueError('train_data must yield lists of one for each of the devices, '
                                     '%s, and not of %d' % (devices, len(value)))
                return value
            if axis is None or not isinstance(value, _ARRAYS):
                return [_moved(value, device) for device in devices]
            return gluon.utils.split_and_load(value, devices, axis, even_split=False)

        return list(zip(*map(parts_of, batch, axes)))

    def _reduction(self):
        """Return what sums the full gradient. Its keys on servers follow those of Trainer."""
        kvstore, first = self._kvstore, len(self._params)
        if not is_distributed(kvstore):
            return WithinProcess(None, None, kvstore is not None)
        keys = SimpleNamespace(
            tally=first, row_counts={},
            full={param.name: first + 2 + place for place, param in enumerate(self._params)})
        if not self._keys_on_servers:
            prepare_exit(kvstore)
            kvstore.init(first + 1, probe_of_compression())
            if quantizes(kvstore, first + 1, self._devices[:1]):
                raise ValueError('kvstore must not compress gradients (set_gradient_compression): '
                                 'it would compress the full gradient too')
        values = {keys.tally: tally(kvstore)}
        for name, gradients in self._at.live_gradients().items():
            values[keys.full[name]] = nd.zeros(
                gradients[0].shape, dtype=dtype_of_sum(gradients[0].dtype))
        for key, value in values.items():
            if key not in self._keys_on_servers:
                kvstore.init(key, value)
                self._keys_on_servers.add(key)
        return OverWorkers(kvstore, SimpleNamespace(keys=keys, forget_agreement=lambda: None), True)

    def backward(self, *inputs):
        """Compute the objective of a batch and its SVRG gradients.

        Without a snapshot, or with the number 0 as `alpha`, they are plain
        gradients.

        Parameters
        ----------
        *inputs
            Arguments of `objective`, or, on several devices, a list of one for
            each device in the place of each, as ``gluon.utils.split_and_load``
            returns it.

        Returns
        -------
        NDArray, tuple or list
            What `objective` returned; a list of it where inputs are lists.

        Raises
        ------
        TypeError
            If there is no input, or `objective` returns no loss.
        ValueError
            If there are several devices and an input is not such a list, if a
            trained parameter is not part of the objective, whose gradient would be
            that of an earlier batch, or if a network is hybridized with
            static_shape=True.
        RuntimeError
            Within ``autograd.record()`` or after ``mx.npx.set_np()``.
        """
        svrg, at, devices = self._svrg, self._at, len(self._devices)
        if not svrg.schedule.is_off:
            self._check_ready()
        if not inputs:
            raise TypeError('backward needs the inputs of objective, and got none')
        in_lists = devices > 1 or isinstance(inputs[0], (list, tuple))
        if in_lists and not all(isinstance(of_devices, (list, tuple))
                                and len(of_devices) == devices for of_devices in inputs):
            raise ValueError('inputs must be lists of one for each of the devices, %s, as '
                             'gluon.utils.split_and_load returns them' % (self._devices,))
        at.inputs = list(zip(*inputs)) if in_lists else [inputs]
        try:
            svrg.begin_step(self, at.inputs, True)
            self._drop_outdated_snapshot()
            corrects = svrg.corrects
            outputs, rows = at.run_live(corrects)
            svrg.compute_at_snapshot(self, None)
            before, self._summed = self._summed, None
            if corrects:
                svrg.correct(at.live_gradients(), rows)
                at.set_fresh(False)  # until another backward pass writes to them
                self._summed = rows + (before or 0 if at.adds else 0)
        except BaseException:
            svrg.step = self._summed = None  # its gradients are no longer what a step needs
            raise
        finally:
            at.inputs = None
        return outputs if in_lists else outputs[0]

    def step(self, batch_size, ignore_stale_grad=False):
        """Update the weights with the gradients of `backward`.

        Parameters
        ----------
        batch_size : int
            What the gradients are divided by: the number of rows of the batch, on
            all devices and workers; of words for a loss by words; of devices for a
            mean.

        Raises
        ------
        RuntimeError
            If there is a snapshot, and no `backward` before that was finished, or
            another backward pass has overwritten its gradients.

        Warns
        -----
        UserWarning
            If `batch_size` is another number and a weight decays: short batches then
            lead to another optimum.
        """
        self._check_step(batch_size)
        super().step(batch_size, ignore_stale_grad)
        self._svrg.end_step()

    def update(self, batch_size, ignore_stale_grad=False):
        """Update the weights after `allreduce_grads`. Errors and warnings are those of `step`."""
        self._check_step(batch_size)
        super().update(batch_size, ignore_stale_grad)
        self._svrg.end_step()

    def _check_step(self, batch_size):
        svrg, at = self._svrg, self._at
        if svrg.corrects and (svrg.step is None or svrg.step.stage != COMPUTED):
            raise RuntimeError('a step needs trainer.backward(...) of its batch before it: '
                               'the gradients of loss.backward() are not SVRG gradients. '
                               'Set alpha = 0 for steps of plain Trainer')
        if self._summed is None:
            return
        overwritten = at.overwritten()
        if overwritten:
            raise RuntimeError('a step needs the SVRG gradients of trainer.backward(...), and '
                               'another backward pass, of loss.backward() or of another trainer, '
                               'has overwritten those of %s. One SVRGTrainer can train all '
                               'parameters, with lr_mult; alpha = 0 makes plain steps'
                               % ', '.join(overwritten))
        summed = self._summed * (self._kvstore.num_workers if self._distributed else 1)
        if batch_size != summed and any(self._optimizer._get_wds(range(len(self._params)))):
            svrg.warn_once('batch_size of step is %s, and backward has summed the gradients of %d '
                           'rows (or words, or means of devices): with weight decay such batches '
                           'lead to another optimum. Give step the number of each batch, as in '
                           'step(len(data))' % (batch_size, summed), 'batch_size')
        at.set_fresh(True)  # which Trainer demands
        self._summed = None

    def save_states(self, fname):
        """Save the optimizer's states and the snapshot. The file is written whole or not at all."""
        with files_written_together() as write_as:
            write_as(fname, self._save_states_as)

    def _save_states_as(self, fname):
        super().save_states(fname)
        with open(fname, 'rb') as file:
            states = file.read()
        content = pickle.dumps({'trainer': states, 'svrg': self._at.pack(self._svrg.snapshot)})
        with open(fname, 'wb') as file:
            file.write(content + _checksum(content))

    def load_states(self, fname):
        """Load what `save_states` of this class or of Trainer has saved.

        The file is a pickle: load only files that you trust. A file of Trainer
        leaves no snapshot.

        Raises
        ------
        ValueError
            If the file is damaged, of something else, or of other parameters: of
            other names apart from the numbers that Gluon counts, or where these
            numbers put the parameters in another order.
        """
        with open(fname, 'rb') as file:
            saved = file.read()
        try:
            states, svrg = _unpickled(saved)
            restore = svrg and self._at.unpack(svrg, self._svrg.snapshot)
        except Exception as error:  # a damaged pickle may raise any
            raise ValueError('%s is damaged, or has no states for these parameters: %s'
                             % (fname, error)) from error
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, 'states')
            with open(name, 'wb') as file:
                file.write(states)
            super().load_states(name)
        self._svrg.snapshot.replace(None)
        if restore:
            restore()


class _Batches:
    """Batches of a pass, each as the inputs of each device, and the states that they carry."""

    def __init__(self, batches, train_data, states):
        self._batches, self.train_data, self.states = batches, train_data, states

    def batches(self, *_):
        """Return an iterator over the batches."""
        return iter(self._batches)

    def kept(self, batch):
        """Return a batch that stays as it is."""
        return [[value.copy() if isinstance(value, nd.NDArray) else value for value in inputs]
                for inputs in batch]


class _AtSnapshot:
    """Gradients of an objective at the snapshot, whose arrays take the place of the live ones.

    It has a second array for each value that is trained, with a gradient, and
    for each that a forward pass changes, such as BatchNorm's statistics.
    Parameters that are neither are not copied.

    Attributes
    ----------
    inputs : list of sequence
        Arguments of the objective on each device, in a step.
    """

    is_repeatable = True  # with the same seed

    def __init__(self, params, objective, loss_is_mean, batch_axis, warn_once):
        self._params, self._objective, self._batch_axis = params, objective, batch_axis
        self._warn_once = warn_once
        self._kind = {None: None, True: 'mean', False: 'sum'}[loss_is_mean]  # or 'by row'
        self._first_loss = None  # its elements and rows, if it is by row
        self._arrays = {}  # of each parameter that has its own: values and gradients, by device
        self._live = {}  # the arrays of all parameters at the snapshot
        self.inputs = self._random = self._seed = None
        self._is_random = None  # unknown; to set the seed takes 1.5 ms

    # Arrays

    def trained(self):
        """List the parameters that are trained."""
        return [param for param in self._params if param.grad_req != 'null']

    def is_outdated(self):
        """Tell whether a parameter has other arrays than when the snapshot was taken."""
        return any(param._data is not values or param._grad is not gradients
                   for param, (values, gradients) in self._live.items())

    def _allocate(self):
        if self._live and not self.is_outdated():
            return
        self._arrays = {}
        for param in self._params:
            if param.grad_req != 'null':
                values = [value.copy() for value in param.list_data()]
                gradients = [nd.zeros(value.shape, ctx=value.context, dtype=value.dtype,
                                      stype=param._grad_stype) for value in values]
                autograd.mark_variables(values, gradients)
                self._arrays[param] = values, gradients
            elif not param._differentiable:
                self._arrays[param] = [value.copy() for value in param.list_data()], None
        self._live = {param: (param._data, param._grad) for param in self._params}

    def live_gradients(self):
        """Map each trained parameter to its gradients at the current weights, one a device."""
        return {param.name: param.list_grad() for param in self.trained()}

    def _gradients(self):
        return {param.name: self._arrays[param][1] for param in self.trained()}

    def weights(self):
        """Map each trained parameter to a list of its values at the snapshot, one a device."""
        return {param.name: self._arrays[param][0] for param in self.trained()}

    def shift_weights(self, shift):
        """Subtract from the values at the snapshot a dict of one NDArray a parameter."""
        weights = self.weights()
        for name, by in shift.items():
            for value in weights[name]:
                shifted = dense(value) - by.as_in_context(value.context)
                shifted.astype(value.dtype).copyto(value)

    @property
    def adds(self):
        """Whether gradients add up over batches."""
        return any(param.grad_req == 'add' for param in self.trained())

    def set_fresh(self, is_fresh):
        """Set what MXNet sets when a backward pass writes to the gradient of a value."""
        for param in self.trained():
            for value in param._data:
                value._fresh_grad = is_fresh

    def overwritten(self):
        """List the parameters whose gradients a backward pass has replaced since `set_fresh`."""
        return [param.name for param in self.trained() if param.grad_req == 'write'
                and any(value._fresh_grad for value in param._data)]

    @contextlib.contextmanager
    def _in_place(self):
        """Let the parameters have the values of the snapshot, and gradients of their own."""
        live = [(param, param._data, param._grad) for param in self._arrays]

        def checked_call(block, *args):
            outputs = _CALL_CACHED_OP(block, *args)
            if dict(block._flags).get('static_shape') and any(
                    param in self._arrays for _, param in block._cached_op_args):
                raise ValueError('the network must not be hybridized with static_shape=True, which '
                                 'keeps the arrays that it saw first: static_alloc=True is '
                                 'possible')
            return outputs

        def restore():
            gluon.HybridBlock._call_cached_op = _CALL_CACHED_OP
            for param, data, gradients in live:
                param._data, param._grad = data, gradients

        try:
            gluon.HybridBlock._call_cached_op = checked_call
            for param, (data, gradients) in self._arrays.items():
                param._data, param._grad = data, gradients
            yield
        finally:
            try:
                restore()
            except BaseException:  # a Ctrl-C in the middle
                restore()
                raise

    # What SVRG asks for

    def new_full_gradient(self):
        """Return a full gradient that is 0, in the scale of one row."""
        self._allocate()
        gradients = self._gradients()
        return FullGradient(gradients, len(next(iter(gradients.values()))), 1, False)

    def copy_of_weights(self):
        """Return copies of the values at the snapshot."""
        return {param.name: [value.copy() for value in values]
                for param, (values, _) in self._arrays.items()}

    def set_weights(self, weights):
        """Set the values at the snapshot."""
        for param, (targets, _) in self._arrays.items():
            for value, target in zip(weights.get(param.name, []), targets):
                value.copyto(target)

    def move_to_weights_of(self, live):
        """Set the values at the snapshot to the current ones."""
        self._allocate()
        self.set_weights({param.name: param._data for param in self._arrays})

    def copy_auxiliary_states_of(self, live):
        """Set statistics, which a pass has changed, to the current ones."""
        self.set_weights({param.name: param._data for param, (_, gradients)
                          in self._arrays.items() if gradients is None})

    def inputs_kept(self, live):
        """Keep nothing: inputs are not copied."""
        return contextlib.nullcontext()

    def gradients(self, batches, live, source, full_gradient, stores, at_of):
        """Yield the gradients of the batches of a pass, each as a Part."""
        self._is_random = None
        for number, batch in enumerate(batches):
            if isinstance(source, rate.SampledBatch):
                if source.draws_masks:
                    self._set_seed()
                else:
                    random.seed(self._seed)
            with self._in_place():
                outputs = self._run(_with_states(batch, source.states))
            if any(source.states):
                source.states = [_detached(output[1:]) for output in outputs]
            weights, rows, summed = self._count(outputs, batch)
            if not number:
                full_gradient.batch_size = summed  # most steps need not scale it again
            weights += [0] * (len(full_gradient.shares) - len(batch))
            yield Part(self._gradients(), weights, rows, 1)

    def keep_outputs(self, live):
        """Keep nothing: outputs are arrays of their own."""

    def gradients_of_step(self, live, is_training, out_grads):
        """Compute the gradients of the step's batch with the same Dropout masks."""
        if self._is_random:
            random.seed(self._seed)
        with self._in_place():
            self._run(self.inputs, checks=False)
        return self._gradients()

    # A step

    def run_live(self, draws_masks_again):
        """Compute the gradients of the step's batch at the current weights.

        Returns
        -------
        outputs : list
            What the objective returned on each device.
        rows : int
            Number of rows whose gradients are summed; 1 a device for means.
        """
        if draws_masks_again and self._is_random is not False:
            self._set_seed()
        outputs = self._run(self.inputs, draws_masks_again)
        if draws_masks_again and self._is_random is None:
            self._is_random = self._has_drawn()
        _, _, summed = self._count(outputs, self.inputs)
        return outputs, summed

    def _set_seed(self):
        if self._random is None:
            self._random = np.random.RandomState(int(random.randint(0, 2 ** 31 - 1).asscalar()))
        self._seed = int(self._random.randint(2 ** 31 - 1))
        random.seed(self._seed)

    def _has_drawn(self):
        """Tell whether random numbers have been drawn since the seed was set."""
        context = self.trained()[0].list_ctx()[0]

        def draw():  # from each of MXNet's generators, which take turns
            return sorted(random.uniform(ctx=context).asscalar() for _ in range(_GENERATORS))

        numbers = draw()
        random.seed(self._seed)
        return draw() != numbers

    def _run(self, inputs, checks=True):
        """Compute the gradients of a batch; check that they are of all trained parameters."""
        if checks:
            self.set_fresh(False)
        with autograd.record():
            outputs = self.outputs(inputs)
        autograd.backward([_loss_of(output) for output in outputs])
        stale = [param.name for param in self.trained() if checks
                 and not all(value._fresh_grad for value in param._data[:len(inputs)])]
        if stale:
            raise ValueError('objective must use all parameters that are trained, and not leave '
                             "out %s: grad_req = 'null' fixes a parameter" % ', '.join(stale))
        return outputs

    def outputs(self, inputs):
        """Return what the objective returns on each device."""
        try:
            outputs = [self._objective(*of_device) for of_device in inputs]
        except _BAD_INPUT as error:
            if any(isinstance(value, np.ndarray) for of_device in inputs for value in of_device):
                raise TypeError('train_data and backward must give objective NDArrays, or it has '
                                'to turn NumPy arrays into them: %s' % error) from error
            raise
        for loss in map(_loss_of, outputs):
            if not isinstance(loss, nd.NDArray):
                raise TypeError('objective must return the loss, an NDArray, or a tuple or list '
                                'that begins with it, not %s' % reprlib.repr(loss))
        return outputs

    # Rows

    def axes_of(self, inputs):
        """Return the axis of the rows in each input, None if it has none."""
        if isinstance(self._batch_axis, (list, tuple)):
            return self._batch_axis
        return [self._batch_axis] * len(inputs)

    def rows_of(self, inputs):
        """List the numbers of rows of the inputs that are arrays, None for one without the axis."""
        return [dict(enumerate(value.shape)).get(axis)
                for value, axis in zip(inputs, self.axes_of(inputs))
                if isinstance(value, _ARRAYS) and axis is not None]

    def _count(self, outputs, inputs):
        """Return how the gradients of each device count in a sum over rows.

        Returns
        -------
        weights : list of int
            Weight of each device's gradients.
        rows : int
            Number of rows on all devices.
        summed : int
            Number of rows whose gradients are summed; a mean counts as one.
        """
        counts = [self._count_of(_loss_of(output), of_device)
                  for output, of_device in zip(outputs, inputs)]
        return ([rows if is_mean else 1 for rows, is_mean in counts],
                sum(rows for rows, _ in counts),
                sum(1 if is_mean else rows for rows, is_mean in counts))

    def _count_of(self, loss, inputs):
        """Return the number of rows on one device, and whether the loss is a mean over them."""
        if loss.size > 1 and self._kind == 'mean':
            raise ValueError('objective must return a loss of one element with loss_is_mean=True, '
                             'or after a batch with such a loss of several rows, and not of shape '
                             '%s' % (loss.shape,))
        if loss.size > 1 or self._kind == 'by row':
            self._kind = 'by row'
            if self._batch_axis != 0:
                self._warn_of_steps(loss.size, next(iter(self.rows_of(inputs)), None))
            return loss.size, False
        rows = next(filter(None, self.rows_of(inputs)), None)
        if rows is None:
            raise ValueError('objective must return a loss with one element for each row if no '
                             'input is an array with rows along batch_axis')
        if rows > 1 and self._kind is None:
            self._kind = 'mean'
        return rows, self._kind != 'sum'

    def _warn_of_steps(self, size, rows):
        """Warn if the loss has an element for each time step, and not for each sequence."""
        first, others = self._first_loss = self._first_loss or (size, rows)
        if size == first > 1 and rows != others:
            self._warn_once('the loss has %d elements for %s rows along batch_axis as for %s, so '
                            'rows of short batches count more: losses of Gluon have a batch_axis '
                            'too' % (size, rows, others), 'batch_axis')

    # Checkpoints

    def pack(self, snapshot):
        """Return the snapshot as values that can be pickled, with parameters by their place."""
        packed = {'counts': {name: getattr(snapshot, name) for name in _COUNTS},
                  'names': [param.name for param in self._params], 'loss': self._kind,
                  'random': self._random and self._random.get_state(), 'values': None}
        if snapshot.is_active:
            facts, kinds = snapshot.full_gradient.pack()
            places = {param.name: place for place, param in enumerate(self._params)}
            packed.update(
                facts=facts,
                values={places[param.name]: values[0].asnumpy()
                        for param, (values, _) in self._arrays.items()},
                full_gradient={kind: {places[name]: share.asnumpy()
                                      for name, share in shares.items()}
                               for kind, shares in kinds.items() if shares})
        return packed

    def unpack(self, packed, snapshot):
        """Return a function that restores the snapshot that `pack` returned.

        Until it is called nothing has changed. An error says that the snapshot is
        of other parameters.
        """
        names, counts = [param.name for param in self._params], {
            name: packed['counts'][name] for name in _COUNTS}
        kind, generator = self._kind or packed.get('loss'), self._random
        if _structure(packed.get('names', names)) != _structure(names):  # 1.0.0 saved no names
            raise ValueError('it has a snapshot of other parameters, or of these in another order: '
                             '%s, and not %s. Give the blocks the prefixes that they had'
                             % (packed['names'], names))
        if packed['random'] is not None:
            generator = np.random.RandomState()
            generator.set_state(packed['random'])
        values, full_gradient = packed['values'] or {}, None
        if packed['values'] is not None:
            self._allocate()
            shapes = {place: self._arrays[param][0][0].shape
                      for place, param in enumerate(self._params) if param in self._arrays}
            saved = {place: value.shape for place, value in values.items()}
            facts, shares = packed['facts'], packed['full_gradient']
            full_gradient = self.new_full_gradient()
            full_gradient.batch_size = facts['batch_size']
            if saved != shapes or full_gradient.unpack(facts, lambda kind: {
                    names[place]: share for place, share in shares.get(kind, {}).items()}):
                raise ValueError('it has a snapshot of other parameters: of the shapes %s, and not '
                                 '%s' % (list(saved.values()), list(shapes.values())))

        def restore():
            self._kind, self._random = kind, generator
            for place, value in values.items():
                for array in self._arrays[self._params[place]][0]:
                    array[:] = value
            snapshot.replace(full_gradient)
            vars(snapshot).update(counts)

        return restore


def _checked_axes(batch_axis):
    in_list = isinstance(batch_axis, (list, tuple))
    for axis in batch_axis if in_list else [batch_axis]:
        if not (in_list and axis is None):
            check_epoch('batch_axis', axis)
    return batch_axis


def _checksum(content):
    """Return what `save_states` appends to a pickle, whose reader ignores it."""
    return b'sha256:' + hashlib.sha256(content).hexdigest().encode()


def _unpickled(saved):
    """Return the states of Trainer in a file, and those of SVRG, None if it has none."""
    content, is_signed, _ = saved.rpartition(b'sha256:')
    if is_signed and content + _checksum(content) != saved:
        raise ValueError('it does not end with its checksum')
    states, svrg = saved, None
    content = pickle.loads(saved)
    if isinstance(content, dict) and set(content) == {'trainer', 'svrg'}:
        states, svrg = content['trainer'], content['svrg']
        content = pickle.loads(states)
    if not isinstance(content, tuple) or not isinstance(content[-1], Optimizer):
        raise ValueError('it was not saved by SVRGTrainer or Trainer')
    return states, svrg


def _structure(names):
    """Return names without numbers and their places, in order of creation, which Gluon counts."""
    created = sorted((re.split('[0-9]+', name), [int(digits) for digits in re.findall(
        '[0-9]+', name)], place) for place, name in enumerate(names))
    return [(words, place) for words, _, place in created]


def _moved(value, device):
    return value.as_in_context(device) if isinstance(value, nd.NDArray) else value


def _with_states(batch, states):
    return [(*inputs, *of_device) for inputs, of_device in zip(batch, states)]


def _loss_of(output):
    return output[0] if isinstance(output, (list, tuple)) and output else output


def _detached(states):
    """Detach states, which may be nested in lists and tuples."""
    if isinstance(states, (list, tuple)):
        return [_detached(state) for state in states]
    return states.detach()

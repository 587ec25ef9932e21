"""What computes gradients at the snapshot: the loss function itself, on other arrays."""

import contextlib
import operator
import reprlib
import threading

from mxnet import autograd, gluon, nd
from mxnet.ndarray import register

from .._labels import check_block
from ..core.front_end import Reference
from ..core.full_gradient import BatchGradient, Sum
from ..core.random_numbers import RandomNumbers
from .batches import with_states
from .inputs import Inputs, calls_seen
from .numpy_arrays import arrays_in, as_nd

_is_fresh = operator.attrgetter('_fresh_grad')


class _OfThisThread(list):
    """Arrays of a parameter in the place of the current ones, which other threads go on to see."""

    def __init__(self, arrays, current):
        super().__init__(arrays)
        self._current, self._thread = current, threading.get_ident()

    def __getitem__(self, place):
        is_here = threading.get_ident() == self._thread
        return super().__getitem__(place) if is_here else self._current[place]


class GluonReference(Reference):
    """Gradients of `objective` at the snapshot, whose arrays take the place of the current ones.

    It has a second array for the value of each parameter, with a gradient if it is trained.
    `arrays` maps a Parameter to both lists, one array a device.
    """

    def __init__(self, params, objective, rows):
        self._params, self._objective = params, objective
        self.names = [param.name for param in params]
        self.unused = []  # parameters that the batch of a step has not used
        self.rows, self.numbers = rows, RandomNumbers()
        self._looked_up, self._trained = [], []  # arrays of all parameters
        self.never_used = None  # names of parameters that no batch of a pass uses, once known
        self.arrays = {}
        self._blocks = set()  # those of the loss function that may be compiled
        self._inputs = []  # of the latest batch that was looked at
        self._is_first = False  # whether the next batch is the first one of a pass
        self._mark = object()  # of gradients that this has computed

    # Arrays

    def trained(self):
        """List the parameters that are trained.

        Where a parameter has got other arrays since the last call, as by ``cast``,
        ``reset_ctx`` and another ``grad_req``, all arrays at the snapshot are dropped.
        """
        if not self.has_current_arrays():
            self._looked_up, self.arrays = self._current(), {}
            self._trained = [param for param in self._params if param.grad_req != 'null']
            self.never_used = None
            self.adds = any(param.grad_req == 'add' for param in self._trained)
            self.current_gradients = {param.name: as_nd(param._grad) for param in self._trained}
        return self._trained

    def _current(self):
        return [each for param in self._params
                for each in (param._data, param._grad, param.grad_req)]

    def has_current_arrays(self):
        """Tell whether no parameter has got other arrays since the last call of `trained`."""
        return bool(self._looked_up) and all(map(operator.is_, self._current(), self._looked_up))

    def allocate(self):
        """Give arrays at the snapshot to all parameters, unless they have some."""
        if not self.trained() or self.arrays:
            return
        arrays = {}
        for param in self._params:
            values, gradients = [value.copy() for value in param.list_data()], None
            if param.grad_req != 'null':
                gradients = [nd.zeros(value.shape, ctx=value.ctx, dtype=value.dtype,
                                      stype=param._grad_stype) for value in values]
                autograd.mark_variables(values, gradients)
            arrays[param] = values, gradients
        self.arrays = arrays
        self._gradients = {param.name: arrays[param][1] for param in self._trained}

    def weights(self):
        """Map each trained parameter to a list of its values at the snapshot, one a device."""
        return {param.name: as_nd(self.arrays[param][0]) for param in self._trained}

    def values(self):
        """Map each parameter to its values at the snapshot."""
        return {param.name: as_nd(values) for param, (values, _) in self.arrays.items()}

    def values_of(self, model):
        """Map the same names to the current arrays."""
        self.allocate()
        return {param.name: as_nd(param._data) for param in self.arrays}

    # Steps

    def set_fresh(self, is_fresh, but=()):
        """Set what MXNet sets when a backward pass writes to the gradient of a value in place."""
        for param in self._trained:
            for value in param._data:
                value._fresh_grad = is_fresh and param.name not in but

    def mark(self):
        """Mark the current gradients as those of this step."""
        self.set_fresh(False)  # until another backward pass writes to them
        for param in self._trained:
            param._svrg_mark = self._mark

    def overwritten(self):
        """List the parameters whose gradients a backward pass has replaced since `mark`."""
        return [param.name for param in self._trained if param.grad_req == 'write'
                and (getattr(param, '_svrg_mark', None) is not self._mark
                     or any(map(_is_fresh, param._data)))]

    @contextlib.contextmanager
    def _in_place(self):
        """Let the parameters have the values of the snapshot, and gradients of their own."""
        def give(arrays):
            for param, (data, gradients) in arrays.items():
                param._data, param._grad = data, gradients

        self._check_shapes()
        current = {param: (param._data, param._grad) for param in self.arrays}
        try:
            give({param: (_OfThisThread(data, param._data), gradients)
                  for param, (data, gradients) in self.arrays.items()})
            yield
        finally:
            try:
                give(current)
            except BaseException:  # a Ctrl-C in the middle
                give(current)
                raise

    def _check_shapes(self):
        if any(block._active and ('static_shape', True) in block._flags for block in self._blocks):
            raise ValueError('the network must not be hybridized with static_shape=True, which '
                             'keeps the arrays that it saw first: write net.hybridize('
                             'static_alloc=True)')

    @contextlib.contextmanager
    def _looking(self, warn_once, finds_inputs):
        """Look at the blocks that the loss function calls while the body runs.

        With `finds_inputs` find the layers that are applied to inputs.
        """
        compiled, self._blocks = [], set()
        inputs = Inputs({id(value): param.name for param in self._trained
                         for value in self.arrays[param][0]})

        def see(call, block, *given):
            check_block(warn_once, block, *given)
            if hasattr(block, '_active') and not (
                    self.arrays.keys().isdisjoint(block.collect_params().values())):
                self._blocks.add(block)
                self._check_shapes()
            if finds_inputs and getattr(block, '_active', False):
                compiled.append(block)
                block._active = False  # a compiled block calls no operators
            if isinstance(block, gluon.loss.Loss):
                inputs.see_loss(block, given)
            return call(block, *given)

        try:
            with calls_seen(gluon.Block, '__call__', see), calls_seen(
                    register, '_imperative_invoke', inputs.see) if finds_inputs else (
                        contextlib.nullcontext()):
                yield
        finally:
            for block in compiled:
                block._active = True
        self._inputs = inputs.found()

    def inputs(self, batch, a_pass):
        """List the places of the inputs of the loss function, and their arrays on each device."""
        return [('input %d of objective' % place, array) for inputs in batch
                for place, value in enumerate(inputs) for array in arrays_in([value])]

    def inputs_of_weights(self, batch, a_pass):
        """List the Layers that the latest batch of the pass is an input of, and these inputs."""
        return self._inputs

    # What SVRG asks for

    def noise_sources(self):
        """List whether layers draw random numbers, and use a batch's own statistics."""
        has_statistics = not all(param._differentiable for param in self._params)
        return ['Dropout'] * self.numbers.were_drawn + ['BatchNorm'] * has_statistics

    def new_sum(self):
        """Return a Sum that is 0."""
        self.allocate()
        return Sum(self._gradients, len(next(iter(self._gradients.values()))), batch_size=None)

    def begin_pass(self):
        """Let the first batch find out what the loss function does."""
        self._is_first = True

    def gradient(self, model, batch, a_pass=None, draws=False, is_training=True, out_grads=None):
        """Return the BatchGradient of a batch."""
        if a_pass is None:
            if self.numbers.are_drawn is not False:
                self.numbers.set_seed(is_new=draws)
            with self._in_place():
                losses = self._run(batch)[1]
            return BatchGradient(
                self._gradients, self.rows.count(losses, batch)[2] * model._loss_scale)
        is_first, self._is_first = self._is_first, False
        if is_first:
            self.numbers.are_drawn = None
        if a_pass.is_repeated:
            self.numbers.set_seed(is_new=draws)
        finds_inputs = a_pass.reads_inputs and not any(a_pass.states) and (
            is_first or len(self._inputs) > 0)
        with self._in_place(), self._looking(
                model._svrg.warn_once, finds_inputs) if is_first or finds_inputs else (
                    contextlib.nullcontext()):
            outputs, losses, unused = self._run(with_states(batch, a_pass.states))
        self.never_used = {*unused} if self.never_used is None else self.never_used & {*unused}
        if is_first and a_pass.is_repeated and draws:
            self.numbers.find_out(self._trained[0].list_ctx()[0])
        if any(a_pass.states):
            a_pass.states = [_detached(output[1:]) for output in outputs]
        weights, rows, summed = self.rows.count(losses, batch)
        return BatchGradient(self._gradients, summed, rows,
                             [weight / model._loss_scale for weight in weights],
                             [[(as_nd(loss).detach(), 1.)] for loss in losses])

    def current_gradients_of(self, batch, corrects):
        """Compute the gradients of a step's batch at the current weights.

        Return what the loss function returned on each device, and the number of rows whose
        gradients are summed: 1 a device for means. Those at the snapshot follow if it `corrects`.
        """
        numbers = self.numbers
        if corrects and numbers.are_drawn is not False:
            numbers.set_seed()
        outputs, losses, self.unused = self._run(batch, ['write'] if corrects else [])
        if corrects and numbers.are_drawn is None:
            numbers.find_out(self._trained[0].list_ctx()[0])
        return outputs, self.rows.count(losses, batch)[2]

    def _run(self, batch, zeroed=('write', 'add')):
        """Compute the gradients of a batch for the values in place.

        MXNet leaves those as they were that the batch does not use. With a `grad_req` among
        `zeroed` they become 0; the names of their parameters are returned last.
        """
        if zeroed:
            self.set_fresh(False)
        was_recording, was_training = autograd.is_recording(), autograd.is_training()
        try:
            with autograd.record():
                outputs, losses = self.outputs(batch)
        except BaseException:  # a Ctrl-C while MXNet sets or restores them leaves them on
            autograd.set_recording(was_recording)
            autograd.set_training(was_training)
            raise
        autograd.backward(losses)
        unused = [param for param in self._trained if param.grad_req in zeroed
                  and not all(map(_is_fresh, param._data))]
        for param in unused:
            for value, gradient in zip(param._data, param._grad):
                if not value._fresh_grad:
                    gradient[:] = 0
        return outputs, losses, [param.name for param in unused]

    def outputs(self, batch):
        """Return what the loss function returns on each device, and the loss of each."""
        outputs, losses = [], []
        for inputs in batch:
            output = self._objective(*inputs)
            loss = output[0] if isinstance(output, (list, tuple)) and output else output
            if not isinstance(loss, nd.NDArray):
                raise TypeError('objective must return the loss, an NDArray, or a tuple or list '
                                'that begins with it, not %s' % reprlib.repr(loss))
            outputs.append(output)
            losses.append(loss)
        return outputs, losses


def _detached(states):
    """Detach states, which may be nested in lists and tuples."""
    if isinstance(states, (list, tuple)):
        return [_detached(state) for state in states]
    return states.detach()

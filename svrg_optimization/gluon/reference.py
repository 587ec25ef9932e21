"""What computes gradients at the snapshot: the objective itself, on other arrays."""

import contextlib
import operator
import reprlib

import numpy as np
from mxnet import autograd, gluon, nd, random

from ..core.front_end import Reference
from ..core.full_gradient import FullGradient, Part
from .batches import ARRAYS, with_states
from .numpy_arrays import as_nd
from .states import structure

_COUNTS = 'taken_at', 'is_stale', 'num_update', 'num_taken', 'has_converged'
_SEEN = 64  # elements of a parameter that tell whether somebody has set it
_GENERATORS = 8  # a multiple of MXNet's number of generators, 4 on a CPU
_BAD_INPUT = AssertionError, AttributeError, TypeError, ValueError  # what a network raises
_is_fresh = operator.attrgetter('_fresh_grad')


class GluonReference(Reference):
    """Gradients of an objective at the snapshot, whose arrays take the place of the live ones.

    It has a second array for each value that is trained, with a gradient, and
    for each that a forward pass changes, such as BatchNorm's statistics.
    Others that a pass changes, such as the statistics of a SymbolBlock, get one then.

    Attributes
    ----------
    inputs : list of sequence
        Arguments of the objective on each device, in a step.
    adds : bool
        Whether gradients add up over batches.
    kind : str or None
        'mean' or 'sum' over the rows, or 'by row', as losses are; None before it is known.
    """

    def __init__(self, params, objective, loss_is_mean, axes, warn_once):
        self._params, self._objective, self._axes = params, objective, axes
        self._warn_once = warn_once
        self.kind = {None: None, True: 'mean', False: 'sum'}[loss_is_mean]
        self._first_loss = None  # its elements and rows, if it is by row
        self._arrays = {}  # of each parameter that has its own: values and gradients, by device
        self._live, self._trained, self._values = [], [], []  # of all parameters, see `look_up`
        self._values_there = self._gradients = None  # all at the snapshot, and by name
        self._blocks = None  # of the objective; unknown
        self.inputs = self._random = self._seed = self._mark = None
        self._seen, self._stepped = [], None  # elements of each parameter, after the latest step
        self._was_random = False
        self._dense_of_inputs = None  # unknown; the input's place by weight
        self._is_random = None  # unknown; to set the seed takes 1.5 ms

    # Arrays

    def look_up(self):
        """Look up the arrays of all parameters, where one has got others since the last look.

        The arrays at the snapshot are then dropped, as ``cast``, ``reset_ctx`` and another
        ``grad_req`` demand.
        """
        for param, values, gradients, request in self._live:
            if (param._data is not values or param._grad is not gradients
                    or param.grad_req != request):
                break
        else:
            if self._live:
                return
        self._arrays, self._live = {}, [(param, param._data, param._grad, param.grad_req)
                                        for param in self._params]
        self._trained = [param for param in self._params if param.grad_req != 'null']
        self._values = [value for param in self._trained for value in param._data or ()]
        self.adds = 'add' in {request for *_, request in self._live}
        self._live_gradients = {param.name: as_nd(param._grad) for param in self._trained}

    def trained(self):
        """List the parameters that are trained."""
        self.look_up()
        return self._trained

    def is_outdated(self):
        """Tell whether there are no arrays at the snapshot for those that the parameters have."""
        self.look_up()
        return not self._arrays

    def _allocate(self):
        if not self.is_outdated():
            return
        for param in self._params:
            if param.grad_req != 'null':
                values = [value.copy() for value in param.list_data()]
                gradients = [nd.zeros(value.shape, ctx=value.ctx, dtype=value.dtype,
                                      stype=param._grad_stype) for value in values]
                autograd.mark_variables(values, gradients)
                self._arrays[param] = values, gradients
            elif not param._differentiable:
                self._own(param)
        self._values_there = [value for param in self._trained for value in self._arrays[param][0]]
        self._gradients = {param.name: self._arrays[param][1] for param in self._trained}
        self._blocks = None
        views = {}
        for param in self._trained:
            value = as_nd(param.list_data())[0].reshape(-1)
            middle = max(0, value.size - _SEEN) // 2
            views.setdefault(value.dtype, []).append(value[middle:middle + _SEEN])
        self._seen = list(views.values())

    def _own(self, param):
        self._arrays[param] = [value.copy() for value in param.list_data()], None

    def live_gradients(self):
        """Map each trained parameter to its gradients at the current weights, one a device."""
        return self._live_gradients

    def zero_gradients(self):
        """Set those gradients to 0. `Parameter.zero_grad` cannot do that to mx.np arrays."""
        for gradients in self.live_gradients().values():
            for gradient in gradients:
                nd.zeros_like(gradient, out=gradient)

    def kept_of_live(self):
        """List the arrays that a step without an update changes, each with a copy of its value."""
        arrays = [value for param in self._params if param.grad_req == 'null'
                  for value in param.list_data()]
        if self.adds:
            arrays += [array for param in self.trained() for array in param.list_grad()]
        return [(array, array.copy()) for array in arrays]

    def weights(self):
        """Map each trained parameter to a list of its values at the snapshot, one a device."""
        return {param.name: as_nd(self._arrays[param][0]) for param in self._trained}

    def remember_step(self):
        """Remember what a step from a snapshot has made of some elements of each parameter."""
        self._stepped = self._elements()

    def has_been_set(self):
        """Tell whether somebody has set a parameter since, as ``load_parameters`` does."""
        stepped, self._stepped = self._stepped, None
        return bool(stepped) and not all(
            np.array_equal(now.asnumpy(), before.asnumpy(), equal_nan=True)
            for now, before in zip(self._elements(), stepped))

    def _elements(self):  # one operation for all, as a step cannot wait for more
        return [nd.concat(*views, dim=0) for views in self._seen]

    def set_fresh(self, is_fresh):
        """Set what MXNet sets when a backward pass writes to the gradient of a value."""
        for value in self._values:
            value._fresh_grad = is_fresh

    def mark(self):
        """Mark the gradients as those of this step."""
        self.set_fresh(False)  # until another backward pass writes to them
        self._mark = object()
        for param in self._trained:
            param._svrg_mark = self._mark

    def overwritten(self):
        """List the parameters whose gradients a backward pass has replaced since `mark`."""
        return [param.name for param in self.trained() if param.grad_req == 'write'
                and (getattr(param, '_svrg_mark', None) is not self._mark
                     or any(map(_is_fresh, param._data)))]

    @contextlib.contextmanager
    def _in_place(self):
        """Let the parameters have the values of the snapshot, and gradients of their own."""
        live = [(param, param._data, param._grad) for param in self._arrays]
        call, seen = None, set()

        def restore():
            for param, data, gradients in live:
                param._data, param._grad = data, gradients
            if call is not None:
                gluon.Block.__call__ = call

        def seeing(block, *args):
            self._check_shape(block)
            seen.add(block)
            return call(block, *args)

        try:
            for block in self._blocks or ():
                self._check_shape(block)
            if self._blocks is None:  # one look is enough
                call = gluon.Block.__call__
                gluon.Block.__call__ = seeing
            for param, (data, gradients) in self._arrays.items():
                param._data, param._grad = data, gradients
            yield
        finally:
            try:
                restore()
            except BaseException:  # a Ctrl-C in the middle
                restore()
                raise
        if call is not None:
            self._blocks = [block for block in seen if isinstance(block, gluon.HybridBlock)]

    def _check_shape(self, block):
        if getattr(block, '_active', False) and dict(block._flags).get('static_shape') and not (
                self._arrays.keys().isdisjoint(block.collect_params().values())):
            raise ValueError('the network must not be hybridized with static_shape=True, which '
                             'keeps the arrays that it saw first: static_alloc=True is possible')

    # Inputs

    def inputs_of_weights(self, batch, source):
        """List the weights of Dense blocks that get an input, and these inputs."""
        if self._dense_of_inputs is None:
            self._dense_of_inputs = self._find_dense(with_states(batch, source.states)[0])
        return [(name, 1, inputs[place]) for name, place in self._dense_of_inputs.items()
                for inputs in batch]

    def _find_dense(self, inputs):
        """Map the weight of each Dense that gets the content of an input to the input's place."""
        given, (dense, block) = {}, (gluon.nn.Dense, gluon.HybridBlock)
        hybrid_forward = dense.hybrid_forward

        def seen(layer, F, x, *args, **kwargs):  # noqa: N803
            given[layer.weight.name] = x.asnumpy().ravel()
            return hybrid_forward(layer, F, x, *args, **kwargs)

        try:  # with no block compiled
            dense.hybrid_forward = seen
            block._active = property(lambda _: False, lambda one, on: vars(one).update(_active=on))
            self._objective(*inputs)
        finally:
            dense.hybrid_forward = hybrid_forward
            del block._active
        contents = {place: (value.asnumpy() if isinstance(value, nd.NDArray) else value).ravel()
                    for place, value in enumerate(inputs) if isinstance(value, ARRAYS)}
        return {param.name: place for param in self._trained if param.name in given
                for place, value in contents.items() if np.array_equal(given[param.name], value)}

    # What SVRG asks for

    def disturbances(self):
        """List whether layers draw random numbers, and use a batch's own statistics."""
        has_statistics = not all(param._differentiable for param in self._params)
        is_random = self._is_random or self._was_random
        return ['Dropout'] * bool(is_random) + ['BatchNorm'] * has_statistics

    def new_full_gradient(self):
        """Return a full gradient that is 0, in the scale of one row."""
        self._allocate()
        return FullGradient(self._gradients, len(next(iter(self._gradients.values()))),
                            batch_size=1)

    def values(self):
        """Map each parameter that has arrays of its own at the snapshot to these."""
        return {param.name: as_nd(values) for param, (values, _) in self._arrays.items()}

    def values_of(self, live):
        """Map the same names to the current arrays."""
        self._allocate()
        return {param.name: as_nd(param._data) for param in self._arrays}

    @contextlib.contextmanager
    def inputs_kept(self, live):
        """Undo what a pass does to parameters without arrays of their own, and give them some."""
        kept = [(value, value.copy(), param) for param in self._params
                if param not in self._arrays for value in as_nd(param.list_data())]
        try:
            yield
        finally:
            for value, before, param in kept:
                if (value != before).max().asscalar():
                    before.copyto(value)
                    self._own(param)

    def gradients_of_pass(self, batches, live, source, full_gradient, stores):
        """Yield the gradients of the batches of a pass, each as a Part."""
        self._was_random |= bool(self._is_random)
        self._is_random = self._blocks = None
        for number, batch in enumerate(batches):
            if stores and not number or source.is_repeated:
                self._set_seed(draws_anew=source.draws_random_numbers)
            with self._in_place():
                outputs, losses = self._run(with_states(batch, source.states), self._values_there)
            if stores and not number and (self._has_drawn() or live._loss_scale != 1):
                raise ValueError('store_snapshot_grads must be False for a network with random '
                                 'layers, and with amp.scale_loss: they would be others at a step '
                                 'than in the pass')
            if any(source.states):
                source.states = [_detached(output[1:]) for output in outputs]
            weights, rows, summed = self._count(losses, batch)
            if not number:
                full_gradient.batch_size = summed  # most steps need not scale it again
            if live._loss_scale != 1:
                weights = [weight / live._loss_scale for weight in weights]
            weights += [1] * (len(full_gradient.shares) - len(batch))
            yield Part(self._gradients, weights, rows, 1, batch=batch if stores else None,
                       losses=[[(as_nd(loss).detach(), 1.)] for loss in losses])

    def arrays_of(self, batch):
        """List the arrays among the inputs of all devices."""
        return [value for inputs in batch for value in inputs if isinstance(value, ARRAYS)]

    def gradients_of_step(self, live, is_training, out_grads):
        """Compute the gradients of the step's batch with the same Dropout masks."""
        if self._is_random:
            random.seed(self._seed)
        with self._in_place():
            self._run(self.inputs)
        return self._gradients

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
        outputs, losses = self._run(self.inputs, self._values if draws_masks_again else ())
        if draws_masks_again and self._is_random is None:
            self._is_random = self._has_drawn()
        return outputs, self._count(losses, self.inputs)[2]

    def _set_seed(self, draws_anew=True):
        """Set MXNet's seed, to a new number or to the last one."""
        if self._random is None:
            self._random = np.random.RandomState(int(random.randint(0, 2 ** 31 - 1).asscalar()))
        if draws_anew:
            self._seed = int(self._random.randint(2 ** 31 - 1))
        random.seed(self._seed)

    def _has_drawn(self):
        """Tell whether random numbers have been drawn since the seed was set."""
        context = self._trained[0].list_ctx()[0]

        def draw():  # from each of MXNet's generators, which take turns
            return sorted(random.uniform(ctx=context).asscalar() for _ in range(_GENERATORS))

        numbers = draw()
        random.seed(self._seed)
        return draw() != numbers

    def _run(self, inputs, values=()):
        """Compute the gradients of a batch; check that they are of all of these values."""
        for value in values:
            value._fresh_grad = False
        with autograd.record():
            outputs, losses = self.outputs(inputs)
        autograd.backward(losses)
        if len(inputs) < len(self._trained[0]._data):
            self._clear_from(len(inputs))
        if not all(map(_is_fresh, values)):
            stale = [param.name for param in self._trained if not all(map(_is_fresh, param._data))]
            raise ValueError('objective must use all parameters that are trained, and not leave '
                             "out %s: grad_req = 'null' fixes a parameter" % ', '.join(stale))
        return outputs, losses

    def _clear_from(self, device):
        """Set the gradients of devices without rows to 0, unless they add up over batches."""
        for param in self._trained:
            is_live = param._grad is not self._arrays.get(param, (None, None))[1]
            for value, gradient in zip(param._data[device:], param._grad[device:]):
                value._fresh_grad = True
                if not (is_live and param.grad_req == 'add'):
                    nd.zeros_like(as_nd(gradient), out=as_nd(gradient))

    def outputs(self, inputs):
        """Return what the objective returns on each device, and the loss of each."""
        try:
            outputs = [self._objective(*of_device) for of_device in inputs]
        except _BAD_INPUT as error:
            if any(isinstance(value, np.ndarray) for of_device in inputs for value in of_device):
                raise TypeError('train_data and backward must give objective NDArrays, or it has '
                                'to turn NumPy arrays into them: %s' % error) from error
            raise
        losses = list(map(_loss_of, outputs))
        for loss in losses:
            if not isinstance(loss, nd.NDArray):
                raise TypeError('objective must return the loss, an NDArray, or a tuple or list '
                                'that begins with it, not %s' % reprlib.repr(loss))
        return outputs, losses

    # Rows

    def _count(self, losses, inputs):
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
        weights, rows, summed = [], 0, 0
        for loss, of_device in zip(losses, inputs):
            count, is_mean = self._count_of(loss, of_device)
            weights.append(count if is_mean else 1)
            rows += count
            summed += 1 if is_mean else count
        return weights, rows, summed

    def _count_of(self, loss, inputs):
        """Return the number of rows on one device, and whether the loss is a mean over them."""
        if loss.size > 1 and self.kind == 'mean':
            raise ValueError('objective must return a loss of one element with loss_is_mean=True, '
                             'or after a batch with such a loss of several rows, and not of shape '
                             '%s' % (loss.shape,))
        if loss.size > 1 or self.kind == 'by row':
            self.kind = 'by row'
            if not self._axes.is_first:
                self._warn_of_steps(loss.size, next(iter(self._axes.rows_of(inputs)), None))
            return loss.size, False
        rows = next(filter(None, self._axes.rows_of(inputs)), None)
        if rows is None:
            raise ValueError('objective must return a loss with one element for each row if no '
                             'input is an array with rows along batch_axis')
        if rows > 1 and self.kind is None:
            self.kind = 'mean'
        return rows, self.kind != 'sum'

    def check_axes(self, split, whole):
        """Raise a ValueError if a batch has another loss when it is split over devices."""
        sizes = [[loss.size for loss in self.outputs(inputs)[1]] for inputs in (split, [whole])]
        parts, (size,) = sum(sizes[0]), sizes[1]
        if size > 1 and parts != size:
            raise ValueError('batch_axis must be the axis of the rows in each input, 1 for '
                             '(T, N, C), and objective must return a loss with one element for '
                             'each row: it has %d elements for a batch, and %d where the batch is '
                             'split over devices' % (size, parts))

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
                  'names': [param.name for param in self._params], 'loss': self.kind,
                  'random': self._random and self._random.get_state(), 'values': None,
                  'was_random': bool(self._is_random or self._was_random), 'jump': snapshot.jump}
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
            name: packed['counts'][name] for name in _COUNTS if name in packed['counts']}
        kind, generator = self.kind or packed.get('loss'), self._random
        if structure(packed.get('names', names)) != structure(names):  # 1.0.0 saved no names
            raise ValueError('it has a snapshot of other parameters, or of these in another order: '
                             '%s, and not %s. Give the blocks the prefixes that they had'
                             % (packed['names'], names))
        if packed['random'] is not None:
            generator = np.random.RandomState()
            generator.set_state(packed['random'])
        values, full_gradient = packed['values'] or {}, None
        if packed['values'] is not None:
            self._allocate()
            for param in (self._params[place] for place in values):
                if param not in self._arrays:
                    self._own(param)
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
            self.kind, self._random, self._stepped = kind, generator, None
            self._was_random = packed.get('was_random', False)
            for place, value in values.items():
                for array in as_nd(self._arrays[self._params[place]][0]):
                    array[:] = value
            snapshot.replace(full_gradient)
            vars(snapshot).update(counts, jump=packed.get('jump'))

        return restore


def _loss_of(output):
    return output[0] if isinstance(output, (list, tuple)) and output else output


def _detached(states):
    """Detach states, which may be nested in lists and tuples."""
    if isinstance(states, (list, tuple)):
        return [_detached(state) for state in states]
    return states.detach()

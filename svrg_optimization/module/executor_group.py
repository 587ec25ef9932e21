"""Access to a Module's executor group, which no other file reads or changes."""

import contextlib
import weakref

import numpy as np
from mxnet import ndarray as nd
from mxnet.executor_manager import _split_input_slice

from ..core.arrays import is_row_sparse, is_same
from ..data.batch_rows import labels_of
from ..mxnet_repair.executors import forward


def batch_size(module):
    """Return the number of rows that a module is bound for, on all devices together."""
    return module._exec_group.batch_size


def gradient_requests(module):
    """Map each input and parameter to its `grad_req`: 'write', 'add' or 'null'."""
    return module._exec_group.grad_req


def gradients(module):
    """Map each parameter with gradients to a list of these, one per device."""
    group = module._exec_group
    return {name: arrays for name, arrays in zip(group.param_names, group.grad_arrays or ())
            if arrays[0] is not None} if group else {}


def input_names(module):
    """List the names of a module's data, labels and states."""
    names = [description.name for description in module.data_shapes + (module.label_shapes or [])]
    return names + module._state_names


@contextlib.contextmanager
def shapes_kept_on_error(module):
    """Restore the shapes and the executors of a module if the block fails to reshape it."""
    group = module._exec_group
    before = {**vars(group), 'execs': list(group.execs)}
    shapes = module._data_shapes, module._label_shapes
    try:
        yield
    except BaseException:
        vars(group).update(before)
        module._data_shapes, module._label_shapes = shapes
        raise


def share_no_inputs(module):
    """Let modules that will share parameters with this one have separate inputs.

    Otherwise MXNet would log that it allocates larger inputs, in addition to
    its message about the modules being trained.
    """
    group = module._exec_group
    group.shared_data_arrays = [{} for _ in group.contexts]


def share_inputs(module, source):
    """Bind a module again, with the dense inputs of another one, whose steps then need no copies.

    Its parameters are not set.
    """
    group = module._exec_group
    group.execs = []
    group.shared_data_arrays = [dict(arrays) for arrays in source._exec_group.shared_data_arrays]
    group.bind_exec(group.data_shapes, group.label_shapes)


@contextlib.contextmanager
def inputs_kept(module):
    """Restore the inputs of a module after the block, in which others may write to them."""
    inputs = [executor.arg_dict[name] for executor in module._exec_group.execs
              for name in input_names(module) if name in executor.arg_dict]
    copies = [array.copy() for array in inputs]
    try:
        yield
    finally:
        for array, copy in zip(inputs, copies):
            copy.copyto(array)


def have_equal_shapes(module, other, names):
    """Tell whether inputs of two modules have the same shapes on all devices."""
    return all(executor.arg_dict[name].shape == of_other.arg_dict[name].shape
               for executor, of_other in zip(module._exec_group.execs, other._exec_group.execs)
               for name in names)


def bytes_of_activations(module):
    """Estimate the bytes of all layer outputs of a module on its first device."""
    executor = module._exec_group.execs[0]
    internals = module.symbol.get_internals()
    arguments = {*internals.list_arguments(), *internals.list_auxiliary_states()}
    _, shapes, _ = internals.infer_shape_partial(
        **{name: executor.arg_dict[name].shape for name in input_names(module)
           if name in executor.arg_dict})
    return sum(4 * int(np.prod(shape)) for name, shape in zip(internals.list_outputs(), shapes)
               if name not in arguments)


def can_merge_batches(module):
    """Tell whether a module's inputs can have the rows of several batches."""
    return (len(module._context) == 1 and not module._state_names
            and not any(module._exec_group.group2ctxs))


def is_bound_for(module, batch):
    """Tell whether a DataBatch has the bound shapes and dtypes of a module."""
    arguments = module._exec_group.execs[0].arg_dict
    for arrays, descriptions in ((batch.data, module.data_shapes),
                                 (labels_of(batch), module.label_shapes or [])):
        if [array.shape for array in arrays] != [shape for _, shape in descriptions] or any(
                name in arguments and arguments[name].dtype != array.dtype
                for array, (name, _) in zip(arrays, descriptions)):
            return False
    return True


def run(module, batch, model):
    """Run a module on a batch of its shapes; list all its outputs for each device.

    It gets the states of the model, without their last rows if it has fewer rows.
    """
    group = module._exec_group
    for states, copies in zip(model._exec_group.state_arrays, group.state_arrays):
        for state, copy in zip(states, copies):
            (state if state.shape == copy.shape else nd.slice_like(state, copy)).copyto(copy)
    group.forward(batch, is_train=True)
    group.backward()
    return [executor.outputs for executor in group.execs]


class RunsOnInputs:
    """Runs of modules on the current inputs of another one, which is bound as they are."""

    def __init__(self):
        self._copied = weakref.WeakKeyDictionary()  # of an executor: another one, and its inputs

    def run(self, source, target, is_train, out_grads):
        """Run `target` forward and backward; return its gradients and the number of rows."""
        for executor, to in zip(source._exec_group.execs, target._exec_group.execs):
            copied_of, names = self._copied.get(to, (None, ()))
            if copied_of is not executor:  # a source that was reshaped has other executors
                names = [name for name in input_names(source) if name in executor.arg_dict
                         and not is_same(executor.arg_dict[name], to.arg_dict[name])]
                self._copied[to] = executor, names
            for name in names:
                executor.arg_dict[name].copyto(to.arg_dict[name])
            forward(to, is_train)
        target._exec_group.backward(out_grads)
        return gradients(target), target._exec_group.batch_size


def parameters(module):
    """Map each parameter to a list of its arrays, one per device."""
    group = module._exec_group
    return dict(zip(group.param_names, group.param_arrays))


def values(module):
    """Map each parameter and auxiliary state to a list of its arrays, one per device."""
    group = module._exec_group
    return {**parameters(module), **dict(zip(group.aux_names, group.aux_arrays))}


def mark_host_copies_stale(module):
    """Mark a module's copies of the weights on the host as out of date."""
    module._params_dirty = True


def pull_dense_weights(kvstore, module):
    """Set the dense parameters of a module to the values in a KVStore."""
    for index, (name, arrays) in enumerate(parameters(module).items()):
        if not is_row_sparse(arrays[0]):
            kvstore.pull(name, out=arrays, priority=-index)
    mark_host_copies_stale(module)


def pull_sparse_weights(kvstore, module):
    """Set all rows of a module's row_sparse parameters to the values in a KVStore.

    If a KVStore updates these parameters, the module being trained has only the
    rows of its batch.
    """
    for name, arrays in parameters(module).items():
        if is_row_sparse(arrays[0]):
            rows = nd.arange(arrays[0].shape[0], dtype='int64')
            kvstore.row_sparse_pull(name, out=arrays, row_ids=rows)


def sparse_parameters(module):
    """Return the names of row_sparse parameters, and of dense ones with row_sparse gradients."""
    sparse = [name for name, arrays in parameters(module).items() if is_row_sparse(arrays[0])]
    return sparse, [name for name, arrays in gradients(module).items()
                    if is_row_sparse(arrays[0]) and name not in sparse]


def rows_on_devices(module, mask=None):
    """Count the rows of the latest batch on each device; with a mask the labels that count.

    The mask is the name of an input, and the value of its labels that do not count.
    """
    if mask is None:
        return [part.stop - part.start for part in module._exec_group.slices]
    label, ignored = mask
    return [int((executor.arg_dict[label] != ignored).sum().asscalar())
            for executor in module._exec_group.execs]


def work_loads(module, rows):
    """Return a module's work loads, or equal ones if MXNet would leave a device without a row."""
    loads = module._work_load_list
    try:
        _split_input_slice(rows, loads)
    except ValueError:
        loads = [rows // len(loads) + (device < rows % len(loads)) for device in range(len(loads))]
    return loads

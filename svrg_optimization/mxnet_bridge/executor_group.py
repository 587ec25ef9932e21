"""What the package needs of a Module's executors.

No other file reads or changes a Module's executor group.
"""

import contextlib
import reprlib

import numpy as np
from mxnet import ndarray as nd
from mxnet.base import MXNetError
from mxnet.executor_manager import _split_input_slice

from ..data.batch_rows import batch_axis, labels_of, resized
from .storage import is_row_sparse


def batch_size(module):
    """Tell the rows of a batch that a module is bound for, on all devices together."""
    return module._exec_group.batch_size


def gradient_requests(module):
    """Map each input and parameter to 'write', 'add' or 'null'."""
    return module._exec_group.grad_req


def gradients(module):
    """Map each parameter that has gradients to a list of them, one a device."""
    group = module._exec_group
    if group is None or group.grad_arrays is None:
        return {}
    return {name: arrays for name, arrays in zip(group.param_names, group.grad_arrays)
            if arrays[0] is not None}


def added_gradients(module):
    """List the gradients that each backward pass adds to, on all devices."""
    requests = gradient_requests(module)
    return [array for name, arrays in gradients(module).items() if requests[name] == 'add'
            for array in arrays]


def clear_added_gradients(module):
    """Set to zero the gradients that each backward pass adds to."""
    for array in added_gradients(module):
        array[:] = 0


def copy_states(source, target):
    """Set the states of a module to those of another one."""
    for arrays, targets in zip(source._exec_group.state_arrays, target._exec_group.state_arrays):
        copy_all(arrays, targets)


def auxiliary_states(module):
    """List the auxiliary states on all devices."""
    return [array for arrays in module._exec_group.aux_arrays for array in arrays]


def copy_all(arrays, targets):
    """Copy arrays to others."""
    for array, target in zip(arrays, targets):
        array.copyto(target)


@contextlib.contextmanager
def kept(arrays):
    """Give arrays their values back after others have used them."""
    before = [array.copy() for array in arrays]
    try:
        yield
    finally:
        copy_all(before, arrays)


def hide_outputs_behind(module, symbol):
    """Let a module that is bound with further outputs show only those of a symbol."""
    group = module._exec_group
    group.symbol = symbol
    group.output_names = symbol.list_outputs()
    group.num_outputs = len(group.output_names)
    group.output_layouts = group.output_layouts[:group.num_outputs]


def set_masks_to_ones(module, mask_names):
    """Set the masks that a module takes in to ones, which leave everything as it is."""
    for executor in module._exec_group.execs:
        for name in mask_names:
            executor.arg_dict[name][:] = 1


def draw_masks(module, masks):
    """Draw the masks that a module takes in, for each device."""
    for executor in module._exec_group.execs:
        masks.draw(executor.arg_dict)


def input_names(module):
    """List the data, labels and states that the executors of a module take in."""
    names = [description.name for description in module.data_shapes + (module.label_shapes or [])]
    return names + module._state_names


def has_dense_inputs(module):
    """Tell whether another module may be bound on the inputs of this one."""
    group = module._exec_group
    return not any(group.group2ctxs) and all(
        executor.arg_dict[name].stype == 'default'
        for executor in group.execs for name in input_names(module) if name in executor.arg_dict)


def forget_parameters(module):
    """Let a module that has no parameters yet be bound once more."""
    module._arg_params = module._aux_params = None


def share_no_inputs(module):
    """Let modules that will share parameters with this one have inputs of their own.

    MXNet would report that it allocates larger ones, once more than for the
    live modules.
    """
    group = module._exec_group
    group.shared_data_arrays = [{} for _ in group.contexts]


def can_reshape(module, rows):
    """Tell whether a module can be reshaped for batches of another number of rows."""
    if not has_dense_inputs(module):
        return False  # MXNet reshapes no executor with csr data
    try:
        _split_input_slice(rows, module._work_load_list)
    except ValueError:
        return False
    return True


def has_been_reshaped(module):
    """Tell whether the executors of a module are others than those that it was bound with."""
    return module._exec_group._default_execs is not None


def bytes_of_activations(module):
    """Estimate the bytes that the layers of a module's network put out, on its first device."""
    executor = module._exec_group.execs[0]
    internals = module.symbol.get_internals()
    arguments = {*internals.list_arguments(), *internals.list_auxiliary_states()}
    _, shapes, _ = internals.infer_shape_partial(
        **{name: executor.arg_dict[name].shape for name in input_names(module)
           if name in executor.arg_dict})
    return sum(4 * int(np.prod(shape)) for name, shape in zip(internals.list_outputs(), shapes)
               if name not in arguments)


def bind_on_inputs_of(live, module, share_pool):
    """Bind a module again, with parameters of its own, on the inputs of another.

    Both are of one network, and bound for the same shapes.

    Parameters
    ----------
    live, module : mxnet.module.Module
    share_pool : bool
        Whether the memory of activations is the other's too: then what its
        executors hold there, their outputs among it, is overwritten when
        this one runs.
    """
    group = module._exec_group
    for i, (executor, of_live) in enumerate(zip(group.execs, live._exec_group.execs)):
        shared = {name: of_live.arg_dict[name] for name in input_names(live)
                  if name in executor.arg_dict}
        arrays = {**executor.arg_dict, **executor.aux_dict}
        group.execs[i] = group.symbol.simple_bind(
            group.contexts[i], group.grad_req,
            {name: array.dtype for name, array in arrays.items()},
            shared_arg_names=[] if share_pool else list(executor.arg_dict.keys() - shared),
            shared_exec=of_live if share_pool else None, shared_buffer=dict(shared),
            **{name: array.shape for name, array in executor.arg_dict.items()})
        group.shared_data_arrays[i] = {}
        for name, array in arrays.items():
            if name not in shared:
                array.copyto({**group.execs[i].arg_dict, **group.execs[i].aux_dict}[name])
    group._collect_arrays()
    if len(group.execs) == 1 and group.contexts[0].device_type == 'cpu':
        # No second copy on the host of what is there already.
        for copies, arrays in ((module._arg_params, group.execs[0].arg_dict),
                               (module._aux_params, group.execs[0].aux_dict)):
            copies.update((name, arrays[name]) for name in list(copies))


def take_outputs_out_of_pool(module):
    """Copy the outputs of a module to where no other that runs in its pool overwrites them."""
    count = module._exec_group.num_outputs
    for executor in module._exec_group.execs:
        executor.outputs[:count] = [output.copy() for output in executor.outputs[:count]]


def repeat_forward(module, is_train):
    """Run a module forward again on the inputs that it has."""
    with kept(auxiliary_states(module)):
        for executor in module._exec_group.execs:
            executor.forward(is_train=is_train)


def inputs(module):
    """List the data, labels and states on all devices."""
    names = input_names(module)
    return [array for executor in module._exec_group.execs
            for name, array in executor.arg_dict.items() if name in names]


def backward(module, out_grads=None):
    """Run a module backward."""
    module._exec_group.backward(out_grads)


def arguments(module):
    """Map the inputs and parameters of a module that is bound on one device to their arrays."""
    [executor] = module._exec_group.execs
    return executor.arg_dict


def can_run_side_by_side(module):
    """Tell whether copies of a module's network may be run on several batches at once."""
    return (len(module._context) == 1 and not module._state_names and has_dense_inputs(module)
            and not auxiliary_states(module)
            and 'name' not in arguments(module))  # a Symbol takes it for its own


def can_merge_batches(module):
    """Tell whether several batches of a module can be computed as one of many rows."""
    descriptions = module.data_shapes + (module.label_shapes or [])
    return (len(module._context) == 1 and not module._state_names and has_dense_inputs(module)
            and all(batch_axis(description) == 0 for description in descriptions)
            and can_bind(module, resized(module.data_shapes, 2 * batch_size(module)),
                         module.label_shapes and resized(module.label_shapes,
                                                         2 * batch_size(module)),
                         [2 * batch_size(module)]))


def bytes_of_batch(module):
    """Estimate the bytes of a batch's inputs and of what the layers put out."""
    return sum(4 * array.size for array in inputs(module)) + bytes_of_activations(module)


def bind_for_merged(module, single, count):
    """Bind a module for several batches of another one, with its parameters."""
    rows = count * batch_size(single)
    module.bind(resized(single.data_shapes, rows),
                single.label_shapes and resized(single.label_shapes, rows),
                shared_module=single, grad_req=gradient_requests(single))


def run_merged(module, batches):
    """Run a module that is bound for several batches forward and backward on them."""
    executor = module._exec_group.execs[0]
    join_batches(batches, module, executor.arg_dict)
    executor.forward(is_train=True)
    executor.backward()


def join_batches(batches, module, inputs):
    """Copy several batches for a module, one behind the other, to arrays that are named."""
    for kind, descriptions in (('data', module.data_shapes), ('label', module.label_shapes or [])):
        for i, description in enumerate(descriptions):
            if description.name in inputs:
                nd.concat(*[getattr(batch, kind)[i] for batch in batches], dim=0,
                          out=inputs[description.name])


def has_dtypes_of(module, batch):
    """Tell whether a DataBatch has the dtypes that a module is bound for."""
    arguments = module._exec_group.execs[0].arg_dict
    return all(array.dtype == arguments[description.name].dtype
               for arrays, descriptions in ((batch.data, module.data_shapes),
                                            (labels_of(batch), module.label_shapes or []))
               for array, description in zip(arrays, descriptions)
               if description.name in arguments)


def is_bound_for(module, batch):
    """Tell whether a DataBatch has the shapes that a module is bound for."""
    return ([array.shape for array in batch.data] == [shape for _, shape in module.data_shapes]
            and [array.shape for array in labels_of(batch)]
            == [shape for _, shape in module.label_shapes or []])


def run(module, batch):
    """Run a module forward and backward on a batch of the shapes that it is bound for."""
    module._exec_group.forward(batch, is_train=True)
    module._exec_group.backward()


def forward_on_inputs_of(source, target, is_train, mask_names, copies_inputs):
    """Run a module forward on the data, labels, states and masks that another one has.

    Parameters
    ----------
    source, target : mxnet.module.Module
        Two modules of one network, bound for the same shapes on the same devices.
    is_train : bool
    mask_names : list of str
        Masks that the one gives out behind its outputs and the other takes in.
    copies_inputs : bool
        Whether the other has not the same inputs anyway.
    """
    outputs = source._exec_group.num_outputs
    names = input_names(source) if copies_inputs else []
    for executor, to in zip(source._exec_group.execs, target._exec_group.execs):
        for name in names:
            if name in executor.arg_dict:
                executor.arg_dict[name].copyto(to.arg_dict[name])
        for name, mask in zip(mask_names, executor.outputs[outputs:]):
            mask.copyto(to.arg_dict[name])
        to.forward(is_train=is_train)


def parameters(module):
    """Map each parameter to a list of its values, one a device."""
    group = module._exec_group
    return dict(zip(group.param_names, group.param_arrays))


def check_given(module, **given):
    """Raise an error where arrays for parameters or states are none, or of another shape.

    Parameters
    ----------
    module : mxnet.module.Module
        It is bound.
    **given : dict of str to NDArray, or None
        Arguments of ``Module.set_params``.
    """
    group = module._exec_group
    bound = {**parameters(module), **dict(zip(group.aux_names, group.aux_arrays))}
    for argument, arrays in given.items():
        for name, array in (arrays or {}).items():
            if not isinstance(array, nd.NDArray):
                raise TypeError('%s must map names to NDArrays, not %s to %s'
                                % (argument, name, reprlib.repr(array)))
            if name in bound and array.shape != bound[name][0].shape:
                raise ValueError('%s must have the shape %s for %s, not %s'
                                 % (argument, bound[name][0].shape, name, array.shape))


def count_of_weights(module):
    """Count the numbers in all parameters of a module."""
    return sum(int(np.prod(arrays[0].shape)) for arrays in parameters(module).values())


def weights(module):
    """List the parameters and auxiliary states on all devices, in a fixed order."""
    group = module._exec_group
    return [array for arrays in group.param_arrays + group.aux_arrays for array in arrays]


def weights_have_moved(module):
    """Let a module know that its copies of the weights on the host are old."""
    module._params_dirty = True


def pull_dense_weights(kvstore, module):
    """Set the dense parameters of a module to what a KVStore has."""
    for index, (name, arrays) in enumerate(parameters(module).items()):
        if not is_row_sparse(arrays[0]):
            kvstore.pull(name, out=arrays, priority=-index)
    weights_have_moved(module)


def pull_sparse_weights(kvstore, module):
    """Set the row_sparse parameters of a module, in all rows, to what a KVStore has.

    Where a KVStore updates these, the live module has only rows of its batch.
    """
    for name, arrays in parameters(module).items():
        if is_row_sparse(arrays[0]):
            rows = nd.arange(arrays[0].shape[0], dtype='int64')
            kvstore.row_sparse_pull(name, out=arrays, row_ids=rows)


def sparse_weights(module):
    """List the row_sparse parameters on all devices."""
    return [array for arrays in parameters(module).values() for array in arrays
            if is_row_sparse(array)]


def sparse_parameters(module):
    """List the parameters that are row_sparse, and the dense ones whose gradients are."""
    sparse = [name for name, arrays in parameters(module).items() if is_row_sparse(arrays[0])]
    return sparse, [name for name, arrays in gradients(module).items()
                    if is_row_sparse(arrays[0]) and name not in sparse]


def weights_of_first_device(module):
    """Map each parameter, and each auxiliary state, to its value on the first device."""
    first = module._exec_group.execs[0]
    return ({name: first.arg_dict[name] for name in module._exec_group.param_names},
            dict(first.aux_dict))


def rows_bound(module):
    """List the rows that a module is bound for on each device."""
    return [part.stop - part.start for part in module._exec_group.slices]


def split_rows(module, rows):
    """Split the rows of a batch over a module's devices.

    As Module does, by their work loads; but where that leaves a device
    without a row, as evenly as can be.

    Parameters
    ----------
    module : mxnet.module.Module
    rows : int

    Returns
    -------
    list of int
        Zeros are among them only where there are fewer rows than devices.
    """
    work_load_list = module._work_load_list
    try:
        return [part.stop - part.start for part in _split_input_slice(rows, work_load_list)]
    except ValueError:
        devices = len(work_load_list)
        return [rows // devices + (device < rows % devices) for device in range(devices)]


def can_bind(module, data_shapes, label_shapes, parts, resizable=()):
    """Tell whether a module's symbol could be bound for other shapes with its parameters.

    It cannot where a device would be without a row, or where the symbol has
    the batch size written into it.

    Parameters
    ----------
    module : mxnet.module.Module
        A bound module.
    data_shapes, label_shapes : list of DataDesc
        The other shapes; `label_shapes` may be None.
    parts : list of int
        The rows of each device.
    resizable : list of str
        Arguments that may have other shapes than they have now.

    Returns
    -------
    bool
    """
    free = {*module.label_names, *resizable}
    return all(rows > 0 and _shapes_agree(module, data_shapes + (label_shapes or []), rows, free)
               for rows in set(parts))


def _shapes_agree(module, descriptions, rows, free):
    shapes = dict(resized(descriptions, rows))
    try:
        arguments, _, states = module.symbol.infer_shape_partial(**shapes)
    except MXNetError:
        return False
    executor = module._exec_group.execs[0]
    inferred = {**dict(zip(module.symbol.list_arguments(), arguments)),
                **dict(zip(module.symbol.list_auxiliary_states(), states))}
    bound = {**executor.arg_dict, **executor.aux_dict}
    return all(shape == bound[name].shape for name, shape in inferred.items()
               if name not in shapes and name not in free)

"""What the package needs of a Module's executors.

No other file reads or changes a Module's executor group.
"""

from mxnet import ndarray as nd
from mxnet.base import MXNetError
from mxnet.executor_manager import _split_input_slice

from .batch_rows import resized
from .sparse_rows import is_row_sparse


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


def clear_added_gradients(module):
    """Set to zero the gradients that each backward pass adds to."""
    group = module._exec_group
    for name, arrays in gradients(module).items():
        if group.grad_req[name] == 'add':
            for array in arrays:
                array[:] = 0


def copy_states(source, target):
    """Set the states of a module to those of another one."""
    for arrays, targets in zip(source._exec_group.state_arrays, target._exec_group.state_arrays):
        _copy_all(arrays, targets)


def copy_auxiliary_states(source, target):
    """Set the auxiliary states of a module to those of another one."""
    for arrays, targets in zip(source._exec_group.aux_arrays, target._exec_group.aux_arrays):
        _copy_all(arrays, targets)


def _copy_all(arrays, targets):
    for array, target in zip(arrays, targets):
        array.copyto(target)


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


def forward_on_inputs_of(source, target, is_train, mask_names):
    """Run a module forward on the data, labels, states and masks that another one has.

    Parameters
    ----------
    source, target : mxnet.module.Module
        Two modules of one network, bound for the same shapes on the same devices.
    is_train : bool
    mask_names : list of str
        Masks that the one gives out behind its outputs and the other takes in.
    """
    outputs = source._exec_group.num_outputs
    names = [description.name for description in
             source.data_shapes + (source.label_shapes or [])] + source._state_names
    for executor, to in zip(source._exec_group.execs, target._exec_group.execs):
        for name in names:
            if name in executor.arg_dict:
                executor.arg_dict[name].copyto(to.arg_dict[name])
        for name, mask in zip(mask_names, executor.outputs[outputs:]):
            mask.copyto(to.arg_dict[name])
        to.forward(is_train=is_train)


def weights(module):
    """List the parameters and auxiliary states on all devices, in a fixed order."""
    group = module._exec_group
    return [array for arrays in group.param_arrays + group.aux_arrays for array in arrays]


def pull_dense_weights(kvstore, module):
    """Set the dense parameters of a module to what a KVStore has."""
    group = module._exec_group
    for index, (name, arrays) in enumerate(zip(group.param_names, group.param_arrays)):
        if not is_row_sparse(arrays[0]):
            kvstore.pull(name, out=arrays, priority=-index)
    module._params_dirty = True


def pull_sparse_weights(kvstore, module):
    """Set the row_sparse parameters of a module, in all rows, to what a KVStore has.

    Where a KVStore updates these, the live module has only rows of its batch.
    """
    group = module._exec_group
    for name, arrays in zip(group.param_names, group.param_arrays):
        if is_row_sparse(arrays[0]):
            rows = nd.arange(arrays[0].shape[0], dtype='int64')
            kvstore.row_sparse_pull(name, out=arrays, row_ids=rows)


def sparse_parameters(module):
    """List the parameters that are row_sparse, and the dense ones whose gradients are."""
    group = module._exec_group
    sparse = [name for name, arrays in zip(group.param_names, group.param_arrays)
              if is_row_sparse(arrays[0])]
    return sparse, [name for name, arrays in gradients(module).items()
                    if is_row_sparse(arrays[0]) and name not in sparse]


def weights_of_first_device(module):
    """Map each parameter, and each auxiliary state, to its value on the first device."""
    first = module._exec_group.execs[0]
    return ({name: first.arg_dict[name] for name in module._exec_group.param_names},
            dict(first.aux_dict))


def updater(module):
    """Return the MXNet Updater that holds the states of a module's optimizer."""
    return module._kvstore._updater if module._update_on_kvstore else module._updater


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
    inputs = dict(resized(descriptions, rows))
    try:
        inferred, _, _ = module.symbol.infer_shape_partial(**inputs)
    except MXNetError:
        return False
    bound = module._exec_group.execs[0].arg_dict
    return all(shape == bound[name].shape
               for name, shape in zip(module.symbol.list_arguments(), inferred)
               if name not in inputs and name not in free)

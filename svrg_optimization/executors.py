"""What the package needs of a Module's executors.

No other file reads or changes a Module's executor group.
"""

from mxnet.base import MXNetError
from mxnet.executor_manager import _split_input_slice

from .batch_rows import batch_axis, count_rows


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
        for array, to in zip(arrays, targets):
            array.copyto(to)


def weights(module):
    """List the parameters and auxiliary states on all devices, in a fixed order."""
    group = module._exec_group
    return [array for arrays in group.param_arrays + group.aux_arrays for array in arrays]


def weights_of_first_device(module):
    """Map each parameter, and each auxiliary state, to its value on the first device."""
    first = module._exec_group.execs[0]
    return ({name: first.arg_dict[name] for name in module._exec_group.param_names},
            dict(first.aux_dict))


def updater(module):
    """Return the MXNet Updater that holds the states of a module's optimizer."""
    return module._kvstore._updater if module._update_on_kvstore else module._updater


def can_bind(module, batch):
    """Tell whether a bound module could be reshaped for a batch.

    It cannot where there are fewer rows than devices, or where the symbol has
    the batch size written into it.

    Parameters
    ----------
    module : mxnet.module.Module
        A bound module; it stays as it is.
    batch : DataBatch
        A batch of any number of rows, without padding.

    Returns
    -------
    bool
    """
    parts = _rows_per_device(module, batch)
    return all(rows > 0 and _shapes_agree(module, batch, rows) for rows in set(parts))


def forward_backward(module, batch):
    """Compute a batch's gradients, on all devices even where there are few rows.

    Module itself fails where a device's work load is too small for a row.

    Parameters
    ----------
    module : mxnet.module.Module
        A module that is bound for training.
    batch : DataBatch or list of DataBatch
        A batch of at least as many rows as there are devices.
    """
    group, work_load_list = module._exec_group, module._exec_group.workload
    group.workload = _rows_per_device(module, batch)
    try:
        module.forward(batch, is_train=True)
    finally:
        group.workload = work_load_list
    module.backward()


def _rows_per_device(module, batch):
    rows, _ = count_rows(batch, module.data_shapes)
    work_load_list = module._exec_group.workload
    try:
        return [part.stop - part.start for part in _split_input_slice(rows, work_load_list)]
    except ValueError:
        devices = len(work_load_list)
        return [rows // devices + (device < rows % devices) for device in range(devices)]


def _shapes_agree(module, batch, rows):
    inputs = {}
    labels = zip(module.label_shapes or [], batch.label or [])
    for description, array in [*zip(module.data_shapes, batch.data), *labels]:
        shape, axis = list(array.shape), batch_axis(description)
        if axis >= 0:
            shape[axis] = rows
        inputs[description.name] = tuple(shape)
    try:
        inferred, _, _ = module.symbol.infer_shape_partial(**inputs)
    except MXNetError:
        return False
    bound = module._exec_group.execs[0].arg_dict
    return all(shape == bound[name].shape
               for name, shape in zip(module.symbol.list_arguments(), inferred)
               if name not in inputs and name not in module.label_names)

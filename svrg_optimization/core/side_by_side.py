"""Several batches in one run of an executor, with separate gradients."""

import mxnet as mx

from ..mxnet_bridge import executor_group


class SideBySide:
    """Copies of a small network, with the same parameters, in one executor.

    A run takes hardly longer than that of one small batch, because small
    batches spend more time on calls than on arithmetic.

    Parameters
    ----------
    module : mxnet.module.Module
        Module that is bound on one device, without auxiliary states and random
        layers. The copies use its parameter arrays.
    count : int
        Number of copies.

    Attributes
    ----------
    gradients : list of dict of str to list of NDArray
        For each copy a dict from parameter name to its one gradient.
    """

    def __init__(self, module, count):
        arguments = executor_group.arguments(module)
        gradients = executor_group.gradients(module)
        inputs = executor_group.input_names(module)
        self._inputs = {name: mx.nd.zeros((count * array.shape[0], *array.shape[1:]),
                                          array.context, array.dtype)
                        for name, array in arguments.items() if name in inputs}
        copies, bound, written = [], {}, {}
        self.gradients = []
        for i in range(count):
            renamed = {name: '%d:%s' % (i, name) for name in arguments}
            copies.append(module.symbol(**{name: mx.sym.Variable(renamed[name])
                                           for name in arguments}))
            for name, array in arguments.items():
                if name in inputs:
                    rows = array.shape[0]
                    array = self._inputs[name][i * rows:(i + 1) * rows]
                bound[renamed[name]] = array
            self.gradients.append({name: [arrays[0].copy()] for name, arrays in gradients.items()})
            written.update((renamed[name], arrays[0])
                           for name, arrays in self.gradients[-1].items())
        self._executor = mx.sym.Group(copies).bind(
            module._context[0], bound, written,
            {name: 'write' if name in written else 'null' for name in bound})

    def run(self, batches, module):
        """Compute `gradients` from as many batches as there are copies."""
        executor_group.join_batches(batches, module, self._inputs)
        self._executor.forward(is_train=True)
        self._executor.backward()

"""Several batches in one run of an executor, each with gradients of its own."""

import mxnet as mx

from ..mxnet_bridge import executor_group


class SideBySide:
    """Copies of a small network, with the same parameters, in one executor.

    To run it takes hardly longer than one small batch, which waits for calls
    more than for arithmetic.

    Parameters
    ----------
    module : mxnet.module.Module
        Bound on one device; its arrays of parameters are used. It has no
        auxiliary states and no random layers.
    count : int
        How many copies.
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
        """Compute the gradients of as many batches as there are copies, into `gradients`."""
        executor_group.join_batches(batches, module, self._inputs)
        self._executor.forward(is_train=True)
        self._executor.backward()

"""How much memory does SVRG take, over plain Module?

Trains with sgd and momentum in batches of 128. Counts the bytes of all NDArrays that
the module keeps, each memory once, and of the executors' pools, which hold the
activations, those at the snapshot too.
"""

import ctypes
import gc
import re

import common
import mxnet as mx
import numpy as np
from common import pyplot
from mxnet.base import _LIB, check_call

from svrg_optimization import SVRGModule

MODELS = {'LeNet': common.lenet, 'MLP 784-512-256-10': common.perceptron}
BATCH_SIZE, BATCHES = 128, 4
MEGABYTE = 1e6


def bytes_of_arrays():
    """Count the bytes of all dense NDArrays that are alive, each memory once."""
    gc.collect()
    mx.nd.waitall()
    sizes = {}
    for array in gc.get_objects():
        if type(array) is mx.nd.NDArray:
            pointer = ctypes.c_void_p()
            check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
            size = array.size * np.dtype(array.dtype).itemsize
            sizes[pointer.value] = max(sizes.get(pointer.value, 0), size)
    return sum(sizes.values())


def bytes_of_pool(module):
    """Return the bytes of the pool that a module's executors report, in whole MB."""
    found = [re.search(r'Total (\d+) MB allocated', executor.debug_str())
             for executor in module._exec_group.execs]
    return sum(int(match.group(1)) for match in found) * 2 ** 20


def measure(network, method):
    """Return the bytes of arrays and of pools of a module after some training."""
    symbol, shape = network()
    train_data = common.iterator(shape, BATCHES * BATCH_SIZE, BATCH_SIZE)
    before = bytes_of_arrays()
    module = mx.mod.Module(symbol) if method == 'Module' else SVRGModule(symbol, update_freq=1)
    module.fit(train_data, num_epoch=2,
               optimizer_params={'learning_rate': 1e-3, 'momentum': 0.9})
    pools = bytes_of_pool(module)
    if method != 'Module':
        pools += bytes_of_pool(module._mod_aux)
        pools += sum(map(bytes_of_pool, module._svrg.reference.executors._others))
    return bytes_of_arrays() - before, pools


def main():
    args = common.parser(__doc__, rounds=None).parse_args()
    common.quiet()
    rows, ratios = [], {}
    for name, network in MODELS.items():
        plain = sum(measure(network, 'Module'))
        weights = common.bytes_of_weights(*network(), BATCH_SIZE)
        for method in ('Module', 'SVRG'):
            arrays, pools = measure(network, method)
            ratios.setdefault(method, []).append((arrays + pools) / plain)
            rows.append([name, method, '%.1f' % (weights / MEGABYTE),
                         '%.1f' % (arrays / MEGABYTE), '%.1f' % (pools / MEGABYTE),
                         '%.2f' % ((arrays + pools) / plain)])
    common.write(args.output, 'memory',
                 'Batches of %d, sgd with momentum. MXNet rounds pools down to whole MB.'
                 % BATCH_SIZE,
                 ['model', 'method', 'weights, MB', 'NDArrays, MB', 'pools, MB', 'over Module'],
                 rows)
    draw(args.output, ratios)


def draw(output, ratios):
    """Draw the ratios of each method, a list over the models."""
    figure, axes = pyplot.subplots(figsize=(6, 3))
    for i, (method, values) in enumerate(ratios.items()):
        axes.bar([x + 0.25 * i for x in range(len(values))], values, 0.25, label=method,
                 color=common.COLORS['SGD' if method == 'Module' else method])
    axes.set_xticks([x + 0.25 for x in range(len(MODELS))])
    axes.set_xticklabels(MODELS)
    axes.set_ylabel('memory / memory of Module')
    axes.set_title('Memory of a training run relative to Module\'s', **common.TITLE)
    axes.legend(fontsize=8)
    common.save_picture(output, 'memory', figure)


if __name__ == '__main__':
    main()

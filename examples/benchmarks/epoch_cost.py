"""What does an epoch of SVRG cost, over its price and over an epoch of plain Module?

Times an epoch through `fit`: of SVRGModule with update_freq 1 and 2 and with L1, of
Module, and of mxnet.contrib's SVRGModule. All run in
one process, in interleaved rounds, and each ratio is of two times of one round. The price
is what the algorithm cannot avoid: Module's epoch, and bare passes of the executor for the
gradients at the snapshot. There is a bare pass for each batch of the pass for the full
gradient, and one for each step.
"""

import common
import mxnet as mx
import numpy as np
from common import pyplot
from mxnet.contrib.svrg_optimization.svrg_module import SVRGModule as ContribModule

from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1

# Network, rows of a batch, rows, and whether the iterator shuffles.
MODELS = {
    'linear, 90 features': (common.linear, 100, 20000, False),
    'softmax 784-10': (common.softmax, 128, 12800, False),
    'softmax 784-10, shuffled': (common.softmax, 128, 12800, True),
    'MLP 784-512-256-10': (common.perceptron, 128, 6400, False),
    'MLP 784-512-256-10, shuffled': (common.perceptron, 128, 6400, True),
    'LeNet': (common.lenet, 128, 1280, False),
    '160 small parameters': (common.many_small, 32, 640, False),
}
METHODS = ('Module', 'update_freq=1', 'update_freq=2', 'contrib, update_freq=1',
           'L1, update_freq=1')


def make(method, symbol):
    if method == 'Module':
        return mx.mod.Module(symbol)
    update_freq = int(method[-1])
    if method.startswith('contrib'):
        return ContribModule(symbol, update_freq=update_freq)
    return SVRGModule(symbol, update_freq=update_freq,
                      proximal=L1(1e-6) if method.startswith('L1') else None)


def bare_passes_of(method):
    """Return the gradient passes over the data that an epoch of a method takes beside Module's."""
    if method == 'Module':
        return 0
    return 1 / int(method[-1]) + 1


def epochs_of(method, symbol, train_data):
    """Return a function that trains some epochs, and how many; the first call is done."""
    module = make(method, symbol)
    count = int(method[-1]) if method[-1] in '12' else 1
    metric = 'mse' if 'regression' in symbol.list_outputs()[0] else 'acc'

    def train():
        module.fit(train_data, eval_metric=metric, num_epoch=count,
                   optimizer_params={'learning_rate': 1e-4})

    train()
    return train, count


def bare_pass(symbol, shape, batch_size, batches):
    """Return a function that runs an executor forward and backward for each batch of an epoch."""
    executor = symbol.simple_bind(mx.cpu(), grad_req={
        name: 'null' if name in ('data', 'softmax_label') else 'write'
        for name in symbol.list_arguments()}, data=(batch_size, *shape))
    for array in executor.arg_arrays:
        array[:] = mx.nd.random.normal(0, 0.1, array.shape)

    def run():
        for _ in range(batches):
            executor.forward(is_train=True)
            executor.backward()

    return run


def measure(network, batch_size, rows, shuffle, rounds, methods):
    """Return each method's seconds an epoch, and those of a bare pass over the data."""
    symbol, shape = network()
    functions = {'bare': bare_pass(symbol, shape, batch_size, rows // batch_size)}
    counts = {'bare': 1}
    for method in methods:
        if method.startswith('contrib') and network is common.lenet:
            continue  # it takes minutes an epoch
        functions[method], counts[method] = epochs_of(
            method, symbol, common.iterator(shape, rows, batch_size, shuffle=shuffle))
    seconds = {method: values / counts[method]
               for method, values in common.seconds_of_rounds(functions, rounds).items()}
    return seconds, seconds.pop('bare')


def main():
    parser = common.parser(__doc__)
    parser.add_argument('--models', nargs='+', choices=MODELS, default=list(MODELS))
    parser.add_argument('--methods', nargs='+', choices=METHODS[1:], default=list(METHODS[1:]),
                        help='beside Module')
    args = parser.parse_args()
    common.quiet()
    rows, of_module, ratios = [], [], {}
    for name in args.models:
        network, batch_size, count, shuffle = MODELS[name]
        seconds, bare = measure(network, batch_size, count, shuffle, args.rounds,
                                ['Module', *args.methods])
        module = seconds['Module']
        ratios[name] = {method: value / module for method, value in seconds.items()}
        prices = {method: value / (module + bare_passes_of(method) * bare)
                  for method, value in seconds.items()}
        milliseconds = 1e3 * batch_size / count
        rows.append([name, *(common.median(prices[method]) if method in prices else 'not run'
                             for method in args.methods), common.spread(*prices.values())])
        of_module.append([name, common.median(milliseconds * module),
                          common.median(milliseconds * bare), *(
                              common.median(ratios[name][method]) if method in seconds
                              else 'not run' for method in args.methods),
                          common.spread(module, bare)])
        print(*rows[-1], sep=' | ', flush=True)
    rounds = ('Median of %d interleaved rounds; spread: the widest range over its median'
              % args.rounds)
    heads = [method.replace('update_freq', 'm') for method in args.methods]
    common.write(args.output, 'epoch_cost',
                 'Epoch time over its price, update_freq=m. %s.' % rounds,
                 ['model', *heads, common.SPREAD], rows)
    common.write(args.output, 'epoch_cost',
                 'Epoch time over that of Module, update_freq=m. %s, of the two times.' % rounds,
                 ['model', 'Module, ms a batch', 'bare passes, ms a batch', *heads,
                  common.SPREAD], of_module, new=False)
    draw(args.output, ratios)


def draw(output, ratios):
    """Draw the ratios of SVRG's methods for each model."""
    figure, axes = pyplot.subplots(figsize=(9.5, 3.6))
    shown = [method for method in METHODS[1:3] if all(method in of for of in ratios.values())]
    for i, method in enumerate(shown):
        axes.bar([x + 0.2 * i for x in range(len(ratios))],
                 [np.median(ratios[name][method]) for name in ratios], 0.2, edgecolor='white',
                 color=common.COLORS['SVRG'],
                 hatch='//' if method.endswith('2') else None, label='SVRG, ' + method)
    axes.set_xticks([x + 0.3 for x in range(len(ratios))])
    axes.set_xticklabels([name.replace(' ', '\n') for name in ratios], fontsize=8)
    axes.set_ylabel('epoch / epoch of Module')
    axes.set_title('Time of an epoch relative to Module\'s', **common.TITLE)
    axes.axhline(1, color=common.COLORS['SGD'], linewidth=1.2, label='Module')
    axes.margins(y=0.3)
    axes.legend(fontsize=8, ncol=3)
    common.save_picture(output, 'epoch_cost', figure)


if __name__ == '__main__':
    main()

"""What does an epoch of SVRG cost, over an epoch of plain Module?

Times an epoch through `fit` of SVRGModule with update_freq 1 and 2, with stored
snapshot gradients, with L1, of Module, and of mxnet.contrib's SVRGModule. All run in one
process, in interleaved rounds; the minimum time counts. SVRG computes two
gradients a step and one more a batch in the pass: 3 passes with update_freq=1,
2.5 on average with 2, and 2 with stored gradients.
"""

import common
import mxnet as mx
from common import pyplot
from mxnet.contrib.svrg_optimization.svrg_module import SVRGModule as ContribModule

from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1

MODELS = {
    'linear, 90 features': (common.linear, 100, 20000),
    'softmax 784-10': (common.softmax, 128, 12800),
    'MLP 784-512-256-10': (common.perceptron, 128, 6400),
    'LeNet': (common.lenet, 128, 1280),
    '160 small parameters': (common.many_small, 32, 640),
}
METHODS = ('Module', 'update_freq=1', 'update_freq=2', 'stored, update_freq=1',
           'stored, update_freq=2', 'contrib, update_freq=1', 'L1, update_freq=1')


def make(method, symbol):
    if method == 'Module':
        return mx.mod.Module(symbol)
    update_freq = int(method[-1])
    if method.startswith('contrib'):
        return ContribModule(symbol, update_freq=update_freq)
    return SVRGModule(symbol, update_freq=update_freq,
                      store_snapshot_grads=method.startswith('stored'),
                      proximal=L1(1e-6) if method.startswith('L1') else None)


def epochs_of(method, symbol, train_data):
    """Return a function that trains some epochs, and how many; the first call is done."""
    module = make(method, symbol)
    count = int(method[-1]) if method[-1] in '12' else 1
    metric = 'mse' if 'regression' in symbol.list_outputs()[0] else 'acc'

    def train():
        train_data.reset()
        module.fit(train_data, eval_metric=metric, num_epoch=count,
                   optimizer_params={'learning_rate': 1e-4})

    train()
    return train, count


def measure(network, batch_size, rows, rounds, methods):
    """Return each method's seconds an epoch."""
    symbol, shape = network()
    functions, counts = {}, {}
    for method in methods:
        if method.startswith('contrib') and network is common.lenet:
            continue  # it takes minutes an epoch
        functions[method], counts[method] = epochs_of(
            method, symbol, common.iterator(shape, rows, batch_size))
    least = common.least_seconds(functions, rounds)
    return {method: seconds / counts[method] for method, seconds in least.items()}


def main():
    parser = common.parser(__doc__)
    parser.add_argument('--models', nargs='+', choices=MODELS, default=list(MODELS))
    parser.add_argument('--methods', nargs='+', choices=METHODS[1:], default=list(METHODS[1:]),
                        help='beside Module')
    args = parser.parse_args()
    common.quiet()
    rows, ratios = [], {}
    for name in args.models:
        network, batch_size, count = MODELS[name]
        seconds = measure(network, batch_size, count, args.rounds,
                          ['Module', *args.methods])
        ratios[name] = {method: value / seconds['Module'] for method, value in seconds.items()}
        rows.append([name, '%.2f' % (1e3 * seconds['Module'] * batch_size / count)] + [
            '%.2f' % ratios[name][method] if method in ratios[name] else 'not run'
            for method in args.methods])
        print(name, ' '.join('%s %.2f' % item for item in ratios[name].items()), flush=True)
    common.write(args.output, 'epoch_cost',
                 'Epoch time relative to Module\'s, minimum of %d interleaved rounds.'
                 % args.rounds,
                 ['model', 'Module, ms a batch', *args.methods], rows)
    draw(args.output, ratios)


def draw(output, ratios):
    """Draw the ratios of SVRG's methods for each model."""
    figure, axes = pyplot.subplots(figsize=(8, 3.6))
    shown = [method for method in METHODS[1:5] if all(method in of for of in ratios.values())]
    for i, method in enumerate(shown):
        axes.bar([x + 0.2 * i for x in range(len(ratios))],
                 [ratios[name][method] for name in ratios], 0.2, edgecolor='white',
                 color=common.COLORS['SVRG, stored' if method.startswith('stored') else 'SVRG'],
                 hatch='//' if method.endswith('2') else None, label='SVRG, ' + method)
    axes.set_xticks([x + 0.3 for x in range(len(ratios))])
    axes.set_xticklabels(ratios, fontsize=8)
    axes.set_ylabel('epoch / epoch of Module')
    axes.set_title('Time of an epoch relative to Module\'s', **common.TITLE)
    axes.axhline(1, color=common.COLORS['SGD'], linewidth=1.2, label='Module')
    axes.legend(fontsize=8)
    common.save_picture(output, 'epoch_cost', figure)


if __name__ == '__main__':
    main()

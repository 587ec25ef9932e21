"""What takes the time of a step, and what does it gain to do it in another way?

Times the executors' bare forward and backward passes for larger and larger
batches, and the operations of a step in the way that SVRGModule does them and
in another. Minimum of several interleaved rounds, in microseconds.
"""

from operator import attrgetter
from unittest import mock

import common
import mxnet as mx
from common import pyplot

from svrg_optimization import SVRGModule
from svrg_optimization.core import correction
from svrg_optimization.data import ndarray_iter
from svrg_optimization.module import at_snapshot

MLP = [(512, 784), (512,), (256, 512), (256,), (10, 256), (10,)]
SOFTMAX = [(10, 784), (10,)]
SMALL = [(16, 16, 3, 3), (16,)] * 80
NETWORKS = ('o-', 's--', '^-.', 'd:')  # all are of one method, and so of one color


def arrays(shapes):
    return [mx.nd.random.normal(shape=shape) for shape in shapes]


def executor_of(network, rows, request):
    symbol, shape = network()
    return symbol.simple_bind(mx.cpu(), grad_req={
        name: 'null' if name in ('data', 'softmax_label') else request
        for name in symbol.list_arguments()}, data=(rows, *shape))


def bare_pass(network, batch_size, times=1, request='write'):
    """Return a function that runs a network forward and backward on so many batches at once."""
    executor = executor_of(network, times * batch_size, request)

    def run():
        executor.forward(is_train=True)
        executor.backward()

    return run


def added_up(network, batch_size):
    """Return a function that adds a batch's gradients to sums, in additions of their own."""
    executor = executor_of(network, batch_size, 'write')
    gradients = [array for array in executor.grad_arrays if array is not None]
    totals = [mx.nd.zeros(array.shape) for array in gradients]

    def run():
        executor.forward(is_train=True)
        executor.backward()
        for total, gradient in zip(totals, gradients):
            mx.nd.broadcast_add(total, gradient, out=total)

    return run


def corrections(shapes, together):
    """Return a function that makes SVRG gradients, in one operation for many or two for each."""
    gradients, at_snapshot, full = arrays(shapes), arrays(shapes), arrays(shapes)

    def each():
        for three in zip(gradients, at_snapshot, full):
            correction.correct(*three)

    if together:
        return lambda: correction.correct_fused(gradients, at_snapshot, full)
    return each


def additions(shapes, add):
    totals, gradients = arrays(shapes), arrays(shapes)
    return lambda: [add(total, gradient, out=total) for total, gradient in zip(totals, gradients)]


def shuffled(begin):
    """Return a function that resets 12,800 shuffled rows of 784 features."""
    train_data = common.iterator((784,), 12800, 128, shuffle=True)
    return lambda: begin(train_data)


def batches_of_pass(begin):
    """Return a function that reads 100 batches of 128 rows of 784 features."""
    train_data = common.iterator((784,), 12800, 128)

    def run():
        for _ in map(attrgetter('data', 'label'), begin(train_data)):
            pass
        train_data.reset()

    return run


def batch_of_pass(network, batch_size, at_once):
    """Return a function that makes a pass over 240 batches."""
    symbol, shape = network()
    train_data = common.iterator(shape, 240 * batch_size, batch_size)
    module = SVRGModule(symbol, update_freq=1)
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params()

    def run():
        with mock.patch.multiple(at_snapshot, _BATCHES_AT_ONCE=at_once, _BYTES_AT_ONCE=1 << 30):
            module.update_full_grads(train_data)

    run()
    return run


def microseconds(functions, times, calls):
    """Return the minimum time of a call of each, over interleaved rounds."""
    def repeated(function):
        return lambda: [function() for _ in range(calls)]

    least = common.least_seconds({name: repeated(function) for name, function
                                  in functions.items()}, times)
    return {name: 1e6 * seconds / calls for name, seconds in least.items()}


def main():
    parser = common.parser(__doc__, rounds=None)
    parser.add_argument('--times', type=int, default=12, help='rounds (default: 12)')
    args = parser.parse_args()
    common.quiet()
    rows = []
    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    for (name, network, batch_size, most, calls), style in zip((
            ('linear', common.linear, 100, 16, 50), ('softmax', common.softmax, 128, 16, 50),
            ('MLP', common.perceptron, 128, 4, 10), ('LeNet', common.lenet, 128, 2, 2)), NETWORKS):
        sizes = [size for size in (1, 2, 4, 8, 16) if size <= most]
        found = microseconds({size: bare_pass(network, batch_size, size) for size in sizes},
                             args.times, calls)
        found = {size: value / size for size, value in found.items()}
        rows.append(['bare passes of %s' % name, '%.0f' % found[1],
                     '%.0f, %d batches as one' % (found[most], most)])
        axes.semilogx(sizes, [value / found[1] for value in found.values()], style, color='black',
                      label=name)
    for name, first, second, calls, unit in (
            ('SVRG gradients of 160 small parameters', corrections(SMALL, False),
             corrections(SMALL, True), 10, 'many in one operation'),
            ('gradients of the MLP, added up', bare_pass(common.perceptron, 128, 1, 'add'),
             added_up(common.perceptron, 128), 5, 'in operations of their own'),
            ('additions of gradients of the MLP', additions(MLP, mx.nd.elemwise_add),
             additions(MLP, mx.nd.broadcast_add), 10, 'by broadcast_add'),
            ('a reset of 12,800 shuffled rows', shuffled(mx.io.NDArrayIter.reset),
             shuffled(ndarray_iter.reset), 1, 'in one operation'),
            ('a batch of an NDArrayIter', batches_of_pass(iter),
             batches_of_pass(ndarray_iter.views_of_batches), 1, 'as a view'),
            ('a batch of the pass, linear', batch_of_pass(common.linear, 100, 1),
             batch_of_pass(common.linear, 100, 16), 1, '16 as one'),
            ('a batch of the pass, softmax', batch_of_pass(common.softmax, 128, 1),
             batch_of_pass(common.softmax, 128, 5), 1, '5 as one'),
            ('a batch of the pass, MLP', batch_of_pass(common.perceptron, 128, 1),
             batch_of_pass(common.perceptron, 128, 3), 1, '3 as one')):
        found = microseconds({'first': first, 'second': second}, args.times, calls)
        batches = 240 if 'batch of the pass' in name else 100 if 'batch of an' in name else 1
        rows.append([name, '%.0f' % (found['first'] / batches),
                     '%.0f, %s' % (found['second'] / batches, unit)])
    common.write(args.output, 'operations',
                 'Minimum of %d interleaved rounds, in µs. Batches have 128 rows, and 100 for the '
                 'linear model.'
                 % args.times, ['what', 'plain', 'in another way'], rows)
    axes.set(xlabel='batches computed as one', ylabel='time of a batch / alone')
    axes.set_title('Forward and backward passes of several batches as one', **common.TITLE)
    axes.set_xticks([1, 2, 4, 8, 16])
    axes.set_xticklabels([1, 2, 4, 8, 16])
    axes.minorticks_off()
    axes.legend(fontsize=8)
    common.save_picture(args.output, 'operations', figure)


if __name__ == '__main__':
    main()

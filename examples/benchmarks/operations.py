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
from svrg_optimization.core import correction, gradient_pass, snapshot_module
from svrg_optimization.data import ndarray_iter

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


def step_of_sgd(shapes, together):
    """Return a function that steps weights, in one operation for several or in one each."""
    optimizer = mx.optimizer.SGD(learning_rate=1e-3)
    if not together:
        optimizer.aggregate_num = 0
    updater = mx.optimizer.get_updater(optimizer)
    gradients, weights = arrays(shapes), arrays(shapes)
    return lambda: updater(list(range(len(shapes))), gradients, weights)


def corrections(shapes, together):
    """Return a function that makes SVRG gradients, in one operation for many or two for each."""
    gradients, at_snapshot, full = arrays(shapes), arrays(shapes), arrays(shapes)

    def each():
        for three in zip(gradients, at_snapshot, full):
            correction.correct(*three)

    if together:
        return lambda: correction.correct_fused(gradients, at_snapshot, full)
    return each


def copies(shapes, together):
    gradients = arrays(shapes)
    if together:
        return lambda: correction.copies_fused(gradients)
    return lambda: [gradient.copy() for gradient in gradients]


def both_gradients(network, batch_size, together):
    """Return a function that computes gradients at two points, in one executor or in two."""
    symbol, shape = network()
    inputs = ('data', 'softmax_label')
    alone = [executor_of(network, batch_size, 'write') for _ in range(2)]
    if not together:
        def run_both():
            for executor in alone:
                executor.forward(is_train=True)
                executor.backward()

        return run_both
    copies, arrays_of, gradients_of = [], {}, {}
    for i, executor in enumerate(alone):
        names = {name: name if name in inputs else '%d:%s' % (i, name)
                 for name in executor.arg_dict}
        copies.append(symbol(**{name: mx.sym.Variable(new) for name, new in names.items()}))
        arrays_of.update((new, executor.arg_dict[name]) for name, new in names.items())
        gradients_of.update((names[name], array) for name, array in executor.grad_dict.items()
                            if array is not None)
    executor = mx.sym.Group(copies).bind(mx.cpu(), arrays_of, gradients_of, {
        name: 'write' if name in gradients_of else 'null' for name in arrays_of})

    def run():
        executor.forward(is_train=True)
        executor.backward()

    return run


def sums(shapes, count, at_once=None):
    """Return a function that adds many batches' gradients up, some at once or one by one."""
    totals, batches = arrays(shapes), [arrays(shapes) for _ in range(count)]

    def one_by_one():
        for gradients in batches:
            correction.add_fused(totals, gradients)

    def some_at_once():
        for total, *summands in zip(totals, *batches):
            for begin in range(0, count, at_once):
                mx.nd.add_n(total, *summands[begin:begin + at_once], out=total)

    return some_at_once if at_once else one_by_one


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


def steps_on_two_sizes(cls, **kwargs):
    """Return a function that makes a step on 128 rows and one on 5."""
    symbol, shape = common.softmax()
    train_data = common.iterator(shape, 128, 128)
    batches = [next(train_data), next(common.iterator(shape, 5, 5))]
    module = cls(symbol, **kwargs)
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params()
    module.init_optimizer()

    def run():
        for batch in batches:
            module.forward_backward(batch)
            module.update()

    return run


def batch_of_pass(network, batch_size, at_once, stored=False):
    """Return a function that makes a pass over 240 batches."""
    symbol, shape = network()
    train_data = common.iterator(shape, 240 * batch_size, batch_size)
    module = SVRGModule(symbol, update_freq=1, store_snapshot_grads=stored)
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params()

    def run():
        with mock.patch.multiple(snapshot_module, _BATCHES_AT_ONCE=at_once,
                                 _BYTES_AT_ONCE=1 << 30), mock.patch.object(
                                     gradient_pass, '_FEWEST_SIDE_BY_SIDE', 2):
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
            ('copies of 160 small gradients', copies(SMALL, False), copies(SMALL, True), 10,
             'many in one operation'),
            ('step of sgd for the MLP', step_of_sgd(MLP, True), step_of_sgd(MLP, False), 10,
             'one operation each'),
            ('gradients of the MLP, added up', bare_pass(common.perceptron, 128, 1, 'add'),
             added_up(common.perceptron, 128), 5, 'in operations of their own'),
            ('both gradients of a step, linear', both_gradients(common.linear, 100, False),
             both_gradients(common.linear, 100, True), 50, 'in one executor'),
            ('both gradients of a step, softmax', both_gradients(common.softmax, 128, False),
             both_gradients(common.softmax, 128, True), 50, 'in one executor'),
            ('sum of 64 gradients of softmax', sums(SOFTMAX, 64), sums(SOFTMAX, 64, 64), 10,
             'all in one operation'),
            ('additions of gradients of the MLP', additions(MLP, mx.nd.elemwise_add),
             additions(MLP, mx.nd.broadcast_add), 10, 'by broadcast_add'),
            ('sums of 48 gradients of the MLP', sums(MLP, 48, 48), sums(MLP, 48, 3), 5,
             '3 in each operation'),
            ('a reset of 12,800 shuffled rows', shuffled(mx.io.NDArrayIter.reset),
             shuffled(ndarray_iter.reset), 1, 'in one operation'),
            ('steps on two sizes in turn, softmax', steps_on_two_sizes(mx.mod.Module),
             steps_on_two_sizes(SVRGModule, update_freq=1, alpha=0), 50, 'with executors kept'),
            ('a batch of an NDArrayIter', batches_of_pass(iter),
             batches_of_pass(ndarray_iter.views_of_batches), 1, 'as a view'),
            ('a batch of the pass, linear', batch_of_pass(common.linear, 100, 1),
             batch_of_pass(common.linear, 100, 16), 1, '16 as one'),
            ('a batch of the pass, softmax', batch_of_pass(common.softmax, 128, 1),
             batch_of_pass(common.softmax, 128, 5), 1, '5 as one'),
            ('a batch of the pass, MLP', batch_of_pass(common.perceptron, 128, 1),
             batch_of_pass(common.perceptron, 128, 3), 1, '3 as one'),
            ('a batch of the pass, linear, stored', batch_of_pass(common.linear, 100, 1, True),
             batch_of_pass(common.linear, 100, 16, True), 1, '16 side by side'),
            ('half a batch of the pass, softmax, stored',
             batch_of_pass(common.softmax, 64, 1, True),
             batch_of_pass(common.softmax, 64, 10, True), 1, '10 side by side'),
            ('a batch of the pass, softmax, stored', batch_of_pass(common.softmax, 128, 1, True),
             batch_of_pass(common.softmax, 128, 5, True), 1, '5 side by side')):
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

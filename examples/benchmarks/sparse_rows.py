"""What does a step cost on a wide table of row_sparse weights?

Times one step of linear regression on csr data, with plain Module, with exact
SVRG, which goes over the whole table, and with `sparse_full_grad`, which goes
over the rows of the batch. All run in one process, one after the other, in
several rounds; the least time of each counts.
"""

import argparse
import platform
import time

import mxnet as mx
import numpy as np

from svrg_optimization import SVRGModule


def make_symbol(columns, outputs):
    weight = mx.sym.Variable('weight', shape=(columns, outputs), stype='row_sparse')
    product = mx.sym.sparse.dot(mx.sym.Variable('data', stype='csr'), weight)
    return mx.sym.LinearRegressionOutput(product, mx.sym.Variable('label'))


def make_batches(columns, args):
    rng = np.random.RandomState(args.seed)
    batches = []
    for _ in range(args.batches):
        indices = np.sort(rng.randint(columns, size=(args.batch_size, args.nonzeros)), axis=1)
        data = mx.nd.sparse.csr_matrix(
            (rng.normal(size=indices.size), indices.ravel(),
             np.arange(0, indices.size + 1, args.nonzeros)), shape=(args.batch_size, columns))
        batches.append(mx.io.DataBatch([data], [mx.nd.array(
            rng.normal(size=(args.batch_size, args.outputs)))]))
    return batches


class Batches:
    """The batches as an iterator that can be reset."""

    def __init__(self, batches):
        self.batches = batches

    def reset(self):
        pass

    def __iter__(self):
        return iter(self.batches)


def make_module(kind, columns, batches, args):
    if kind == 'Module':
        module = mx.mod.Module(make_symbol(columns, args.outputs), label_names=('label',))
    else:
        module = SVRGModule(make_symbol(columns, args.outputs), label_names=('label',),
                            update_freq=1, sparse_full_grad=kind == 'SVRG, rows of the batch')
    module.bind([('data', (args.batch_size, columns))],
                [('label', (args.batch_size, args.outputs))])
    module.init_params(mx.init.Zero())
    module.init_optimizer(optimizer_params={'learning_rate': 1e-3})
    if kind != 'Module':
        module.update_full_grads(Batches(batches))
    return module


def time_epoch(module, batches):
    mx.nd.waitall()
    tic = time.perf_counter()
    for batch in batches:
        module.forward_backward(batch)
        module.update()
    mx.nd.waitall()
    return (time.perf_counter() - tic) / len(batches)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--columns', type=int, nargs='+', default=[10**4, 10**5, 10**6],
                        help='rows of the table, which are columns of the data')
    parser.add_argument('--outputs', type=int, default=16, help='columns of the table')
    parser.add_argument('--batch-size', type=int, default=100, help='rows of a batch')
    parser.add_argument('--nonzeros', type=int, default=20, help='nonzeros in a row of data')
    parser.add_argument('--batches', type=int, default=20, help='batches of an epoch')
    parser.add_argument('--rounds', type=int, default=5, help='epochs to time')
    parser.add_argument('--seed', type=int, default=0, help='seed of the data')
    args = parser.parse_args()
    kinds = ('Module', 'SVRG, exact', 'SVRG, rows of the batch')
    print('mxnet %s, Python %s, %s, float32, batch %d, %d nonzeros a row, '
          '%d outputs, seed %d\n' % (
        mx.__version__, platform.python_version(), platform.machine(), args.batch_size,
        args.nonzeros, args.outputs, args.seed))
    print('| rows of the table | Module, ms a step | exact SVRG / Module | rows of the batch / '
          'Module |')
    print('|---|---|---|---|')
    for columns in args.columns:
        batches = make_batches(columns, args)
        modules = {kind: make_module(kind, columns, batches, args) for kind in kinds}
        least = dict.fromkeys(kinds, np.inf)
        for _ in range(args.rounds):
            for kind, module in modules.items():
                least[kind] = min(least[kind], time_epoch(module, batches))
        print('| %d | %.2f | %.1f | %.1f |' % (
            columns, least['Module'] * 1e3, *(least[kind] / least['Module'] for kind in kinds[1:])),
            flush=True)


if __name__ == '__main__':
    main()

"""What does SVRG cost on sparse rows, and how soon does newton_cg come near the optimum?

There are three tables. The first has the time of a step of linear regression with a large
table of row_sparse weights by plain Module, which updates the rows of the batch, and by
SVRG, which updates the whole table. The others have logistic regression on rows that are
shaped like those of rcv1: the time of an epoch with a snapshot over Module's, and the time
to the optimum beside scikit-learn's. All run in rounds, and each ratio is of two times of
one round.
"""

import contextlib
import functools
import os
import time
import warnings
from pathlib import Path

import common
import mxnet as mx
import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.special
from sklearn.datasets import load_svmlight_file
from sklearn.linear_model import LogisticRegression

from svrg_optimization import SVRGModule

os.environ['MXNET_STORAGE_FALLBACK_LOG_VERBOSE'] = '0'
GOALS = (1e-4, 1e-6)
PASSES = (1, 2, 3, 4, 6, 8, 10, 14, 20, 28, 40, 60, 80, 120, 200, 400)  # of scikit-learn


class StopTraining(Exception):  # noqa: N818
    """All goals are reached, or the time is over."""


class Batches(mx.io.DataIter):
    """Batches in memory, in a new random order in each epoch."""

    def __init__(self, data, label):
        super().__init__(data[0].shape[0])
        self.batches = [mx.io.DataBatch([x], [y], pad=0) for x, y in zip(data, label)]
        self.provide_data = [mx.io.DataDesc('data', data[0].shape)]
        self.provide_label = [mx.io.DataDesc('label', label[0].shape)]
        self.reset()

    def reset(self):
        self.left = list(np.random.permutation(len(self.batches)))

    def next(self):
        if not self.left:
            raise StopIteration
        return self.batches[self.left.pop()]


def batches_of(features, labels, batch_size):
    """Return csr batches; rows that fill no batch are left out."""
    ends = range(batch_size, len(labels) + 1, batch_size)
    return Batches([mx.nd.sparse.csr_matrix(features[end - batch_size:end]) for end in ends],
                   [mx.nd.array(labels[end - batch_size:end].reshape(batch_size, -1))
                    for end in ends])


def network(columns, outputs, loss, stype):
    weight = mx.sym.Variable('fc_weight', shape=(columns, outputs), stype=stype)
    product = mx.sym.sparse.dot(mx.sym.Variable('data', stype='csr'), weight)
    return loss(product, mx.sym.Variable('label'))


def bound(module, train_data, **params):
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(mx.init.Zero())
    module.init_optimizer(optimizer_params=params)
    return module


def train_epoch(module, train_data, snapshot=False):
    if snapshot:
        module.update_full_grads(train_data)
    train_data.reset()
    for batch in train_data:
        module.forward_backward(batch)
        module.update()


# Tables of many rows

def large_tables(args):
    rng, rows, per_row = np.random.RandomState(0), 100 * args.batches, 20
    for columns in args.columns:
        columns_of = np.sort(rng.randint(columns, size=(rows, per_row)), axis=1)
        features = scipy.sparse.csr_matrix(
            (rng.normal(size=columns_of.size), columns_of.ravel(),
             np.arange(0, columns_of.size + 1, per_row)), shape=(rows, columns))
        train_data = batches_of(features, rng.normal(size=(rows, args.outputs)), 100)
        symbol = network(columns, args.outputs, mx.sym.LinearRegressionOutput, 'row_sparse')
        modules = [mx.mod.Module(symbol, label_names=('label',)),
                   SVRGModule(symbol, label_names=('label',), update_freq=1)]
        for module in modules:
            bound(module, train_data, learning_rate=1e-3)
        modules[1].update_full_grads(train_data)
        seconds = common.seconds_of_rounds({
            number: functools.partial(train_epoch, module, train_data)
            for number, module in enumerate(modules)}, args.rounds)
        ratio = seconds[1] / seconds[0]
        yield (f'{columns:,}', common.median(seconds[0] / args.batches * 1e3),
               common.median(ratio, '%.1f'), common.spread(seconds[0], ratio))


# Rows of rcv1's shape

def generate(rows, columns=47000, per_row=75, seed=0):
    """Return rows of length 1 whose columns are of very different frequency, and their labels."""
    rng = np.random.RandomState(seed)
    drawn = np.minimum(np.exp(rng.uniform(np.log(columns), size=(rows, per_row))) + rng.randint(
        30, size=(rows, per_row)), columns - 1).astype(np.int64)
    features = scipy.sparse.csr_matrix((np.ones(drawn.size), drawn.ravel(),
                                        np.arange(0, drawn.size + 1, per_row)), (rows, columns))
    features.sum_duplicates()
    rarity = np.log(rows / np.maximum(np.bincount(features.indices, minlength=columns), 1))
    features = (features @ scipy.sparse.diags(rarity)).tocsr()
    features = scipy.sparse.diags(1 / np.sqrt(features.multiply(features).sum(1)).A1) @ features
    scores = features @ rng.normal(scale=8, size=columns)
    return features.tocsr().astype('float32'), (
        rng.uniform(size=rows) < scipy.special.expit(scores)).astype('float32')


class Objective:
    """Logistic regression with L2 in float64, and its optimum."""

    def __init__(self, features, labels):
        self.features, self.signs = features.astype('float64'), 2. * labels - 1
        self.rows, self.wd = len(labels), 10 / len(labels)
        self.least = scipy.optimize.minimize(
            self.with_gradient, np.zeros(features.shape[1]), jac=True, method='L-BFGS-B',
            options={'maxiter': 5000, 'maxfun': 10000, 'ftol': 0, 'gtol': 1e-11}).fun

    def with_gradient(self, weight):
        margins = self.signs * (self.features @ weight)
        value = np.logaddexp(0, -margins).mean() + self.wd / 2 * weight @ weight
        slopes = -self.signs * scipy.special.expit(-margins) / self.rows
        return value, self.features.T @ slopes + self.wd * weight

    def above(self, weight):
        """Return by how much the objective of a weight is above the optimum."""
        return self.with_gradient(np.asarray(weight, 'float64').ravel())[0] - self.least


KINDS = {'dense weights': 'default', 'row_sparse': 'row_sparse'}  # stored type of the weight


def made(kind, columns):
    return SVRGModule(network(columns, 1, mx.sym.LogisticRegressionOutput, KINDS[kind]),
                      label_names=('label',), update_freq=1)


def epochs(features, labels, batch_size, rounds):
    """Return the times of an epoch with a snapshot over that of Module."""
    train_data = batches_of(features, labels, batch_size)
    settings = {'learning_rate': 1., 'wd': 10 / len(labels)}
    columns = features.shape[1]
    modules = {kind: bound(made(kind, columns), train_data, **settings) for kind in KINDS}
    modules['Module'] = bound(mx.mod.Module(
        network(columns, 1, mx.sym.LogisticRegressionOutput, 'row_sparse'),
        label_names=('label',)), train_data, **settings)
    seconds = common.seconds_of_rounds({
        kind: functools.partial(train_epoch, module, train_data, kind != 'Module')
        for kind, module in modules.items()}, rounds)
    ratios = [seconds[kind] / seconds['Module'] for kind in KINDS]
    return [*(common.median(each, '%.1f') for each in ratios), common.spread(*ratios)]


def times_of_newton(kind, features, labels, batch_size, objective, limit):
    """Return the seconds until each goal, without those that the objective takes."""
    train_data, reached = batches_of(features, labels, batch_size), {}
    module, lowest, begin = made(kind, features.shape[1]), np.inf, time.perf_counter()

    def look(epoch, symbol, arg_params, aux_params):
        nonlocal lowest, begin
        mx.nd.waitall()
        seconds = time.perf_counter() - begin
        above = objective.above(arg_params['fc_weight'].tostype('default').asnumpy())
        lowest = min(lowest, above)
        for goal in GOALS:
            if above <= goal:
                reached.setdefault(goal, seconds)
        begin = time.perf_counter() - seconds
        if len(reached) == len(GOALS) or seconds > limit:
            raise StopTraining

    with contextlib.suppress(StopTraining):
        module.fit(train_data, eval_metric=[], num_epoch=10000, initializer=mx.init.Zero(),
                   optimizer='newton_cg', optimizer_params={'wd': objective.wd},
                   epoch_end_callback=look)
    return reached, lowest


def times_of_scikit_learn(solver, features, labels, objective, limit, counts):
    """Return the seconds until each goal, of trainings that begin anew for each count.

    After the first round `counts` holds those from the first that reached a goal.
    """
    reached, useful = {}, counts[-1]
    for passes in counts:
        model = LogisticRegression(C=1 / (objective.wd * len(labels)), solver=solver,
                                   fit_intercept=False, max_iter=passes, tol=1e-12)
        tic = time.perf_counter()
        model.fit(features, labels)
        seconds = time.perf_counter() - tic
        above = objective.above(model.coef_)
        for goal in GOALS:
            if above <= goal and goal not in reached:
                reached[goal] = seconds
                useful = min(useful, passes)
        if len(reached) == len(GOALS) or seconds > limit:
            break
    counts[:] = [passes for passes in counts if passes >= useful]
    return reached, above


def shown(times, rounds):
    """Return the cells of a method: the seconds to each goal, and the range of the last ones.

    Where a goal is not reached there is what the worst round came to.
    """
    results = [times()]
    results += [times() for _ in range(rounds - 1) if results[0][0]]
    return common.times([[reached.get(goal, np.inf) for reached, _ in results] for goal in GOALS],
                        'not (%.0e)' % max(lowest for _, lowest in results))



def main():
    parser = common.parser(__doc__.partition('\n')[0])
    parser.add_argument('--columns', type=int, nargs='+', default=[10**4, 10**5, 10**6],
                        help='rows of the tables')
    parser.add_argument('--outputs', type=int, default=16, help='columns of the tables')
    parser.add_argument('--batches', type=int, default=20, help='batches of an epoch of these')
    parser.add_argument('--rows', type=int, default=20000, help='rows of the shape of rcv1')
    parser.add_argument('--data', type=Path, help='LIBSVM file to take in place of these')
    parser.add_argument('--limit', type=float, default=5, help='seconds for one training')
    args = parser.parse_args()
    common.quiet()
    warnings.filterwarnings('ignore', '.*(max_iter|converge)')
    rounds = 'Median of %d rounds' % args.rounds
    widest = rounds + '; spread: the widest range over its median.'
    common.write(args.output, 'sparse_rows', 'Linear regression with %d outputs, batches of 100 '
                 'rows with 20 nonzeros each. %s' % (args.outputs, widest),
                 ('rows of the table', 'Module, ms a step', 'SVRG / Module', common.SPREAD),
                 list(large_tables(args)))
    if args.data:
        features, labels = load_svmlight_file(str(args.data), dtype=np.float32)
        labels = (labels == labels.max()).astype('float32')
        setting = args.data.name
    else:
        features, labels = generate(args.rows)
        setting = 'generated'
    kept = len(labels) // 400 * 400
    features, labels = features[:kept], labels[:kept]
    setting = 'Logistic regression, %d rows (%s) of %d columns, %d nonzeros a row, wd 10/n.' % (
        kept, setting, features.shape[1], features.nnz // kept)
    common.write(args.output, 'sparse_rows', '%s %s' % (setting, widest),
                 ('batches of', *KINDS, common.SPREAD), [
        (batch_size, *epochs(features, labels, batch_size, args.rounds))
        for batch_size in (100, 400)], new=False)
    objective = Objective(features, labels)
    rows = [(solver, *shown(functools.partial(
        times_of_scikit_learn, solver, features, labels, objective, args.limit, list(PASSES)),
        args.rounds)) for solver in ('liblinear', 'lbfgs', 'saga')]
    for kind in KINDS:
        for batch_size in (100, 400):
            rows.append(('newton_cg, %s, batches of %d' % (kind, batch_size),
                         *shown(functools.partial(times_of_newton, kind, features, labels,
                                                  batch_size, objective, args.limit), args.rounds)))
    common.write(args.output, 'sparse_rows', '%s %s, and the '
                 'range of the last column of seconds.' % (setting, rounds),
                 ('method', *('s to %.0e above the optimum' % goal for goal in GOALS), 'lowest',
                  'highest'), rows, new=False)


if __name__ == '__main__':
    main()

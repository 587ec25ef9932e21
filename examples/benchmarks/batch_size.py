"""How many rows should a batch have? Time to the optimum of a large table, beside scikit-learn's.

Logistic regression with a little L2 on 300,000 rows of 50 raw columns, whose means and spreads
differ by factors of up to a million. The time of newton_cg is that of the whole `fit` with
tol=1e-5. The solver newton-cholesky of scikit-learn, in float64 with its tol of 1e-4, has all
rows in memory.
"""

import common
import mxnet as mx
import numpy as np
from scipy.special import log_expit
from sklearn.linear_model import LogisticRegression

from svrg_optimization import SVRGModule

L2 = 1e-6


def raw_table(count, columns):
    """Return raw columns in float32, and labels that depend on all of them."""
    rng = np.random.RandomState(0)
    rows = rng.normal(size=(count, columns)).astype(np.float32)
    labels = rows @ rng.normal(size=columns) * 0.3 > rng.logistic(size=count)
    rows += 10 * rng.uniform(size=columns)
    rows *= 10 ** rng.uniform(-3, 3, size=columns)
    return rows, labels.astype(np.float32)


def objective(rows, labels, weight, bias):
    """Return the mean loss and the penalty, in float64."""
    scores = rows @ weight + bias
    return -log_expit(np.where(labels == 1, scores, -scores)).mean() + L2 / 2 * weight @ weight


def train(rows, labels, batch_size):
    """Return the weight and the bias, and the epochs."""
    np.random.seed(0)
    mx.random.seed(0)
    score = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    symbol = mx.sym.LogisticRegressionOutput(score, mx.sym.Variable('softmax_label'))
    module = SVRGModule(symbol, tol=1e-5)
    module.fit(mx.io.NDArrayIter(rows, labels, batch_size, shuffle=True), eval_metric=[],
               num_epoch=100, initializer=mx.init.Zero(), optimizer='newton_cg',
               optimizer_params={'wd': L2})
    assert module.has_converged, module.result
    weights, _ = module.get_params()
    return (weights['fc_weight'].asnumpy()[0].astype(float), float(weights['fc_bias'].asscalar()),
            module.result.epochs)


def solve(rows, labels):
    """Return the weight and the bias of scikit-learn, and the iterations."""
    model = LogisticRegression(C=1 / (L2 * len(rows)), solver='newton-cholesky', max_iter=1000)
    model.fit(rows, labels)
    return model.coef_[0], model.intercept_[0], model.n_iter_[0]


def main():
    parser = common.parser(__doc__, rounds=3)
    parser.add_argument('--rows', type=int, default=300000, help='rows (default: %(default)s)')
    parser.add_argument('--batches', type=int, nargs='+', default=[32, 500, 5000],
                        help='rows of a batch (default: 32 500 5000)')
    args = parser.parse_args()
    common.quiet()
    rows, labels = raw_table(args.rows, 50)
    exact, found = rows.astype(float), {}

    def run(name, function, *given):
        found[name] = function(*given)

    methods = {('newton_cg', size): (train, rows, labels, size) for size in args.batches}
    methods['scikit-learn newton-cholesky', ''] = solve, exact, labels
    seconds = common.seconds_of_rounds(
        {name: lambda name=name, call=call: run(name, *call) for name, call in methods.items()},
        args.rounds)
    reached = {name: objective(exact, labels, weight, bias)
               for name, (weight, bias, _) in found.items()}
    table = [(*name, common.median(seconds[name], '%.1f'), found[name][2],
              '%.0e' % (reached[name] / min(reached.values()) - 1),
              common.spread(seconds[name])) for name in methods]
    common.write(args.output, 'batch_size', 'Logistic regression on %d raw rows of 50 columns. '
                 'Objective: by how much it is above the lowest one, relative.' % args.rows,
                 ('method', 'rows of a batch', 'seconds', 'epochs, or iterations', 'objective',
                  common.SPREAD), table)


if __name__ == '__main__':
    main()

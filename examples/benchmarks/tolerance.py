"""How small must tol be? Objective and coefficients at the end of fit, beside scikit-learn's.

Trains softmax and logistic regression with standardised columns and C=1 on three data sets
that ship with scikit-learn. The tolerance of scikit-learn is 1e-10. All differences are in
float64.
"""

import common
import mxnet as mx
import numpy as np
from scipy.special import logsumexp
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression

from svrg_optimization import SVRGModule

TOLS = 1e-3, 1e-4, 1e-5, 1e-6
DATA = {'breast cancer': load_breast_cancer, 'wine': load_wine, 'digits': load_digits}


def standardised(rows):
    deviation = rows.std(axis=0)
    deviation[rows.max(axis=0) == rows.min(axis=0)] = 1
    return ((rows - rows.mean(axis=0)) / deviation).astype(np.float32)


def train(rows, labels, tol):
    """Return the coefficients and the intercepts in scikit-learn's shapes, and the passes."""
    np.random.seed(0)
    mx.random.seed(0)
    classes = labels.max() + 1
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), name='fc',
                                   num_hidden=classes if classes > 2 else 1)
    layer = mx.sym.SoftmaxOutput if classes > 2 else mx.sym.LogisticRegressionOutput
    module = SVRGModule(layer(scores, mx.sym.Variable('softmax_label')), tol=tol)
    module.fit(mx.io.NDArrayIter(rows, labels, 32, shuffle=True), eval_metric=[], num_epoch=100,
               optimizer='newton_cg', optimizer_params={'wd': 1 / len(rows)})
    passes = '%d' % module.result.passes + ('' if module.has_converged else ', not called so')
    return *(module.get_params()[0][name].asnumpy().astype(float)
             for name in ('fc_weight', 'fc_bias')), passes


def objective(rows, labels, weight, bias):
    """Return the mean loss and the penalty for C=1."""
    scores = rows @ weight.T + bias
    if len(bias) == 1:
        scores = np.hstack([np.zeros_like(scores), scores])
    losses = logsumexp(scores, axis=1) - scores[np.arange(len(rows)), labels]
    return losses.mean() + (weight ** 2).sum() / 2 / len(rows)


def main():
    args = common.parser(__doc__, rounds=None).parse_args()
    common.quiet()
    table = []
    for name, load in DATA.items():
        rows, labels = load(return_X_y=True)
        rows = standardised(rows)
        exact = rows.astype(float)
        theirs = LogisticRegression(tol=1e-10, max_iter=100000).fit(exact, labels)
        least = objective(exact, labels, theirs.coef_, theirs.intercept_)
        for tol in TOLS:
            weight, bias, passes = train(rows, labels, tol)
            above = objective(exact, labels, weight, bias) / least - 1
            apart = np.abs(weight - theirs.coef_).max() / np.abs(theirs.coef_).max()
            table.append(('%s, %d classes' % (name, labels.max() + 1), '%.0e' % tol,
                          '%.0e' % max(above, 0), '%.0e' % apart, passes))
    common.write(args.output, 'tolerance', "Objective: by how much it is above scikit-learn's, "
                 'relative; coefficient: the largest difference of one, over the largest one. '
                 'Standardised columns, C=1, batches of 32, 100 epochs at most. '
                 'Not called so: training is not said to have converged.',
                 ('data', 'tol', 'objective', 'coefficient', 'passes'), table)


if __name__ == '__main__':
    main()

"""The problems of the tests, each with its float64 twin in oracle.py."""

import mxnet as mx
import numpy as np

import oracle
from svrg_optimization import SVRGModule

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def assert_close(actual, expected, tolerance=1e-5):
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=tolerance, atol=tolerance,
                                   err_msg=name)


def prepared(module, data, arg_params=None, sgd=None, **binds):
    """Bind a module as some data are, give it weights, and an optimizer with `sgd`; return it."""
    module.bind(data.provide_data, data.provide_label or None, **binds)
    module.init_params(arg_params=arg_params)
    if sgd is not None:
        module.init_optimizer(optimizer_params=sgd)
    return module


class Problem:
    """A symbol, its float64 gradient, data and initial weights."""

    def __init__(self, kind='linear', rows=40, features=4, classes=3, seed=0, dtype='float32',
                 **names):
        rng, self.dtype = np.random.RandomState(seed), dtype
        data, label = mx.sym.Variable('data'), mx.sym.Variable('label')
        self.features = rng.normal(size=(rows, features))
        outputs = 1 if kind == 'linear' else classes
        if kind == 'linear':
            self.targets = self.features @ rng.normal(size=features) + rng.normal(0.5, 0.1, rows)
            self.network = oracle.linear_regression
        else:
            self.targets = rng.randint(classes, size=rows).astype(float)
            self.network = oracle.perceptron if kind == 'perceptron' else oracle.softmax_regression
        inputs = features
        self.weights = {}
        if kind == 'perceptron':
            hidden = mx.sym.FullyConnected(data, num_hidden=5, name='hidden')
            self.weights.update(hidden_weight=0.5 * rng.normal(size=(5, inputs)),
                                hidden_bias=0.5 * rng.normal(size=5))
            data, inputs = mx.sym.Activation(hidden, act_type='tanh'), 5
        variables = {name: mx.sym.Variable(**variable) for name, variable in names.items()}
        output = mx.sym.FullyConnected(data, num_hidden=outputs, name='fc', **variables)
        self.weights.update(fc_weight=rng.normal(size=(outputs, inputs)),
                            fc_bias=rng.normal(size=outputs))
        loss = mx.sym.LinearRegressionOutput if kind == 'linear' else mx.sym.SoftmaxOutput
        self.symbol = loss(output, label, name='loss')
        self.renamed = {'fc_' + name: variable['name'] for name, variable in names.items()}

    def iterator(self, batch_size=10, cls=mx.io.NDArrayIter, **kwargs):
        rows, targets = (mx.nd.array(each, dtype=self.dtype)
                         for each in (self.features, self.targets))
        return cls(rows, targets, batch_size, label_name='label', **kwargs)

    def module(self, update_freq=1, **kwargs):
        return SVRGModule(self.symbol, label_names=('label',), update_freq=update_freq, **kwargs)

    def bound(self, batch_size=10, update_freq=1, grad_req='write', sgd=None, **kwargs):
        """Return a module bound for training with the initial weights, and with an optimizer."""
        return prepared(self.module(update_freq, **kwargs), self.iterator(batch_size),
                        self.arg_params(), sgd, grad_req=grad_req)

    def fit(self, module, num_epoch, train_data=None, **kwargs):
        """Train a module from the problem's initial weights; return it."""
        module.fit(train_data or self.iterator(), num_epoch=num_epoch,
                   arg_params=self.arg_params(), **{'eval_metric': [], **kwargs})
        return module

    def arg_params(self):
        return {self.renamed.get(name, name): mx.nd.array(value, dtype=self.dtype)
                for name, value in self.weights.items()}

    def svrg(self, batch_size=10, fixed=(), alpha=1, **sgd):
        """Return the float64 SVRG of this problem from its initial weights."""
        sgd = {'learning_rate': 0.1, 'rescale': 1 / batch_size, **sgd}
        return oracle.Svrg(self.network, self.weights, self.features, self.targets, batch_size,
                           oracle.Sgd(**sgd), fixed,
                           alpha if callable(alpha) else lambda _: float(alpha))

    def train_epoch(self, module, svrg, batch_size=10):
        """Step on each batch, with a module and in float64."""
        rows_of = oracle.batches_of(len(self.features), batch_size)
        for batch, rows in zip(self.iterator(batch_size), rows_of):
            module.forward_backward(batch)
            module.update()
            svrg.step(rows)

    def batch(self, *rows, **kwargs):
        """Return a batch of some rows: of ``range(*rows)``, or of an array."""
        rows = rows[0] if isinstance(rows[0], np.ndarray) else np.arange(*rows)
        return mx.io.DataBatch([mx.nd.array(self.features[rows])],
                               [mx.nd.array(self.targets[rows])], **kwargs)

    def rows_of(self, arrays):
        """Tell which rows some arrays have together, by their values."""
        return np.array([np.abs(self.features - row).sum(axis=1).argmin()
                         for array in arrays for row in array.asnumpy()])

    def step(self, module, svrg, *rows):
        """Step on a batch of some rows, with a module and in float64."""
        batch = self.batch(*rows)
        module.forward_backward(batch)
        module.update()
        svrg.step(rows[0] if isinstance(rows[0], np.ndarray) else np.arange(*rows))

    def assert_values(self, found, expected, tolerance):
        tolerance = tolerance or {'float32': 1e-5, 'float64': 1e-12}[self.dtype]
        assert_close({name: found[self.renamed.get(name, name)] for name in expected}, expected,
                     tolerance)

    def assert_weights(self, module, expected, tolerance=None):
        arg_params, _ = module.get_params()
        self.assert_values({name: value.asnumpy() for name, value in arg_params.items()}, expected,
                           tolerance)

    def assert_full_gradient(self, module, expected, tolerance=None):
        """Check the sum of all devices' shares."""
        self.assert_values({name: sum(share[name].asnumpy() for share in module._param_dict)
                            for name in module._param_dict[0]}, expected, tolerance)


def libsvm_iter(problem, path):
    """Write the rows of a problem into a file; return MXNet's iterator over it."""
    with open(path, 'w') as file:
        for target, row in zip(problem.targets, problem.features):
            columns = ' '.join('%d:%.9g' % (i, row[i]) for i in np.flatnonzero(row))
            file.write('%.9g %s\n' % (target, columns))
    return mx.io.LibSVMIter(data_libsvm=str(path), data_shape=problem.features.shape[1:],
                            batch_size=10)


class CsrIter(mx.io.DataIter):
    """Yield csr batches, the last one padded from the first rows."""

    def __init__(self, features, targets, batch_size):
        super().__init__(batch_size)
        self.features, self.targets = features, targets
        self.provide_data = [mx.io.DataDesc('data', (batch_size, features.shape[1]))]
        self.provide_label = [mx.io.DataDesc('label', (batch_size,))]
        self.reset()

    def reset(self):
        self.batches = iter(oracle.batches_of(len(self.features), self.batch_size))

    def next(self):
        rows = next(self.batches)
        pad = max(0, rows[0] + self.batch_size - len(self.features))
        return mx.io.DataBatch([mx.nd.array(self.features[rows]).tostype('csr')],
                               [mx.nd.array(self.targets[rows])], pad=pad)


def rows_of_batch(batch):
    """Tell which rows of a row_sparse parameter a batch needs."""
    return {'w': batch.data[0].indices}


class SparseProblem(Problem):
    """Linear regression on sparse rows; its twin is dense."""

    def __init__(self, rows=40, features=12, density=0.25):
        super().__init__(rows=rows, features=features)
        rng = np.random.RandomState(0)
        self.features *= rng.uniform(size=self.features.shape) < density
        self.features[:, -2:] = 0  # columns that never occur
        weight = mx.sym.Variable('w', shape=(features, 1), stype='row_sparse')
        product = mx.sym.sparse.dot(mx.sym.Variable('data', stype='csr'), weight)
        bias = mx.sym.Variable('fc_bias', shape=(1,))
        self.symbol = mx.sym.LinearRegressionOutput(mx.sym.broadcast_add(product, bias),
                                                    mx.sym.Variable('label'))
        self.network = self.linear_regression
        self.weights = {'w': self.weights['fc_weight'].T, 'fc_bias': self.weights['fc_bias']}

    @staticmethod
    def linear_regression(weights, features, targets):
        gradients = oracle.linear_regression(
            {'fc_weight': weights['w'].T, 'fc_bias': weights['fc_bias']}, features, targets)
        return {'w': gradients['fc_weight'].T, 'fc_bias': gradients['fc_bias']}

    def iterator(self, batch_size=10, **_):
        return CsrIter(self.features, self.targets, batch_size)

    def arg_params(self):
        return {'w': mx.nd.array(self.weights['w']).tostype('row_sparse'),
                'fc_bias': mx.nd.array(self.weights['fc_bias'])}

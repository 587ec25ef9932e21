"""The problems of the tests, each with its float64 twin in oracle.py."""

import mxnet as mx
import numpy as np

import oracle
from svrg_optimization import SVRGModule


class Problem:
    """A symbol, its float64 gradient, data and initial weights."""

    def __init__(self, kind='linear', rows=40, features=4, classes=3, seed=0, **names):
        rng = np.random.RandomState(seed)
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

    def iterator(self, batch_size=10, **kwargs):
        return mx.io.NDArrayIter(self.features, self.targets, batch_size, label_name='label',
                                 **kwargs)

    def module(self, update_freq=1, **kwargs):
        return SVRGModule(self.symbol, label_names=('label',), update_freq=update_freq, **kwargs)

    def bound(self, batch_size=10, update_freq=1, grad_req='write', **kwargs):
        """Return a module bound for training with the problem's initial weights."""
        module = self.module(update_freq, **kwargs)
        iterator = self.iterator(batch_size)
        module.bind(iterator.provide_data, iterator.provide_label, grad_req=grad_req)
        module.init_params(arg_params=self.arg_params())
        return module

    def arg_params(self):
        return {self.renamed.get(name, name): mx.nd.array(value)
                for name, value in self.weights.items()}

    def svrg(self, batch_size=10, fixed=(), **sgd):
        """Return the float64 SVRG of this problem from its initial weights."""
        sgd.setdefault('learning_rate', 0.1)
        return oracle.Svrg(self.network, self.weights, self.features, self.targets, batch_size,
                           oracle.Sgd(rescale=1 / batch_size, **sgd), fixed)

    def assert_weights(self, module, expected, tolerance=1e-5):
        arg_params, _ = module.get_params()
        for name, value in expected.items():
            np.testing.assert_allclose(arg_params[self.renamed.get(name, name)].asnumpy(), value,
                                       rtol=tolerance, atol=tolerance, err_msg=name)

    def assert_full_gradient(self, module, expected, tolerance=1e-5):
        """Check the sum of all devices' shares."""
        for name, value in expected.items():
            key = self.renamed.get(name, name)
            actual = sum(share[key].asnumpy() for share in module._param_dict)
            np.testing.assert_allclose(actual, value, rtol=tolerance, atol=tolerance, err_msg=name)

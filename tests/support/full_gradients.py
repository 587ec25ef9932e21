"""Full gradients in float64, and iterators whose batches are not as usual."""

import mxnet as mx
import numpy as np

from bad_input import Data


def full_gradient(problem, weights, rows, batch_size=10):
    gradients = problem.network(weights, problem.features[rows], problem.targets[rows])
    return {name: value * batch_size / len(rows) for name, value in gradients.items()}


def assert_pass(problem, module, train_data=None, rows=None, units=10, weights=None):
    """Take a full gradient, and check that it is the mean over the first rows, or over all."""
    module.update_full_grads(problem.iterator() if train_data is None else train_data)
    problem.assert_full_gradient(module, full_gradient(
        problem, weights or problem.weights, np.arange(rows or len(problem.features)), units))


def randomize(module, problem, seed):
    rng = np.random.RandomState(seed)
    weights = {name: rng.normal(size=value.shape) for name, value in problem.weights.items()}
    module.set_params({name: mx.nd.array(value) for name, value in weights.items()}, {})
    return weights


def short_batches(problem):
    """Return batches of ten rows, the last one with fewer, their pad being None."""
    rows = len(problem.features)
    return Data(*(problem.batch(begin, min(begin + 10, rows)) for begin in range(0, rows, 10)))


class Persistent(mx.operator.CustomOp):
    """Remember the latest batch in an auxiliary state, as a Boltzmann machine does its chains."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])
        aux[0][:] = in_data[0]

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register('svrg_test_persistent')
class PersistentProp(mx.operator.CustomOpProp):
    def list_auxiliary_states(self):
        return ['chain_min']

    def infer_shape(self, in_shape):
        return in_shape, [in_shape[0]], [in_shape[0]]

    def create_operator(self, *_):
        return Persistent()


def persistent(data):
    """Return a layer that has the rows of a batch in an auxiliary state."""
    return mx.sym.Custom(data, op_type='svrg_test_persistent', name='persistent')

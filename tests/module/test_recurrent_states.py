"""States of a network: those of the step in both gradients, those of now in a pass."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from bad_input import Data
from problems import TWO_DEVICES, Problem
from svrg_optimization import SVRGBucketingModule

RATE = {'learning_rate': 0.3}


class Recurrent(Problem):
    """Softmax of h' = tanh(FC(x) + FC(h)), where h is the state."""

    def __init__(self, rows=40, state_shape=(0, 5)):
        super().__init__('softmax', rows=rows)
        rng = np.random.RandomState(1)
        self.weights = {name: rng.normal(size=shape) for name, shape in (
            ('input_weight', (5, 4)), ('input_bias', (5,)), ('recurrent_weight', (5, 5)),
            ('fc_weight', (3, 5)), ('fc_bias', (3,)))}
        self.state_shape = state_shape
        self.symbol = self.symbol_for(4)

    def symbol_for(self, columns):
        """Return the network for rows with this many columns, of which four are used."""
        data = mx.sym.slice_axis(mx.sym.Variable('data'), axis=1, begin=0, end=4)
        state = mx.sym.Variable('h', shape=self.state_shape)
        hidden = mx.sym.tanh(
            mx.sym.FullyConnected(data, num_hidden=5, name='input')
            + mx.sym.FullyConnected(state, num_hidden=5, no_bias=True, name='recurrent'))
        scores = mx.sym.FullyConnected(hidden, num_hidden=3, name='fc')
        return mx.sym.Group([mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'), name='loss'),
                             mx.sym.BlockGrad(hidden, name='next_h')])

    def module(self, update_freq=1, **kwargs):
        return super().module(update_freq, state_names=('h',), **kwargs)

    def gradients(self, weights, rows, state):
        """Return the gradients summed over the rows, and the next state."""
        features, targets = self.features[rows], self.targets[rows].astype(int)
        hidden = np.tanh(features @ weights['input_weight'].T + weights['input_bias']
                         + state @ weights['recurrent_weight'].T)
        error = oracle.softmax(hidden @ weights['fc_weight'].T + weights['fc_bias'])
        error[np.arange(len(rows)), targets] -= 1
        back = (error @ weights['fc_weight']) * (1 - hidden ** 2)
        return {'input_weight': back.T @ features, 'input_bias': back.sum(axis=0),
                'recurrent_weight': back.T @ state, 'fc_weight': error.T @ hidden,
                'fc_bias': error.sum(axis=0)}, hidden

    def full_gradient(self, weights, value):
        rows = len(self.features)
        total, _ = self.gradients(weights, np.arange(rows), np.zeros((rows, 5)) + value)
        return {name: gradient * 10 / rows for name, gradient in total.items()}


@pytest.mark.parametrize('rows, context', [
    (40, mx.cpu()), (37, mx.cpu()), (400, mx.cpu()), (40, TWO_DEVICES)])
def test_a_pass_takes_the_states_as_they_are(rows, context):
    """Batches are not merged then: each of their rows has a state of its own."""
    problem = Recurrent(rows)
    module = problem.bound(context=context)
    for value in (0.5, -0.25):
        module.set_states(value=value)
        module.update_full_grads(problem.iterator())
        problem.assert_full_gradient(module, problem.full_gradient(problem.weights, value))
        assert all((state.asnumpy() == value).all()
                   for states in module.get_states(merge_multi_context=False) for state in states)
    if rows == 400:
        states = np.random.RandomState(0).normal(size=(10, 5))
        module.set_states(states=[[mx.nd.array(states)]])
        module.update_full_grads(problem.iterator())
        problem.assert_full_gradient(module, problem.full_gradient(
            problem.weights, np.tile(states, (40, 1))))


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_both_gradients_of_a_step_have_its_states(context):
    problem = Recurrent()
    module = problem.bound(context=context)

    def carry(_):
        module.set_states(states=module.get_outputs(merge_multi_context=False)[1:])

    with pytest.warns(UserWarning, match='set_states carries .*: it is biased. alpha=0') as caught:
        problem.fit(module, 3, optimizer_params=RATE, batch_end_callback=carry,
                    epoch_end_callback=lambda *_: module.set_states(value=0))
    assert sum('carries' in str(each.message) for each in caught) == 1
    weights, optimizer = dict(problem.weights), oracle.Sgd(rescale=0.1, **RATE)
    for _ in range(3):
        snapshot, state = dict(weights), np.zeros((10, 5))
        full_gradient = problem.full_gradient(snapshot, 0)
        for rows in oracle.batches_of(40, 10):
            at_snapshot, _ = problem.gradients(snapshot, rows, state)
            gradients, state = problem.gradients(weights, rows, state)
            optimizer.step(weights, {name: gradients[name] - at_snapshot[name]
                                     + full_gradient[name] for name in gradients})
    problem.assert_weights(module, weights)


def test_buckets_have_states_of_their_own():
    problem = Recurrent()
    batches = list(problem.iterator())
    for number, batch in enumerate(batches):
        batch.bucket_key = 4 + 2 * (number in (1, 2))
        batch.data = [mx.nd.concat(batch.data[0], mx.nd.zeros((10, 2)), dim=1)
                      [:, :batch.bucket_key]]
        batch.provide_data = [('data', batch.data[0].shape)]
        batch.provide_label = [('label', (10,))]
    module = SVRGBucketingModule(
        lambda key: (problem.symbol_for(key), ('data',), ('label',)), 6, update_freq=1,
        state_names=('h',))
    module.bind([('data', (10, 6))], [('label', (10,))])
    module.init_params(arg_params=problem.arg_params())
    module.update_full_grads(Data(*batches))
    problem.assert_full_gradient(module, problem.full_gradient(problem.weights, 0))


@pytest.mark.parametrize('context, state_shape, iterator', [
    (TWO_DEVICES, (0, 5), {}), (mx.cpu(), (10, 5), {}),
    (mx.cpu(), (0, 5), {'last_batch_handle': 'roll_over'})])
def test_padding_that_cannot_be_cut_off_is_weighted_and_named(context, state_shape, iterator):
    problem = Recurrent(37, state_shape)
    module, train_data = problem.bound(context=context), problem.iterator(**iterator)
    if iterator:
        module.update_full_grads(train_data)
    with pytest.warns(UserWarning, match='batch size that divides the rows'):
        module.update_full_grads(train_data)

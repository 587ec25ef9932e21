"""States that a pass carries from batch to batch at the snapshot, against float64."""

import warnings

import mxnet as mx
import numpy as np
import pytest

import oracle
from problems import Problem
from svrg_optimization import SVRGBucketingModule, SVRGModule

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
RATE = {'learning_rate': 0.3}


class Recurrent(Problem):
    """Softmax of h' = tanh(FC(x) + FC(h)), where h is the h' of the batch before."""

    def __init__(self, rows=40, state_shape=(0, 5)):
        super().__init__('softmax', rows=rows)
        rng = np.random.RandomState(1)
        self.weights = {name: rng.normal(size=shape) for name, shape in (
            ('input_weight', (5, 4)), ('input_bias', (5,)), ('recurrent_weight', (5, 5)),
            ('fc_weight', (3, 5)), ('fc_bias', (3,)))}
        self.state_shape = state_shape
        self.symbol = self.symbol_for(4)
        self.options = {'state_names': ('h',), 'next_states': {'h': 'next_h_output'}}

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
        return super().module(update_freq, **{**self.options, **kwargs})

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

    def full_gradient(self, weights, batches=None):
        """Return the full gradient over batches of 10, each with its rows and its padding."""
        batches = batches or [(rows, max(0, rows[0] + 10 - len(self.features)))
                              for rows in oracle.batches_of(len(self.features), 10)]
        state, total, count = np.zeros((10, 5)), dict.fromkeys(weights, 0.), 0
        for rows, padding in batches:
            real = 10 - padding
            gradients, _ = self.gradients(weights, rows[:real], state[:real])
            _, state = self.gradients(weights, rows, state)
            total = {name: total[name] + gradients[name] for name in total}
            count += real
        return {name: value * 10 / count for name, value in total.items()}


class Batches(mx.io.DataIter):
    """Yield batches of given rows, with given numbers of padding rows at their end."""

    def __init__(self, problem, batches):
        super().__init__(10)
        self.problem, self.batches = problem, batches
        self.reset()

    def reset(self):
        self.left = iter(self.batches)

    def next(self):
        rows, padding = next(self.left)
        return mx.io.DataBatch([mx.nd.array(self.problem.features[rows])],
                               [mx.nd.array(self.problem.targets[rows])], pad=padding)


def states_of(module):
    return [array.asnumpy() for arrays in module.get_states(merge_multi_context=False)
            for array in arrays]


@pytest.mark.parametrize('rows, context', [(40, mx.cpu()), (37, mx.cpu()), (40, TWO_DEVICES)])
def test_full_gradient_carries_states_at_the_snapshot(rows, context):
    problem = Recurrent(rows)
    module = problem.bound(context=context)
    module.set_states(value=7)
    for _ in range(2):
        module.update_full_grads(problem.iterator())
        problem.assert_full_gradient(module, problem.full_gradient(problem.weights))
        assert all((state == 7).all() for state in states_of(module))


def test_states_of_padding_rows_go_on_too():
    problem = Recurrent()
    batches = [(np.arange(10), 0), (np.arange(10, 20), 4), (np.arange(20, 30), 0),
               (np.arange(30, 40), 9), (np.arange(10), 0)]
    module = problem.bound()
    module.update_full_grads(Batches(problem, batches))
    problem.assert_full_gradient(module, problem.full_gradient(problem.weights, batches))


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_training_whose_loop_carries_states_is_svrg(context):
    problem = Recurrent()
    module = problem.module(context=context)

    def carry(_):
        outputs = module.get_outputs(merge_multi_context=False)
        module.set_states(states=outputs[1:])

    module.bind(problem.iterator().provide_data, problem.iterator().provide_label)
    problem.fit(module, 3, optimizer_params=RATE, batch_end_callback=carry,
                epoch_end_callback=lambda *_: module.set_states(value=0))
    weights, optimizer = dict(problem.weights), oracle.Sgd(rescale=0.1, **RATE)
    for _ in range(3):
        snapshot, state = dict(weights), np.zeros((10, 5))
        full_gradient = problem.full_gradient(snapshot)
        for rows in oracle.batches_of(40, 10):
            at_snapshot, _ = problem.gradients(snapshot, rows, state)
            gradients, state = problem.gradients(weights, rows, state)
            optimizer.step(weights, {name: gradients[name] - at_snapshot[name]
                                     + full_gradient[name] for name in gradients})
    problem.assert_weights(module, weights)


def test_buckets_carry_states_from_one_to_the_next():
    problem = Recurrent()

    class Buckets(Batches):
        def next(self):
            batch = super().next()
            batch.bucket_key = 4 + next(self.extra)
            batch.data = [mx.nd.concat(batch.data[0], mx.nd.ones((10, batch.bucket_key - 4)))
                          if batch.bucket_key > 4 else batch.data[0]]
            batch.provide_data = [('data', batch.data[0].shape)]
            batch.provide_label = [('label', (10,))]
            return batch

        def reset(self):
            super().reset()
            self.extra = iter((0, 2, 2, 0))

    module = SVRGBucketingModule(
        lambda key: (problem.symbol_for(key), ('data',), ('label',)), 6, update_freq=1,
        **problem.options)
    module.bind([('data', (10, 6))], [('label', (10,))])
    module.init_params(arg_params=problem.arg_params())
    module.init_optimizer(optimizer_params=RATE)
    module.set_states(value=7)
    module.update_full_grads(Buckets(problem, [(rows, 0) for rows in oracle.batches_of(40, 10)]))
    problem.assert_full_gradient(module, problem.full_gradient(problem.weights))
    assert all((state == 7).all() for state in states_of(module))


def test_batches_are_not_merged():
    """A state parts them, though all layers treat each row by itself."""
    data, label = mx.sym.Variable('data'), mx.sym.Variable('label')
    state = mx.sym.Variable('h', shape=(10, 1))
    symbol = mx.sym.Group([
        mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(inputs, num_hidden=1, name=name),
                                      label, name=name + '_loss')
        for inputs, name in ((data, 'of_data'), (state, 'of_state'))])
    problem = Problem(rows=400)
    module = SVRGModule(symbol, label_names=('label',), update_freq=1, state_names=('h',),
                        next_states={'h': 'of_data_loss_output'})
    module.bind(problem.iterator().provide_data, problem.iterator().provide_label)
    module.init_params(mx.init.One())
    module.update_full_grads(problem.iterator())
    targets = problem.targets.reshape(40, 10)
    states = np.vstack([np.zeros((1, 10)), problem.features.sum(axis=1).reshape(40, 10)[:-1]])
    expected = (states * (states - targets)).sum() * 10 / 400
    np.testing.assert_allclose(module._param_dict[0]['of_state_weight'].asnumpy(), [[expected]],
                               1e-5)


@pytest.mark.parametrize('context, state_shape, iterator', [
    (TWO_DEVICES, (0, 5), {}), (mx.cpu(), (10, 5), {}),
    (mx.cpu(), (0, 5), {'last_batch_handle': 'roll_over'})])
def test_padding_that_cannot_be_cut_off_is_weighted_and_named(context, state_shape, iterator):
    problem = Recurrent(37, state_shape)
    module = problem.bound(context=context)
    train_data = problem.iterator(**iterator)
    if iterator:
        module.update_full_grads(train_data)
    with pytest.warns(UserWarning, match='batch size that divides the rows'):
        module.update_full_grads(train_data)


def test_states_are_as_before_after_a_pass_that_fails():
    problem = Recurrent()
    module = problem.bound()
    module.set_states(value=7)
    with pytest.raises(ValueError, match='2 arrays'):
        module.update_full_grads(mx.io.NDArrayIter({'a': np.ones((20, 4)), 'b': np.ones((20, 4))},
                                                   np.ones(20), 10))
    assert all((state == 7).all() for state in states_of(module))


def test_states_of_which_nothing_was_declared_are_warned_of_once():
    problem = Recurrent()
    module = problem.bound(next_states=None)
    module.predict(problem.iterator())
    with pytest.warns(UserWarning, match='states as they are now, h: .*next_states') as caught:
        module.update_full_grads(problem.iterator())
        module.update_full_grads(problem.iterator())
    assert len(caught) == 1


def test_states_that_are_not_carried_keep_their_values():
    problem = Recurrent()
    module = problem.bound(next_states={})
    module.set_states(value=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        module.update_full_grads(problem.iterator())
    expected, _ = problem.gradients(problem.weights, np.arange(40), np.full((40, 5), 0.5))
    problem.assert_full_gradient(module, {name: value / 4 for name, value in expected.items()})


@pytest.mark.parametrize('next_states, error, message', [
    (['h'], TypeError, r"next_states must be a dict or None, not \['h'\]"),
    ({'g': 'next_h_output'}, ValueError, r"next_states must map states \(h\) to outputs .*'g' to"),
    ({'h': 'next_h'}, ValueError, r"to outputs \(loss_output, next_h_output\), and not 'h' to "
                                  r"'next_h'"),
    ({'h': []}, ValueError, r"and not 'h' to \[\]")])
def test_bad_next_states_are_an_error(next_states, error, message):
    with pytest.raises(error, match=message):
        Recurrent().module(next_states=next_states)


def test_output_of_another_shape_than_its_state_is_an_error_of_bind():
    problem = Recurrent()
    module = problem.module(next_states={'h': 'loss_output'})
    with pytest.raises(ValueError, match=r'output of its shape, and not h, \(10, 5\), to '
                                         r'loss_output, \(10, 3\)'):
        module.bind(problem.iterator().provide_data, problem.iterator().provide_label)
    assert not module.binded

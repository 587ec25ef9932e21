"""SVRGTrainer and the networks of gluon.rnn, in both layouts, against float64."""

import itertools

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import oracle
from blocks import as_blocks_take, assert_weights, weights_of
from svrg_optimization.gluon import SVRGTrainer

STEPS, FEATURES, HIDDEN, OUTPUTS, BATCH = 3, 2, 3, 2, 4
KINDS = {'lstm': gluon.rnn.LSTM, 'gru': gluon.rnn.GRU, 'rnn': gluon.rnn.RNN}
SGD = {'learning_rate': 0.4, 'momentum': 0.5, 'wd': 0.01}


def sigmoid(value):
    return 1 / (1 + np.exp(-value))


def next_state(kind, inputs, hidden, cell):
    """Return the next state of a cell from what the inputs and the state add to its gates."""
    if kind == 'rnn':
        return np.tanh(inputs + hidden[1]), cell
    parts, of_state = (np.split(value, 4 if kind == 'lstm' else 3, axis=1)
                       for value in (inputs, hidden[1]))
    if kind == 'gru':
        reset, update = (sigmoid(parts[i] + of_state[i]) for i in range(2))
        return (1 - update) * np.tanh(parts[2] + reset * of_state[2]) + update * hidden[0], cell
    enter, forget, new, leave = (first + second for first, second in zip(parts, of_state))
    cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
    return sigmoid(leave) * np.tanh(cell), cell


class Recurrent:
    """Sequences, with their float64 twin. Arrays begin with the sequences, as in NTC."""

    def __init__(self, kind, layout, loss, sequences):
        rng = np.random.RandomState(0)
        self.kind, self.axis, self.loss = kind, layout.index('N'), loss
        self.layer = KINDS[kind](HIDDEN, layout=layout, input_size=FEATURES, prefix='rnn_',
                                 i2h_bias_initializer='normal', h2h_bias_initializer='normal',
                                 **({'activation': 'tanh'} if kind == 'rnn' else {}))
        self.output = gluon.nn.Dense(OUTPUTS, flatten=False, in_units=HIDDEN, prefix='fc_')
        self.net = gluon.nn.HybridSequential(prefix='')
        self.net.add(self.layer, self.output)
        self.features = rng.normal(size=(sequences, STEPS, FEATURES))
        self.targets = rng.normal(size=(sequences, OUTPUTS) if loss == 'last' else (
            sequences, STEPS, OUTPUTS))
        self.batches = [np.arange(begin, min(begin + BATCH, sequences))
                        for begin in range(0, sequences, BATCH)]

    def initialize(self, contexts):
        mx.random.seed(0)
        self.net.initialize(mx.init.Normal(0.5), ctx=contexts)
        svrg = oracle.Svrg(self.gradients, weights_of(self.net), self.features, self.targets,
                           BATCH, oracle.Sgd(decayed=('weight', 'bias'), **SGD))
        return svrg

    def objective(self, data, target):
        predicted = self.output(self.layer(data))
        if self.loss == 'last':
            last = predicted[:, -1] if self.axis == 0 else predicted[-1]
            return gluon.loss.L2Loss()(last, target)
        if self.loss == 'words':
            return ((predicted - target) ** 2).mean(axis=2) / 2
        if mx.util.is_np_array():  # where Gluon's losses disregard batch_axis
            loss = ((predicted - target) ** 2).mean(axis=(1 - self.axis, 2)) / 2
        else:
            loss = gluon.loss.L2Loss(batch_axis=self.axis)(predicted, target)
        return loss.mean() if self.loss == 'mean' else loss

    def batch(self, rows):
        """Return the NDArrays of some sequences, in the layout."""
        arrays = self.features[rows], self.targets[rows]
        return [as_blocks_take(array.swapaxes(0, self.axis) if array.ndim == 3 else array)
                for array in arrays]

    @property
    def axes(self):
        return [self.axis, 0] if self.loss == 'last' else self.axis

    def split(self, rows, contexts):
        axes = self.axes if isinstance(self.axes, list) else [self.axes] * 2
        return [gluon.utils.split_and_load(array, contexts, axis, even_split=False)
                for array, axis in zip(self.batch(rows), axes)]

    def value(self, weights, features, targets):
        """Return the sum of the losses of all sequences."""
        hidden, cell = np.zeros((2, len(features), HIDDEN))
        outputs = []
        for step in range(STEPS):
            of_state = hidden @ weights['rnn_l0_h2h_weight'].T + weights['rnn_l0_h2h_bias']
            inputs = features[:, step] @ weights['rnn_l0_i2h_weight'].T + weights['rnn_l0_i2h_bias']
            hidden, cell = next_state(self.kind, inputs, (hidden, of_state), cell)
            outputs.append(hidden @ weights['fc_weight'].T + weights['fc_bias'])
        outputs = outputs[-1] if self.loss == 'last' else np.stack(outputs, axis=1)
        return ((outputs - targets) ** 2).sum() / 2 / targets[0].size

    def gradients(self, weights, features, targets):
        """Differentiate by complex steps, which are exact to float64."""
        gradients = {name: np.zeros_like(value) for name, value in weights.items()}
        for name, value in weights.items():
            for place in np.ndindex(value.shape):
                moved = value.astype(complex)
                moved[place] += 1e-30j
                gradients[name][place] = 1e30 * self.value({**weights, name: moved}, features,
                                                           targets).imag
        return gradients


def is_possible(kind, layout, loss, devices, sequences):
    """Means of devices are the mean of the batch if all have as many sequences."""
    return not (devices == 2 and (sequences == 9 or loss == 'mean' and sequences == 11))


def is_slow(kind, layout, loss, devices, sequences):
    return sequences == 10 and loss != 'mean' or (kind, loss) not in {
        ('lstm', 'rows'), ('lstm', 'mean'), ('lstm', 'last'), ('gru', 'words'), ('rnn', 'rows')}


CASES = [case for case in itertools.product(KINDS, ['TNC', 'NTC'], [
    'rows', 'mean', 'words', 'last'], [1, 2], [8, 9, 10, 11]) if is_possible(*case)]


@pytest.mark.parametrize('kind, layout, loss, devices, sequences', [
    pytest.param(*case, marks=[pytest.mark.slow] if is_slow(*case) else []) for case in CASES])
def test_training_is_svrg(kind, layout, loss, devices, sequences):
    """The last batch is whole, or has one, two or three sequences."""
    problem = Recurrent(kind, layout, loss, sequences)
    contexts = [mx.cpu(number) for number in range(devices)]
    svrg = problem.initialize(contexts)
    trainer = SVRGTrainer(problem.net.collect_params(), 'sgd', SGD, objective=problem.objective,
                          batch_axis=problem.axes)
    for epoch in range(3):
        if epoch % 2 == 0:
            trainer.update_full_grads([problem.batch(rows) for rows in problem.batches])
            svrg.take_snapshot()
        for rows in problem.batches:
            trainer.backward(*problem.split(rows, contexts))
            trainer.step({'mean': devices, 'words': STEPS * len(rows)}.get(loss, len(rows)))
            svrg.optimizer.rescale = 1 / len(rows)
            svrg.step(rows)
    assert_weights(problem.net, svrg.weights)

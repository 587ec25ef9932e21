"""After ``npx.set_np()`` SVRGTrainer trains mx.np arrays as it trains mx.nd arrays.

``set_np`` is for the whole process, so what uses it runs in one of its own.
"""

import warnings
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from blocks import Blocks, as_blocks_take, assert_weights, train, weights_of
from processes import in_a_process, run_python
from svrg_optimization import SVRGTrainer

HERE = Path(__file__).resolve().parent
TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
RNG = np.random.RandomState(0)
FEATURES = RNG.normal(size=(37, 6)).astype('float32')
TARGETS = (FEATURES @ RNG.normal(size=(6, 1)) + 0.1 * RNG.normal(size=(37, 1))).astype('float32')
CLASSES = RNG.randint(3, size=37).astype('float32')
IMAGES = RNG.normal(size=(24, 1, 10, 10)).astype('float32')
SEQUENCES = RNG.normal(size=(4, 5, 3, 2)).astype('float32')  # batches, steps, sequences, features
PAIRS = RNG.randint(8, size=(40, 2)).astype('float32')
RATINGS = RNG.normal(size=40).astype('float32')


def loader(*arrays, batch_size=10, **kwargs):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays), batch_size, **kwargs)


def network(*layers, contexts=mx.cpu(), hybridized=True):
    """Return a network whose weights are the same with both kinds of arrays."""
    net = gluon.nn.HybridSequential(prefix='net_')
    net.add(*layers)
    return initialized(net, contexts, hybridized)


def initialized(net, contexts=mx.cpu(), hybridized=True):
    rng = np.random.RandomState(1)
    net.initialize(ctx=contexts)
    for name, param in net.collect_params().items():
        if name.endswith(('weight', 'bias')):
            param.set_data(as_blocks_take(0.3 * rng.normal(size=param.shape), param.dtype))
    if hybridized:
        net.hybridize(static_alloc=True)
    return net


def trained(net, loss, data, epochs=5, optimizer='sgd', settings=None, contexts=None, **kwargs):
    """Train a network, and return what it ends with."""
    mx.random.seed(0)
    trainer = SVRGTrainer(net.collect_params(), optimizer, settings or {'learning_rate': 0.1},
                          objective=lambda *inputs: loss(net(*inputs[:-1]), inputs[-1]), **kwargs)
    train(trainer, data, epochs, contexts=contexts)
    return ends_of(net, trainer)


def trained_on_batches_of_the_trainer(net, loss, data, **kwargs):
    np.random.seed(0)
    trainer = SVRGTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1},
                          objective=lambda data, label: loss(net(data), label), **kwargs)
    for epoch in range(4):
        if epoch % 2 == 0:
            trainer.update_full_grads(data)
        for batch in trainer.training_batches(data):
            trainer.backward(*batch)
            trainer.step(len(batch[0]))
    return ends_of(net, trainer), trainer


def ends_of(net, trainer):
    norm = trainer.gradient_norm
    return {**{str(place): value for place, value in enumerate(weights_of(net).values())},
            'norm': np.array(norm)}


def dense(outputs, inputs=6, **kwargs):
    return gluon.nn.Dense(outputs, in_units=inputs, **kwargs)


def lenet_with_batch_norm():
    net = network(gluon.nn.Conv2D(4, 3, in_channels=1), gluon.nn.BatchNorm(in_channels=4),
                  gluon.nn.Activation('relu'), gluon.nn.MaxPool2D(2), gluon.nn.Flatten(),
                  dense(3, 64))
    return trained(net, gluon.loss.SoftmaxCrossEntropyLoss(),
                   loader(IMAGES, CLASSES[:24], batch_size=8))


def recurrent_with_states():
    net = gluon.nn.HybridSequential(prefix='net_')
    lstm, output = gluon.rnn.LSTM(4, input_size=2), dense(2, 4, flatten=False)
    net.add(lstm, output)
    initialized(net, hybridized=False)

    def objective(data, *states):
        predicted, states = lstm(data[:-1], list(states))
        return (((output(predicted) - data[1:]) ** 2).mean(axis=(0, 2)), *states)

    trainer = SVRGTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.5}, batch_axis=1,
                          objective=objective)
    batches = [as_blocks_take(batch) for batch in SEQUENCES]
    begin = [as_blocks_take(np.zeros((1, 3, 4))) for _ in range(2)]
    for epoch in range(4):
        if epoch % 2 == 0:
            trainer.update_full_grads([[batch] for batch in batches], states=begin)
        states = begin
        for batch in batches:
            loss, *states = trainer.backward(batch, *[state.detach() for state in states])
            trainer.step(len(loss))
    return ends_of(net, trainer)


class Factors(gluon.nn.HybridBlock):
    """The product of the factors of a user and of an item."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.users, self.items = gluon.nn.Embedding(8, 3), gluon.nn.Embedding(8, 3)

    def hybrid_forward(self, F, users, items):
        return (self.users(users) * self.items(items)).sum(axis=1)


def matrix_factorization_with_adam():
    return trained(initialized(Factors()), gluon.loss.L2Loss(),
                   loader(PAIRS[:, 0], PAIRS[:, 1], RATINGS), optimizer='adam',
                   settings={'learning_rate': 0.01})


def resumed(path, saved=None):
    """Save a run in the middle, and go on with it in another network, or with a `saved` one."""
    settings = {'learning_rate': 0.05, 'momentum': 0.5}
    nets, trainers, loss = [], [], gluon.loss.L2Loss()
    data = loader(FEATURES, TARGETS)
    for _ in range(2):
        net = network(dense(1))
        nets.append(net)
        trainers.append(SVRGTrainer(
            net.collect_params(), 'sgd', settings,
            objective=lambda data, label, net=net: loss(net(data), label)))
    train(trainers[0], data, 3)
    trainers[0].save_states(path + '.states')
    np.savez(path, *weights_of(nets[0]).values())
    weights = np.load((saved or path) + '.npz')
    for place, param in enumerate(nets[1].collect_params().values()):
        param.set_data(as_blocks_take(weights['arr_%d' % place]))
    trainers[1].load_states((saved or path) + '.states')
    train(trainers[1], data, 6, begin=3)
    return ends_of(nets[1], trainers[1])


def float64():
    net = network(dense(3))
    net.cast('float64')
    return trained(net, gluon.loss.SoftmaxCrossEntropyLoss(),
                   loader(FEATURES.astype('float64'), CLASSES.astype('float64')))


def loader_with_workers():
    """Its batches are in memory that processes share; `training_batches` moves them."""
    return trained_on_batches_of_the_trainer(network(dense(1)), gluon.loss.L2Loss(),
                                             loader(FEATURES, TARGETS, num_workers=1))[0]


TRAININGS = [lenet_with_batch_norm, recurrent_with_states, matrix_factorization_with_adam, resumed,
             float64, loader_with_workers]


def train_all(path, kind):
    """Run all trainings with a kind of arrays, and save what they end with."""
    ends = {}
    if kind == 'np':
        mx.npx.set_np()
        warnings.simplefilter('error')
        warnings.filterwarnings('ignore', 'ndarray.as_in_context has')  # of split_and_load
        warnings.filterwarnings('ignore', category=DeprecationWarning)  # of a fork, from 3.12 on
    for training in TRAININGS:
        ended = resumed(path + kind) if training is resumed else training()
        ends.update(('%s:%s' % (training.__name__, name), value) for name, value in ended.items())
    if kind == 'np':
        ends.update(('saved with nd:' + name, value)
                    for name, value in resumed(path + 'again', path + 'nd').items())
    np.savez(path + 'ends_' + kind, **ends)


def part_of(ends, name):
    return {key.partition(':')[2]: value for key, value in ends.items()
            if key.startswith(name + ':')}


def assert_ends(found, expected):
    assert set(found) == set(expected) and len(expected) > 1
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.fixture(scope='module')
def path(tmp_path_factory):
    path = str(tmp_path_factory.mktemp('ends')) + '/'
    train_all(path, 'nd')
    in_a_process(train_all, path, 'np')
    return path


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('name', [training.__name__ for training in TRAININGS])
def test_trainings_end_as_with_mx_nd_arrays(path, name):
    with_nd, with_np = (np.load(path + 'ends_%s.npz' % kind) for kind in ('nd', 'np'))
    assert_ends(part_of(with_np, name), part_of(with_nd, name))


@pytest.mark.process
@pytest.mark.slow
def test_a_run_goes_on_with_the_other_kind_of_arrays(path):
    with_nd, with_np = (np.load(path + 'ends_%s.npz' % kind) for kind in ('nd', 'np'))
    expected = part_of(with_nd, 'resumed')
    assert_ends(part_of(with_np, 'saved with nd'), expected)
    assert_ends(resumed(path + 'again', path + 'np'), expected)


@pytest.mark.process
@pytest.mark.slow
def test_the_tests_of_gluon_pass_with_mx_np_arrays():
    """Those that MXNet cannot run with them have the marker nd_arrays."""
    result = run_python('-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-m', 'not slow',
                        *sorted(HERE.glob('test_gluon*.py')), TEST_ARRAYS='np')
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize('contexts', [None, TWO_DEVICES])
def test_training_is_svrg(contexts):
    problem = Blocks('perceptron', rows=37)
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = problem.net(contexts or mx.cpu())
        train(problem.trainer(net), problem.loader(), 4, contexts=contexts)
        assert isinstance(net[0].weight.list_data()[0], mx.np.ndarray)
        assert_weights(net, problem.oracle(4))

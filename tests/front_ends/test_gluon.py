"""SVRGTrainer: Gluon's Trainer with SVRG gradients, compared with float64 and with SVRGModule."""


import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from blocks import SETTINGS, Blocks, as_blocks_take, assert_weights, train, train_plain, weights_of
from pairs import in_pairs
from svrg_optimization import LinearDecay
from svrg_optimization.gluon import SVRGTrainer

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'], 'rows': [40, 37],
    'hybridized': [None, {}, {'static_alloc': True}],
    'contexts, kvstore, on_kvstore': [
        (None, 'device', None), (None, 'local', False), (None, None, None),
        (TWO_DEVICES, 'device', None), (TWO_DEVICES, 'local', True),
        (TWO_DEVICES, 'device', False)]})
def test_training_is_svrg(kind, rows, hybridized, contexts, kvstore, on_kvstore):
    problem = Blocks(kind, rows=rows)
    net = problem.net(contexts or mx.cpu())
    trainer = problem.trainer(net, kvstore=kvstore, update_on_kvstore=on_kvstore)
    train(trainer, problem.loader(), 2, contexts=contexts)
    if hybridized is not None:
        net.hybridize(**hybridized)
    train(trainer, problem.loader(), 4, begin=2, contexts=contexts)
    assert_weights(net, problem.oracle(4))


def mean_at_the_snapshot(trainer):
    full = trainer._svrg.snapshot.full_gradient
    return {name: total.asnumpy() / full.batch_size for name, total in full.totals().items()}


@pytest.mark.parametrize('data, rows, contexts', [
    (lambda problem: problem.loader(), 37, mx.cpu()),
    (lambda problem: problem.loader(last_batch='discard'), 30, mx.cpu()),
    (lambda problem: problem.loader(last_batch='rollover'), 30, mx.cpu()),
    (lambda problem: problem.iterator(last_batch_handle='pad'), 37, mx.cpu()),
    (lambda problem: problem.iterator(last_batch_handle='roll_over'), 30, mx.cpu()),
    (lambda problem: problem.loader(batch_size=12), 37, TWO_DEVICES)])  # one row for two devices
def test_the_full_gradient_is_over_the_rows_that_the_data_yield(data, rows, contexts):
    problem = Blocks('softmax', rows=37)
    data = data(problem)
    if isinstance(data, mx.io.DataIter):
        next(data)  # it is reset
    trainer = problem.trainer(problem.net(contexts))
    trainer.update_full_grads(data)
    svrg = problem.svrg(1)
    svrg.take_snapshot(np.arange(rows))
    assert trainer._svrg.snapshot.full_gradient.rows == rows and len(list(data)) > 2
    for name, value in mean_at_the_snapshot(trainer).items():
        np.testing.assert_allclose(value, svrg.full_gradient[name], rtol=1e-5, atol=1e-6)
    trainer.update_full_grads(data, batches=2)
    assert trainer._svrg.snapshot.full_gradient.rows in (16, 20, 24)  # 16: left over, and 10


def test_alpha_may_be_set_while_training():
    problem = Blocks('softmax')
    net = problem.net()
    decay = LinearDecay(0.75, 20)
    trainer = problem.trainer(net, alpha=decay)
    train(trainer, problem.loader(), 2)
    trainer.alpha = 0.25
    train(trainer, problem.loader(), 4, begin=2)
    assert_weights(net, problem.oracle(
        4, alpha=lambda updates: decay(updates) if updates < 8 else 0.25))


@pytest.mark.parametrize('hybridized', [None, {}])
def test_alpha_0_is_trainer_to_the_bit(hybridized):
    problem = Blocks('perceptron', rows=37)
    for kwargs in ({}, {'kvstore': None}, {'update_on_kvstore': False}):
        net, plain = (problem.net(hybridized=hybridized, extra=[gluon.nn.Dropout(0.5)])
                      for _ in range(2))
        mx.random.seed(1)
        train(problem.trainer(net, alpha=0, **kwargs), problem.loader(), 3)
        mx.random.seed(1)
        train_plain(problem.trainer(plain, gluon.Trainer, **kwargs), plain, problem.loss(),
                    problem.loader(), 3)
        for name, value in weights_of(plain).items():
            np.testing.assert_array_equal(weights_of(net)[name], value)


@pytest.mark.parametrize('contexts, is_mean', [
    (None, None), (TWO_DEVICES, None), (TWO_DEVICES, True), (TWO_DEVICES, False)])
def test_training_with_losses_of_one_element_is_svrg(contexts, is_mean):
    """Each mean counts as many rows as it has; on two devices each has one mean."""
    problem = Blocks('softmax', rows=36)
    net, loss = problem.net(contexts or mx.cpu()), problem.loss()

    def objective(data, label):
        losses = loss(net(data), label)
        return losses.sum() if is_mean is False else losses.mean()

    trainer = problem.trainer(net, objective=objective, loss_is_mean=is_mean)
    devices = len(contexts or [0])
    svrg = problem.svrg(10, **{**SETTINGS, 'decayed': ('weight', 'bias')})
    batches = [np.arange(begin, min(begin + 10, 36)) for begin in range(0, 36, 10)]
    for epoch in range(4):
        if epoch % 2 == 0:
            trainer.update_full_grads(problem.loader())
            svrg.take_snapshot()
        for batch, rows in zip(problem.loader(), batches):
            if contexts:
                batch = [gluon.utils.split_and_load(array, contexts) for array in batch]
            trainer.backward(*batch)
            trainer.step(len(rows) if is_mean is False else devices)
            svrg.optimizer.rescale = 1 / len(rows)
            svrg.step(rows)
    assert_weights(net, svrg.weights)


def test_the_pass_may_be_the_first_forward():
    problem = Blocks('perceptron', rows=37)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, activation='tanh'), gluon.nn.Dense(3))
    net.initialize()
    trainer = problem.trainer(net)
    read = []

    def batches():
        for batch in problem.loader():
            read.append(batch)
            yield batch

    trainer.update_full_grads(batches())
    assert len(read) == 4 and trainer._svrg.snapshot.full_gradient.rows == 37
    trainer.backward(*read[0])
    trainer.step(10)


def test_gradients_may_add_up_over_batches():
    problem = Blocks('softmax')
    net = problem.net()
    for param in net.collect_params().values():
        param.grad_req = 'add'
    trainer = problem.trainer(net)
    svrg = problem.svrg(20, **{**SETTINGS, 'decayed': ('weight', 'bias')})
    for _ in range(3):
        trainer.update_full_grads(problem.loader())
        svrg.take_snapshot()
        for number, batch in enumerate(problem.loader()):
            trainer.backward(*batch)
            if number % 2:
                trainer.step(20)
                net.collect_params().zero_grad()
                svrg.step(np.arange(20) + 10 * (number - 1))
    assert_weights(net, svrg.weights)


def test_parameters_may_be_fixed():
    problem = Blocks('perceptron')
    net = problem.net()
    net.collect_params()['hidden_bias'].grad_req = 'null'
    trainer = problem.trainer(net)
    train(trainer, problem.loader(), 4)
    svrg = problem.svrg(10, fixed=['hidden_bias'], **{**SETTINGS, 'decayed': ('weight', 'bias')})
    svrg.fit(4, 2)
    assert_weights(net, svrg.weights)


@pytest.mark.parametrize('hybridized', [None, {}])
def test_dropout_has_the_same_masks_in_both_gradients(hybridized):
    """With the weights at the snapshot the difference of the gradients is 0: g is μ."""
    problem = Blocks('perceptron')
    net = problem.net(hybridized=hybridized, extra=[gluon.nn.Dropout(0.5)])
    trainer = problem.trainer(net)
    trainer.update_full_grads(problem.loader())
    [share] = trainer._svrg.snapshot.full_gradient.shares
    for batch in problem.loader():
        trainer.backward(*batch)
        for param in net.collect_params().values():
            np.testing.assert_allclose(param.grad().asnumpy(), share[param.name].asnumpy(),
                                       rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('layers, seeds', [([], 1), ([gluon.nn.Dropout(0.5)], 8)])
def test_seeds_are_set_only_for_networks_that_draw_random_numbers(layers, seeds, monkeypatch):
    """Each takes 1.5 ms. The first step after a snapshot finds it out, with two seeds."""
    problem = Blocks('perceptron')
    trainer = problem.trainer(problem.net(extra=layers))
    trainer.update_full_grads(problem.loader())
    batch = next(iter(problem.loader()))
    seen, seed = [], mx.random.seed
    monkeypatch.setattr(mx.random, 'seed', lambda number: seen.append(number) or seed(number))
    for _ in range(4):
        trainer.backward(*batch)
    assert len(seen) == 1 + seeds


def test_statistics_of_batch_norm_are_those_of_the_live_weights():
    """They are Trainer's of the same batches with the same weights."""
    problem = Blocks('perceptron')
    net, plain = (problem.net(extra=[gluon.nn.BatchNorm(in_channels=5, prefix='norm_')])
                  for _ in range(2))
    trainer = problem.trainer(net)
    for data, label in problem.loader():
        trainer.update_full_grads(problem.loader())
        trainer.backward(data, label)
        with autograd.record():
            value = problem.loss()(plain(data), label)
        value.backward()
        for name in ('norm_running_mean', 'norm_running_var'):
            np.testing.assert_array_equal(weights_of(net)[name], weights_of(plain)[name])


@pytest.mark.nd_arrays
@pytest.mark.filterwarnings('ignore:Cannot decide type')
@pytest.mark.parametrize('contexts', [mx.cpu(), TWO_DEVICES])
def test_statistics_of_a_symbol_block_are_those_of_the_live_weights(contexts, tmp_path):
    """They are frozen, and differentiable; other frozen parameters have no arrays of their own."""
    problem, path = Blocks('perceptron'), str(tmp_path / 'net')
    whole = problem.net(hybridized={},
                        extra=[gluon.nn.BatchNorm(in_channels=5, prefix='norm_')])
    whole(mx.nd.ones((2, 4)))
    whole.export(path)
    net, plain = (gluon.SymbolBlock.imports(path + '-symbol.json', ['data'], path + '-0000.params',
                                            contexts) for _ in range(2))
    for each in (net, plain):
        each.collect_params()['hidden_bias'].grad_req = 'null'
    settings = {'learning_rate': 0.}
    trainer, loss = problem.trainer(net, settings=settings), problem.loss()
    for number, batch in enumerate(problem.loader()):
        if number == 2 and contexts is not TWO_DEVICES:  # on which Trainer begins with the first's
            trainer.save_states(path)
            trainer = problem.trainer(net, settings=settings)
            trainer.load_states(path)
        elif number != 1:
            trainer.update_full_grads(problem.loader())
        batch = [gluon.utils.split_and_load(array, trainer._devices) for array in batch]
        trainer.backward(*batch)
        trainer.step(10)
        with autograd.record():
            losses = [loss(plain(data), label) for data, label in zip(*batch)]
        autograd.backward(losses)
        for name, param in net.collect_params().items():
            for ours, theirs in zip(param.list_data(), plain.collect_params()[name].list_data()):
                np.testing.assert_array_equal(ours.asnumpy(), theirs.asnumpy(), name)
    assert 'hidden_bias' not in trainer._reference.values()


def test_states_from_before_the_first_snapshot_are_loaded(tmp_path):
    problem, path = Blocks('softmax'), str(tmp_path / 'states')
    problem.trainer(problem.net()).save_states(path)
    net = problem.net()
    trainer = problem.trainer(net)
    trainer.load_states(path)
    train(trainer, problem.loader(), 2)
    assert_weights(net, problem.oracle(2))


def test_rates_and_multipliers_are_trainers():
    problem = Blocks('softmax')
    net = problem.net()
    net.collect_params()['fc_bias'].lr_mult = 0.5
    trainer = problem.trainer(net)
    svrg = problem.svrg(10, lr_mult={'fc_bias': 0.5}, **{**SETTINGS,
                                                         'decayed': ('weight', 'bias')})
    for epoch in range(4):
        trainer.set_learning_rate(0.2 / (1 + epoch))
        svrg.optimizer.learning_rate = lambda _, epoch=epoch: 0.2 / (1 + epoch)
        train(trainer, problem.loader(), 1)
        svrg.take_snapshot()
        for begin in range(0, 40, 10):
            svrg.step(np.arange(begin, begin + 10))
    assert_weights(net, svrg.weights)


class Scores(gluon.HybridBlock):
    """A dense layer of operators that compute in float16 on a CPU too."""

    def __init__(self, weight):
        super().__init__(prefix='')
        self.weight = self.params.get('fc_weight', shape=weight.shape, dtype='float16',
                                      init=mx.init.Constant(mx.nd.array(weight)))

    def hybrid_forward(self, F, rows, weight):
        return F.broadcast_mul(rows.expand_dims(1), weight.expand_dims(0)).sum(axis=2)


@pytest.mark.nd_arrays
def test_float16_trains_with_multi_precision():
    problem = Blocks('softmax')
    problem.weights['fc_bias'][:] = 0
    net, loss = Scores(problem.weights['fc_weight']), problem.loss()
    net.initialize()
    trainer = problem.trainer(
        net, settings={**SETTINGS, 'multi_precision': True}, objective=lambda data, label: loss(
            net(data.astype('float16')).astype('float32'), label))
    train(trainer, problem.loader(), 4)
    svrg = problem.svrg(10, fixed=['fc_bias'], **SETTINGS)
    assert_weights(net, {'fc_weight': svrg.fit(4, 2)['fc_weight']}, 3e-3)
    assert trainer._svrg.snapshot.full_gradient.shares[0]['fc_weight'].dtype == np.float32


@pytest.mark.nd_arrays  # as MXNet's RNNCell does
def test_states_are_carried_through_the_pass():
    """h' = tanh(x V + h U): the mean is over the gradients with the h carried at the snapshot."""
    rng = np.random.RandomState(0)
    inputs = rng.normal(size=(4, 5, 3))
    net = gluon.nn.HybridSequential()
    cell = gluon.rnn.RNNCell(2, input_size=3)
    net.add(cell)
    net.initialize(mx.init.Uniform(0.5))

    def objective(data, state):
        output, [state] = cell(data, [state])
        return (output ** 2).sum(axis=1), state

    trainer = SVRGTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1}, objective=objective)
    begin = as_blocks_take(np.ones((5, 2)))
    trainer.update_full_grads([[as_blocks_take(rows)] for rows in inputs], states=[begin])
    values = {name.rpartition('_')[0].rpartition('_')[2] + name.rpartition('_')[2]: value.astype(
        float) for name, value in weights_of(net).items()}
    total, state = 0, np.ones((5, 2))
    for rows in inputs:
        before = state
        state = np.tanh(rows @ values['i2hweight'].T + values['i2hbias']
                        + state @ values['h2hweight'].T + values['h2hbias'])
        total = total + (2 * state * (1 - state ** 2)).T @ before
    found = trainer._svrg.snapshot.full_gradient.shares[0]
    [name] = [name for name in found if name.endswith('h2h_weight')]
    np.testing.assert_allclose(found[name].asnumpy(), total * 5 / 20, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('means', [False, True])
def test_gradient_norm_is_that_of_the_mean_objective(means):
    wd, rescale = 0.05, 0.5
    problem = Blocks('perceptron', rows=37)
    net = problem.net()
    loss = problem.loss()
    given = {'objective': lambda data, label: loss(net(data), label).mean()} if means else {}
    trainer = problem.trainer(net, settings={'learning_rate': 0.1, 'wd': wd,
                                             'rescale_grad': rescale}, **given)
    assert trainer.gradient_norm is None
    trainer.update_full_grads(problem.loader())
    weights = weights_of(net)
    summed = problem.network(weights, problem.features, problem.targets)
    expected = max(np.abs(value / 37 + wd / rescale * weights[name]).max()
                   for name, value in summed.items())
    np.testing.assert_allclose(trainer.gradient_norm, expected, rtol=1e-5)

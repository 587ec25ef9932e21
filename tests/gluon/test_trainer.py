"""SVRGTrainer: Gluon's Trainer with SVRG gradients, compared with float64."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from blocks import (
    TWO_DEVICES,
    Blocks,
    as_blocks_take,
    assert_weights,
    rows_of,
    train,
    train_plain,
    weights_of,
)
from pairs import in_pairs
from svrg_optimization import LinearDecay
from svrg_optimization.gluon import SVRGTrainer


@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'], 'rows': [40, 37],
    'hybridized': [None, {}, {'static_alloc': True}],
    'contexts, kvstore, on_kvstore': [
        (mx.cpu(), 'device', None), (mx.cpu(), 'local', False), (mx.cpu(), None, None),
        (TWO_DEVICES, 'device', None), (TWO_DEVICES, 'local', True),
        (TWO_DEVICES, 'device', False)],
    'stored': [False, 2 ** 30, 1], 'alpha': [1, LinearDecay(0.75, 20)],
    'fixed': [(), ('fc_bias',)]})
@pytest.mark.filterwarnings('ignore:batch_size of step is', 'ignore:store_snapshot_grads')
def test_training_is_svrg(kind, rows, hybridized, contexts, kvstore, on_kvstore, stored, alpha,
                          fixed):
    problem = Blocks(kind, rows=rows)
    net, loader = problem.net(contexts), problem.loader()
    for name in fixed:
        net.collect_params()[name].grad_req = 'null'
    trainer = problem.trainer(net, kvstore=kvstore, update_on_kvstore=on_kvstore, alpha=alpha,
                              store_snapshot_grads=stored)
    svrg = problem.twin(fixed=fixed, alpha=alpha)
    for epoch in range(4):
        if epoch % 2 == 0:
            trainer.update_full_grads(loader)
            svrg.take_snapshot()
        for data, label in trainer.training_batches(loader):
            trainer.backward(data, label)
            trainer.step(10)
            svrg.step(rows_of(problem, data))
        if epoch == 1 and hybridized is not None:
            net.hybridize(**hybridized)
        if epoch == 1 and alpha != 1:
            trainer.alpha, svrg.alpha = 0.25, lambda _: 0.25
    assert len(trainer._svrg.store.batches) == (4 if stored == 2 ** 30 else 0)
    assert_weights(net, svrg.weights)


def mean_at_the_snapshot(trainer):
    full = trainer._svrg.snapshot.full_gradient
    return {name: total.asnumpy() / full.batch_size for name, total in full.totals().items()}


@pytest.mark.parametrize('data, rows, contexts', [
    (lambda problem: problem.loader(), 37, mx.cpu()),
    (lambda problem: problem.loader(last_batch='discard'), 30, mx.cpu()),
    (lambda problem: problem.loader(last_batch='rollover'), 30, mx.cpu()),
    (lambda problem: problem.iterator(last_batch_handle='pad'), 37, mx.cpu()),
    (lambda problem: problem.iterator(last_batch_handle='roll_over'), 30, mx.cpu()),
    (lambda problem: problem.loader(batch_size=11), 37, TWO_DEVICES)])
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
    assert trainer._svrg.snapshot.full_gradient.rows in (16, 20, 22)  # 16: left over, and 10


@pytest.mark.parametrize('hybridized', [None, {}])
@pytest.mark.parametrize('settings', [{}, {'kvstore': None}, {'update_on_kvstore': False}])
def test_alpha_0_is_trainer_to_the_bit(hybridized, settings):
    problem, ends = Blocks('perceptron', rows=37), []
    for train_one in (
            lambda net: train(problem.trainer(net, alpha=0, **settings), problem.loader(), 3),
            lambda net: train_plain(problem.trainer(net, gluon.Trainer, **settings), net,
                                    problem.loss(), problem.loader(), 3)):
        net = problem.net(hybridized=hybridized, extra=[gluon.nn.Dropout(0.5)])
        mx.random.seed(1)
        train_one(net)
        ends.append(weights_of(net))
    np.testing.assert_equal(*ends)


@pytest.mark.parametrize('contexts, is_mean', [
    (None, None), (TWO_DEVICES, None), (TWO_DEVICES, True), (TWO_DEVICES, False)])
def test_training_with_losses_of_one_element_is_svrg(contexts, is_mean):
    problem = Blocks('softmax', rows=36)
    net, loss = problem.net(contexts or mx.cpu()), problem.loss()

    def objective(data, label):
        losses = loss(net(data), label)
        return losses.sum() if is_mean is False else losses.mean()

    trainer = problem.trainer(net, objective=objective, loss_is_mean=is_mean)
    devices = len(contexts or [0])
    svrg = problem.twin()
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
    problem, net = Blocks('softmax', rows=37), gluon.nn.Dense(3)
    net.initialize()
    trainer = problem.trainer(net)
    train(trainer, problem.loader(), 1)
    assert trainer._svrg.snapshot.full_gradient.rows == 37


def test_gradients_may_add_up_over_batches():
    problem = Blocks('softmax')
    net = problem.net()
    for param in net.collect_params().values():
        param.grad_req = 'add'
    trainer = problem.trainer(net)
    svrg = problem.twin(20)
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


@pytest.mark.parametrize('hybridized', [None, {}])
def test_dropout_has_the_same_masks_in_both_gradients(hybridized):
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


@pytest.mark.nd_arrays
@pytest.mark.filterwarnings('ignore:Cannot decide type')
@pytest.mark.parametrize('imported', [False, True])
@pytest.mark.parametrize('contexts', [[mx.cpu()], TWO_DEVICES])
def test_statistics_of_batches_are_those_of_the_live_weights(contexts, imported, tmp_path):
    problem, path = Blocks('perceptron'), str(tmp_path / 'net')

    def network():
        net = problem.net(contexts, {}, [gluon.nn.BatchNorm(in_channels=5, prefix='norm_')])
        if imported:  # whose statistics are frozen, and differentiable
            net(mx.nd.ones((2, 4)))
            net.export(path)
            net = gluon.SymbolBlock.imports(path + '-symbol.json', ['data'], path + '-0000.params',
                                            contexts)
        net.collect_params()['hidden_bias'].grad_req = 'null'
        return net

    net, plain, loss = network(), network(), problem.loss()
    trainer = problem.trainer(net, settings={'learning_rate': 0.})
    for batch in problem.loader():
        trainer.update_full_grads(problem.loader())
        batch = [gluon.utils.split_and_load(array, contexts) for array in batch]
        trainer.backward(*batch)
        trainer.step(10)
        with autograd.record():
            losses = [loss(plain(data), label) for data, label in zip(*batch)]
        autograd.backward(losses)
        for name, param in net.collect_params().items():
            for ours, theirs in zip(param.list_data(), plain.collect_params()[name].list_data()):
                np.testing.assert_array_equal(ours.asnumpy(), theirs.asnumpy(), name)


def test_rates_and_multipliers_are_trainers():
    problem = Blocks('softmax')
    net = problem.net()
    net.collect_params()['fc_bias'].lr_mult = 0.5
    trainer = problem.trainer(net)
    svrg = problem.twin(lr_mult={'fc_bias': 0.5})
    for epoch in range(4):
        trainer.set_learning_rate(0.2 / (1 + epoch))
        svrg.optimizer.learning_rate = lambda _, epoch=epoch: 0.2 / (1 + epoch)
        train(trainer, problem.loader(), 1)
        svrg.take_snapshot()
        for begin in range(0, 40, 10):
            svrg.step(np.arange(begin, begin + 10))
    assert_weights(net, svrg.weights)


@pytest.mark.nd_arrays  # as MXNet's RNNCell does
def test_states_are_carried_through_the_pass():
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


@pytest.mark.parametrize('contexts', [[mx.cpu()], TWO_DEVICES])
def test_gradients_are_clipped_between_allreduce_and_update(contexts):
    problem, norm, clipped = Blocks('softmax'), 4., []
    net = problem.net(contexts)
    trainer = problem.trainer(net, settings={'learning_rate': 0.2}, update_on_kvstore=False)
    svrg = problem.svrg(10, learning_rate=0.2)
    step = svrg.optimizer.step

    def clipped_step(weights, gradients):
        length = np.sqrt(sum((value ** 2).sum() for value in gradients.values()))
        clipped.append(length > norm)
        step(weights, {name: value * min(1, norm / length) for name, value in gradients.items()})

    svrg.optimizer.step = clipped_step
    for _ in range(3):
        trainer.update_full_grads(problem.loader())
        svrg.take_snapshot()
        for begin, batch in zip(range(0, 40, 10), problem.loader()):
            trainer.backward(*(gluon.utils.split_and_load(array, contexts) for array in batch))
            trainer.allreduce_grads()
            for device in contexts:
                gluon.utils.clip_global_norm([param.grad(device).as_nd_ndarray() for param in
                                              net.collect_params().values()], norm)
            trainer.update(10)
            svrg.step(np.arange(begin, begin + 10))
    assert 0 < sum(clipped) < len(clipped)
    assert_weights(net, svrg.weights)


def test_trainers_of_losses_that_share_no_weights_take_turns():
    problems = [Blocks('softmax', rows=40), Blocks('perceptron', rows=40)]
    nets = [problem.net() for problem in problems]
    trainers = [problem.trainer(net) for problem, net in zip(problems, nets)]
    for epoch in range(4):
        if epoch % 2 == 0:
            for trainer, problem in zip(trainers, problems):
                trainer.update_full_grads(problem.loader())
        for batches in zip(*(problem.loader() for problem in problems)):
            for trainer, batch in zip(trainers, batches):
                trainer.backward(*batch)
            for trainer in trainers:
                trainer.step(10)
    for net, problem in zip(nets, problems):
        assert_weights(net, problem.oracle(4))

"""SVRGTrainer: Gluon's Trainer with SVRG gradients, compared with float64."""

import collections
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.contrib import amp

import oracle
from blocks import (
    TWO_DEVICES,
    Blocks,
    Training,
    as_blocks_take,
    assert_weights,
    train,
    train_epochs,
    train_plain,
    weights_of,
)
from pairs import in_pairs
from svrg_optimization import LinearDecay
from svrg_optimization.diagnostics import gradient_variance
from svrg_optimization.gluon import SVRGTrainer
from svrg_optimization.proximal import L1


@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'], 'rows': [40, 37],
    'hybridized': [None, {}, {'static_alloc': True}],
    'contexts, kvstore, on_kvstore': [
        (mx.cpu(), 'device', None), (mx.cpu(), 'local', False), (mx.cpu(), None, None),
        (TWO_DEVICES, 'device', None), (TWO_DEVICES, 'local', True),
        (TWO_DEVICES, 'device', False)],
    'alpha': [1, LinearDecay(0.75, 20)],
    'bias': [('lr_mult', 1), ('lr_mult', 0.5), ('grad_req', 'null')],
    'proximal': [None, L1(0.05), {'fc_weight': L1(0.05)}],
    'reduce, loss_is_mean': [(None, None), ('mean', None), ('mean', True), ('sum', False)]})
@pytest.mark.filterwarnings('ignore:batch_size of step is')
def test_training_is_svrg(kind, rows, hybridized, contexts, kvstore, on_kvstore, alpha, bias,
                          proximal, reduce, loss_is_mean):
    problem = Blocks(kind, rows=36 if reduce else rows)  # halves of a batch are alike
    settings, operators = {'learning_rate': 0.2, 'momentum': 0.5, 'wd': 0.01}, {}
    if proximal:
        settings, on_kvstore = {'learning_rate': 0.2}, None
        decayed = ['fc_weight'] if isinstance(proximal, dict) else problem.weights
        operators = {name: oracle.soft_threshold(0.05) for name in decayed if 'weight' in name}
    net = problem.net(contexts)
    setattr(net.collect_params()['fc_bias'], *bias)
    loss = problem.loss()

    def objective(data, label):
        losses = loss(net(data), label)
        return getattr(losses, reduce)() if reduce else losses

    training = Training(problem, net=net, settings=settings, kvstore=kvstore, alpha=alpha,
                        objective=objective, loss_is_mean=loss_is_mean,
                        update_on_kvstore=on_kvstore, proximal=proximal, twin={
                            'settings': settings, 'alpha': alpha, 'proximal': operators,
                            'fixed': ['fc_bias'] if bias[0] == 'grad_req' else [],
                            'lr_mult': {'fc_bias': bias[1]} if bias[0] == 'lr_mult' else {}})
    for epoch in range(3):
        if epoch % 2 == 0:
            training.snapshot()
        for batch, of_batch in training.batches():
            training.backward(batch)
            size = {'mean': 2 if contexts is TWO_DEVICES else 1, 'sum': len(of_batch)}.get(
                reduce, 10)
            training.svrg.optimizer.rescale = 1 / (len(of_batch) if reduce else 10)
            if on_kvstore is False:  # gradients may be changed before the update
                training.svrg.optimizer.rescale /= 2
                training.trainer.allreduce_grads()
                for param in net.collect_params().values():
                    for gradient in param.list_grad() if param.grad_req != 'null' else ():
                        gradient *= 0.5
                training.trainer.update(size)
                training.svrg.step(of_batch)
            else:
                training.step(of_batch, size)
        if epoch == 1:
            training.trainer.set_learning_rate(0.1)
            training.svrg.optimizer.learning_rate = lambda _: 0.1
            if hybridized is not None:
                net.hybridize(**hybridized)
            if alpha != 1:
                training.trainer.alpha, training.svrg.alpha = 0.25, lambda _: 0.25
    training.check()


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
    training = Training(problem, contexts)
    training.trainer.update_full_grads(data)
    training.svrg.take_snapshot(np.arange(rows))
    full = training.trainer._svrg.snapshot.full_gradient
    assert full.rows == rows and len(list(data)) > 2
    training.check_full_gradient()
    training.trainer.update_full_grads(data, batches=2)
    full = training.trainer._svrg.snapshot.full_gradient
    assert full.rows in (16, 20, 22)  # 16: left over, and 10


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


def test_gradients_may_add_up_over_batches():
    problem = Blocks('softmax')
    net = problem.net()
    for param in net.collect_params().values():
        param.grad_req = 'add'
    training = Training(problem, net=net, twin={'batch_size': 20})
    for _ in range(3):
        training.snapshot()
        for number, (batch, _) in enumerate(training.batches()):
            training.backward(batch)
            if number % 2:
                training.step(np.arange(20) + 10 * (number - 1), 20)
                net.collect_params().zero_grad()
    training.check()


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
    for batch in list(problem.loader())[:2]:
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


@pytest.mark.nd_arrays
def test_states_are_carried_through_the_pass():
    rng = np.random.RandomState(0)
    inputs, weight, state = rng.normal(size=(4, 5, 3)), rng.normal(size=(2, 5)), np.ones((5, 2))
    layer = gluon.nn.Dense(2, use_bias=False, in_units=5)
    layer.initialize()
    layer.weight.set_data(mx.nd.array(weight))

    def objective(data, state):
        state = mx.nd.tanh(layer(mx.nd.concat(data, state, dim=1)))
        return (state ** 2).sum(axis=1), state

    trainer = SVRGTrainer(layer.collect_params(), 'sgd', objective=objective)
    trainer.update_full_grads([[mx.nd.array(rows)] for rows in inputs], states=[
        mx.nd.array(state)])
    total = 0
    for rows in inputs:
        given = np.hstack([rows, state])
        state = np.tanh(given @ weight.T)
        total = total + (2 * state * (1 - state ** 2)).T @ given
    [found] = trainer._svrg.snapshot.full_gradient.shares[0].values()
    np.testing.assert_allclose(found.asnumpy(), total * 5 / 20, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('means, rate, strength', [
    (False, 0.1, 0), (True, 0.1, 0), (False, 0.2, 0.9)])
@pytest.mark.parametrize('contexts', [mx.cpu(), TWO_DEVICES])
def test_gradient_norm_is_that_of_the_mean_objective(means, rate, strength, contexts):
    """With an operator it is the gradient mapping, at the rate of each parameter."""
    problem, wd = Blocks('perceptron', rows=37), 0.05 * (not strength)
    net, loss = problem.net(contexts), problem.loss()
    net.collect_params()['fc_weight'].lr_mult = 3.

    def objective(data, label):
        losses = loss(net(data), label)
        return losses.mean() if means else losses

    trainer = problem.trainer(net, objective=objective, settings={
        'learning_rate': rate, 'wd': wd, 'rescale_grad': 0.5 if wd else 1},
        proximal={'fc_weight': L1(strength)} if strength else None)
    assert trainer.gradient_norm is None and trainer.full_objective is None
    trainer.update_full_grads(problem.loader())
    weights = weights_of(net)
    gradients = {name: value / 37 + wd / 0.5 * weights[name] for name, value in problem.network(
        weights, problem.features, problem.targets).items()}
    weight, rate = weights['fc_weight'], 3 * rate
    gradients['fc_weight'] = (weight - oracle.soft_threshold(strength)(
        weight - rate * gradients['fc_weight'], rate)) / rate
    expected = max(np.abs(value).max() for value in gradients.values())
    np.testing.assert_allclose(trainer.gradient_norm, expected, rtol=1e-5)
    expected = oracle.loss(problem.network, weights, problem.features, problem.targets) / 37 + (
        wd / 0.5 * sum((value ** 2).sum() for value in weights.values()) / 2
        + strength * np.abs(weights['fc_weight']).sum())
    assert trainer.full_objective == pytest.approx(expected, rel=2e-6)


def scaling(trainer_of, loss, net, monkeypatch):
    """Return a trainer as AMP wants it, without AMP's changes of the process's operators."""
    monkeypatch.setattr(amp.amp, '_amp_initialized', True)
    monkeypatch.setattr(amp.amp, '_amp_loss_scale_initialized', True)

    def objective(data, label):
        with amp.scale_loss(loss(net(data), label), trainer) as scaled:
            return scaled

    trainer = trainer_of(objective)
    amp.init_trainer(trainer)
    return trainer


@pytest.mark.nd_arrays
@pytest.mark.parametrize('contexts', [None, TWO_DEVICES])
def test_the_scale_of_amp_may_change_between_snapshot_and_step(contexts, monkeypatch):
    problem = Blocks('softmax')
    nets = [problem.net(contexts or mx.cpu()) for _ in range(2)]
    given = {'settings': {'learning_rate': 0.1, 'wd': 0.01}}
    trainer = scaling(lambda objective: problem.trainer(
        nets[0], objective=objective, **given), problem.loss(), nets[0], monkeypatch)
    plain = problem.trainer(nets[1], **given)
    for epoch in range(3):
        trainer._amp_loss_scaler._next_loss_scale = 2. ** (10 + epoch)
        for one in (trainer, plain):
            train(one, problem.loader(), epoch + 1, begin=epoch, contexts=contexts)
    np.testing.assert_allclose(trainer.gradient_norm, plain.gradient_norm, rtol=1e-5)
    assert_weights(nets[0], weights_of(nets[1]))
    loader = problem.loader()
    np.testing.assert_allclose(gradient_variance(trainer, loader)[:2],
                               gradient_variance(plain, loader)[:2], rtol=1e-4)


@pytest.mark.nd_arrays
def test_no_operator_is_applied_where_amp_skips_a_step(monkeypatch):
    problem, settings = Blocks('softmax'), {'learning_rate': 0.2}
    net = problem.net()
    trainer = scaling(lambda objective: problem.trainer(
        net, objective=objective, proximal=L1(0.3), settings=settings), problem.loss(), net,
        monkeypatch)
    trainer.update_full_grads(problem.loader())
    data, label = next(iter(problem.loader()))
    for scale, is_skipped in ((np.inf, True), (1, False), (np.inf, True), (1, False)):
        before = weights_of(net)['fc_weight']
        trainer.backward(data * scale, label)
        trainer.step(10)
        assert (weights_of(net)['fc_weight'] == before).all() == is_skipped


class ReusesArrays:
    """Batches that are always in the same arrays."""

    def __init__(self, problem):
        self.loader = problem.loader()
        self.arrays = as_blocks_take(np.zeros((10, 4))), as_blocks_take(np.zeros(10))

    def __iter__(self):
        for batch in self.loader:
            for array, value in zip(self.arrays, batch):
                value.copyto(array)
            yield self.arrays


def test_arrays_that_are_used_again_are_copied():
    problem, factors, nets = Blocks('softmax'), [], []
    for data in (problem.loader(), ReusesArrays(problem)):
        nets.append(problem.net())
        trainer = problem.trainer(nets[-1], optimizer='newton_cg', settings={})
        np.random.seed(0)
        train_epochs(trainer, data, 2, 1)
        factors.append(trainer._svrg.training.learned.pairs.gamma)
    assert factors[0] == factors[1]
    assert_weights(nets[1], weights_of(nets[0]), 1e-7)


@pytest.mark.parametrize('contexts', [mx.cpu(), TWO_DEVICES])
def test_a_layer_that_a_batch_does_not_use_has_a_gradient_of_0(contexts):
    """And no earlier one; a layer that no batch uses stays, as with Trainer."""
    rng, rows = np.random.RandomState(0), np.arange(40).reshape(4, 10)
    features, targets = rng.normal(size=(40, 4)), rng.normal(size=40)
    weights = rng.normal(size=(4, 4))
    layers = [gluon.nn.Dense(1, use_bias=False, in_units=4, prefix=name)
              for name in ('shared', 'even', 'odd', 'none')]
    net = gluon.nn.Sequential()
    net.add(*layers)
    net.initialize(ctx=contexts)
    for layer, weight in zip(layers, weights):
        layer.weight.set_data(as_blocks_take(weight[None]))

    def objective(data, label, number):
        return gluon.loss.L2Loss()(layers[0](data) + layers[1 + number % 2](data), label)

    settings = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}
    trainer = SVRGTrainer(net.collect_params(), 'sgd', settings, objective=objective)
    odd = np.arange(40)[:, None] // 10 % 2
    svrg = oracle.Svrg(
        oracle.linear_regression, {'fc_weight': weights[:3].reshape(1, 12), 'fc_bias': np.zeros(1)},
        np.column_stack([features, features * (1 - odd), features * odd]), targets, 10,
        oracle.Sgd(**settings, rescale=0.1), ['fc_bias'])
    data = [(as_blocks_take(features[of]), as_blocks_take(targets[of]), number)
            for number, of in enumerate(rows)]
    for batches in trainer.epochs(data, 4):
        for batch in batches:
            trainer.backward(*batch)
            trainer.step(10, ignore_stale_grad=True)
    svrg.fit(4, 2, batches=list(rows))
    found = np.concatenate(list(weights_of(net).values()))
    np.testing.assert_allclose(found[:3].ravel(), svrg.weights['fc_weight'][0], atol=1e-5)
    assert contexts is TWO_DEVICES or (found[3] == weights[3].astype('f4')).all()
    trainer.backward(*batch)
    with pytest.raises(ValueError, match='leave out .*weight: .* ignore_stale_grad=True of st'):
        trainer.step(10)


Named = collections.namedtuple('Named', ['data', 'label'])
FORMS = {
    'dict': (lambda data, label: {'x': as_blocks_take(data), 'more': {'y': as_blocks_take(label)}},
             lambda batch: (batch['x'], batch['more']['y']),
             lambda batch: (batch,)),
    'beside None': (lambda data, label: (None, as_blocks_take(data), as_blocks_take(label)),
                    lambda _, *both: both, tuple),
    'namedtuple': (Named, lambda data, label: (data, label),
                   lambda batch: (batch.data, batch.label)),
    'DataBatch': (lambda data, label: mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(label)]),
                  lambda data, label: (data, label), tuple),
    'array': (lambda data, label: as_blocks_take(np.column_stack([data, label])),
              lambda rows: (rows[:, :4], rows[:, 4]), lambda batch: (batch,)),
    'NumPy': (lambda data, label: np.column_stack([data, label]),
              lambda rows: map(as_blocks_take, (rows[:, :4], rows[:, 4])), lambda batch: (batch,))}


@pytest.mark.parametrize('contexts', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('form', list(FORMS))
def test_batches_of_other_forms_train_exactly(form, contexts):
    made, arguments, inputs_of = FORMS[form]
    if 'NumPy' in form:
        contexts = mx.cpu()  # where the objective makes the arrays
    problem = Blocks('softmax')
    net, loss = problem.net(contexts), problem.loss()

    def objective(*inputs):
        data, label = arguments(*inputs)
        return loss(net(data), label)

    data = [[each.asnumpy() for each in batch] for batch in problem.loader()]
    data = [made(*(map(as_blocks_take, batch) if form == 'namedtuple' else batch))
            for batch in data]
    trainer = problem.trainer(net, objective=objective)
    for batches in trainer.epochs(data, 4):
        for batch in batches:
            trainer.backward(*inputs_of(batch))
            trainer.step(10)
    assert_weights(net, problem.oracle(4))


@pytest.mark.nd_arrays  # which kind MXNet makes is a setting of a thread
@pytest.mark.parametrize('hybridized', [False, True])
def test_another_thread_sees_the_current_weights(hybridized):
    problem, seen = Blocks('linear'), []
    net, loss = problem.net(hybridized={} if hybridized else None), problem.loss()
    ones = as_blocks_take(np.ones((1, 4)))

    def objective(data, label):
        thread = threading.Thread(target=lambda: seen.append(net(ones).asnumpy()))
        thread.start()
        thread.join()
        return loss(net(data), label)

    trainer = problem.trainer(net, objective=objective)
    for _ in range(2):
        train(trainer, problem.loader(), 1)
        expected = net(ones).asnumpy()
        seen.clear()
        trainer.backward(*(each[:5] for each in next(iter(problem.loader()))))
        np.testing.assert_array_equal(seen, [expected] * 2)

"""What SVRGTrainer has of SVRGModule: proximal steps, stored gradients, tol and the variance."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.contrib import amp

import oracle
from blocks import (
    TWO_DEVICES,
    Blocks,
    as_blocks_take,
    assert_weights,
    train,
    train_epochs,
    weights_of,
)
from pairs import in_pairs
from svrg_optimization.diagnostics import gradient_variance
from svrg_optimization.gluon import SVRGTrainer
from svrg_optimization.proximal import L1


@in_pairs({
    'kind': ['linear', 'softmax'],
    'contexts': [mx.cpu(), TWO_DEVICES],
    'one_for_all': [True, False]})
def test_proximal_steps_are_those_of_float64(kind, contexts, one_for_all):
    problem, strength, rate = Blocks(kind, rows=40), 0.05, 0.1
    net = problem.net(contexts)
    operator = L1(strength)
    trainer = problem.trainer(net, settings={'learning_rate': rate}, proximal=(
        operator if one_for_all else {'fc_weight': operator}))
    train(trainer, problem.loader(), 4, contexts=contexts if contexts is TWO_DEVICES else None)
    svrg = problem.svrg(learning_rate=rate, proximal={'fc_weight': oracle.soft_threshold(strength)})
    assert_weights(net, svrg.fit(4, 2))


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
    given = {'optimizer': 'svrg_lbfgs', 'settings': {'momentum': 0.5, 'wd': 0.01}}
    trainer = scaling(lambda objective: problem.trainer(
        nets[0], objective=objective, **given), problem.loss(), nets[0], monkeypatch)
    plain = problem.trainer(nets[1], **given)
    for epoch in range(5):
        trainer._amp_loss_scaler._next_loss_scale = 2. ** (10 + epoch)
        for one in (trainer, plain):
            train(one, problem.loader(), epoch + 1, begin=epoch, contexts=contexts)
    np.testing.assert_allclose(trainer.gradient_norm, plain.gradient_norm, rtol=1e-5)
    np.testing.assert_allclose(trainer._optimizer.lr_scheduler.gamma,
                               plain._optimizer.lr_scheduler.gamma, rtol=1e-4)
    assert_weights(nets[0], weights_of(nets[1]))
    loader = problem.loader()
    np.testing.assert_allclose(gradient_variance(trainer, loader)[:2],
                               gradient_variance(plain, loader)[:2], rtol=1e-4)


def test_gradients_of_amp_random_layers_and_states_are_not_stored(monkeypatch):
    problem, stored = Blocks('softmax'), {'store_snapshot_grads': True}
    net, refused = problem.net(), 'store_snapshot_grads must be False .*'
    trainer = scaling(lambda objective: problem.trainer(net, objective=objective, **stored),
                      problem.loss(), net, monkeypatch)
    with pytest.raises(ValueError, match=refused + 'amp.scale_loss'):
        trainer.update_full_grads(problem.loader())
    trainer = problem.trainer(problem.net(extra=[gluon.nn.Dropout(0.5)]), **stored)
    with pytest.raises(ValueError, match=refused + 'random layers'):
        trainer.update_full_grads(problem.loader())
    trainer = problem.trainer(net, objective=lambda data, label, state: (
        problem.loss()(net(data), label), state), **stored)
    with pytest.raises(ValueError, match=refused + 'states'):
        trainer.update_full_grads(problem.loader(), states=(mx.nd.zeros(1),))


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
        trainer = problem.trainer(nets[-1], optimizer='svrg_lbfgs', settings={},
                                  store_snapshot_grads=True)
        np.random.seed(0)
        train_epochs(trainer, data, 3, 1)
        factors.append(trainer._optimizer.lr_scheduler.gamma)
    assert factors[0] == factors[1]
    assert_weights(nets[1], weights_of(nets[0]), 1e-7)


def test_the_gradient_mapping_is_at_the_rate_of_each_parameter():
    problem = Blocks('linear')
    net = problem.net()
    net.collect_params()['fc_weight'].lr_mult = 3.
    trainer = problem.trainer(net, settings={'learning_rate': 0.2}, proximal=L1(0.9))
    trainer.update_full_grads(problem.loader())
    gradients = {name: value / 40 for name, value in problem.network(
        problem.weights, problem.features, problem.targets).items()}
    weight, rate = problem.weights['fc_weight'], 0.2 * 3
    mapping = (weight - oracle.soft_threshold(0.9)(
        weight - rate * gradients['fc_weight'], rate)) / rate
    expected = max(np.abs(mapping).max(), np.abs(gradients['fc_bias']).max())
    np.testing.assert_allclose(trainer.gradient_norm, expected, rtol=1e-5)


def test_stored_batches_are_in_a_new_order_until_the_next_snapshot():
    problem = Blocks('linear', rows=40)
    trainer = problem.trainer(problem.net(), store_snapshot_grads=True)
    loader = [[data, label] for data, label in problem.loader()]
    trainer.update_full_grads(loader)
    orders = [[float(data.asnumpy().sum()) for data, _ in trainer.training_batches(loader)]
              for _ in range(6)]
    assert len(set(map(tuple, orders))) > 1 and len({tuple(sorted(each)) for each in orders}) == 1
    trainer.alpha = 0
    plain = [float(data.asnumpy().sum()) for data, _ in trainer.training_batches(loader)]
    assert plain == [float(data.asnumpy().sum()) for data, _ in loader]


def of_two_tasks(weights, features, targets):
    """Half the squared error of one of two heads on a shared layer; the last column says which."""
    task, hidden = features[:, -1], features[:, :-1] @ weights['shared_weight'].T
    gradients = {'shared_weight': 0.}
    for number in (0, 1):
        name, rows = 'head%d_weight' % number, task == number
        error = (hidden[rows] @ weights[name].T - targets[rows].reshape(-1, 1))
        gradients[name] = error.T @ hidden[rows]
        gradients['shared_weight'] += (error @ weights[name]).T @ features[rows, :-1]
    return gradients


@pytest.mark.parametrize('contexts', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('arguments', [{}, {'store_snapshot_grads': True}])
def test_dicts_with_batches_of_several_tasks_train_exactly(contexts, arguments):
    """Each batch uses one of the heads: the gradient of the other is 0, and not an earlier one."""
    rng = np.random.RandomState(0)
    weights = {name: rng.normal(size=(rows, 4)) for name, rows in (
        ('shared_weight', 4), ('head0_weight', 1), ('head1_weight', 1))}
    features, targets = rng.normal(size=(40, 4)), rng.normal(size=40)
    layers = {name: gluon.nn.Dense(len(value), use_bias=False, in_units=4, prefix=name[:-6])
              for name, value in weights.items()}
    net = gluon.nn.Sequential()
    net.add(*layers.values())
    net.initialize(ctx=contexts)
    for name, value in weights.items():
        layers[name].weight.set_data(as_blocks_take(value))

    def objective(batch):
        head = layers['head%d_weight' % (batch['number'] % 2)]
        return gluon.loss.L2Loss()(head(layers['shared_weight'](batch['x'])), batch['more']['y'])

    rows = np.arange(40).reshape(4, 10)
    data = [{'x': as_blocks_take(features[of]), 'more': {'y': as_blocks_take(targets[of])},
             'number': number} for number, of in enumerate(rows)]
    settings = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}
    trainer = SVRGTrainer(net.collect_params(), 'sgd', settings, objective=objective, **arguments)
    svrg = oracle.Svrg(of_two_tasks, weights, np.column_stack([features, np.arange(40) // 10 % 2]),
                       targets, 10, oracle.Sgd(**settings, rescale=0.1))
    for epoch, batches in enumerate(trainer.epochs(data, 4)):
        if epoch % 2 == 0:
            svrg.take_snapshot()
        for batch in batches:
            trainer.backward(batch)
            trainer.step(10, ignore_stale_grad=True)
            svrg.step(rows[(batch if isinstance(batch, dict) else batch[0])['number']])
    assert_weights(net, svrg.weights)
    trainer.backward(batch)
    with pytest.raises(ValueError, match='leave out head._weight: .* ignore_stale_grad=True of st'):
        trainer.step(10)

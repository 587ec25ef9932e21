"""BarzilaiBorwein with SVRGTrainer, against float64."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import oracle
from blocks import BIAS, Blocks, assert_weights, train, weights_of
from pairs import in_pairs
from svrg_bb import SvrgBB
from svrg_optimization import BarzilaiBorwein

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def twin_of(problem, rate, wd, bounded, momentum=0., nesterov=False, multipliers=()):
    svrg = problem.svrg(learning_rate=lambda _: twin.rate, wd=wd, momentum=momentum,
                        nesterov=nesterov, lr_mult=multipliers, **BIAS)
    twin = SvrgBB(problem, rate, wd, bounded, momentum=momentum, svrg=svrg,
                  multipliers=multipliers, decayed=BIAS['decayed'])
    return twin


def loader_of(problem, dtype='float64', batch_size=10):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(
        problem.features.astype(dtype), problem.targets.astype(dtype)), batch_size)


@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'],
    'wd': [0, 0.05],
    'rate': [0.05, None],
    'bounded': [True, False],
    'optimizer, momentum': [('sgd', 0), ('sgd', 0.5), ('nag', 0.9)],
    'hybridized': [None, {'static_alloc': True}],
    'contexts': [None, TWO_DEVICES]})
def test_training_is_svrg_bb(kind, wd, rate, bounded, optimizer, momentum, hybridized, contexts):
    wd = 0 if optimizer == 'nag' else wd  # the decay in MXNet's momentum is that of later weights
    problem, rule = Blocks(kind, rows=40), BarzilaiBorwein(rate, bounded)
    net = problem.net(contexts or mx.cpu(), hybridized)
    net.cast('float64')
    for name, param in net.collect_params().items():
        param.set_data(mx.nd.array(problem.weights[name], dtype='float64'))
    trainer = problem.trainer(net, optimizer=optimizer, settings={
        'wd': wd, 'momentum': momentum, 'lr_scheduler': rule})
    loader = loader_of(problem)
    train(trainer, loader, 5, contexts=contexts)
    trainer.update_full_grads(loader)
    twin = twin_of(problem, rate, wd, bounded, momentum, optimizer == 'nag')
    twin.fit(0, 5, 2, oracle.batches_of(40, 10))
    np.testing.assert_allclose(rule.rate, twin.rate, rtol=1e-5)
    np.testing.assert_allclose(rule.curvature, twin.curvature, rtol=1e-5)
    assert rule.ways_back == twin.ways_back
    assert_weights(net, twin.svrg.weights)


def test_multipliers_count_in_the_rate():
    problem, rule = Blocks('softmax', rows=40), BarzilaiBorwein(0.05, bounded=False)
    net = problem.net()
    net.collect_params()['fc_weight'].lr_mult = 3.
    trainer = problem.trainer(net, settings={'lr_scheduler': rule})
    train(trainer, problem.loader(), 4)
    twin = twin_of(problem, 0.05, 0, False, multipliers={'fc_weight': 3.})
    twin.fit(0, 4, 2, oracle.batches_of(40, 10))
    trainer.update_full_grads(problem.loader())
    np.testing.assert_allclose(rule.rate, twin.rate, rtol=1e-5)
    assert_weights(net, twin.svrg.weights)


@pytest.mark.filterwarnings('ignore:the full gradient is not finite')
@pytest.mark.parametrize('contexts', [None, TWO_DEVICES])
@pytest.mark.parametrize('rate', [100., 1e30])
def test_a_rate_that_led_astray_is_halved_at_the_best_snapshot(rate, contexts):
    problem, rule = Blocks('linear'), BarzilaiBorwein()
    net = problem.net(contexts or mx.cpu())
    trainer = problem.trainer(net, optimizer='nag', settings={'momentum': 0.9,
                                                              'lr_scheduler': rule})
    trainer.update_full_grads(problem.loader())
    good, norm = weights_of(net), trainer.gradient_norm
    rule.rate = rate
    for batch in problem.loader():
        if contexts:
            batch = [gluon.utils.split_and_load(array, contexts) for array in batch]
        trainer.backward(*batch)
        trainer.step(10)
    trainer.update_full_grads(problem.loader())
    assert (rule.rate, rule.slowdown, rule.ways_back) == (rate / 2, 2, 1)
    assert trainer.gradient_norm == norm
    assert all(not updater.states for updater in trainer._updaters)
    for name, value in weights_of(net).items():
        np.testing.assert_array_equal(value, good[name])


def test_it_ends_at_the_optimum_without_a_number():
    problem, rule = Blocks('linear', rows=37), BarzilaiBorwein()
    net, loader = problem.net(), problem.loader(shuffle=True)
    trainer = problem.trainer(net, optimizer='nag', settings={'momentum': 0.9,
                                                              'lr_scheduler': rule})
    for epoch in range(200):
        if epoch % 2 == 0:
            trainer.update_full_grads(loader)
            if trainer.gradient_norm < 1e-4:
                break
        for data, label in loader:
            trainer.backward(data, label)
            trainer.step(len(data))
    weights = {name: value.astype(float) for name, value in weights_of(net).items()}
    gradients = problem.network(weights, problem.features, problem.targets)
    assert max(np.abs(value).max() for value in gradients.values()) / 37 < 1.01e-4


def test_dropout_is_measured_with_the_same_masks():
    """Otherwise the difference of two gradients so near each other would be far larger."""
    problem, curvatures = Blocks('linear', rows=10), []
    for layers in ([], [gluon.nn.Dropout(0.5)]):
        rule = BarzilaiBorwein()
        trainer = problem.trainer(problem.net(extra=layers), settings={'lr_scheduler': rule})
        trainer.update_full_grads(problem.loader())
        curvatures.append(rule.curvature)
    assert 0.2 < curvatures[1] / curvatures[0] < 5


def test_a_resumed_run_has_the_same_bits(tmp_path):
    problem, path = Blocks('softmax'), str(tmp_path / 'states')
    settings = {'momentum': 0.9}
    net = problem.net()
    trainer = problem.trainer(net, optimizer='nag', settings={
        **settings, 'lr_scheduler': BarzilaiBorwein()})
    train(trainer, problem.loader(), 3)
    trainer.save_states(path)
    weights = weights_of(net)
    train(trainer, problem.loader(), 8, begin=3)
    again = problem.net()
    for name, param in again.collect_params().items():
        param.set_data(mx.nd.array(weights[name]))
    resumed = problem.trainer(again, optimizer='nag', settings={
        **settings, 'lr_scheduler': BarzilaiBorwein()})
    resumed.load_states(path)
    train(resumed, problem.loader(), 8, begin=3)
    for name, value in weights_of(net).items():
        np.testing.assert_array_equal(weights_of(again)[name], value)


@pytest.mark.parametrize('optimizer, settings, arguments, message', [
    ('adam', {}, {}, 'optimizer must be sgd or nag'),
    ('sgd', {'clip_gradient': 2.}, {}, 'not sgd with clip_gradient 2'),
    ('sgd', {}, {'alpha': 0}, 'alpha must not be 0'),
    ('sgd', {}, {'update_on_kvstore': True}, 'kvstore must leave the updates to the workers')])
def test_what_the_rate_cannot_be_used_with_is_refused(optimizer, settings, arguments, message):
    problem = Blocks('softmax')
    with pytest.raises(ValueError, match=message):
        problem.trainer(problem.net(), optimizer=optimizer, settings={
            **settings, 'lr_scheduler': BarzilaiBorwein()}, **arguments)


def test_a_sample_is_refused():
    problem = Blocks('softmax')
    trainer = problem.trainer(problem.net(), settings={'lr_scheduler': BarzilaiBorwein()})
    with pytest.raises(ValueError, match='batches must be None with BarzilaiBorwein'):
        trainer.update_full_grads(problem.loader(), batches=2)


def test_only_the_sampled_batch_is_computed_with_a_seed(monkeypatch):
    """To set MXNet's seed takes longer than a small batch."""
    problem, seeds = Blocks('linear', rows=40), []
    trainer = problem.trainer(problem.net(), settings={'lr_scheduler': BarzilaiBorwein()})
    set_seed = trainer._at._set_seed
    monkeypatch.setattr(trainer._at, '_set_seed', lambda draws_anew=True: (
        seeds.append(draws_anew), set_seed(draws_anew))[1])
    trainer.update_full_grads(problem.loader())
    assert seeds == [True, False, False, False, False]  # two gradients of the first rate

"""The optimizer 'svrg_lbfgs' with SVRGTrainer, against float64."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import oracle
from blocks import (
    BIAS,
    TWO_DEVICES,
    Blocks,
    Training,
    as_blocks_take,
    assert_weights,
    train,
    weights_of,
)
from pairs import in_pairs
from svrg_lbfgs import SvrgLbfgs
from svrg_optimization.rate import smooth


def twin_of(problem, **given):
    return SvrgLbfgs(problem, decayed=BIAS['decayed'],
                     layer='hidden' if 'hidden_weight' in problem.weights else 'fc', **given)


def trainer_of(problem, net, **given):
    return problem.trainer(net, optimizer='svrg_lbfgs', settings=given.pop('settings', {}), **given)


def rule_of(trainer):
    return trainer._optimizer.lr_scheduler


def float64_net_of(problem, *args):
    net = problem.net(*args)
    net.cast('float64')
    for name, param in net.collect_params().items():
        param.set_data(as_blocks_take(problem.weights[name], 'float64'))
    return net


@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'],
    'wd': [0, 0.05],
    'momentum': [0, 0.5, 0.9],
    'name, attribute, value': [(None, None, None), ('fc_weight', 'lr_mult', 3.),
                               ('fc_bias', 'lr_mult', 0.5), ('fc_bias', 'lr_mult', 0.),
                               ('fc_bias', 'grad_req', 'null')],
    'hybridized': [None, {'static_alloc': True}],
    'contexts': [None, TWO_DEVICES],
    'jumps': [0, 2]})
def test_training_is_that_of_two_loops(monkeypatch, kind, wd, momentum, name, attribute, value,
                                       hybridized, contexts, jumps):
    """Parameters that are not updated do not count."""
    monkeypatch.setattr(smooth.Smooth, 'most_jumps', jumps)
    problem = Blocks(kind, rows=40)
    net = float64_net_of(problem, contexts or mx.cpu(), hybridized)
    if name:
        setattr(net.collect_params()[name], attribute, value)
    trainer = trainer_of(problem, net, settings={'wd': wd, 'momentum': momentum})
    loader = problem.loader(dtype='float64')
    epochs = 4 if jumps else 5  # jumps soon find the optimum, where all is rounding
    train(trainer, loader, epochs, contexts=contexts)
    trainer.update_full_grads(loader)
    twin, rule = twin_of(problem, wd=wd, momentum=momentum, jumps=jumps,
                         multipliers={name: value} if value in (3., 0.5) else {},
                         fixed=[name] if value in (0., 'null') else []), rule_of(trainer)
    twin.fit(epochs, 2, oracle.batches_of(40, 10))
    np.testing.assert_allclose([rule.gamma, rule.rate], [twin.gamma, twin.rate], rtol=1e-5)
    assert rule.num_rollbacks == twin.rollbacks
    assert_weights(net, twin.weights)


class Detector(gluon.nn.HybridBlock):
    """A network that returns its outputs only while it is recorded, as YOLO3 of GluonCV."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def hybrid_forward(self, F, x):  # noqa: N803
        is_recorded = mx.autograd.is_recording() and mx.autograd.is_training()
        return self.body(x) if is_recorded else (F.zeros((1,)), self.body(x))


@pytest.mark.parametrize('hybridized', [None, {}])
def test_the_look_for_inputs_changes_neither_statistics_nor_random_numbers(hybridized):
    def pass_of(optimizer):
        problem, losses = Blocks('softmax'), []
        net = problem.net(extra=[gluon.nn.Dropout(0.5), gluon.nn.BatchNorm(in_channels=4)])
        detector, loss = Detector(net), problem.loss()
        if hybridized is not None:
            detector.hybridize(**hybridized)

        def objective(data, label):
            losses.append(loss(detector(data), label))
            return losses[-1]

        mx.random.seed(1)
        problem.trainer(net, optimizer=optimizer, settings={}, objective=objective
                        ).update_full_grads(problem.loader())
        return [loss.asnumpy() for loss in losses[:4]] + [
            value for name, value in weights_of(net).items() if 'running' in name]

    for found, expected in zip(pass_of('svrg_lbfgs'), pass_of('sgd')):
        np.testing.assert_array_equal(found, expected)


def test_parameters_may_be_fixed_after_some_snapshots(without_jumps):
    """These have an array more than the network."""
    problem = Blocks('softmax')
    net = problem.net()
    trainer = trainer_of(problem, net)
    for _ in range(3):
        train(trainer, problem.loader(), 1)
    net.collect_params()['fc_bias'].grad_req = 'null'
    with pytest.warns(UserWarning, match='the snapshot is dropped'):
        train(trainer, problem.loader(), 1)
    norm = trainer.gradient_norm
    train(trainer, problem.loader(), 10)
    assert trainer.gradient_norm < norm / 10


@pytest.mark.filterwarnings('ignore:the full gradient is not finite')
@pytest.mark.parametrize('contexts', [None, TWO_DEVICES])
@pytest.mark.parametrize('rate', [100., 1e30])
def test_a_rate_that_led_astray_is_halved_at_the_best_snapshot(rate, contexts):
    problem = Blocks('linear')
    training = Training(problem, contexts, optimizer='svrg_lbfgs', settings={'momentum': 0.9})
    net, trainer, rule = training.net, training.trainer, rule_of(training.trainer)
    trainer.update_full_grads(problem.loader())
    good, norm, gamma = weights_of(net), trainer.gradient_norm, rule.gamma
    rule.rate = rate
    training.epoch()
    trainer.update_full_grads(problem.loader())
    assert rule.num_rollbacks == 1
    assert rule.gamma <= gamma * 1.1  # the long move has taught nothing
    assert trainer.gradient_norm == norm
    assert all(not updater.states for updater in trainer._updaters)
    assert_weights(net, good, 0)


@pytest.mark.parametrize('seed', range(2))
def test_dropout_is_measured_with_the_same_masks(seed):
    """With others the gradients, of some 10,000, would differ by as much, and gamma be 1e-4."""
    mx.random.seed(seed)
    problem = Blocks('linear', rows=10)
    problem.targets *= 1e4
    trainer = trainer_of(problem, problem.net(extra=[gluon.nn.Dropout(0.5)]))
    trainer.update_full_grads(problem.loader())
    assert 0.01 < rule_of(trainer).gamma < 100


@pytest.mark.nd_arrays
@pytest.mark.filterwarnings('ignore:the curvature of the objective cannot be measured')
@pytest.mark.parametrize('name', ['hidden_weight', 'fc_bias'])
def test_a_layer_that_a_user_sets_is_not_taken_back(name, without_jumps):
    problem = Blocks('perceptron', rows=40)
    net = problem.net()
    trainer = trainer_of(problem, net)
    train(trainer, problem.loader(), 4)
    before, param = trainer.objective, net.collect_params()[name]
    worse = 50 * param.data() + 50 * (mx.nd.arange(param.data().size).reshape(param.shape) % 2)
    param.set_data(worse)
    trainer.update_full_grads(problem.loader())
    np.testing.assert_array_equal(param.data().asnumpy(), worse.asnumpy())
    assert trainer.objective > before and not rule_of(trainer).num_rollbacks

"""The optimizer 'svrg_bb': one name for nag with a momentum of 0.9 and a BarzilaiBorwein."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from problems import Problem
from svrg_optimization import BarzilaiBorwein, SVRGModule, SVRGTrainer
from svrg_optimization.rate.barzilai_borwein import SVRG_BB

WD = 0.01


def spelled_out():
    return 'nag', {'momentum': 0.9, 'lr_scheduler': BarzilaiBorwein(), 'wd': WD}


def trained_module(problem, optimizer, optimizer_params):
    module = SVRGModule(problem.symbol, label_names=('label',), update_freq=1, tol=1e-7)
    mx.random.seed(1)
    module.fit(problem.iterator(), eval_metric='mse', optimizer=optimizer, num_epoch=100,
               initializer=mx.init.Zero(), **(
                   {} if optimizer_params is None else {'optimizer_params': optimizer_params}))
    return module


def weights(module):
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}


@pytest.mark.parametrize('make', [
    lambda: ('svrg_bb', {'wd': WD}), lambda: ('SVRG_BB', (('wd', WD),)),
    lambda: ('svrg_bb', {'wd': WD, 'lr_scheduler': BarzilaiBorwein()})])
def test_a_module_has_the_bits_of_the_arguments_spelled_out(make):
    problem = Problem(rows=40)
    expected = trained_module(problem, *spelled_out())
    module = trained_module(problem, *make())
    assert module.has_converged and module.learning_rate == expected.learning_rate
    for name, value in weights(expected).items():
        np.testing.assert_array_equal(weights(module)[name], value)


def test_the_default_learning_rate_of_fit_is_none_that_a_user_gave():
    problem = Problem(rows=40)
    module = trained_module(problem, 'svrg_bb', None)
    assert module.has_converged
    assert module._optimizer.lr_scheduler.base_lr is None
    module = trained_module(problem, 'svrg_bb', {'learning_rate': 0.02})
    assert module._optimizer.lr_scheduler.base_lr == 0.02


def trained_by_gluon(optimizer, optimizer_params):
    problem = Problem(rows=40)
    features, targets = (mx.nd.array(next(iter(arrays))[1]) for arrays in (
        problem.iterator().data, problem.iterator().label))
    net, loss = gluon.nn.Dense(1, in_units=features.shape[1], prefix='net_'), gluon.loss.L2Loss()
    net.initialize(mx.init.Zero(), force_reinit=True)
    trainer = SVRGTrainer(net.collect_params(), optimizer, optimizer_params, tol=1e-6,
                          objective=lambda data, label: loss(net(data), label))
    data = [(features[i:i + 10], targets[i:i + 10]) for i in range(0, 40, 10)]
    for batches in trainer.epochs(data, 100):
        for batch in batches:
            trainer.backward(*batch)
            trainer.step(10)
    assert trainer.has_converged
    return trainer, net


@pytest.mark.parametrize('optimizer', ['svrg_bb', SVRG_BB(wd=WD), 'by mxnet'])
def test_a_trainer_has_the_bits_of_the_arguments_spelled_out(optimizer):
    _, expected = trained_by_gluon(*spelled_out())
    if optimizer == 'by mxnet':
        optimizer = mx.optimizer.create('svrg_bb', wd=WD)
    _, net = trained_by_gluon(optimizer, {'wd': WD} if isinstance(optimizer, str) else None)
    np.testing.assert_array_equal(net.weight.data().asnumpy(), expected.weight.data().asnumpy())


def test_states_go_on(tmp_path):
    trainer, _ = trained_by_gluon('svrg_bb', None)
    trainer.save_states(str(tmp_path / 'states'))
    other, _ = trained_by_gluon('svrg_bb', {'wd': WD})
    other.load_states(str(tmp_path / 'states'))
    assert other.learning_rate == trainer.learning_rate and type(other._optimizer) is SVRG_BB


def test_what_it_cannot_do_is_refused():
    problem = Problem(rows=40)
    module = problem.bound()
    with pytest.raises(ValueError, match='svrg_bb with momentum 0.9 with clip_gradient 1'):
        module.init_optimizer(optimizer='svrg_bb', optimizer_params={'clip_gradient': 1.})
    module = SVRGModule(problem.symbol, label_names=('label',), update_freq=1, alpha=0)
    with pytest.raises(ValueError, match='alpha must not be 0'):
        module.fit(problem.iterator(), optimizer='svrg_bb', num_epoch=1)

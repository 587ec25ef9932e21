"""A second rule of the rate: one class, which both front ends and checkpoints know."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from problems import Problem
from svrg_optimization import BarzilaiBorwein, SVRGModule, SVRGTrainer
from svrg_optimization.rate.rule import Rule


class Halving(Rule):
    """A rate that each snapshot halves."""

    def take_snapshot(self, svrg, trained, source, workers):
        svrg.take_snapshot(trained.live, source, workers)
        self.rate = self(None) / 2
        return False


def test_a_module_takes_its_rates(tmp_path):
    problem, rule, rates = Problem(rows=40), Halving(0.08), []
    module = SVRGModule(problem.symbol, label_names=('label',), update_freq=1)
    module.fit(problem.iterator(), eval_metric='mse', num_epoch=3, optimizer_params={
        'lr_scheduler': rule}, epoch_end_callback=lambda *_: rates.append(module.learning_rate))
    np.testing.assert_allclose(rates, [0.04, 0.02, 0.01], rtol=1e-12)  # a last snapshot follows
    module.save_checkpoint(str(tmp_path / 'model'), 3, save_optimizer_states=True)
    resumed = SVRGModule.load(str(tmp_path / 'model'), 3, True, label_names=('label',))
    data = problem.iterator()
    resumed.bind(data.provide_data, data.provide_label)
    resumed.init_optimizer(optimizer_params={'lr_scheduler': Halving(0.08)})
    assert resumed.learning_rate == module.learning_rate == 0.005


def test_a_trainer_takes_its_rates():
    rng = np.random.RandomState(0)
    data, label = mx.nd.array(rng.normal(size=(8, 3))), mx.nd.array(rng.normal(size=(8, 1)))
    net, loss = gluon.nn.Dense(1, in_units=3), gluon.loss.L2Loss()
    net.initialize(mx.init.Zero())
    trainer = SVRGTrainer(net.collect_params(), 'sgd', {'lr_scheduler': Halving(0.08)},
                          objective=lambda data, label: loss(net(data), label))
    trainer.update_full_grads([(data, label)])
    trainer.backward(data, label)
    trainer.step(8)
    features, targets = data.asnumpy().astype('float64'), label.asnumpy().astype('float64')
    expected = 0.04 * features.T.dot(targets).ravel() / 8
    np.testing.assert_allclose(net.weight.data().asnumpy().ravel(), expected, rtol=1e-5)
    assert trainer.learning_rate == 0.04


@pytest.mark.parametrize('saved, given', [(Halving, BarzilaiBorwein), (BarzilaiBorwein, Halving)])
def test_a_rule_begins_anew_after_a_checkpoint_of_another(saved, given, tmp_path):
    problem, path = Problem(rows=40), str(tmp_path / 'model')
    module = SVRGModule(problem.symbol, label_names=('label',), update_freq=1)
    data = problem.iterator()
    module.bind(data.provide_data, data.provide_label)
    module.init_params()
    module.init_optimizer(optimizer_params={'lr_scheduler': saved(0.02)})
    module.update_full_grads(data)
    module.save_checkpoint(path, 2)
    resumed = SVRGModule.load(path, 2, label_names=('label',))
    resumed.bind(data.provide_data, data.provide_label)
    with pytest.warns(UserWarning, match='saved with a %s: the %s' % (
            saved.__name__, given.__name__)):
        resumed.init_optimizer(optimizer_params={'lr_scheduler': given(0.01)})
    assert resumed.learning_rate == 0.01

"""What features need of each other: each combination is refused by both front ends."""

import mxnet as mx
import pytest
from mxnet import gluon

from problems import Problem
from svrg_optimization import BarzilaiBorwein, SVRGModule, SVRGTrainer

SAMPLES, OFF = ', as samples are noise, and not 3', ', as there is no full gradient then, and not 0'


def module(rule=None, **settings):
    made = SVRGModule(Problem().symbol, label_names=('label',), **settings)
    made.fit(Problem().iterator(), eval_metric=[], num_epoch=1,
             optimizer_params={'lr_scheduler': rule})


def trainer(rule=None, batches=None, **settings):
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    made = SVRGTrainer(net.collect_params(), 'sgd', {'lr_scheduler': rule},
                       objective=net, **settings)
    made.update_full_grads([mx.nd.ones((2, 1))] * 4, batches)


@pytest.mark.parametrize('call, given, message', [
    (module, {'full_grad_batches': 3, 'tol': 1e-3}, 'full_grad_batches must be None with tol'),
    (module, {'full_grad_batches': 3, 'rule': BarzilaiBorwein()},
     'full_grad_batches must be None with BarzilaiBorwein'),
    (trainer, {'batches': 3, 'tol': 1e-3}, 'batches must be None with tol'),
    (trainer, {'batches': 3, 'rule': BarzilaiBorwein()}, 'batches must be None with BarzilaiB'),
    (module, {'alpha': 0, 'tol': 1e-3}, 'alpha must not be 0 with tol'),
    (trainer, {'alpha': 0, 'tol': 1e-3}, 'alpha must not be 0 with tol'),
    (module, {'alpha': 0, 'local_steps': True}, 'alpha must not be 0 with local_steps'),
    (trainer, {'alpha': 0, 'local_steps': True}, 'alpha must not be 0 with local_steps'),
    (module, {'alpha': 0, 'rule': BarzilaiBorwein()}, 'alpha must not be 0 with BarzilaiBorwein'),
    (trainer, {'alpha': 0, 'rule': BarzilaiBorwein()}, 'alpha must not be 0 with BarzilaiB')])
def test_what_a_feature_needs_is_not_taken_away(call, given, message):
    ending = OFF if 'alpha' in given else SAMPLES
    with pytest.raises(ValueError, match='^%s.*%s' % (message, ending)):
        call(**given)

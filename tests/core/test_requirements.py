"""What features need of each other: each combination is refused by both front ends."""

import mxnet as mx
import pytest
from mxnet import gluon

from problems import Problem
from svrg_optimization import SVRGModule, SVRGTrainer

SAMPLES, OFF = ', as samples are noise, and not 3', ', as there is no full gradient then, and not 0'


def module(optimizer='sgd', **settings):
    made = SVRGModule(Problem().symbol, label_names=('label',), **settings)
    made.fit(Problem().iterator(), eval_metric=[], num_epoch=1, optimizer=optimizer)


def trainer(optimizer='sgd', batches=None, **settings):
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    made = SVRGTrainer(net.collect_params(), optimizer, objective=net, **settings)
    made.update_full_grads([mx.nd.ones((2, 1))] * 4, batches)


@pytest.mark.parametrize('call, given, message', [
    (module, {'full_grad_batches': 3, 'tol': 1e-3}, 'full_grad_batches must be None with tol'),
    (module, {'full_grad_batches': 3, 'optimizer': 'svrg_lbfgs'},
     'full_grad_batches must be None with svrg_lbfgs'),
    (trainer, {'batches': 3, 'tol': 1e-3}, 'batches must be None with tol'),
    (trainer, {'batches': 3, 'optimizer': 'svrg_lbfgs'}, 'batches must be None with svrg_lbfgs'),
    (module, {'alpha': 0, 'tol': 1e-3}, 'alpha must not be 0 with tol'),
    (trainer, {'alpha': 0, 'tol': 1e-3}, 'alpha must not be 0 with tol'),
    (module, {'alpha': 0, 'optimizer': 'svrg_lbfgs'}, 'alpha must not be 0 with svrg_lbfgs'),
    (trainer, {'alpha': 0, 'optimizer': 'svrg_lbfgs'}, 'alpha must not be 0 with svrg_lbfgs')])
def test_what_a_feature_needs_is_not_taken_away(call, given, message):
    ending = OFF if 'alpha' in given else SAMPLES
    with pytest.raises(ValueError, match='^%s.*%s' % (message, ending)):
        call(**given)

"""What both front ends have, by the same tests against float64."""

import mxnet as mx
import numpy as np
import pytest

from blocks import Blocks, train, weights_of
from svrg_optimization import SVRGModule
from svrg_optimization.diagnostics import gradient_variance

BATCH_SIZE, SGD = 10, {'learning_rate': 0.05}
PROBLEM = Blocks(rows=60)


def with_module(optimizer='sgd', settings=SGD):
    """Return what trains, the data, a function that trains for an epoch, one of the weights.

    And of how many rows the gradient of a batch is.
    """
    module, data = PROBLEM.bound(BATCH_SIZE), PROBLEM.iterator(BATCH_SIZE)
    module.init_optimizer(optimizer=optimizer, optimizer_params=settings)
    return (module, data, lambda: PROBLEM.train_epoch(module, PROBLEM.svrg()),
            lambda: {name: value.asnumpy() for name, value in module.get_params()[0].items()},
            BATCH_SIZE)


def with_gluon(optimizer='sgd', settings=SGD):
    net, data = PROBLEM.net(), PROBLEM.loader(BATCH_SIZE)
    trainer = PROBLEM.trainer(net, optimizer=optimizer, settings=settings)
    return trainer, data, lambda: train(trainer, data, 2, begin=1), lambda: weights_of(net), 1


both = pytest.mark.parametrize('front_end', [with_module, with_gluon])


@both
def test_tol_is_compared_at_each_snapshot(front_end):
    trains, data, train_epoch, *_ = front_end()
    trains.tol = 1e3
    trains.update_full_grads(data)
    assert trains.result.distance is None and not trains.has_converged  # no curvature is known
    train_epoch()
    for tol, expected in ((1e3, True), (None, False), (1e-3, False), (1e3, True)):
        trains.tol = tol
        assert trains.tol == tol
        trains.update_full_grads(data)
        assert trains.has_converged is expected
    with pytest.raises(ValueError, match='tol must be None or a number above 0, not -1'):
        trains.tol = -1
    assert trains.tol == 1e3


@both
@pytest.mark.parametrize('alpha', [1, 0.5, 0])
def test_the_variance_is_that_of_float64(front_end, alpha):
    trains, data, train_epoch, weights, rows = front_end()

    def gradients():
        values = {name: value.astype('float64') for name, value in weights().items()}
        batches = [PROBLEM.svrg().gradients(values, np.arange(begin, begin + BATCH_SIZE))
                   for begin in range(0, 60, BATCH_SIZE)]
        found = np.array([np.concatenate([batch['fc_weight'][0], batch['fc_bias']])
                          for batch in batches]) * rows / BATCH_SIZE
        return found - found.mean(axis=0)

    trains.update_full_grads(data)
    then = gradients()
    train_epoch()
    now, trains.alpha = gradients(), alpha
    found = gradient_variance(trains, data)
    for value, expected in ((found.plain, now), (found.svrg, now - alpha * then)):
        assert value == pytest.approx((expected ** 2).sum() / 6, rel=1e-4)
    assert found.best_alpha == pytest.approx((now * then).sum() / (then ** 2).sum(), rel=1e-4)


@both
def test_svrg_lbfgs_has_no_other_scheduler(front_end):
    trains, data, *_ = front_end('svrg_lbfgs', {})
    trains.update_full_grads(data)
    trains._optimizer.lr_scheduler = mx.lr_scheduler.FactorScheduler(5)
    with pytest.raises(ValueError, match='lr_scheduler must not be given with svrg_lbfgs'):
        if isinstance(trains, SVRGModule):
            trains.fit(data, eval_metric=[], num_epoch=1)
        else:
            train(trains, data, 2, begin=1)

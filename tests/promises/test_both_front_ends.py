"""What both front ends have, by the same tests against float64."""

import mxnet as mx
import pytest

from blocks import Blocks, train
from svrg_optimization import SVRGModule

BATCH_SIZE, SGD = 10, {'learning_rate': 0.05}
PROBLEM = Blocks(rows=60)


def with_module(optimizer='sgd', settings=SGD):
    """Return what trains, the data, and a function that trains for an epoch."""
    module, data = PROBLEM.bound(BATCH_SIZE), PROBLEM.iterator(BATCH_SIZE)
    module.init_optimizer(optimizer=optimizer, optimizer_params=settings)
    return module, data, lambda: PROBLEM.train_epoch(module, PROBLEM.svrg())


def with_gluon(optimizer='sgd', settings=SGD):
    trainer = PROBLEM.trainer(PROBLEM.net(), optimizer=optimizer, settings=settings)
    data = PROBLEM.loader(BATCH_SIZE)
    return trainer, data, lambda: train(trainer, data, 2, begin=1)


both = pytest.mark.parametrize('front_end', [with_module, with_gluon])


@both
def test_tol_is_compared_at_each_snapshot(front_end):
    trains, data, train_epoch = front_end()
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
def test_svrg_lbfgs_has_no_other_scheduler(front_end):
    trains, data, _ = front_end('svrg_lbfgs', {})
    trains.update_full_grads(data)
    trains._optimizer.lr_scheduler = mx.lr_scheduler.FactorScheduler(5)
    with pytest.raises(ValueError, match='lr_scheduler must not be given with svrg_lbfgs'):
        if isinstance(trains, SVRGModule):
            trains.fit(data, eval_metric=[], num_epoch=1)
        else:
            train(trains, data, 2, begin=1)

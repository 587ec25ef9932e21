"""The jump to the least point of a quadratic on the span of the last moves."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from svrg_optimization import BarzilaiBorwein, SVRGModule, SVRGTrainer
from svrg_optimization.diagnostics import gradient_variance
from svrg_optimization.rate import secant_pairs as module
from svrg_optimization.rate.secant_pairs import Moves

RNG = np.random.RandomState(0)
HESSIAN = np.diag([1., 3., 10., 30.])


def largest(numbers):
    return numbers


def test_the_jump_is_to_the_least_point_on_the_span():
    moves, ways = Moves(), RNG.normal(size=(2, 4))
    gradient, scales = RNG.normal(size=4), np.ones(4)
    assert moves.jump(gradient, scales, largest) is None
    for way in ways:
        moves.add(way, HESSIAN @ way)
    least = ways.T @ -np.linalg.solve(ways @ HESSIAN @ ways.T, ways @ gradient)
    np.testing.assert_allclose(moves.jump(gradient, scales, largest), least, rtol=1e-10)
    for way in np.eye(4)[:2]:
        moves.add(way, HESSIAN @ way)
    np.testing.assert_allclose(moves.jump(gradient, scales, largest),
                               -np.linalg.solve(HESSIAN, gradient), rtol=1e-8)


def test_a_flat_or_concave_combination_of_moves_is_left_out():
    moves, gradient = Moves(), np.array([1., 1., 1., 0.])
    for way, curvature in ((np.eye(4)[0], 2.), (np.eye(4)[0] + 1e-4 * np.eye(4)[1], 2.)):
        moves.add(way, curvature * np.eye(4)[0])
    np.testing.assert_allclose(moves.jump(gradient, np.ones(4), largest),
                               [-0.5, -2.5e-5, 0, 0], rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize('scale', [1., 0.01])
def test_it_goes_at_most_three_times_as_far_as_a_move(scale):
    moves, way = Moves(), np.array([0.1, 0., 0., 0.])
    moves.add(way, way)
    scales = np.array([scale, 1., 1., 1.])
    np.testing.assert_allclose(moves.jump(np.array([-9., 0, 0, 0]), scales, largest), 3 * way)
    np.testing.assert_allclose(moves.jump(np.array([-0.2, 0, 0, 0]), scales, largest), 2 * way)


def test_workers_jump_alike():
    """Each computes with the largest of all workers' numbers."""
    moves, way = Moves(), np.array([1., 0.])
    moves.add(way, way)
    found = moves.jump(np.array([-1., 0.]), np.ones(2), lambda numbers: [
        2 * number for number in numbers] if len(numbers) > 1 else numbers)
    np.testing.assert_allclose(found, way)  # 2 / 2


def test_memory_is_bounded(monkeypatch):
    moves = Moves()
    for number in range(7):
        moves.add(np.full(3, number), np.full(3, number))
    assert [move[0] for move in moves.moves] == [2, 3, 4, 5, 6] == [
        change[0] for change in moves.changes]
    monkeypatch.setattr(module, '_BYTES', 2 * 2 * 24)
    moves.add(np.full(3, 7.), np.full(3, 7.))
    assert [move[0] for move in moves.moves] == [6, 7]
    moves.add(np.full(50, 7.), np.full(50, 7.))  # of other parameters
    assert moves.moves == [] == moves.changes
    assert moves.jump(np.ones(50), np.ones(50), largest) is None


ROWS = RNG.normal(size=(40, 3)).astype('float32')
TARGETS = (ROWS @ [1, -2, 3] + RNG.normal(size=40)).astype('float32')


def trainer_at_a_jump(contexts=mx.cpu()):
    """Return a block and a trainer with a jump that is due."""
    net, loss = gluon.nn.Dense(1, in_units=3, prefix='fc_'), gluon.loss.L2Loss()
    net.initialize(mx.init.One(), ctx=contexts)
    trainer = SVRGTrainer(net.collect_params(), 'sgd', {'lr_scheduler': BarzilaiBorwein()},
                          objective=lambda data, label: loss(net(data), label))
    batch = [mx.nd.array(ROWS), mx.nd.array(TARGETS)]
    for _ in range(2):
        trainer.update_full_grads([batch])
        trainer.backward(*batch)
        trainer.step(40)
    trainer.update_full_grads([batch])
    assert trainer._svrg.snapshot.jump is not None
    return net, trainer, batch


def module_at_a_jump():
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    trained = SVRGModule(mx.sym.LinearRegressionOutput(scores, mx.sym.Variable('label')),
                         label_names=('label',), update_freq=1)
    data = mx.io.NDArrayIter(ROWS, TARGETS, 10, label_name='label')
    trained.fit(data, eval_metric=[], num_epoch=2, initializer=mx.init.One(), kvstore=None,
                optimizer_params={'lr_scheduler': BarzilaiBorwein()})
    return trained, data


def weights_of(trained):
    return [value.asnumpy() for value in trained.get_params()[0].values()]


def test_weights_set_after_the_snapshot_stay():
    net, trainer, batch = trainer_at_a_jump()
    net.weight.set_data(mx.nd.full((1, 3), 100))
    trainer.backward(*batch)
    np.testing.assert_array_equal(net.weight.data().asnumpy(), 100)
    assert trainer._svrg.snapshot.jump is None


@pytest.mark.filterwarnings('ignore:the snapshot is dropped', 'ignore:steps without a snapshot')
def test_no_jump_from_a_snapshot_of_other_arrays():
    net, trainer, batch = trainer_at_a_jump()
    before = net.weight.data().asnumpy()
    net.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])
    trainer.backward(*([part[:20], part[20:].as_in_context(mx.cpu(1))] for part in batch))
    for value in net.weight.list_data():
        np.testing.assert_array_equal(value.asnumpy(), before)


def test_no_jump_where_other_parameters_are_updated_now():
    net, trainer, batch = trainer_at_a_jump()
    before = net.bias.data().asnumpy()
    net.weight.lr_mult = 0.
    trainer.backward(*batch)
    np.testing.assert_array_equal(net.bias.data().asnumpy(), before)


@pytest.mark.filterwarnings('ignore:the learning rate was too large')
def test_no_jump_after_the_last_snapshot():
    trained, data = module_at_a_jump()
    before = weights_of(trained)
    data.reset()
    trained.forward(next(data))
    np.testing.assert_array_equal(weights_of(trained)[0], before[0])


@pytest.mark.filterwarnings('ignore:the learning rate was too large')
def test_diagnostics_leave_the_jump_to_the_next_step():
    trained, data = module_at_a_jump()
    data.reset()
    for batch in data:
        trained.forward_backward(batch)
        trained.update()
    trained.update_full_grads(data)
    before, jump = weights_of(trained), trained._snapshot.jump
    assert jump is not None
    gradient_variance(trained, data)
    np.testing.assert_array_equal(weights_of(trained)[0], before[0])
    assert trained._snapshot.jump is jump
    data.reset()
    trained.forward(next(data))
    assert (weights_of(trained)[0] != before[0]).any()


def test_first_batches_of_another_size_are_no_reason_to_compare_nothing():
    """(s / a) / (s / b) (a / b) is not 1 to the bit for all sizes."""
    net, trainer, batch = trainer_at_a_jump()
    rule, compared = trainer._optimizer.lr_scheduler, []
    for size in range(20, 40):
        trainer.backward(*batch)
        trainer.step(40)
        trainer.update_full_grads([[part[:size] for part in batch],
                                   [part[size:] for part in batch]])
        compared.append(bool(rule.moves.moves) or trainer._svrg.taken.went_back)
    assert all(compared)


def test_a_second_fit_on_other_data_raises_no_alarm():
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    trained = SVRGModule(mx.sym.LinearRegressionOutput(scores, mx.sym.Variable('label')),
                         label_names=('label',), update_freq=1)
    for factor in (1, 10):  # pytest makes an error of the warning
        trained.fit(mx.io.NDArrayIter(ROWS, factor * TARGETS, 10, label_name='label'),
                    eval_metric=[], num_epoch=2, initializer=mx.init.Zero(),
                    optimizer_params={'learning_rate': 0.1})

"""A pass that fails says why, and leaves the snapshot in force."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from full_gradients import ShortBatches, persistent
from problems import Problem
from svrg_optimization import SVRGModule
from svrg_optimization.module import executor_group

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


class Empty:
    def reset(self):
        pass

    def __iter__(self):
        return iter(())


class Failing(ShortBatches):
    """Fail in the middle of a pass."""

    error = KeyboardInterrupt

    def __iter__(self):
        batches = super().__iter__()
        yield next(batches)
        raise self.error


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('bad, error', [
    (lambda _: Empty(), ValueError), (Failing, KeyboardInterrupt)])
def test_failed_pass_leaves_the_snapshot_in_force(bad, error, context):
    problem = Problem('perceptron')
    module = problem.bound(context=context, sgd={'learning_rate': 0.1})
    svrg = problem.svrg()

    def epoch(snapshot):
        train_data = problem.iterator()
        if snapshot:
            module.update_full_grads(train_data)
            svrg.take_snapshot()
            train_data.reset()
        for batch, rows in zip(train_data, oracle.batches_of(40, 10)):
            module.forward_backward(batch)
            module.update()
            svrg.step(rows)

    with pytest.raises(error):
        module.update_full_grads(bad(problem))
    with pytest.warns(UserWarning, match='without a snapshot'):
        epoch(snapshot=False)
    epoch(snapshot=True)
    with pytest.raises(error):
        module.update_full_grads(bad(problem))
    problem.assert_full_gradient(module, svrg.full_gradient)
    epoch(snapshot=False)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('rows', [10, 40])
def test_errors_of_mxnet_are_passed_on(monkeypatch, rows):
    problem = Problem(rows=rows)
    module = problem.bound()

    def fail(*_):
        raise mx.MXNetError('no memory')

    monkeypatch.setattr(executor_group, 'run', fail)
    with pytest.raises(mx.MXNetError, match='no memory'):
        module.update_full_grads(problem.iterator())


@pytest.mark.parametrize('stored', [False, True])
def test_outputs_without_a_loss_are_named(stored):
    problem = Problem(rows=400)
    inside = problem.symbol.get_internals()
    loss = mx.sym.MakeLoss(mx.sym.square(inside['fc_output']), name='loss')
    module = SVRGModule(mx.sym.Group([loss, inside['fc_output'], mx.sym.BlockGrad(loss)]),
                        label_names=None, update_freq=1, store_snapshot_grads=stored)
    train_data = mx.io.NDArrayIter(problem.features, batch_size=10)
    module.bind(train_data.provide_data)
    module.init_params()
    with pytest.raises(ValueError, match='outputs without a loss beside those with one, and so no '
                                         'full gradient: put fc_output into mx.sym.BlockGrad'):
        module.update_full_grads(train_data)


def test_a_custom_operator_that_is_no_loss_is_named():
    """Operators of one's own may be losses; MXNet says which of them are not."""
    symbol = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4, name='fc')
    module = SVRGModule(persistent(symbol), label_names=None, update_freq=1)
    module.bind([('data', (10, 4))])
    module.init_params()
    with pytest.raises(ValueError, match='the symbol has no loss, and so no full gradient'):
        module.update_full_grads(mx.io.NDArrayIter(np.ones((20, 4)), batch_size=10))


def test_a_symbol_without_a_loss_takes_gradients_of_its_outputs_and_no_pass():
    """It has no full gradient of its own, which is said; the rest works."""
    symbol = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=2, name='fc')
    module = SVRGModule(symbol, label_names=None, update_freq=1)
    train_data = mx.io.NDArrayIter(np.ones((8, 3)), batch_size=4)
    module.bind(train_data.provide_data)
    module.init_params()
    module.init_optimizer()
    with pytest.raises(ValueError, match='no loss'):
        module.update_full_grads(train_data)
    before = module.get_params()[0]['fc_bias'].asnumpy()
    module.forward(next(mx.io.NDArrayIter(np.ones((8, 3)), batch_size=4)))
    module.backward([mx.nd.ones((4, 2))])
    module.update()
    np.testing.assert_allclose(module.get_params()[0]['fc_bias'].asnumpy(), before - 0.01,
                               rtol=1e-5)

"""Each step of an SVRGModule against its float64 twin."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from held_batches import rows_of
from problems import TWO_DEVICES, Problem
from svrg_optimization import SVRGModule
from svrg_optimization.module import executor_group


def evaluate(training):
    other = Problem('perceptron', rows=21, seed=1)
    training.module.score(other.iterator(3), 'acc')
    training.module.predict(other.iterator(7))


def look(training):
    training.module.forward(training.problem.batch(14), is_train=False)


def reshape_and_back(training):
    for size in (20, 10):
        training.module.reshape([('data', (size, 4))], [('label', (size,))])


def fail(training):
    """MXNet would leave the new number of rows beside the old shapes."""
    with pytest.raises(ValueError, match='batches must be such'):  # a feature too many
        training.module.forward(mx.io.DataBatch([mx.nd.zeros((4, 5))], [mx.nd.zeros(4)]))


@pytest.mark.parametrize('between', [evaluate, look, reshape_and_back, fail])
def test_what_comes_between_changes_no_step(training, between):
    training.snapshot()
    training.epoch()
    for batch, rows in training.batches():
        between(training)
        training.backward(batch)
        between(training)
        training.step(rows)
    training.check()


def test_snapshot_side_works_only_when_its_gradients_are_needed(training, monkeypatch):
    """Counted in forward and backward runs of executors, on each device."""
    module, batch, runs = training.module, next(training.problem.iterator()), []
    for owner, name in ((mx.executor.Executor, 'forward'), (mx.executor.Executor, 'backward'),
                        (executor_group, 'forward')):
        def counted(executor, *args, original=getattr(owner, name), **kwargs):
            runs.append(executor)
            return original(executor, *args, **kwargs)
        monkeypatch.setattr(owner, name, counted)

    def runs_of(function, *args):
        del runs[:]
        function(*args)
        return len(runs) / module._ctx_len

    assert runs_of(module.forward_backward, batch) == 2
    # Of 37 rows three batches run as one, but on one device only.
    passed = 2 * (2 if module._ctx_len == 1 else 4)
    assert runs_of(module.update_full_grads, training.problem.iterator()) == passed
    for is_train in (False, True):
        assert runs_of(module.forward, batch, is_train) == 1
    assert runs_of(module.score, training.problem.iterator(), 'acc') == 4
    assert runs_of(module.forward_backward, batch) == 4
    assert runs_of(module.update) == 0


def test_a_step_belongs_to_the_snapshot_of_its_backward(training):
    (batch, rows), (other, other_rows), *_ = training.batches()
    svrg = training.svrg
    for _ in range(2):
        training.backward(batch)
        training.module.update_full_grads(training.problem.iterator())
        taken_at = dict(svrg.weights)
        training.step(rows)
        weights, svrg.weights = svrg.weights, taken_at
        svrg.take_snapshot()
        svrg.weights = weights
        training.backward(other)
        training.step(other_rows)
        training.check()


def test_a_snapshot_between_forward_and_backward_leaves_the_batch(training):
    """Whose inputs the pass may write to."""
    training.snapshot()
    (batch, rows), (other, other_rows), *_ = training.batches()
    training.backward(other)
    training.step(other_rows)
    training.module.forward(batch, is_train=True)
    training.snapshot()
    training.module.backward()
    training.step(rows)
    training.check()


def svrg_gradient(svrg, rows):
    now, then = (svrg.gradients(weights, rows) for weights in (svrg.weights, svrg.snapshot))
    return {name: now[name] - then[name] + svrg.full_gradient[name] for name in now}


def test_gradients_after_backward_are_those_that_each_update_gets(training):
    """They may be scaled before it, as by clipping."""
    training.snapshot()
    training.epoch()
    for batch, rows in training.batches():
        training.module.forward_backward(batch)
        for array in sum(training.module._exec_group.grad_arrays, []):
            array *= 0.5
        expected = {name: value / 2 for name, value in svrg_gradient(training.svrg, rows).items()}
        for _ in range(2):
            for name, value in training.gradients().items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5)
            training.module._update_svrg_gradients()  # called again, it does nothing
            training.module.update()  # called again, it repeats the step
            training.svrg.optimizer.step(training.svrg.weights, expected)
    training.check()


@pytest.mark.parametrize('is_train', [None, False])
def test_a_batch_may_be_overwritten_after_forward(training, is_train):
    """Module has copied it by then. It computes gradients after ``is_train=False`` as well."""
    training.snapshot()
    for batch, rows in training.batches():
        data = batch.data[0].copy()
        training.module.forward(mx.io.DataBatch([data], batch.label), is_train=is_train)
        data[:] = 7
        training.module.backward()
        training.step(rows)
    training.check()


def normalized(**kwargs):
    norm = mx.sym.BatchNorm(mx.sym.Variable('data'), fix_gamma=False, name='norm', **kwargs)
    return mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(norm, num_hidden=1, name='fc'),
                                         mx.sym.Variable('label'))


@pytest.mark.parametrize('number', range(4))
def test_batch_normalization_statistics_are_the_live_modules(number):
    """MXNet's race with what reads them where an epoch ends: Module's were wrong half the time."""
    rng = np.random.RandomState(number)
    features, targets = rng.normal(size=(60, 400)), rng.normal(size=60)
    module = SVRGModule(normalized(), label_names=('label',), update_freq=1)
    module.fit(mx.io.NDArrayIter(features, targets, 5, label_name='label'), eval_metric=[],
               num_epoch=7)
    mean = np.zeros(400)
    for start in [*range(0, 60, 5)] * 7:
        mean = 0.9 * mean + 0.1 * features[start:start + 5].mean(axis=0)
    np.testing.assert_allclose(module.get_params()[1]['norm_moving_mean'].asnumpy(), mean,
                               rtol=1e-5, atol=1e-5)


def test_auxiliary_states_of_the_snapshot_are_those_at_the_weights():
    """And not what the pass makes of them."""
    problem = Problem()
    problem.symbol = normalized(momentum=0.5)
    problem.weights.update(norm_gamma=np.ones(4), norm_beta=np.zeros(4))
    module = problem.bound()
    module.forward_backward(problem.batch(10))
    mx.nd.waitall()
    module.update_full_grads(problem.iterator())
    np.testing.assert_allclose(module._mod_aux.get_params()[1]['norm_moving_mean'].asnumpy(),
                               problem.features[:10].mean(axis=0) / 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('context, grad_req, passes', [
    (mx.cpu(), 'add', 4), (TWO_DEVICES, 'add', 2),
    (mx.cpu(), {'fc_weight': 'add', 'hidden_bias': 'add'}, 2)])
def test_added_gradients_count_the_full_gradient_each_time(context, grad_req, passes):
    problem, sgd = Problem('perceptron'), {'learning_rate': 0.05, 'momentum': 0.5}
    module = problem.bound(grad_req=grad_req, context=context, sgd=sgd)
    svrg, total = problem.svrg(**sgd), dict.fromkeys(problem.weights, 0.0)
    added = total if grad_req == 'add' else grad_req
    for epoch in range(3):
        if epoch != 1:
            module.update_full_grads(problem.iterator())
            svrg.take_snapshot()
        for number, batch in enumerate(problem.iterator(), 1):
            module.forward_backward(batch)
            total = {name: step + total[name] * (name in added)
                     for name, step in svrg_gradient(svrg, rows_of(problem, batch)).items()}
            if number % passes == 0:
                module.update()
                svrg.optimizer.step(svrg.weights, total)
                if epoch < 2:  # and later they go on
                    total = dict.fromkeys(total, 0.0)
                    for array in sum(module._exec_group.grad_arrays, []):
                        array[:] = 0
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('last_batch_handle', ['pad', 'discard', 'roll_over'])
def test_a_loop_that_finds_no_batch_after_the_pass_is_told_once(last_batch_handle):
    problem = Problem('softmax', rows=37)
    module, told = problem.bound(), []
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    train_data = problem.iterator(last_batch_handle=last_batch_handle)
    for reset in (True, True, False, False, False, True):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter('always')
            for _ in range(3):  # a pass for its result alone is none
                module.update_full_grads(train_data)
        told.append([str(each.message) for each in found])
        if reset:
            train_data.reset()
        for batch in train_data:
            assert reset
            module.forward_backward(batch)
            module.update()
    assert [len(messages) for messages in told] == [0, 0, 0, 1, 0, 0]
    assert 'call train_data.reset() after update_full_grads' in told[3][0]

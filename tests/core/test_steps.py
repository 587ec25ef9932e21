"""Each step of an SVRGModule against its float64 twin."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from pairs import in_pairs
from problems import Problem
from stepping import Training, gradients_of
from svrg_optimization import SVRGModule


def test_steps_before_the_first_snapshot_are_plain(training):
    plain = mx.mod.Module(training.problem.symbol, label_names=('label',),
                          context=training.module._context)
    train_data = training.problem.iterator()
    plain.bind(train_data.provide_data, train_data.provide_label)
    plain.init_params(arg_params=training.problem.arg_params())
    plain.init_optimizer(optimizer_params={'learning_rate': 0.1})
    with pytest.warns(UserWarning, match='without a snapshot'):
        for batch, rows in training.batches():
            for module in (plain, training.module):
                module.forward_backward(batch)
                module.update()
            training.svrg.step(rows)
    training.check()
    for name, value in plain.get_params()[0].items():
        np.testing.assert_array_equal(value.asnumpy(),
                                      training.module.get_params()[0][name].asnumpy())
    training.snapshot()
    training.epoch()
    training.check()


def test_evaluation_in_between_changes_nothing(training):
    training.snapshot()
    other = Problem('perceptron', rows=21, seed=1)
    for batch, rows in training.batches():
        training.module.score(other.iterator(3), 'acc')
        training.module.forward_backward(batch)
        training.module.forward(next(other.iterator(7)), is_train=False)
        training.module.update()
        training.svrg.step(rows)
        training.module.predict(other.iterator(3))
    training.check()


def test_snapshot_side_works_only_when_its_gradients_are_needed(training, monkeypatch):
    """Counted in forward and backward runs of executors, on each device."""
    module, batch = training.module, next(training.problem.iterator())
    runs = []
    for name in ('forward', 'backward'):
        def counted(executor, *args, original=getattr(mx.executor.Executor, name), **kwargs):
            runs.append(executor)
            return original(executor, *args, **kwargs)
        monkeypatch.setattr(mx.executor.Executor, name, counted)

    def runs_of(function, *args, **kwargs):
        del runs[:]
        function(*args, **kwargs)
        live = set(module._exec_group.execs)
        return (sum(executor in live for executor in runs) / module._ctx_len,
                sum(executor not in live for executor in runs) / module._ctx_len)

    assert runs_of(module.forward_backward, batch) == (2, 0)
    with pytest.warns(UserWarning, match='without a snapshot'):
        module.update()
    # Of 37 rows three batches run as one, but on one device only.
    in_a_pass = 2 if module._ctx_len == 1 else 4
    assert runs_of(module.update_full_grads, training.problem.iterator()) == (0, 2 * in_a_pass)
    assert runs_of(module.forward, batch, is_train=False) == (1, 0)
    assert runs_of(module.forward, batch, is_train=True) == (1, 0)
    assert runs_of(module.score, training.problem.iterator(), 'acc') == (4, 0)
    assert runs_of(module.forward_backward, batch) == (2, 2)
    assert runs_of(module.update) == (0, 0)


def test_a_step_belongs_to_the_snapshot_of_its_backward(training):
    """The step belongs to the snapshot that was in force when its gradients were computed."""
    batches = list(training.batches())
    (batch, rows), (other, other_rows) = batches[0], batches[1]
    for _ in range(2):
        training.module.forward_backward(batch)
        training.module.update_full_grads(training.problem.iterator())
        taken_at = dict(training.svrg.weights)
        training.module.update()
        training.svrg.step(rows)
        weights, training.svrg.weights = training.svrg.weights, taken_at
        training.svrg.take_snapshot()
        training.svrg.weights = weights
        training.module.forward_backward(other)
        training.module.update()
        training.svrg.step(other_rows)
        training.check()


def test_second_update_repeats_the_step(training):
    training.snapshot()
    training.epoch()
    batch, rows = next(iter(training.batches()))
    training.module.forward_backward(batch)
    gradients = training.svrg.gradients(training.svrg.weights, rows)
    at_snapshot = training.svrg.gradients(training.svrg.snapshot, rows)
    for _ in range(2):
        training.module.update()
        training.svrg.optimizer.step(training.svrg.weights, {
            name: gradients[name] - at_snapshot[name] + training.svrg.full_gradient[name]
            for name in gradients})
    training.check()


def test_batches_of_another_size_are_in_units_of_their_rows(training):
    """Each has the full gradient added in the units of its own rows."""
    training.snapshot()
    problem = training.problem
    for start, stop in ((0, 10), (10, 14), (14, 34), (34, 37)):
        rows = np.arange(start, stop)
        batch = mx.io.DataBatch([mx.nd.array(problem.features[rows])],
                                [mx.nd.array(problem.targets[rows])])
        training.module.forward_backward(batch)
        training.module.update()
        training.svrg.step(rows)
    training.snapshot()
    training.epoch()
    training.check()


def test_set_params_keeps_the_snapshot(training):
    training.snapshot()
    training.epoch()
    for kwargs in ({}, {'allow_missing': True}):
        training.module.set_params(*training.module.get_params(), **kwargs)
        training.epoch()
    training.check()


def test_set_params_to_other_weights_keeps_the_snapshot():
    # On one device: where a KVStore updates the weights, Module never tells it of new ones.
    training = Training(Problem('perceptron'))
    training.snapshot()
    training.epoch()
    arg_params = training.problem.arg_params()
    training.module.set_params(arg_params, {})
    training.svrg.weights = {name: value.asnumpy().astype(float)
                             for name, value in arg_params.items()}
    training.epoch()
    training.check()


def test_forced_init_params_drops_the_snapshot(training):
    training.snapshot()
    training.module.init_params(arg_params=training.problem.arg_params())
    training.epoch()
    training.check()
    weights, _ = training.module.get_params()
    training.module.init_params(arg_params=weights, force_init=True)
    assert not any(value.asnumpy().any() for share in training.module._param_dict
                   for value in share.values())
    training.svrg.snapshot = None
    with pytest.warns(UserWarning, match='without a snapshot'):
        training.epoch()
    training.snapshot()
    training.epoch()
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
        training.module.update()
        training.svrg.step(rows)
    training.check()


@pytest.mark.parametrize('seed', range(4))
def test_batch_normalization_statistics_are_the_live_modules(seed):
    """MXNet's race with what reads them where an epoch ends: Module's were wrong half the time."""
    rng = np.random.RandomState(seed)
    features, targets = rng.normal(size=(60, 400)), rng.normal(size=60)
    normalized = mx.sym.BatchNorm(mx.sym.Variable('data'), fix_gamma=False, name='norm')
    symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(normalized, num_hidden=1, name='fc'), mx.sym.Variable('label'))
    mean = np.zeros(400)
    module = SVRGModule(symbol, label_names=('label',), update_freq=1)
    module.fit(mx.io.NDArrayIter(features, targets, 5, label_name='label'), eval_metric=[],
               num_epoch=7)
    for start in [*range(0, 60, 5)] * 7:
        mean = 0.9 * mean + 0.1 * features[start:start + 5].mean(axis=0)
    np.testing.assert_allclose(module.get_params()[1]['norm_moving_mean'].asnumpy(), mean,
                               rtol=1e-5, atol=1e-5)


def test_auxiliary_states_of_the_snapshot_are_those_at_the_weights():
    """They are those at the weights, not what the pass makes of them."""
    normalized = mx.sym.BatchNorm(mx.sym.Variable('data'), name='norm', momentum=0.5)
    symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(normalized, num_hidden=1, name='fc'), mx.sym.Variable('label'))
    problem = Problem()
    problem.symbol = symbol
    module = problem.module()
    train_data = problem.iterator()
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(mx.init.Uniform(0.5))
    module.forward_backward(next(train_data))
    mx.nd.waitall()
    module.update_full_grads(train_data)
    mean = problem.features[:10].mean(axis=0) / 2
    np.testing.assert_allclose(module._mod_aux.get_params()[1]['norm_moving_mean'].asnumpy(), mean,
                               rtol=1e-5, atol=1e-5)


def test_gradients_after_backward_are_those_that_the_optimizer_gets(training):
    training.snapshot()
    training.epoch()
    svrg = training.svrg
    for batch, rows in training.batches():
        training.module.forward_backward(batch)
        now, then = (svrg.gradients(weights, rows) for weights in (svrg.weights, svrg.snapshot))
        expected = {name: now[name] - then[name] + svrg.full_gradient[name] for name in now}
        for _ in range(2):
            for name, value in gradients_of(training.module).items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5)
            training.module._update_svrg_gradients()  # called again, it does nothing
        training.module.update()
        svrg.step(rows)
    training.check()


def test_gradients_may_be_clipped_between_backward_and_update():
    """As MXNet's word language model clips, by the norm of all gradients."""
    problem = Problem('perceptron', rows=40)
    module = problem.bound(sgd={'learning_rate': 1.0, 'rescale_grad': 1.0})
    module.update_full_grads(problem.iterator())
    before = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    module.forward_backward(next(problem.iterator()))
    norm = mx.gluon.utils.clip_global_norm(
        [array for arrays in module._exec_group.grad_arrays for array in arrays], 0.01)
    assert norm > 0.1
    module.update()
    step = np.sqrt(sum(((value.asnumpy() - before[name]) ** 2).sum()
                       for name, value in module.get_params()[0].items()))
    np.testing.assert_allclose(step, 0.01, rtol=1e-3)


def bound(problem, grad_req, context=None):
    module = problem.bound(grad_req=grad_req, context=context or mx.cpu())
    module.init_optimizer(optimizer_params={'learning_rate': 0.05, 'momentum': 0.5})
    return module


def clear(module):
    for arrays in module._exec_group.grad_arrays:
        for array in arrays:
            if array is not None:
                array[:] = 0


@in_pairs({
    'context': [mx.cpu(), [mx.cpu(0), mx.cpu(1)]],
    'grad_req, added': [
        ('add', ['fc_weight', 'fc_bias', 'hidden_weight', 'hidden_bias']),
        ({'fc_weight': 'add', 'hidden_bias': 'add'}, ['fc_weight', 'hidden_bias'])],
    'passes, clears': [(1, True), (2, True), (4, True), (1, False)]})
def test_added_gradients_count_the_full_gradient_each_time(context, grad_req, added, passes,
                                                           clears):
    problem = Problem('perceptron')
    module = bound(problem, grad_req, context)
    svrg = problem.svrg(learning_rate=0.05, momentum=0.5)
    total = dict.fromkeys(svrg.weights, 0.0)
    for epoch in range(3 if clears else 1):
        if epoch != 1:
            module.update_full_grads(problem.iterator())
            svrg.take_snapshot()
        batches = zip(problem.iterator(), oracle.batches_of(40, 10))
        for number, (batch, rows) in enumerate(batches, 1):
            module.forward_backward(batch)
            gradients = svrg.gradients(svrg.weights, rows)
            at_snapshot = svrg.gradients(svrg.snapshot, rows)
            steps = {name: gradients[name] - at_snapshot[name] + svrg.full_gradient[name]
                     for name in total}
            total = {name: total[name] + step if name in added else step
                     for name, step in steps.items()}
            if number % passes == 0:
                module.update()
                svrg.optimizer.step(svrg.weights, total)
                if clears:
                    clear(module)
                    total = dict.fromkeys(svrg.weights, 0.0)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('alpha', [1, 0.5])
def test_the_only_small_parameter_may_be_fixed_after_a_snapshot(alpha):
    """Small parameters are corrected many at once, of which none is left."""
    problem = Problem(rows=40, features=20000)
    module, train_data = problem.bound(alpha=alpha), problem.iterator()
    module.init_optimizer(optimizer_params={'learning_rate': 1e-6})
    module.update_full_grads(train_data)
    svrg = problem.svrg(learning_rate=1e-6)
    svrg.alpha = lambda _: alpha
    svrg.take_snapshot()
    module.bind(train_data.provide_data, train_data.provide_label, force_rebind=True, grad_req={
        'fc_weight': 'write', 'fc_bias': 'null', 'data': 'null', 'label': 'null'})
    train_data.reset()
    for batch, rows in zip(train_data, oracle.batches_of(40, 10)):
        module.forward_backward(batch)
        module.update()
        bias = svrg.weights['fc_bias'].copy()
        svrg.step(rows)
        svrg.weights['fc_bias'] = bias
    assert module._snapshot.is_active
    problem.assert_weights(module, svrg.weights)


def test_parameters_without_gradients_stay():
    problem = Problem('perceptron')
    module = bound(problem, {'hidden_bias': 'null', 'fc_bias': 'null'})
    svrg = problem.svrg(learning_rate=0.05, momentum=0.5, fixed=('hidden_bias', 'fc_bias'))
    module.fit(problem.iterator(), eval_metric=[], num_epoch=4)
    problem.assert_weights(module, svrg.fit(4, 1))
    assert set(module._param_dict[0]) == {'hidden_weight', 'fc_weight'}


def test_states_are_those_of_the_live_module():
    """A state enters the gradient at the snapshot as it enters that at the weights."""
    data, state = mx.sym.Variable('data'), mx.sym.Variable('state', shape=(4, 3))
    output = mx.sym.FullyConnected(data * state, num_hidden=1, name='fc')
    symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label'))
    rng = np.random.RandomState(0)
    problem = Problem(rows=12, features=3)
    problem.features, problem.targets = rng.normal(size=(12, 3)), rng.normal(size=12)
    train_data = mx.io.NDArrayIter(problem.features, problem.targets, 4, label_name='label')
    module = SVRGModule(symbol, label_names=('label',), state_names=('state',), update_freq=1)
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(arg_params=problem.arg_params())
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    module.set_states(value=2)
    doubled = problem.features * 2
    problem.features = doubled
    svrg = problem.svrg(batch_size=4)
    module.update_full_grads(train_data)
    svrg.take_snapshot()
    for factor in (2, 3, 0.5):
        module.set_states(value=factor)
        svrg.features = doubled / 2 * factor
        train_data.reset()
        for batch, rows in zip(train_data, oracle.batches_of(12, 4)):
            module.forward_backward(batch)
            module.update()
            svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('rate', [float('nan'), float('inf'), np.float32('nan')])
def test_a_learning_rate_that_is_not_finite_is_refused(training, rate):
    """Found before the step, not in the middle of it."""
    training.snapshot()
    training.epoch()
    with pytest.raises(ValueError, match='learning_rate must be a finite number, not'):
        Problem().bound().init_optimizer(optimizer_params={'learning_rate': rate})
    module, batch = training.module, next(training.problem.iterator())
    module.forward_backward(batch)
    module._optimizer.set_learning_rate(rate)
    with pytest.raises(ValueError, match='learning_rate must be a finite number, not'):
        module.update()
    training.check()
    module._optimizer.set_learning_rate(0.1)
    module.update()
    training.svrg.step(np.arange(10))
    training.check()

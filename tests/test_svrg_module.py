"""Each step of an SVRGModule, and what becomes of its snapshot."""

import inspect
import warnings

import mxnet as mx
import numpy as np
import pytest

import oracle
from problems import Problem, SparseProblem
from svrg_optimization import SVRGModule

with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    from mxnet.contrib.svrg_optimization import svrg_module as contrib

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


class Training:
    """A module and its float64 twin, stepped side by side."""

    def __init__(self, problem, optimizer_params=(('learning_rate', 0.1),), **kwargs):
        self.problem = problem
        self.module = problem.bound(**kwargs)
        self.module.init_optimizer(optimizer_params=optimizer_params)
        self.svrg = problem.svrg(**dict(optimizer_params))
        self.rows = oracle.batches_of(len(problem.features), 10)

    def batches(self):
        return zip(self.problem.iterator(), self.rows)

    def snapshot(self):
        self.module.update_full_grads(self.problem.iterator())
        self.svrg.take_snapshot()

    def epoch(self):
        for batch, rows in self.batches():
            self.module.forward_backward(batch)
            self.module.update()
            self.svrg.step(rows)

    def check(self):
        self.problem.assert_weights(self.module, self.svrg.weights)


@pytest.fixture(params=[mx.cpu(), TWO_DEVICES], ids=['one device', 'two devices'])
def training(request):
    return Training(Problem('perceptron', rows=37), context=request.param)


def test_steps_before_the_first_snapshot_are_plain(training):
    plain = mx.mod.Module(training.problem.symbol, label_names=('label',),
                          context=training.module._context)
    train_data = training.problem.iterator()
    plain.bind(train_data.provide_data, train_data.provide_label)
    plain.init_params(arg_params=training.problem.arg_params())
    plain.init_optimizer(optimizer_params={'learning_rate': 0.1})
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


def test_forward_without_is_train(training):
    training.snapshot()
    for batch, rows in training.batches():
        training.module.forward(batch)
        training.module.backward()
        training.module.update()
        training.svrg.step(rows)
    training.check()


def test_gradients_without_training_mode_are_corrected_too(training):
    """Module computes gradients after ``is_train=False`` as well."""
    training.snapshot()
    for batch, rows in training.batches():
        training.module.forward(batch, is_train=False)
        training.module.backward()
        training.module.update()
        training.svrg.step(rows)
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
    module.update()
    # Of 37 rows three batches run as one, but on one device only.
    in_a_pass = 2 if module._ctx_len == 1 else 4
    assert runs_of(module.update_full_grads, training.problem.iterator()) == (0, 2 * in_a_pass)
    assert runs_of(module.forward, batch, is_train=False) == (1, 0)
    assert runs_of(module.forward, batch, is_train=True) == (1, 0)
    assert runs_of(module.score, training.problem.iterator(), 'acc') == (4, 0)
    assert runs_of(module.forward_backward, batch) == (2, 2)
    assert runs_of(module.update) == (0, 0)


def test_snapshot_between_backward_and_update(training):
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


def test_batches_of_another_size(training):
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
    training.epoch()
    training.snapshot()
    training.epoch()
    training.check()


def test_snapshot_survives_a_rebind(training):
    training.snapshot()
    training.epoch()
    training.module.get_params()
    train_data = training.problem.iterator()
    training.module.bind(train_data.provide_data, train_data.provide_label, for_training=False,
                         force_rebind=True)
    training.module.predict(train_data)
    training.module.bind(train_data.provide_data, train_data.provide_label, force_rebind=True)
    training.epoch()
    training.check()


@pytest.mark.parametrize('rebind', [False, True])
def test_another_batch_size_bound(training, rebind):
    """The full gradient is added in the units of the batch that is bound now."""
    training.snapshot()
    training.epoch()
    module, shapes = training.module, ([('data', (7, 4))], [('label', (7,))])
    module.get_params()
    if rebind:
        module.bind(*shapes, force_rebind=True)
    else:
        module.reshape(*shapes)
    rows = np.arange(7)
    batch = mx.io.DataBatch([mx.nd.array(training.problem.features[rows])],
                            [mx.nd.array(training.problem.targets[rows])])
    module.forward_backward(batch)
    module.update()
    training.svrg.step(rows)
    training.check()


def test_rebind_that_fixes_or_frees_parameters(training):
    training.snapshot()
    training.epoch()
    train_data = training.problem.iterator()
    training.module.get_params()
    training.module.bind(train_data.provide_data, train_data.provide_label, force_rebind=True,
                         grad_req={'fc_bias': 'null'})
    training.svrg.fixed = ('fc_bias',)
    training.epoch()
    training.check()
    training.snapshot()
    training.module.get_params()
    with pytest.warns(UserWarning, match='the snapshot is dropped.*fc_bias'):
        training.module.bind(train_data.provide_data, train_data.provide_label, force_rebind=True)
    training.svrg.fixed, training.svrg.snapshot = (), None
    training.epoch()
    training.check()


def test_batch_overwritten_after_forward(training):
    """Module has copied it by then."""
    training.snapshot()
    for batch, rows in training.batches():
        data = batch.data[0].copy()
        training.module.forward(mx.io.DataBatch([data], batch.label))
        data[:] = 7
        training.module.backward()
        training.module.update()
        training.svrg.step(rows)
    training.check()


def test_batch_normalization_statistics_are_the_live_modules():
    rng = np.random.RandomState(0)
    features, targets = rng.normal(size=(30, 3)), rng.normal(size=30)
    normalized = mx.sym.BatchNorm(mx.sym.Variable('data'), fix_gamma=False, momentum=0.5,
                                  name='norm')
    symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(normalized, num_hidden=1, name='fc'), mx.sym.Variable('label'))
    mean = np.zeros(3)
    module = SVRGModule(symbol, label_names=('label',), update_freq=1)
    # MXNet's BatchNorm now and then races with what follows it, in plain Module too.
    module.fit(mx.io.NDArrayIter(features, targets, 10, label_name='label'), eval_metric=[],
               num_epoch=2, batch_end_callback=lambda _: mx.nd.waitall())
    for start in (0, 10, 20) * 2:
        mean = 0.5 * mean + 0.5 * features[start:start + 10].mean(axis=0)
    np.testing.assert_allclose(module.get_params()[1]['norm_moving_mean'].asnumpy(), mean,
                               rtol=1e-5, atol=1e-5)


def test_auxiliary_states_of_the_snapshot():
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


def test_svrg_gradient_at_the_snapshot_is_the_full_gradient(training):
    training.snapshot()
    for batch, _ in training.batches():
        training.module.forward_backward(batch)
        training.module._update_svrg_gradients()
        total = {name: sum(array.asnumpy() for array in arrays) for name, arrays in zip(
            training.module._exec_group.param_names, training.module._exec_group.grad_arrays)}
        for name, expected in training.svrg.full_gradient.items():
            np.testing.assert_allclose(total[name], expected, rtol=1e-5, atol=1e-5)


def test_update_rule_by_hand():
    module = Problem().module()
    current = mx.nd.array([[1, 2], [3, 4]])
    result = module._svrg_grads_update_rule(current, mx.nd.array([[1, 1], [1, 1]]),
                                            mx.nd.array([[10, 20], [30, 40]]))
    assert result is current
    assert current.asnumpy().tolist() == [[10, 21], [32, 43]]


@pytest.mark.parametrize('update_freq, error', [
    (0, ValueError), (-1, ValueError), (None, TypeError), (True, TypeError), (False, TypeError),
    (1.0, TypeError), ('1', TypeError), ([1], TypeError), (np.float32(1), TypeError)])
def test_bad_update_freq(update_freq, error):
    symbol = Problem().symbol
    with pytest.raises(error, match='update_freq must be an int of 1 or more'):
        SVRGModule(symbol, label_names=('label',), update_freq=update_freq)
    module = Problem().module(update_freq=3)
    with pytest.raises(error, match='update_freq must be an int of 1 or more'):
        module.update_freq = update_freq
    assert module.update_freq == 3


def test_update_freq_has_no_default():
    with pytest.raises(TypeError, match='update_freq'):
        SVRGModule(Problem().symbol)


@pytest.mark.parametrize('argument, bad', [
    ('loss_is_mean', 1), ('loss_is_mean', 'yes'), ('full_grad_callback', 1),
    ('full_grad_callback', [print, None])])
def test_bad_constructor_arguments(argument, bad):
    with pytest.raises(TypeError, match='%s must be' % argument):
        Problem().module(**{argument: bad})


def test_new_constructor_arguments_are_keyword_only():
    arguments = inspect.signature(SVRGModule.__init__).parameters
    theirs = inspect.signature(contrib.SVRGModule.__init__).parameters
    assert list(arguments)[:len(theirs)] == list(theirs)
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY
               for parameter in list(arguments.values())[len(theirs):])


@pytest.mark.parametrize('name', [
    name for name, member in vars(contrib.SVRGModule).items() if inspect.isfunction(member)])
def test_signatures_are_those_of_mxnet_contrib(name):
    """Ours take the same arguments with the same defaults; they may take more at the end."""
    def describe(function):
        return [(parameter.name, parameter.kind, str(parameter.default)
                 if not isinstance(parameter.default, mx.init.Initializer)
                 else parameter.default.dumps())
                for parameter in inspect.signature(function).parameters.values()]

    theirs = describe(getattr(contrib.SVRGModule, name))
    assert describe(getattr(SVRGModule, name))[:len(theirs)] == theirs


def test_names_that_users_reach_into():
    module = Problem().bound(context=TWO_DEVICES)
    assert type(module._mod_aux) is mx.mod.Module and module._mod_aux.binded
    assert module._ctx_len == 2
    module.init_optimizer()
    assert len(module._param_dict) == 2
    assert set(module._param_dict[0]) == {'fc_weight', 'fc_bias'}


def test_snapshot_module_by_hand():
    """Code for mxnet.contrib computes full gradients through ``_mod_aux`` itself."""
    problem = Problem()
    module = problem.bound()
    module.init_optimizer()
    module._mod_aux.set_params(*module.get_params())
    total = 0
    for batch in problem.iterator():
        module.forward(batch)
        module.backward()
        module._mod_aux.forward(batch)
        module._mod_aux.backward()
        total = total + module._mod_aux._exec_group.grad_arrays[0][0].asnumpy()
    module.update_full_grads(problem.iterator())
    np.testing.assert_allclose(module._param_dict[0]['fc_weight'].asnumpy(), total / 4, rtol=1e-6)


def test_full_gradient_set_by_hand():
    problem = Problem()
    module = problem.bound()
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg()
    svrg.take_snapshot()
    module._mod_aux.set_params(*module.get_params())
    module._param_dict = [{name: mx.nd.array(value) for name, value in svrg.full_gradient.items()}]
    for batch, rows in zip(problem.iterator(), oracle.batches_of(40, 10)):
        module.forward_backward(batch)
        module.update()
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


def test_methods_overridden_in_a_subclass_are_used():
    """Those of mxnet.contrib: fit calls ``update_full_grads``, and the rule's result counts."""
    passes = []

    class Halved(SVRGModule):
        def update_full_grads(self, train_data):
            passes.append(self._epoch)
            super().update_full_grads(train_data)

        def _svrg_grads_update_rule(self, g_curr, g_special, g_all):
            return (g_curr - g_special + g_all) * 0.5

    problem = Problem()
    module = Halved(problem.symbol, label_names=('label',), update_freq=2)
    module.fit(problem.iterator(), eval_metric=[], num_epoch=3, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.2})
    assert passes == [0, 2]
    problem.assert_weights(module, problem.svrg(learning_rate=0.1).fit(3, 2))


@pytest.mark.parametrize('is_sparse', [False, True])
def test_rule_of_ones_own_is_for_dense_full_gradients(is_sparse):
    class Own(SVRGModule):
        def _svrg_grads_update_rule(self, g_curr, g_special, g_all):
            return g_curr

    problem = SparseProblem() if is_sparse else Problem()
    train_data = problem.iterator()
    module = Own(problem.symbol, label_names=('label',), update_freq=1, sparse_full_grad=True)
    if is_sparse:
        with pytest.raises(ValueError, match='sparse_full_grad must be False with a _svrg_'):
            module.bind(train_data.provide_data, train_data.provide_label)
        assert not module.binded
    else:
        module.bind(train_data.provide_data, train_data.provide_label)


@pytest.mark.parametrize('steps_before', [0, 1])
def test_method_that_is_wrapped_on_the_module(steps_before):
    """It stays, and corrects the gradients, whenever it is wrapped."""
    problem = Problem(rows=40)
    module = problem.bound()
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    train_data, svrg, calls = problem.iterator(), problem.svrg(learning_rate=0.1), []
    module.update_full_grads(train_data)
    svrg.take_snapshot()
    for number, batch in enumerate(module.training_batches(train_data)):
        if number == steps_before:
            ours = module._update_svrg_gradients
            module._update_svrg_gradients = lambda: calls.append(ours())  # noqa: B023
        module.forward_backward(batch)
        module.update()
        svrg.step(np.arange(10 * number, 10 * number + 10))
    assert len(calls) == 4 - steps_before
    problem.assert_weights(module, svrg.weights)


def test_numbers_of_numpy_are_taken():
    problem = Problem()
    for number in (np.array(2), np.int64(2)):
        module = problem.module(number)
        assert type(module.update_freq) is int and module.update_freq == 2


def test_states_need_an_optimizer(tmp_path):
    module = Problem().bound()
    with pytest.raises(AssertionError):
        module.load_optimizer_states(str(tmp_path / 'none'))


def test_module_errors_stay_as_they_are():
    problem = Problem()
    module, plain = problem.module(), mx.mod.Module(problem.symbol, label_names=('label',))
    train_data = problem.iterator()
    for method in ('update', 'backward', 'init_optimizer', 'get_params'):
        for target in (module, plain):
            with pytest.raises(AssertionError):
                getattr(target, method)()
    for target in (module, plain):
        with pytest.raises(AssertionError):
            target.fit(train_data)
        target.bind(train_data.provide_data, train_data.provide_label)
        target.init_params()
        with pytest.raises(TypeError, match='kvstore must be'):
            target.init_optimizer(kvstore=3)
        with pytest.raises(ValueError, match='Cannot find optimizer'):
            target.init_optimizer(optimizer='no_such_optimizer')
        assert not target.optimizer_initialized


def test_repeated_init_optimizer_is_ignored_and_logged(caplog):
    module = Problem().bound()
    module.init_optimizer()
    optimizer = module._optimizer
    module.init_optimizer(optimizer='adam')
    assert module._optimizer is optimizer and 'already initialized' in caplog.text
    module.init_optimizer(optimizer='adam', force_init=True)
    assert type(module._optimizer.default_opt) is mx.optimizer.Adam


def test_repeated_bind_is_ignored_and_logged(training, caplog):
    training.snapshot()
    training.module.bind([('data', (5, 4))], [('label', (5,))])
    assert 'Already bound' in caplog.text
    training.epoch()
    training.check()


def test_rescale_grad_is_warned_of_only_for_an_instance():
    module = Problem().bound()
    module.init_optimizer(optimizer_params={'learning_rate': 0.1, 'rescale_grad': 1.0})
    assert module._optimizer.rescale_grad == 1.0
    with pytest.warns(UserWarning, match='rescale_grad'):
        Problem().bound().init_optimizer(optimizer=mx.optimizer.SGD())


def test_binding_again_writes_no_json(monkeypatch):
    """MXNet loses memory in each call of tojson, three times the JSON."""
    problem, calls = Problem('perceptron'), []
    write = mx.sym.Symbol.tojson
    monkeypatch.setattr(mx.sym.Symbol, 'tojson', lambda symbol: calls.append(1) or write(symbol))
    module = problem.bound()
    assert len(calls) == 1
    module.bind(module.data_shapes, module.label_shapes, force_rebind=True)
    module.update_full_grads(problem.iterator())
    assert len(calls) == 1


def gradients_of(module):
    return {name: sum(array.asnumpy() for array in arrays) for name, arrays in zip(
        module._exec_group.param_names, module._exec_group.grad_arrays)}


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


def test_gradients_of_several_backward_passes_are_corrected_each():
    problem = Problem('perceptron', rows=40)
    module = problem.bound(grad_req='add')
    module.init_optimizer()
    module.update_full_grads(problem.iterator())
    svrg = problem.svrg()
    svrg.take_snapshot()
    moved = {name: value + 0.3 for name, value in problem.weights.items()}
    module.set_params({name: mx.nd.array(value) for name, value in moved.items()}, {})
    expected = dict.fromkeys(moved, 0)
    for batch, rows in zip(problem.iterator(), oracle.batches_of(40, 10)):
        module.forward_backward(batch)
        now, then = svrg.gradients(moved, rows), svrg.gradients(svrg.snapshot, rows)
        expected = {name: value + now[name] - then[name] + svrg.full_gradient[name]
                    for name, value in expected.items()}
        for name, value in gradients_of(module).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5)


def test_clipping_between_backward_and_update():
    """As MXNet's word language model clips, by the norm of all gradients."""
    problem = Problem('perceptron', rows=40)
    module = problem.bound()
    module.init_optimizer(optimizer_params={'learning_rate': 1.0, 'rescale_grad': 1.0})
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


def with_auxiliary_states(problem):
    data = mx.sym.BatchNorm(mx.sym.Variable('data'), fix_gamma=False, name='norm')
    scores = mx.sym.FullyConnected(data, num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'), name='softmax')


@pytest.mark.parametrize('change', [lambda _: None, with_auxiliary_states])
@pytest.mark.parametrize('grad_req', ['write', 'add'])
@pytest.mark.parametrize('context', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
def test_batches_of_changing_sizes_are_those_of_module(change, grad_req, context):
    problem = Problem('perceptron', rows=37)
    change(problem)
    modules = [mx.mod.Module(problem.symbol, label_names=('label',), context=context),
               problem.module(1, context=context)]
    rng = np.random.RandomState(0)
    for module in modules:
        module.bind([('data', (10, 4))], [('label', (10,))], grad_req=grad_req,
                    inputs_need_grad=grad_req == 'write')
        mx.random.seed(0)
        np.random.seed(0)
        module.init_params()
        module.init_optimizer(optimizer_params={'learning_rate': 0.1, 'momentum': 0.5})
    for size in rng.choice([4, 6, 10, 14], 60):
        rows = rng.randint(37, size=size)
        batch = mx.io.DataBatch([mx.nd.array(problem.features[rows])],
                                [mx.nd.array(problem.targets[rows])])
        found = []
        evaluates = rng.rand() < 0.2
        for module in modules:
            if evaluates:
                module.forward(batch, is_train=False)
            module.forward_backward(batch)
            module.update()
            mx.nd.waitall()  # BatchNorm writes its states behind the engine's back
            found.append([module.get_outputs()[0], *module.get_params()[0].values(),
                          *module.get_params()[1].values()])
            if grad_req == 'write':
                found[-1] += module.get_input_grads()
            assert module.data_shapes[0].shape == (size, 4)
        for actual, expected in zip(*found):
            assert (actual.asnumpy() == expected.asnumpy()).all()


def test_executors_are_reused_for_shapes_that_come_again(reshaped):
    """Larger ones are not kept, because they would take memory."""
    module = Problem('softmax').bound()
    for size in (4, 10, 4, 10, 6, 4, 10, 6, 4, 14, 10, 14, 4, 10):
        module.reshape([('data', (size, 4))], [('label', (size,))])
        assert module._exec_group.execs[0].arg_dict['data'].shape == (size, 4)
    assert reshaped == [4, 6, 4, 6, 4, 14, 14]
    assert module._exec_group._default_execs is None


def test_executors_are_reused_for_the_same_layout_only():
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.Variable('data')))
    modules = [mx.mod.Module(symbol, label_names=None), SVRGModule(symbol, label_names=None,
                                                                   update_freq=1)]
    for module in modules:
        module.bind([mx.io.DataDesc('data', (10, 10, 4), layout='NTC')])
    for shape, layout in (((5, 10, 4), 'NTC'), ((10, 10, 4), 'TNC'), ((5, 10, 4), 'TNC'),
                          ((5, 10, 4), 'NTC'), ((10, 10, 4), 'NTC')):
        for module in modules:
            module.reshape([mx.io.DataDesc('data', shape, layout=layout)])
        groups = [module._exec_group for module in modules]
        assert groups[0].batch_size == groups[1].batch_size
        assert groups[0].data_layouts == groups[1].data_layouts


def test_executors_with_larger_inputs_are_not_kept(reshaped):
    """Fewer rows may be longer."""
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.Variable('data'), axis=1))
    module = SVRGModule(symbol, label_names=None, update_freq=1)
    module.bind([('data', (10, 5))])
    for shape in ((4, 50), (10, 5), (4, 50), (10, 5), (4, 5), (10, 5), (4, 5)):
        module.reshape([('data', shape)])
    assert reshaped == [4, 4, 4]


def test_executors_of_which_one_input_is_smaller_are_kept(reshaped):
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.Variable('data'), axis=1)
                             * mx.sym.Variable('weights'))
    module = SVRGModule(symbol, ('data', 'weights'), None, update_freq=1)
    module.bind([('data', (10, 5)), ('weights', (10,))])
    for length in (3, 5, 3, 5):
        module.reshape([('data', (10, length)), ('weights', (10,))])
    assert reshaped == [10]


def test_reshape_before_bind():
    with pytest.raises(AssertionError):
        Problem().module(1).reshape([('data', (10, 4))])


def test_reshape_that_failed(training):
    """MXNet leaves the new number of rows beside the old shapes."""
    training.snapshot()
    module = training.module
    rows = np.zeros((4, 5))  # a feature too many
    with pytest.raises(mx.MXNetError):
        module.forward(mx.io.DataBatch([mx.nd.array(rows)], [mx.nd.zeros(4)]))
    for size in (14, 6):
        module.forward(mx.io.DataBatch([mx.nd.zeros((size, 4))], [mx.nd.zeros(size)]),
                       is_train=False)
        training.epoch()
    assert module._exec_group.batch_size == 10
    training.check()


def test_monitors_of_several_fits():
    """MXNet shows a later one only the executors that are in use when it is installed."""
    problem = Problem('softmax', rows=37)
    module = problem.module(1, store_snapshot_grads=True)
    for begin in range(3):
        shapes = []

        def noted(array, shapes=shapes):
            shapes.append(array.shape)
            return array

        monitor = mx.mon.Monitor(1, noted)
        module.fit(problem.iterator(), eval_metric='acc', monitor=monitor, begin_epoch=begin,
                   num_epoch=begin + 1)
        assert {(7, 3), (10, 3)} <= set(shapes) or begin and shapes


@pytest.mark.parametrize('size', [4, 14])
def test_modules_share_inputs_again_after_another_size(training, size):
    """As when an epoch ends with an evaluation in batches of another size."""
    training.snapshot()
    training.module.score(Problem('perceptron', rows=21, seed=1).iterator(size), 'acc')
    training.epoch()
    training.check()
    inputs = [module._exec_group.execs[0].arg_dict['data']
              for module in (training.module, training.module._mod_aux)]
    inputs[0][:] = 7
    assert (inputs[1].asnumpy() == 7).all()


def test_reshape_between_backward_and_update(training):
    training.snapshot()
    training.epoch()
    for batch, rows in training.batches():
        training.module.forward_backward(batch)
        training.module.reshape([('data', (20, 4))], [('label', (20,))])
        training.module.update()
        training.svrg.step(rows)
        training.module.reshape([('data', (10, 4))], [('label', (10,))])
    training.check()


def test_backward_before_any_forward():
    module = Problem().bound()
    with pytest.raises(RuntimeError, match='backward needs a forward before it'):
        module.backward()


@pytest.mark.parametrize('rate', [float('nan'), float('inf'), np.float32('nan')])
def test_learning_rate_that_is_not_finite(training, rate):
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


def test_numbers_of_numpy():
    """What is an int, a bool or a number is taken."""
    module = Problem().module(np.int64(2), loss_is_mean=np.bool_(False),
                              sparse_full_grad=np.bool_(False), alpha=np.array(0.5),
                              store_snapshot_grads=np.int32(1000))
    assert module.update_freq == 2 and type(module.update_freq) is int
    assert module.alpha == 0.5 and module._svrg.stored.budget == 1000
    module.alpha = np.float32(0.25)
    assert module.alpha == 0.25
    assert Problem().module(store_snapshot_grads=np.bool_(True))._svrg.stored.budget == 2 ** 30
    module.alpha = lambda _: np.array(1.0)
    module.fit(Problem().iterator(), eval_metric='mse', num_epoch=1)


def chain_of(module):
    features = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4, name='features')
    return mx.mod.SequentialModule().add(
        mx.mod.Module(features, label_names=[])).add(module, take_labels=True, auto_wiring=True)


@pytest.mark.parametrize('alpha, warned', [(1, 1), (0, 0)])
def test_in_a_sequential_module(alpha, warned):
    """It trains as plain Module, and that is said once."""
    problem = Problem(rows=40)
    trained = []
    for module in (problem.module(alpha=alpha),
                   mx.mod.Module(problem.symbol, label_names=('label',))):
        mx.random.seed(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            chain_of(module).fit(problem.iterator(), eval_metric='mse', num_epoch=2)
        trained.append({name: value.asnumpy() for name, value in module.get_params()[0].items()})
        messages = [str(warning.message) for warning in caught
                    if 'takes no snapshots' in str(warning.message)]
        assert len(messages) == (warned if isinstance(module, SVRGModule) else 0)
    for name, value in trained[0].items():
        np.testing.assert_array_equal(value, trained[1][name])


class WrittenForContrib(SVRGModule):
    """Steps as in mxnet.contrib: the correction is a method of its own, which update calls."""

    def _update_svrg_gradients(self):
        for device in range(self._ctx_len):
            for index, name in enumerate(self._exec_group.param_names):
                arrays = self._exec_group.grad_arrays[index]
                arrays[device] = self._svrg_grads_update_rule(
                    arrays[device], self._mod_aux._exec_group.grad_arrays[index][device],
                    self._param_dict[device][name])

    def update(self):
        self._update_svrg_gradients()
        super(SVRGModule, self).update()


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_methods_written_for_contrib(context):
    problem = Problem('perceptron', rows=37)
    module = WrittenForContrib(problem.symbol, label_names=('label',), update_freq=2,
                               context=context)
    module.fit(problem.iterator(), eval_metric='acc', num_epoch=5, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.1})
    problem.assert_weights(module, problem.svrg().fit(5, 2))


def test_update_after_a_correction_that_failed(training):
    training.snapshot()
    batch = next(training.problem.iterator())
    training.module.alpha = lambda _: 2
    with pytest.raises(ValueError, match='alpha must be'):
        training.module.forward_backward(batch)
    with pytest.raises(ValueError, match='alpha must be'):
        training.module.update()
    training.check()
    training.module.alpha = 1
    training.module.update()
    training.svrg.step(np.arange(10))
    training.check()


def test_bind_that_fails_forgets_what_it_was_to_share(monkeypatch):
    def fail(*_):
        raise MemoryError

    problem = Problem(rows=40)
    first, second = problem.bound(), problem.module()
    first.init_optimizer()
    first.update_full_grads(problem.iterator())
    with monkeypatch.context() as patch:
        patch.setattr(type(second._svrg.snapshot_module), 'bind', fail)
        with pytest.raises(MemoryError):
            second.bind([('data', (10, 4))], [('label', (10,))], shared_module=first)
    assert not second.binded and not second._snapshot.is_active


@pytest.mark.parametrize('kind', ['rule', 'method'])
def test_correction_that_is_interrupted(kind):
    """An update with gradients corrected in part is an error, and never corrects them twice."""
    class Own(SVRGModule):
        fails = False

        def _svrg_grads_update_rule(self, current, at_snapshot, full):
            self.calls += 1
            if self.fails and self.calls == 2 and kind == 'rule':
                raise KeyboardInterrupt
            return super()._svrg_grads_update_rule(current, at_snapshot, full)

        def _update_svrg_gradients(self):
            self.calls = 0
            super()._update_svrg_gradients()
            if self.fails and kind == 'method':
                raise KeyboardInterrupt

    problem = Problem(rows=40)
    module = Own(problem.symbol, label_names=('label',), update_freq=1)
    train_data = problem.iterator()
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(arg_params=problem.arg_params())
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    module.update_full_grads(train_data)
    train_data.reset()
    svrg = problem.svrg(learning_rate=0.1)
    svrg.take_snapshot()
    for number, batch in enumerate(train_data):
        module.forward(batch)
        if number in {0, 2}:
            module.fails = True
            with pytest.raises(KeyboardInterrupt):
                module.backward()
            module.fails = False
            if kind == 'rule':
                with pytest.raises(RuntimeError, match='^update needs another forward and back'):
                    module.update()
                module.forward(batch)
                module.backward()
        else:
            module.backward()
        module.update()
        svrg.step(np.arange(10 * number, 10 * number + 10))
    problem.assert_weights(module, svrg.weights)

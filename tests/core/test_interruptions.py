"""What an interrupted pass, and a full gradient that is not finite, leave behind."""

import signal
import sys
import warnings

import mxnet as mx
import numpy as np
import pytest

from bad_input import state_of
from interruption import Interruption, places
from problems import Problem
from processes import run_python
from sequences import Sequences
from svrg_optimization import BarzilaiBorwein, SVRGModule

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5}


class Breaking(mx.io.NDArrayIter):
    """Raise an error in the place of a batch, once."""

    breaks_at = error = None

    def next(self):
        if self.breaks_at is not None and self.cursor // self.batch_size + 1 == self.breaks_at:
            self.breaks_at = None
            raise self.error
        return super().next()


def breaking(problem):
    return Breaking(problem.features, problem.targets, 10, label_name='label')


def trained(problem, **kwargs):
    return problem.fit(problem.module(2, **kwargs), 2, optimizer_params=SETTINGS)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize('error', [KeyboardInterrupt, SystemExit, MemoryError, ValueError])
@pytest.mark.parametrize('batch', [0, 1, 3])
@pytest.mark.parametrize('stored', [False, True])
def test_interrupted_pass_leaves_the_snapshot_whole(error, batch, stored):
    problem = Problem('perceptron', rows=37)
    module = trained(problem, store_snapshot_grads=stored)
    before, train_data = state_of(module), breaking(problem)
    train_data.breaks_at, train_data.error = batch, error('now')
    with pytest.raises(error, match='now'):
        module.update_full_grads(train_data)
    assert state_of(module) == before
    # ... and training goes on from it.
    svrg = problem.svrg(**SETTINGS)
    if not stored:
        svrg.fit(2, 2)
        train_data.reset()
        for rows, data_batch in zip(([*range(10)], [*range(10, 20)]), train_data):
            module.forward_backward(data_batch)
            module.update()
            svrg.step(np.array(rows))
        problem.assert_weights(module, svrg.weights)
    module.update_full_grads(problem.iterator())
    svrg.weights = {name: value.asnumpy().astype(np.float64)
                    for name, value in module.get_params()[0].items()}
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)


@pytest.mark.usefixtures('signals_are_heard')
@pytest.mark.parametrize('batches', [1, 2, 7, 90])
def test_control_c_in_a_pass_leaves_the_snapshot_whole(batches):
    problem = Problem('perceptron', rows=40)
    module = trained(problem)
    before = state_of(module)

    class Interrupted:
        def reset(self):
            pass

        def __iter__(self):
            for number in range(100):
                if number == batches:
                    signal.raise_signal(signal.SIGINT)
                yield next(problem.iterator())

    with pytest.raises(KeyboardInterrupt):
        module.update_full_grads(Interrupted())
    assert state_of(module) == before
    module.fit(problem.iterator(), eval_metric='mse', begin_epoch=2, num_epoch=4)
    problem.assert_weights(module, problem.svrg(**SETTINGS).fit(4, 2))


@pytest.mark.process
@pytest.mark.slow
def test_control_c_is_tested_in_the_background_too():
    """There a shell lets what it starts ignore SIGINT."""
    ignore = ('import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); '
              'os.execv(sys.argv[1], sys.argv[1:])')
    result = run_python('-c', ignore, sys.executable, '-m', 'pytest', '-q',
                        '%s::test_control_c_in_a_pass_leaves_the_snapshot_whole' % __file__)
    assert result.returncode == 0 and '4 passed' in result.stdout, result.stdout


@pytest.mark.parametrize('kind', ['batch_end_callback', 'epoch_end_callback'])
@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_module_outlasts_a_callback_that_raises(kind, context):
    problem = Problem(rows=40)
    calls = []

    def callback(*_):
        calls.append(None)
        if len(calls) == 3:
            raise RuntimeError('stop here')

    module = problem.module(1, context=context)
    with pytest.raises(RuntimeError, match='stop here'):
        module.fit(problem.iterator(), eval_metric='mse', num_epoch=4, **{kind: callback},
                   arg_params=problem.arg_params(), optimizer_params=SETTINGS)
    module.init_params(arg_params=problem.arg_params(), force_init=True)
    module.init_optimizer(optimizer_params=SETTINGS, force_init=True)
    module.fit(problem.iterator(), eval_metric='mse', num_epoch=3)
    problem.assert_weights(module, problem.svrg(**SETTINGS).fit(3, 1))


def test_interrupted_epoch_is_gone_on_with():
    """What fit had done by then counts; the next call takes up from there."""
    problem = Problem(rows=40)
    module = problem.module(2)
    train_data = breaking(problem)
    train_data.error = KeyboardInterrupt()

    def interrupt(param):
        if param.epoch == 2 and param.nbatch == 1:
            train_data.breaks_at = 3  # fit is a batch ahead

    with pytest.raises(KeyboardInterrupt):
        module.fit(train_data, eval_metric='mse', num_epoch=4, optimizer_params=SETTINGS,
                   arg_params=problem.arg_params(), batch_end_callback=interrupt)
    svrg = problem.svrg(**SETTINGS)
    svrg.fit(2, 2)
    svrg.take_snapshot()
    for start in (0, 10, 20):
        svrg.step(np.arange(start, start + 10))
    problem.assert_weights(module, svrg.weights)
    train_data.reset()
    module.fit(train_data, eval_metric='mse', begin_epoch=3, num_epoch=4)
    for start in range(0, 40, 10):
        svrg.step(np.arange(start, start + 10))
    problem.assert_weights(module, svrg.weights)


class InterruptedBuckets:
    """Batches of several lengths, and then an error."""

    def __init__(self, problem):
        self.batches = problem.iterator()

    def reset(self):
        self.batches.reset()

    def __iter__(self):
        for number, batch in enumerate(self.batches):
            if number == 3:
                raise KeyboardInterrupt
            yield batch


def test_an_interrupted_pass_over_buckets_leaves_the_snapshot_whole():
    problem = Sequences()
    module = problem.fit(problem.module(1), 1, optimizer_params={'learning_rate': 0.02})
    full_gradient, key = module._snapshot.full_gradient, module._curr_bucket_key
    at_snapshot = module._default_bucket._mod_aux.get_params()[0]['fc_weight'].asnumpy()
    with pytest.raises(KeyboardInterrupt):
        module.update_full_grads(InterruptedBuckets(problem))
    assert module._snapshot.full_gradient is full_gradient and module._curr_bucket_key == key
    after = module._default_bucket._mod_aux.get_params()[0]['fc_weight'].asnumpy()
    assert (after == at_snapshot).all()


def with_nan(problem, value):
    features = problem.features.copy()
    features[13, 2] = value
    return mx.io.NDArrayIter(features, problem.targets, 10, label_name='label')


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_full_gradient_that_is_not_finite_is_reported_once(value, context):
    problem = Problem('softmax', rows=40)
    module = problem.bound(context=context, sgd={})
    train_data = with_nan(problem, value)
    message = r'the full gradient is not finite: fc_weight(, fc_bias)?. No step has been'
    with pytest.warns(UserWarning, match=message):
        module.update_full_grads(train_data)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        module.update_full_grads(train_data)
    module.update_full_grads(problem.iterator())
    svrg = problem.svrg()
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize('context, kvstore', [(mx.cpu(), None), (TWO_DEVICES, 'local')])
def test_raise_leaves_the_old_snapshot_in_force(value, context, kvstore):
    problem = Problem('softmax', rows=40)
    module = problem.module(2, context=context, nonfinite='raise')
    problem.fit(module, 2, kvstore=kvstore, optimizer_params=SETTINGS)
    before = [value.asnumpy() for value in module._param_dict[0].values()]
    with pytest.raises(FloatingPointError, match='not finite: fc_weight'):
        module.fit(with_nan(problem, value), eval_metric='acc', begin_epoch=2, num_epoch=3)
    for old, new in zip(before, module._param_dict[0].values()):
        assert (new.asnumpy() == old).all()
    module.fit(problem.iterator(), eval_metric='acc', begin_epoch=3, num_epoch=4)
    svrg = problem.svrg(**SETTINGS)
    svrg.fit(2, 2)
    for start in range(0, 40, 10):
        svrg.step(np.arange(start, start + 10))
    problem.assert_weights(module, svrg.weights)


def test_only_what_is_not_finite_is_named():
    one, two, label = (mx.sym.Variable(name) for name in ('one', 'two', 'y'))
    outputs = [mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(data, num_hidden=1, no_bias=True, name=name), label)
        for data, name in ((one, 'first'), (two, 'second'))]
    module = SVRGModule(mx.sym.Group(outputs), ('one', 'two'), ('y',), update_freq=1,
                        nonfinite='raise')
    good, bad = np.ones((20, 3)), np.ones((20, 3))
    bad[7] = np.inf
    train_data = mx.io.NDArrayIter({'one': good, 'two': bad}, {'y': np.ones(20)}, 10)
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params()
    with pytest.raises(FloatingPointError, match='not finite: second_weight. No step'):
        module.update_full_grads(train_data)


def arguments_of_kvstore(context):
    return {'kvstore': 'local' if context is TWO_DEVICES else None}


@pytest.mark.slow
@pytest.mark.parametrize('context, kvstore', [
    (mx.cpu(), None), (mx.cpu(), 'local'), (TWO_DEVICES, 'local')])
@pytest.mark.parametrize('stored', [False, True])
@pytest.mark.parametrize('step_size', [False, True])
def test_a_pass_interrupted_anywhere_leaves_no_mixture(context, kvstore, stored, step_size):
    """The snapshot is the old one, the new one, or out of force; never a mixture."""
    problem = Problem('perceptron', rows=37)
    train_data = problem.iterator()
    rule = BarzilaiBorwein() if step_size else None
    params = {'learning_rate': 0.01, 'lr_scheduler': rule} if step_size else SETTINGS
    module = problem.module(2, context=context, store_snapshot_grads=stored)
    module.fit(train_data, eval_metric='mse', num_epoch=2, arg_params=problem.arg_params(),
               kvstore=kvstore and mx.kv.create(kvstore), optimizer_params=params)
    outcomes = set()
    for number, at in enumerate(places(lambda: module.update_full_grads(train_data), 40)):
        moved = {name: value + 0.01 * number for name, value in problem.weights.items()}
        module.set_params({name: mx.nd.array(value) for name, value in moved.items()}, {})
        before = module._snapshot.full_gradient
        Interruption(lambda: module.update_full_grads(train_data), at)
        problem.assert_weights(module, moved)
        if module._snapshot.is_active:
            outcomes.add(module._snapshot.full_gradient is before)
            svrg = problem.svrg()
            svrg.weights = {name: value.asnumpy().astype(float)
                            for name, value in module._mod_aux.get_params()[0].items()}
            svrg.take_snapshot()
            problem.assert_full_gradient(module, svrg.full_gradient)
        if step_size and rule.rate is not None:
            assert 0 < rule.rate <= 1.5001 / rule.curvature
    assert True in outcomes


def bind(module, train_data):
    module.bind(train_data.provide_data, train_data.provide_label)


@pytest.mark.slow
@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('interrupted', ['bind', 'init_optimizer'])
def test_fit_trains_after_preparations_that_were_interrupted_anywhere(context, interrupted):
    problem = Problem('perceptron', rows=37)
    train_data, expected = problem.iterator(), problem.svrg(**SETTINGS).fit(3, 2)

    def prepared():
        module = problem.module(2, context=context)
        if interrupted == 'bind':
            return module, lambda: bind(module, train_data)
        bind(module, train_data)
        module.init_params(arg_params=problem.arg_params())
        return module, lambda: module.init_optimizer('local', 'sgd', {'learning_rate': 7.0})

    for at in places(prepared()[1], 40):
        module, call = prepared()
        Interruption(call, at)
        if module.optimizer_initialized:  # it came through
            module.init_optimizer('local', 'sgd', SETTINGS, force_init=True)
        module.fit(train_data, eval_metric='mse', num_epoch=3, arg_params=problem.arg_params(),
                   optimizer_params=SETTINGS)
        problem.assert_weights(module, expected)


@pytest.mark.slow
@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('resumed', [False, True])
def test_training_goes_on_after_a_bind_that_was_interrupted_anywhere(context, resumed):
    """With its snapshot: of a module that is bound anew, and of one from a checkpoint."""
    problem = Problem('perceptron', rows=37)
    train_data = problem.iterator()
    module = problem.module(2, context=context)
    kvstore = arguments_of_kvstore(context)
    module.fit(train_data, eval_metric='mse', num_epoch=3, arg_params=problem.arg_params(),
               optimizer_params=SETTINGS, **kvstore)
    module.save_checkpoint('model', 3, save_optimizer_states=True)
    expected = problem.svrg(**SETTINGS).fit(4, 2)

    def prepared():
        module = SVRGModule.load('model', 3, load_optimizer_states=True, context=context,
                                 label_names=('label',))
        if resumed:
            return module, lambda: (bind(module, train_data),
                                    module.init_optimizer(optimizer_params=SETTINGS, **kvstore))
        bind(module, train_data)
        module.init_optimizer(optimizer_params=SETTINGS, **kvstore)
        return module, lambda: module.bind(train_data.provide_data, train_data.provide_label,
                                           force_rebind=True)

    for at in places(prepared()[1], 40):
        module, call = prepared()
        Interruption(call, at)
        module.fit(train_data, eval_metric='mse', begin_epoch=3, num_epoch=4,
                   optimizer_params=SETTINGS, **kvstore)
        problem.assert_weights(module, expected)


@pytest.mark.slow
@pytest.mark.parametrize('interrupted', ['bind', 'switch_bucket'])
def test_buckets_train_after_a_bind_that_was_interrupted_anywhere(interrupted):
    problem = Sequences()
    settings = {'learning_rate': 0.02}
    train_data = problem.iterator()
    first = next(iter(problem.iterator()))
    expected = problem.expect(2, 2, **settings).weights

    def prepared():
        module = problem.module(2)
        if interrupted == 'bind':
            return module, lambda: bind(module, train_data)
        bind(module, train_data)
        module.init_params(arg_params=problem.arg_params())
        return module, lambda: module.switch_bucket(first.bucket_key, first.provide_data,
                                                    first.provide_label)

    for at in places(prepared()[1], 40):
        module, call = prepared()
        Interruption(call, at)
        problem.fit(module, 2, optimizer_params=settings)
        problem.assert_weights(module, expected)


def test_control_c_in_the_updater_of_a_kvstore_leaves_the_snapshot_whole(monkeypatch):
    """MXNet swallows it there, and goes on without the value that was pushed."""
    problem = Problem('perceptron', rows=40)
    module = problem.bound(context=TWO_DEVICES)
    module.init_optimizer(kvstore='local', optimizer_params=SETTINGS)
    module.update_full_grads(problem.iterator())
    update = type(module._optimizer).update_multi_precision
    calls = []

    def interrupted(optimizer, index, *args):
        calls.append(index)
        if len(calls) == 2:
            raise KeyboardInterrupt
        update(optimizer, index, *args)

    moved = {name: value + 0.5 for name, value in problem.weights.items()}
    module.set_params({name: mx.nd.array(value) for name, value in moved.items()}, {})
    shares = [{name: value.copy() for name, value in share.items()}
              for share in module._param_dict]
    monkeypatch.setattr(type(module._optimizer), 'update_multi_precision', interrupted)
    with pytest.raises(KeyboardInterrupt):
        module.update_full_grads(problem.iterator())
    assert module._snapshot.is_active
    problem.assert_weights(module._mod_aux, problem.weights, 1e-7)
    for share, old in zip(module._param_dict, shares):
        for name, value in share.items():
            np.testing.assert_array_equal(value.asnumpy(), old[name].asnumpy())
    module.update_full_grads(problem.iterator())
    svrg = problem.svrg()
    svrg.weights = moved
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)

"""Passes that fail or are interrupted leave the snapshot in force, and training goes on."""

import itertools
import random
import signal
import warnings

import mxnet as mx
import numpy as np
import pytest

from bad_input import Data, state_of
from blocks import Blocks
from full_gradients import persistent
from held_batches import SETTINGS, assert_svrg
from interruption import Interruption
from pairs import in_pairs
from problems import TWO_DEVICES, Problem
from sequences import Sequences
from svrg_optimization import SVRGModule

PLACES = [(mx.cpu(), None), (TWO_DEVICES, 'local')]


def fail(error):
    if error is KeyboardInterrupt:
        signal.raise_signal(signal.SIGINT)
    raise error('now')


def breaking(error, at):
    """Return data that fail in the place of a batch."""
    return lambda problem: Data(*itertools.islice(problem.iterator(), at), raises=error('now'))


def infinite(problem):
    return mx.io.NDArrayIter(problem.features * np.inf, problem.targets, 10, label_name='label')


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures('signals_are_heard')
@in_pairs({
    'error, bad': [
        *((error, breaking(error, at)) for at in (0, 1, 3)
          for error in (SystemExit, MemoryError, ValueError, KeyboardInterrupt)),
        (ValueError, lambda problem: Data()), (FloatingPointError, infinite)],
    'context, kvstore': PLACES})
def test_a_pass_that_fails_leaves_the_snapshot_whole(monkeypatch, error, bad, context, kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', '0')  # state_of looks at the module's updater
    problem = Problem('perceptron', rows=37)
    module = problem.bound(update_freq=2, context=context, nonfinite='raise')
    module.init_optimizer(kvstore, optimizer_params=SETTINGS)
    with pytest.raises(error):
        module.update_full_grads(bad(problem))
    assert not module._snapshot.is_active
    svrg, _ = assert_svrg(problem, module, 2, 2, kvstore=kvstore)
    before = state_of(module)
    with pytest.raises(error):
        module.update_full_grads(bad(problem))
    assert state_of(module) == before
    problem.train_epoch(module, svrg)
    problem.assert_weights(module, svrg.weights)
    assert_svrg(problem, module, 4, 2, svrg, begin_epoch=2, kvstore=kvstore)


def test_an_interrupted_pass_over_buckets_leaves_the_snapshot_whole():
    problem, sgd = Sequences(), {'learning_rate': 0.02}
    train_data = problem.iterator()
    module = problem.fit(problem.module(3), 1, train_data, optimizer_params=sgd)
    key = module._curr_bucket_key
    with pytest.raises(KeyboardInterrupt):
        module.update_full_grads(Data(*list(problem.iterator())[:3], raises=KeyboardInterrupt))
    assert module._curr_bucket_key == key
    problem.fit(module, 2, train_data, begin_epoch=1)
    problem.assert_weights(module, problem.expect(2, 3, **sgd).weights)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_only_what_is_not_finite_is_named_and_once(value, context):
    one, two, label = (mx.sym.Variable(name) for name in ('one', 'two', 'y'))
    outputs = [mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(data, num_hidden=1, no_bias=True, name=name), label)
        for data, name in ((one, 'first'), (two, 'second'))]
    bad = np.ones((17, 3))
    bad[2] = value  # which is also padding
    train_data = mx.io.NDArrayIter({'one': np.ones((17, 3)), 'two': bad}, {'y': np.ones(17)}, 10)
    message = 'full gradient is not finite: second_weight. .* Rows of two that are not finite: 1'
    for nonfinite in ('warn', 'raise'):
        module = SVRGModule(mx.sym.Group(outputs), ('one', 'two'), ('y',), update_freq=1,
                            context=context, nonfinite=nonfinite)
        module.bind(train_data.provide_data, train_data.provide_label)
        module.init_params()
        if nonfinite == 'raise':
            with pytest.raises(FloatingPointError, match=message):
                module.update_full_grads(train_data)
            continue
        with pytest.warns(UserWarning, match=message + ". With nonfinite='raise' training stops$"):
            module.update_full_grads(train_data)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            module.update_full_grads(train_data)


def output():
    return mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4, name='fc')


def beside_a_loss():
    made = output()
    loss = mx.sym.MakeLoss(mx.sym.square(made), name='loss')
    return mx.sym.Group([loss, made, mx.sym.BlockGrad(loss)])


@pytest.mark.parametrize('symbol, message', [
    (beside_a_loss(), 'without a loss, .*fc_output.* mx.sym.BlockGrad, .* mx.sym.MakeLoss'),
    # Operators of one's own may be losses; MXNet says which of them are not.
    (persistent(output()), 'the symbol has outputs without a loss, and so no full gradient'),
    (output(), 'the symbol has outputs without a loss, and so no full gradient')])
def test_without_a_loss_there_is_no_full_gradient(symbol, message):
    module = SVRGModule(symbol, label_names=None, update_freq=1)
    train_data = mx.io.NDArrayIter(np.ones((20, 4)), batch_size=10)
    module.bind(train_data.provide_data)
    module.init_params()
    with pytest.raises(ValueError, match=message):
        module.update_full_grads(train_data)
    assert not module._snapshot.is_active


class Broken(mx.lr_scheduler.LRScheduler):
    """A schedule that fails at one update."""

    def __init__(self, fails_at, error):
        super().__init__(0.1)
        self.fails_at, self.error = fails_at, error

    def __call__(self, num_update):
        if num_update == self.fails_at:
            fail(self.error)
        return 0.1


def steps_of_module(problem, kvstore, scheduler):
    module, train_data = problem.bound(context=TWO_DEVICES), problem.iterator()
    module.init_optimizer(kvstore, 'sgd', {'lr_scheduler': scheduler})
    module.update_full_grads(train_data)
    train_data.reset()
    for batch in train_data:
        module.forward_backward(batch)
        yield module.update


def steps_of_trainer(problem, kvstore, scheduler):
    trainer = problem.trainer(problem.net(TWO_DEVICES), settings={'lr_scheduler': scheduler},
                              kvstore=kvstore, update_on_kvstore=True)
    trainer.update_full_grads(problem.loader())
    for batch in trainer.training_batches(problem.loader()):
        trainer.backward(*batch)
        yield lambda: trainer.step(10)


@pytest.mark.usefixtures('signals_are_heard')
@pytest.mark.parametrize('steps', [steps_of_module, steps_of_trainer])
@pytest.mark.parametrize('kvstore', ['local', 'device'])
@pytest.mark.parametrize('error', [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_in_the_updater_of_a_kvstore_ends_the_step(steps, kvstore, error):
    """ctypes, through which MXNet calls the updater, would report and forget it."""
    made = steps(Blocks('perceptron', rows=40), kvstore, Broken(2, error))
    next(made)()
    step = next(made)
    with pytest.raises(error):
        step()


# Interruptions anywhere

def places(call, count):
    """Draw operations of a call to interrupt it at."""
    operations = Interruption(call).operations
    assert operations > 1000
    return random.Random(0).sample(range(1, operations + 1), count)


@pytest.mark.slow
@pytest.mark.parametrize('context, kvstore', [*PLACES, (mx.cpu(), 'local')])
@pytest.mark.parametrize('step_size', [False, True])
def test_a_pass_interrupted_anywhere_leaves_no_mixture(context, kvstore, step_size):
    """The snapshot is the old one, the new one, or out of force; never a mixture."""
    problem = Problem('softmax' if step_size else 'perceptron', rows=37)
    module, train_data, outcomes = problem.module(
        2, context=context), problem.iterator(), set()
    problem.fit(module, 2, train_data, kvstore=kvstore and mx.kv.create(kvstore),
                **({'optimizer': 'newton_cg'} if step_size else {'optimizer_params': SETTINGS}))
    for number, at in enumerate(places(lambda: module.update_full_grads(train_data), 40)):
        moved = {name: value + 0.01 * number for name, value in problem.weights.items()}
        module.set_params({name: mx.nd.array(value) for name, value in moved.items()}, {})
        before = module._snapshot.full_gradient
        Interruption(lambda: module.update_full_grads(train_data), at)
        is_new = module._snapshot.is_active and module._snapshot.full_gradient is not before
        problem.assert_weights(module, moved if not (is_new and step_size) else {  # moves are kept
            name: value.asnumpy() for name, value in module._mod_aux.get_params()[0].items()})
        if module._snapshot.is_active:
            outcomes.add(module._snapshot.full_gradient is before)
            svrg = problem.svrg()
            svrg.weights = {name: value.asnumpy().astype(float)
                            for name, value in module._mod_aux.get_params()[0].items()}
            svrg.take_snapshot()
            problem.assert_full_gradient(module, svrg.full_gradient)
    assert True in outcomes


def preparations(problem, context, kvstore):
    """Return functions that make a module, and a call that prepares it further for a training."""
    train_data, first = problem.iterator(), next(iter(problem.iterator()))

    def after(module, *calls):
        for call in calls:
            call(module)
        return module

    def fresh(*calls):
        return after(problem.module(2, context=context), *calls)

    def loaded(*calls):
        return after(SVRGModule.load('model', 3, load_optimizer_states=True, context=context,
                                     label_names=('label',)), *calls)

    def bind(module, **kwargs):
        module.bind(train_data.provide_data, train_data.provide_label, **kwargs)

    def init(module):
        module.init_params(arg_params=problem.arg_params())

    def init_optimizer(module, **settings):
        module.init_optimizer(kvstore, 'sgd', {**SETTINGS, **settings},
                              force_init=module.optimizer_initialized)

    return {
        'bind': (fresh, bind),
        'init_optimizer': (lambda: fresh(bind, init),
                           lambda module: init_optimizer(module, learning_rate=7.0)),
        'switch_bucket': (lambda: fresh(bind, init), lambda module: module.switch_bucket(
            first.bucket_key, first.provide_data, first.provide_label)),
        'bind of a checkpoint': (loaded, lambda module: (bind(module), init_optimizer(module))),
        'bind again': (lambda: loaded(bind, init_optimizer),
                       lambda module: bind(module, force_rebind=True))}, init_optimizer


@pytest.mark.slow
@pytest.mark.parametrize('make, context, kvstore, interrupted', [
    *((lambda: Problem('perceptron', rows=37), *place, interrupted) for place in PLACES
      for interrupted in ('bind', 'init_optimizer', 'bind of a checkpoint', 'bind again')),
    (Sequences, mx.cpu(), None, 'bind'), (Sequences, mx.cpu(), None, 'switch_bucket')])
def test_training_goes_on_after_a_preparation_that_was_interrupted_anywhere(
        make, context, kvstore, interrupted):
    problem, epoch = make(), 3 if 'again' in interrupted or 'checkpoint' in interrupted else 0
    sgd = SETTINGS if make is not Sequences else {'learning_rate': 0.02}
    if epoch:
        problem.fit(problem.module(2, context=context), epoch, kvstore=kvstore,
                    optimizer_params=sgd).save_checkpoint('model', epoch, True)
    cases, init_optimizer = preparations(problem, context, kvstore)
    prepared, call = cases[interrupted]
    expected = (problem.expect(4, 2, **sgd).weights if make is Sequences else
                problem.svrg(**sgd).fit(4, 2))
    for at in places(lambda: call(prepared()), 40):
        module = prepared()
        Interruption(lambda: call(module), at)  # noqa: B023
        if interrupted == 'init_optimizer' and module.optimizer_initialized:  # it came through
            init_optimizer(module)
        problem.fit(module, 4, begin_epoch=epoch, kvstore=kvstore, optimizer_params=sgd)
        problem.assert_weights(module, expected)

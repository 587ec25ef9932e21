"""Passes that fail or are interrupted leave the snapshot in force, and training goes on."""

import itertools
import random

import mxnet as mx
import numpy as np
import pytest

from bad_input import Data, state_of
from blocks import Blocks, train
from full_gradients import persistent
from held_batches import SETTINGS, assert_svrg
from interruption import Interruption
from pairs import in_pairs
from problems import TWO_DEVICES, Problem, prepared
from sequences import Sequences
from svrg_optimization import SVRGModule

PLACES = [(mx.cpu(), None), (TWO_DEVICES, 'local')]


def breaking(error, at):
    """Return data that fail in the place of a batch."""
    return lambda problem: Data(*itertools.islice(problem.iterator(), at), raises=error('now'))


def infinite(problem):
    return mx.io.NDArrayIter(problem.features * np.inf, problem.targets, 10, label_name='label')


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@in_pairs({
    'error, bad': [
        (SystemExit, breaking(SystemExit, 0)), (MemoryError, breaking(MemoryError, 1)),
        (KeyboardInterrupt, breaking(KeyboardInterrupt, 3)),
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


@pytest.mark.parametrize('value, context', [(np.nan, TWO_DEVICES), (-np.inf, mx.cpu())])
def test_only_what_is_not_finite_is_named_and_once(value, context):
    label, bad = mx.sym.Variable('y'), np.ones((17, 3))
    bad[2] = value  # which is also padding
    outputs = [mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(mx.sym.Variable(data), num_hidden=1, no_bias=True, name=name), label)
        for data, name in (('one', 'first'), ('two', 'second'))]
    train_data = mx.io.NDArrayIter({'one': np.ones((17, 3)), 'two': bad}, {'y': np.ones(17)}, 10)
    module = prepared(SVRGModule(mx.sym.Group(outputs), ('one', 'two'), ('y',), context=context),
                      train_data)
    with pytest.warns(UserWarning, match='full gradient is not finite: second_weight. .* Rows of '
                      "two that are not finite: 1. With nonfinite='raise' training stops$"):
        module.update_full_grads(train_data)
    module.update_full_grads(train_data)  # warnings are errors


def test_without_a_loss_there_is_no_full_gradient():
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4, name='fc')
    loss, train_data = mx.sym.MakeLoss(mx.sym.square(output), name='loss'), mx.io.NDArrayIter(
        np.ones((20, 4)), batch_size=10)
    for symbol, message in (
            (mx.sym.Group([loss, output, mx.sym.BlockGrad(loss)]),
             'without a loss, .*fc_output.* mx.sym.BlockGrad, .* mx.sym.MakeLoss'),
            # Operators of one's own may be losses; MXNet says which of them are not.
            (persistent(output), 'the symbol has outputs without a loss, and so no full gradient')):
        module = prepared(SVRGModule(symbol, label_names=None), train_data)
        with pytest.raises(ValueError, match=message):
            module.update_full_grads(train_data)


class Broken(mx.lr_scheduler.LRScheduler):
    """A schedule that fails at the second update."""

    def __call__(self, num_update):
        if num_update == 2:
            raise self.error
        return 0.1


def by_module(problem, **sgd):
    problem.fit(problem.module(context=TWO_DEVICES), 1, kvstore='device', optimizer_params=sgd)


def by_trainer(problem, **sgd):
    train(problem.trainer(problem.net(TWO_DEVICES), settings=sgd, kvstore='local',
                          update_on_kvstore=True), problem.loader(), 1, contexts=TWO_DEVICES)


@pytest.mark.parametrize('error', [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize('fit', [by_module, by_trainer])
def test_an_error_in_the_updater_of_a_kvstore_ends_the_training(fit, error):
    """ctypes, through which MXNet calls the updater, would report and forget it."""
    schedule = Broken()
    schedule.error = error('now')
    with pytest.raises(error, match='now'):
        fit(Blocks('perceptron', rows=40), lr_scheduler=schedule)


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


@pytest.mark.slow
@pytest.mark.parametrize('context, kvstore', PLACES)
@pytest.mark.parametrize('is_prepared', [False, True])
def test_training_goes_on_after_a_preparation_that_was_interrupted_anywhere(
        context, kvstore, is_prepared):
    problem, begin = Problem('perceptron', rows=37), 0 if is_prepared else 3
    problem.fit(problem.module(2, context=context), 3, kvstore=kvstore,
                optimizer_params=SETTINGS).save_checkpoint('model', 3, True)

    def prepare(module, **settings):
        data = problem.iterator()
        module.bind(data.provide_data, data.provide_label, force_rebind=module.binded)
        module.init_params(arg_params=problem.arg_params())
        module.init_optimizer(kvstore, 'sgd', {**SETTINGS, **settings},
                              force_init=module.optimizer_initialized)

    def begun():
        if not is_prepared:
            return SVRGModule.load('model', 3, load_optimizer_states=True, context=context,
                                   label_names=('label',))
        module = problem.module(2, context=context)
        prepare(module, learning_rate=7.0)
        return module

    for at in places(lambda: prepare(begun()), 40):
        module = begun()
        Interruption(lambda: prepare(module), at)  # noqa: B023
        if is_prepared:
            prepare(module)
        problem.fit(module, 4, begin_epoch=begin, kvstore=kvstore, optimizer_params=SETTINGS)
        problem.assert_weights(module, problem.svrg(**SETTINGS).fit(4, 2))

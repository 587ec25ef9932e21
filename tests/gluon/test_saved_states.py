"""Files of SVRGTrainer's states: resumes, those of others, and other names of parameters."""

import contextlib
import copy
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from blocks import Blocks, as_blocks_take, assert_weights, train, train_plain, weights_of
from processes import run_python

PROBLEM = Blocks('perceptron')


@mx.optimizer.register
class Changing(mx.optimizer.Optimizer):
    """SGD with momentum, whose attributes and states get other types as it trains."""

    def __init__(self, mode=None, **kwargs):
        super().__init__(**kwargs)
        self.mode, self.seen, self.last, self.kept = mode, None, None, [0]
        self.rest, self.flag, self.size, self.word = 5, np.bool_(False), np.float32(1), np.str_('a')

    def create_state(self, index, weight):
        return {'momentum': None, 'rates': [None]}

    def update(self, index, weight, grad, state):
        self._update_count(index)
        self.mode, self.seen, self.last, self.rest = 'warm', 0.5, grad.copy(), None
        self.kept, self.flag, self.size, self.word = None, 1, 2, None
        if state['momentum'] is None:
            state['momentum'] = weight * 0
        state['rates'] += [self._get_lr(index), grad.sum()]
        state['steps'] = state.get('steps', 0) + 1
        state['momentum'][:] = 0.5 * state['momentum'] + grad / state['steps']
        weight[:] = weight - self._get_lr(index) * state['momentum']


@pytest.mark.parametrize('devices, on_kvstore, optimizer, settings', [
    (1, False, 'nadam', {'learning_rate': 0.05}), (2, False, 'adam', {'learning_rate': 0.05}),
    (2, True, 'sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.01}),
    (1, False, 'changing', {'learning_rate': 0.05}),
    (1, False, 'nag', {'momentum': 0.9, 'lr_scheduler': mx.lr_scheduler.FactorScheduler(3, 0.5)})])
def test_a_resumed_run_is_bit_identical(devices, on_kvstore, optimizer, settings, tmp_path):
    path, contexts = tmp_path / 'states', [mx.cpu(place) for place in range(devices)]

    def made(settings):
        mx.random.seed(5)
        net = PROBLEM.net(contexts, extra=[gluon.nn.Dropout(0.3)])
        return net, PROBLEM.trainer(net, optimizer=optimizer, settings=copy.deepcopy(settings),
                                    update_on_kvstore=on_kvstore)

    net, trainer = made(settings)
    train(trainer, PROBLEM.loader(), 3, contexts=contexts)
    if 'learning_rate' in settings:
        trainer.set_learning_rate(0.02)
    trainer.save_states(path)
    net.save_parameters(str(path) + '.params')
    rate = trainer.learning_rate
    again, resumed = made({name: value for name, value in settings.items()
                           if name == 'lr_scheduler'} or {'clip_gradient': 0.01})
    again.load_parameters(str(path) + '.params', ctx=contexts)
    resumed.load_states(path)
    assert resumed.learning_rate == rate
    assert resumed._reference.noise_sources() == ['Dropout']
    for one in (trainer, resumed):
        train(one, PROBLEM.loader(), 6, begin=3, contexts=contexts)
    np.testing.assert_equal(weights_of(again), weights_of(net))
    assert (resumed.gradient_norm, resumed.learning_rate, resumed.optimizer.num_update) == (
        trainer.gradient_norm, trainer.learning_rate, trainer.optimizer.num_update)


@pytest.mark.nd_arrays
@pytest.mark.parametrize('kinds', [('nd', 'np'), ('np', 'nd')])
def test_a_run_goes_on_with_the_other_kind_of_arrays(tmp_path, kinds):
    path, weights = str(tmp_path / 'states'), []
    for kind, begin, end in zip(kinds, (0, 3), (3, 6)):
        with contextlib.ExitStack() as stack:
            if kind == 'np':
                stack.enter_context(mx.util.np_shape(True))
                stack.enter_context(mx.util.np_array(True))
            problem = Blocks('perceptron', rows=37)
            net = problem.net()
            trainer = problem.trainer(net)
            for param, value in zip(net.collect_params().values(), weights):
                param.set_data(as_blocks_take(value))
            if begin:
                trainer.load_states(path)
            train(trainer, problem.loader(num_workers=1), end, begin=begin)
            trainer.save_states(path)
            weights = list(weights_of(net).values())
            assert isinstance(net[0].weight.data(), mx.np.ndarray) == (kind == 'np')
            assert_weights(net, problem.oracle(end))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.nd_arrays
def test_the_tests_of_gluon_pass_with_mx_np_arrays():
    """Those that MXNet cannot run with them have the marker nd_arrays."""
    result = run_python('-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-m', 'not slow',
                        str(Path(__file__).parent), TEST_ARRAYS='np')
    assert result.returncode == 0, result.stdout + result.stderr


def test_states_of_trainer_are_loaded_by_trainer(tmp_path):
    path = str(tmp_path / 'states')
    net = PROBLEM.net()
    plain = PROBLEM.trainer(net, gluon.Trainer)
    train_plain(plain, net, PROBLEM.loss(), PROBLEM.loader(), 3)
    plain.save_states(path)
    trainer = PROBLEM.trainer(PROBLEM.net())
    with pytest.raises(ValueError, match='states is damaged, or no file of SVRGTrainer'):
        trainer.load_states(path)
    gluon.Trainer.load_states(trainer, path)
    ours, theirs = (each._updaters[0].states for each in (trainer, plain))
    assert all((ours[key].asnumpy() == momentum.asnumpy()).all()
               for key, momentum in theirs.items())
    train(trainer, PROBLEM.loader(), 1)


@pytest.mark.parametrize('has_snapshot, problem, optimizer, says', [
    (True, PROBLEM, 'adam', 'has states of the optimizer SGD, and not of Adam'),
    (True, Blocks('softmax'), 'sgd', 'has states of other parameters, or in another order'),
    (True, Blocks('perceptron', classes=7), 'sgd', 'has a snapshot of other parameters: of the '),
    (False, Blocks('perceptron', classes=7), 'sgd', 'was saved with .*: the state of fc_')])
def test_states_of_another_trainer_are_refused_before_anything_has_changed(
        has_snapshot, problem, optimizer, says, tmp_path):
    path, net = str(tmp_path / 'states'), PROBLEM.net()
    saver = PROBLEM.trainer(net, settings={'learning_rate': 0.3, 'momentum': 0.9},
                            alpha=float(has_snapshot))
    train(saver, PROBLEM.loader(), 2, begin=1 - has_snapshot)
    saver.save_states(path)
    trainer = problem.trainer(problem.net(), optimizer=optimizer, settings={'learning_rate': 0.2})
    trainer.update_full_grads(problem.loader())

    def content():
        trainer.save_states(path + '.now')
        return Path(path + '.now').read_bytes()

    before = content()
    with pytest.raises(ValueError, match='states ' + says):
        trainer.load_states(path)
    assert content() == before


def test_another_scheduler_begins_anew_and_it_is_told(tmp_path):
    path, schedulers = str(tmp_path / 'states'), mx.lr_scheduler
    saver, other = (PROBLEM.trainer(PROBLEM.net(), settings={'lr_scheduler': scheduler})
                    for scheduler in (schedulers.PolyScheduler(9), schedulers.FactorScheduler(3)))
    saver.save_states(path)
    with pytest.warns(UserWarning, match='saved with a PolyScheduler: the FactorScheduler of'):
        other.load_states(path)


def test_a_parameter_that_was_frozen_when_saved_drops_the_snapshot(tmp_path):
    path, nets = str(tmp_path / 'states'), [PROBLEM.net(), PROBLEM.net()]
    frozen = next(iter(nets[0].collect_params().values()))
    frozen.grad_req = 'null'
    saver, other = map(PROBLEM.trainer, nets)
    saver.update_full_grads(PROBLEM.loader())
    saver.save_states(path)
    with pytest.warns(UserWarning, match='no full gradient of .*weight'):
        other.load_states(path)
    assert not other._svrg.snapshot.is_active


@pytest.mark.nd_arrays
def test_states_are_loaded_after_shapes_are_known(tmp_path):
    saved, net = gluon.nn.Dense(1, in_units=4, prefix='fc_'), gluon.nn.Dense(1, prefix='fc_')
    for each in (saved, net):
        each.initialize()
    saver, loader = (Blocks().trainer(each) for each in (saved, net))
    saver.update_full_grads(Blocks().loader())
    saver.save_states(tmp_path / 'states')
    saved.save_parameters(str(tmp_path / 'params'))
    with pytest.raises(RuntimeError, match='load_states needs parameters whose shapes are known'):
        loader.load_states(tmp_path / 'states')
    net.load_parameters(str(tmp_path / 'params'))
    loader.load_states(tmp_path / 'states')
    assert loader.gradient_norm == saver.gradient_norm


def with_counters(first, weights=None):
    """Return a network whose layers of one shape have counters, as Gluon gives them."""
    net = gluon.nn.HybridSequential(prefix='')
    for number in range(first, first + 3):
        net.add(gluon.nn.Dense(4, in_units=4, activation='tanh', prefix='dense%d_' % number))
    net.initialize(mx.init.Normal(1))
    for param, value in zip(net.collect_params().values(), weights or []):
        param.set_data(value)
    return net


@pytest.mark.parametrize('counters, is_refused', [((3, 5), False), ((9, 11), True), ((3, 9), True)])
def test_parameters_with_other_counters_are_matched_in_order_or_refused(
        counters, is_refused, tmp_path):
    path, data = str(tmp_path / 'states'), PROBLEM.loader()
    settings = {'learning_rate': 0.05, 'momentum': 0.5}
    nets = [with_counters(counters[0])]
    trainer = PROBLEM.trainer(nets[0], settings=settings)
    train(trainer, data, 3)
    trainer.save_states(path)
    nets.append(with_counters(counters[1], [
        param.data() for param in nets[0].collect_params().values()]))
    resumed = PROBLEM.trainer(nets[1], settings=settings)
    if is_refused:
        with pytest.raises(ValueError, match='of other .* in another order: .*prefixes'):
            resumed.load_states(path)
        return
    resumed.load_states(path)
    for one in (trainer, resumed):
        train(one, data, 4, begin=3)
    assert_weights(nets[1], dict(zip(weights_of(nets[1]), weights_of(nets[0]).values())), 1e-7)

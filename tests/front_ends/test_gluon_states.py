"""Files of SVRGTrainer's states: damaged ones, those of others, and other names of parameters."""

import hashlib
import logging
import pickle
import random

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from blocks import Blocks, as_blocks_take, assert_weights, train, weights_of
from svrg_optimization import BarzilaiBorwein, SVRGTrainer
from svrg_optimization.gluon.states import unpickled

PROBLEM = Blocks('perceptron')


def trained(epochs, path=None):
    """Return a trainer after some epochs, whose states may be saved."""
    mx.random.seed(epochs)
    trainer = PROBLEM.trainer(PROBLEM.net(extra=[gluon.nn.Dropout(0.3)]))
    train(trainer, PROBLEM.loader(), epochs)
    if path:
        trainer.save_states(str(path))
    return trainer


def state_of(trainer):
    """Return all that a file contains, as lists of arrays and numbers."""
    snapshot, generator = trainer._svrg.snapshot, trainer._reference.numbers.state()
    momenta = trainer._updaters[0].states
    return ([momenta[place].asnumpy() for place in sorted(momenta)],
            [value.asnumpy() for values in trainer._reference.copy_of_values().values()
             for value in values],
            [share.asnumpy() for share in snapshot.full_gradient.shares[0].values()],
            [snapshot.full_gradient.batch_size, snapshot.full_gradient.rows, snapshot.num_taken,
             snapshot.num_update, snapshot.taken_at, snapshot.is_stale, trainer.learning_rate,
             trainer.optimizer.num_update, *generator[1:]])


def are_equal(first, second):
    return all(len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs))
               for ours, theirs in zip(first, second))


def damaged(content, rng):
    """Change a byte or a bit, cut the end off, or leave out, repeat or clear some bytes."""
    begin = rng.randrange(len(content))
    end = min(len(content), begin + rng.choice([1, 8, 100, 1000]))
    part = content[begin:end]
    changed = rng.choice([
        bytes([rng.randrange(256)]) + part[1:], bytes([part[0] ^ 1 << rng.randrange(8)]) + part[1:],
        b'', part * 2, bytes(len(part)), part[::-1], None])
    return content[:begin] if changed is None else content[:begin] + changed + content[end:]


def test_damaged_files_are_refused_by_name_or_load_the_same(tmp_path):
    path = tmp_path / 'states'
    saver = trained(3, path)
    whole, rng, refused = path.read_bytes(), random.Random(0), 0
    expected = state_of(saver)
    loader = trained(1)
    before = state_of(loader)
    assert not are_equal(before, expected)
    for _ in range(500):
        content = damaged(whole, rng)
        if content == whole:
            continue
        path.write_bytes(content)
        try:
            loader.load_states(str(path))
        except ValueError as error:
            assert str(error).startswith('%s is damaged' % path)
            assert are_equal(state_of(loader), before)
            refused += 1
        else:
            assert are_equal(state_of(loader), expected)
            loader = trained(1)
    assert refused > 400
    path.write_bytes(whole)
    loader.load_states(str(path))
    assert are_equal(state_of(loader), expected)


def without_checksum(path):
    """Write a file as version 1.0.0 did: without names of parameters and without checksum."""
    states, svrg = unpickled(path.read_bytes())
    del svrg['names'], svrg['loss']
    path.write_bytes(pickle.dumps({'trainer': states, 'svrg': svrg}))


@pytest.mark.parametrize('on_kvstore', [False, True])
def test_trainer_loads_the_states_of_the_optimizer(on_kvstore, tmp_path):
    path, contexts = tmp_path / 'states', [mx.cpu(0), mx.cpu(1)]
    saver = PROBLEM.trainer(PROBLEM.net(contexts), update_on_kvstore=on_kvstore)
    train(saver, PROBLEM.loader(), 3, contexts=contexts)
    saver.save_states(str(path))
    plain = PROBLEM.trainer(PROBLEM.net(contexts), gluon.Trainer, update_on_kvstore=on_kvstore)
    plain.load_states(str(path))
    ours, theirs = ((trainer._kvstore._updater if on_kvstore else trainer._updaters[0]).states
                    for trainer in (saver, plain))
    assert set(theirs) == set(ours) == {0, 1, 2, 3}
    for key, momentum in ours.items():
        assert momentum.asnumpy().any()
        np.testing.assert_array_equal(theirs[key].asnumpy(), momentum.asnumpy())
    assert plain.optimizer.num_update == saver.optimizer.num_update


def test_files_of_2_0_0_are_loaded(tmp_path):
    path = tmp_path / 'states'
    saver = trained(3, path)
    content = pickle.dumps(dict(zip(('trainer', 'svrg'), unpickled(path.read_bytes()))))
    path.write_bytes(content + b'sha256:' + hashlib.sha256(content).hexdigest().encode())
    loader = trained(1)
    loader.load_states(str(path))
    assert are_equal(state_of(loader), state_of(saver))


def test_states_that_are_loaded_have_not_converged(tmp_path):
    path = str(tmp_path / 'states')
    net = PROBLEM.net()
    trainer = PROBLEM.trainer(net, tol=1e9)
    trainer.save_states(path)
    trainer.update_full_grads(PROBLEM.loader())
    assert trainer.has_converged
    trainer.load_states(path)
    assert not trainer.has_converged


def test_a_converged_training_that_is_loaded_makes_no_step(tmp_path):
    path, problem = str(tmp_path / 'states'), Blocks('softmax')

    def trainer_of(net):
        return problem.trainer(net, tol=1e-2, settings={'lr_scheduler': BarzilaiBorwein()})

    def trained_on(trainer, begin):
        epochs = 0
        for batches in trainer.epochs(problem.loader(), 100, 2, begin_epoch=begin):
            epochs += 1
            for data, label in batches:
                trainer.backward(data, label)
                trainer.step(len(data))
        return epochs

    net, again = problem.net(), problem.net()
    saver, loader = trainer_of(net), trainer_of(again)
    epochs = trained_on(saver, 0)
    assert saver.has_converged and 2 < epochs < 100
    saver.save_states(path)
    weights = weights_of(net)
    for name, param in again.collect_params().items():
        param.set_data(as_blocks_take(weights[name]))
    loader.load_states(path)
    assert loader.has_converged
    assert trained_on(loader, epochs + 1) == 0  # at an odd epoch no snapshot is due
    assert_weights(again, weights)


def test_files_of_1_0_0_are_loaded(tmp_path):
    path = tmp_path / 'states'
    saver = trained(3, path)
    without_checksum(path)
    loader = trained(1)
    loader.load_states(str(path))
    assert are_equal(state_of(loader), state_of(saver))


def test_errors_of_damaged_files_of_1_0_0_name_the_file(tmp_path):
    path, rng = tmp_path / 'states', random.Random(0)
    trained(1, path)
    without_checksum(path)
    whole = path.read_bytes()
    loader = trained(1)
    for _ in range(150):
        path.write_bytes(damaged(whole, rng))
        try:
            loader.load_states(str(path))
        except ValueError as error:
            assert str(error).startswith('%s is damaged' % path)


def save_states_of_module(path):
    module = PROBLEM.module(2)
    module.fit(PROBLEM.iterator(), num_epoch=1, optimizer_params={'momentum': 0.5})
    module.save_optimizer_states(str(path))


@pytest.mark.parametrize('save', [
    pytest.param(save_states_of_module, marks=pytest.mark.nd_arrays),
    lambda path: path.write_bytes(pickle.dumps([1, 2])),
    lambda path: path.write_bytes(pickle.dumps({'trainer': 1, 'svrg': 2})),
    lambda path: path.write_bytes(b''), lambda path: path.write_bytes(b'text'),
    lambda path: mx.nd.save(str(path), [mx.nd.ones(3)])])
def test_files_of_something_else_are_refused(save, tmp_path):
    path = tmp_path / 'states'
    save(path)
    trainer = trained(1)
    before = state_of(trainer)
    with pytest.raises(ValueError, match='states is damaged, or has no states for these param'):
        trainer.load_states(str(path))
    assert are_equal(state_of(trainer), before)


@pytest.mark.nd_arrays
def test_states_are_loaded_after_shapes_are_known(tmp_path):
    """Before, the error says so, and not that the file is damaged."""
    path, rng = str(tmp_path / 'states'), np.random.RandomState(0)
    data, label = mx.nd.array(rng.normal(size=(8, 3))), mx.nd.array(rng.normal(size=(8, 1)))

    def trainer_of(net):
        return SVRGTrainer(net.collect_params(), 'sgd', {'momentum': 0.9}, objective=(
            lambda data, label: gluon.loss.L2Loss()(net(data), label)))

    saved = gluon.nn.Dense(1, prefix='fc_')
    saved.initialize()
    saver = trainer_of(saved)
    saver.update_full_grads([(data, label)])
    saver.save_states(path)
    saved.save_parameters(path + '.params')
    net = gluon.nn.Dense(1, prefix='fc_')
    net.initialize()
    loader = trainer_of(net)
    with pytest.raises(RuntimeError, match='load_states needs parameters whose shapes are known: '
                                           'call net.load_parameters before it, or net once'):
        loader.load_states(path)
    net.load_parameters(path + '.params')
    loader.load_states(path)
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
    """dense9_ comes before dense10_, and after it in the order of Trainer."""
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
        with pytest.raises(ValueError, match=r'states is damaged.* in another order: .*prefixes'):
            resumed.load_states(path)
        return
    resumed.load_states(path)
    for one in (trainer, resumed):
        train(one, data, 4, begin=3)
    assert_weights(nets[1], dict(zip(weights_of(nets[1]), weights_of(nets[0]).values())), 1e-7)


def test_a_rate_found_goes_on_in_a_network_with_other_counters(tmp_path):
    """The best snapshot so far is an earlier one, whose weights have the old names."""
    path, rng = str(tmp_path / 'states'), np.random.RandomState(0)
    rows = as_blocks_take(rng.standard_t(1.2, size=(40, 5, 8)))
    batches = list(zip(rows, as_blocks_take(rng.normal(size=(40, 5, 1)))))
    loss = gluon.loss.L2Loss()

    def trainer_of(weights=None):
        net = gluon.nn.Dense(1, in_units=8)
        net.initialize(mx.init.Zero())
        for param, value in zip(net.collect_params().values(), weights or []):
            param.set_data(value)
        return net, SVRGTrainer(net.collect_params(), 'nag', {
            'momentum': 0.9, 'lr_scheduler': BarzilaiBorwein()},
            objective=lambda data, label: loss(net(data), label))

    def train_epochs(trainer, begin, end):
        for epoch in range(begin, end):
            if epoch % 2 == 0:
                trainer.update_full_grads(batches)
            for batch in batches:
                trainer.backward(*batch)
                trainer.step(5)

    net, trainer = trainer_of()
    train_epochs(trainer, 0, 3)
    trainer.save_states(path)
    net, resumed = trainer_of([param.data() for param in net.collect_params().values()])
    resumed.load_states(path)
    rule, norm = resumed._optimizer.lr_scheduler, resumed.gradient_norm
    train_epochs(resumed, 3, 40)
    assert rule.ways_back > 0 and resumed.gradient_norm < norm / 10


@pytest.mark.filterwarnings('ignore:the learning rate was too large since the last snapshot')
def test_a_finished_run_that_is_resumed_ends_at_the_same_weights(tmp_path, caplog):
    """Its last snapshot, after the last file, has set the weights back."""
    path, problem = str(tmp_path / 'states'), Blocks(rows=40)
    caplog.set_level(logging.INFO)

    def run(begin):
        net = problem.net()
        trainer = problem.trainer(net, settings={
            'lr_scheduler': BarzilaiBorwein(1e3, bounded=False)})
        if begin:
            net.load_parameters(path + '.params')
            trainer.load_states(path)
        for batches in trainer.epochs(problem.loader(), 2, 2, begin_epoch=begin):
            for data, label in batches:
                trainer.backward(data, label)
                trainer.step(len(data))
            net.save_parameters(path + '.params')
            trainer.save_states(path)
        return weights_of(net)

    finished = run(0)
    caplog.clear()
    resumed = run(2)
    assert caplog.text.count('Epoch[1] Full gradient norm=') == 1
    saved = problem.net()
    saved.load_parameters(path + '.params')
    for name, value in finished.items():
        np.testing.assert_array_equal(resumed[name], value)
        assert (weights_of(saved)[name] != value).any()

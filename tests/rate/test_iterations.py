"""'newton_cg' in all front ends: an epoch is an iteration, whose end callbacks see."""

import logging
import re
import warnings

import mxnet as mx
import numpy as np
import pytest

from blocks import Blocks, train_epochs, weights_of
from problems import Problem
from sequences import Sequences
from svrg_optimization import EarlyStopping, SVRGModule
from svrg_optimization.proximal import L1

SAYS = 'newton_cg moves the weights in update_full_grads: leave out forward, backward and update'


class ByModule:
    """Trains a Module; `seen` has of each callback the weights, the Result and those of a file."""

    make, sizes = Problem, {'rows': 37}

    def __init__(self, kind='softmax', folder=None, **given):
        self.problem, self.wd = self.make(kind, **self.sizes), 0. if given.get('proximal') else 0.01
        self.seen, self.folder, self.data = [], folder, self.problem.iterator()
        self.trains = self.made(**given)

    def made(self, **given):
        return self.problem.module(**given)

    def fit(self, epochs=50, begin=0, optimizer='newton_cg', at_end=lambda epoch: None, **given):
        def see(epoch, _, weights, aux):
            at_end(epoch)
            of_file = None
            if self.folder:
                self.trains.save_checkpoint(str(self.folder / 'model'), epoch + 1, True)
                of_file = self.of_arrays(mx.nd.load(str(
                    self.folder / ('model-%04d.params' % (epoch + 1)))))
            self.seen.append((self.of_arrays(weights), self.trains.result, of_file))

        self.trains.fit(self.data, eval_metric=[], begin_epoch=begin, num_epoch=epochs,
                        arg_params=None if self.trains.binded else self.problem.arg_params(),
                        optimizer=optimizer, optimizer_params={'wd': self.wd},
                        epoch_end_callback=see, **given)
        return self

    @staticmethod
    def of_arrays(arrays):
        return {name.replace('arg:', ''): value.asnumpy() for name, value in arrays.items()}

    def weights(self):
        return self.of_arrays(self.trains.get_params()[0])

    def load(self, epoch):
        self.trains = SVRGModule.load(str(self.folder / 'model'), epoch, True,
                                      label_names=('label',))
        return self


class ByBuckets(ByModule):
    """Trains a BucketingModule."""

    make = staticmethod(lambda kind, rows: Sequences())


class ByGluon(ByModule):
    """Trains a network."""

    make = Blocks

    def made(self, **given):
        self.data, self.net = self.problem.loader(), self.problem.net()
        return self.problem.trainer(self.net, optimizer=given.pop('optimizer', 'newton_cg'),
                                    settings={'wd': self.wd}, **given)

    def fit(self, epochs=50, begin=0, at_end=lambda epoch: None):
        for epoch, batches in enumerate(self.trains.epochs(
                self.data, epochs, begin_epoch=begin), begin):
            assert not list(batches)
            at_end(epoch)
            of_file = None
            if self.folder:
                name = str(self.folder / ('%d.' % (epoch + 1)))
                self.net.save_parameters(name + 'params')
                self.trains.save_states(name + 'states')
                of_file = {'fc_' + key[2:]: value for key, value in self.of_arrays(
                    mx.nd.load(name + 'params')).items()}
            self.seen.append((self.weights(), self.trains.result, of_file))
        return self

    def weights(self):
        return weights_of(self.net)

    def load(self, epoch):
        name = str(self.folder / ('%d.' % epoch))
        self.net.load_parameters(name + 'params')
        self.trains.load_states(name + 'states')
        return self


both = pytest.mark.parametrize('front_end', [ByModule, ByGluon])
all_three = pytest.mark.parametrize('front_end', [ByModule, ByBuckets, ByGluon])


@all_three
@pytest.mark.parametrize('kind, given', [
    ('linear', {}), ('softmax', {}), ('linear', {'proximal': L1(0.01)})])
def test_callbacks_and_files_have_the_weights_and_the_result_of_each_iteration(
        front_end, kind, given, tmp_path, caplog):
    """The last ones are the final weights; none is above the one before, or the start."""
    caplog.set_level(logging.INFO)
    start = front_end(kind).fit(0)
    if front_end is ByModule and not given:
        problem, wd = start.problem, 0.01
        start.trains.init_optimizer(optimizer_params={'wd': wd}, force_init=True)
        start.trains.update_full_grads(problem.iterator())
    training = front_end(kind, tmp_path, tol=1e-5, **given).fit()
    trains, seen = training.trains, training.seen
    assert trains.has_converged and 1 < len(seen) < 50
    for name, value in training.weights().items():
        for weights in seen[-1][0], seen[-1][2]:
            np.testing.assert_array_equal(weights[name], value)
    for weights, _, of_file in seen:
        assert all((of_file[name] == value).all() for name, value in weights.items())
    results = [result for _, result, _ in seen]
    assert [result.epochs for result in results] == list(range(1, len(seen) + 1))
    assert trains.result.epochs == len(seen) and trains.full_objective == results[-1].objective
    assert (np.diff([result.passes for result in results]) > 0).all()
    objectives = [result.objective for result in results]
    if front_end is ByModule and not given:
        objectives.insert(0, start.trains.full_objective)
    assert all(after <= before * (1 + 1e-6) for before, after in zip(objectives, objectives[1:]))
    logged = [record.getMessage() for record in caplog.records
              if re.match(r'Epoch.*(Objective|Distance|Full)', record.getMessage())]
    number = r'[-+.0-9e]+'
    for epoch, (line, result) in enumerate(zip(logged, results)):
        assert re.fullmatch(r'Epoch\[%d\] Objective=%s( Distance=%s)? Passes=%d' % (
            epoch, number, number, result.passes), line)
        assert '=%g ' % result.objective in line
    assert len(logged) == len(seen)


@pytest.mark.exact_data
@both
def test_at_the_optimum_callbacks_are_called_once(front_end, tmp_path):
    """In a second training, with the files of the first, and in one that begins there."""
    first = front_end('linear', tmp_path, tol=1e-6).fit()
    expected, again = first.weights(), front_end('linear', tmp_path, tol=0.01).load(len(first.seen))
    begins_there = front_end('linear', tol=0.01)
    begins_there.problem.weights = {name: value.astype('f8') for name, value in expected.items()}
    begins_there.trains = begins_there.made(tol=0.01)
    first.trains.tol, first.seen = 0.01, []
    for training, begin in (first, 0), (again, len(again.seen)), (begins_there, 0):
        training.fit(begin=begin)
        (weights, result, _), = training.seen
        assert training.trains.has_converged and result.epochs == 1
        for name, value in expected.items():
            np.testing.assert_array_equal(weights[name], value)


@both
def test_early_stopping_ends_between_two_iterations(front_end):
    training, values = front_end(), iter([3., 2., 2.5, 0.])
    with EarlyStopping(training.trains, 'min', 1) as stopping:
        training.fit(at_end=lambda _: len(training.seen) and stopping.check(next(values)))
    result = training.trains.result
    assert (result.reason, result.epochs, stopping.best_epoch) == ('stopped early', 4, 1)
    for name, value in training.weights().items():  # of the epoch at which the best was checked
        assert (value != training.seen[1][0][name]).any()
        np.testing.assert_array_equal(value, training.seen[2][0][name])


@both
def test_a_call_by_hand_makes_an_iteration(front_end):
    training = front_end().fit(2)
    trains, objective = training.trains, training.trains.full_objective
    for data in training.data, type(training)().data:  # as many people make it in each epoch
        trains.update_full_grads(data)
        assert trains.full_objective < objective
        objective = trains.full_objective


def test_steps_of_a_trainer_are_refused():
    training = ByGluon()
    for step in training.trains.step, training.trains.update:
        training.trains.backward(*next(iter(training.data)))
        with pytest.raises(RuntimeError, match=SAYS):
            step(10)


def assert_unchanged(training):
    for name, value in training.problem.weights.items():
        np.testing.assert_array_equal(training.weights()[name], value.astype('f4'))


@pytest.mark.exact_data
@both
def test_other_models_are_refused_before_a_weight_has_changed(front_end):
    training = front_end('perceptron')
    with pytest.raises(ValueError, match="newton_cg is for linear models, without random layers, "
                       ".* Choose 'sgd' with a learning_rate"):
        training.fit()
    assert not training.seen
    assert_unchanged(training)


@pytest.mark.exact_data
@both
def test_a_tol_that_cannot_be_checked_is_told_once_at_the_beginning(front_end):
    def train(training):
        if front_end is ByModule:
            training.fit(3, optimizer='sgd')
        else:
            train_epochs(training.trains, training.data, 3)

    made = {'tol': 1e-9, **({'optimizer': 'sgd'} if front_end is ByGluon else {})}
    training = front_end('perceptron', **made)
    with warnings.catch_warnings(), pytest.raises(UserWarning):
        warnings.filterwarnings('error', 'tol cannot be checked')
        train(training)
    assert_unchanged(training)
    training = front_end('perceptron', **made)
    with pytest.warns(UserWarning, match='tol cannot be checked, so that all epochs are') as told:
        train(training)
    assert sum('tol' in str(each.message) for each in told) == 1
    assert training.trains.result.epochs == 3


def test_training_begins_near_0_where_the_objective_is_less():
    """Where weights saturate a softmax, a first step would not come down so far."""
    training = ByModule()
    training.problem.weights = {name: 100 * value for name, value in (
        training.problem.weights.items())}
    assert training.fit(1).trains.full_objective <= 1.001 * np.log(3)


@pytest.mark.exact_data
def test_data_that_can_be_read_once_are_refused():
    training = ByGluon()
    with pytest.raises(ValueError, match='train_data must be read several times with newton_cg'):
        training.trains.update_full_grads(iter(list(training.data)))
    assert_unchanged(training)


class Interrupted(mx.io.NDArrayIter):
    """Is interrupted as soon as the weights have moved."""

    def iter_next(self):
        if self.has_moved():
            raise KeyboardInterrupt
        return super().iter_next()


def test_an_interrupted_trial_leaves_the_weights_of_before():
    training = ByModule().fit(1)
    before, data = training.weights(), training.problem.iterator(cls=Interrupted)
    data.has_moved = lambda: any((value != before[name]).any()
                                 for name, value in training.weights().items())
    with pytest.raises(KeyboardInterrupt):
        training.trains.update_full_grads(data)
    assert not data.has_moved()


def test_momentum_has_no_effect_which_is_told_once():
    plain, found = ByModule().fit(3), ByModule()
    with pytest.warns(UserWarning, match='momentum=0.9 has no effect with newton_cg') as caught:
        found.problem.fit(found.trains, 3, optimizer='newton_cg',
                          optimizer_params={'momentum': 0.9, 'wd': 0.01})
    assert len(caught) == 1
    for name, value in plain.weights().items():
        np.testing.assert_array_equal(found.weights()[name], value)


@both
def test_weights_that_a_user_sets_are_those_of_the_next_iteration(front_end):
    training = front_end().fit(5)
    trains, best = training.trains, training.trains.full_objective
    others = {name: mx.nd.array(value + 1 + np.arange(value.size).reshape(value.shape))
              for name, value in training.weights().items()}
    if front_end is ByModule:
        trains.set_params(others, {})
    else:
        for name, param in training.net.collect_params().items():
            param.set_data(others[name])
    trains.update_full_grads(training.data)
    assert trains.full_objective > best

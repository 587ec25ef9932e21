"""What both front ends have, by the same tests against float64."""

import contextlib
import copy
import pickle

import pytest

import blocks
import stepping
from svrg_optimization import SVRGModule

PROBLEM = blocks.Blocks(rows=60)
both = pytest.mark.parametrize('front_end', [stepping.Training, blocks.Training])


@both
def test_tol_is_compared_at_each_snapshot(front_end):
    training = front_end(PROBLEM)
    trains = training.trains
    trains.tol = 1e3
    training.snapshot()
    assert trains.has_converged and 0 < trains.result.distance < 1e3
    training.epoch()
    for tol, expected in ((1e3, True), (None, False), (1e-3, False), (1e3, True)):
        trains.tol = tol
        assert trains.tol == tol
        training.snapshot()
        assert trains.has_converged is expected
    with pytest.raises(ValueError, match='tol must be None or a number above 0, not -1'):
        trains.tol = -1
    assert trains.tol == 1e3


def train_an_epoch(trains, data, epoch):
    if isinstance(trains, SVRGModule):
        trains.fit(data, eval_metric=[], begin_epoch=epoch, num_epoch=epoch + 1)
    else:
        blocks.train_epochs(trains, data, epoch + 1, 9, begin_epoch=epoch)


@pytest.mark.parametrize('front_end, data_of', [
    (lambda: stepping.Training(PROBLEM, update_freq=9), PROBLEM.iterator),
    (lambda: blocks.Training(PROBLEM), lambda: blocks.Blocks(rows=60).loader()),
    (lambda: blocks.Training(PROBLEM), lambda: list(PROBLEM.loader()))])
def test_a_snapshot_is_due_for_other_data(front_end, data_of):
    trains = front_end().trains
    snapshot, data = trains._svrg.snapshot, data_of()
    for epoch in (1, 2):
        train_an_epoch(trains, data, epoch)
        assert snapshot.num_taken == 1
    del data
    for epoch in (3, 4, 5):  # an object that is freed may have the address of the one before
        train_an_epoch(trains, data_of(), epoch)
        assert snapshot.num_taken == epoch - 1


@both
@pytest.mark.parametrize('copied', [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_trains_is_not_copied(front_end, copied):
    with pytest.raises(TypeError, match='cannot be copied or pickled: save_.* and '):
        copied(front_end(PROBLEM).trains)


@both
@pytest.mark.parametrize('tol, optimizer', [(None, 'sgd'), (1e-3, 'sgd'), (None, 'newton_cg')])
def test_the_input_with_rows_that_are_not_finite_is_named(front_end, tol, optimizer):
    training = front_end(blocks.Blocks(rows=60), optimizer=optimizer, settings={'wd': 0.01})
    training.trains.tol = tol
    training.problem.features[[3, 50], 1] = float('nan')
    name = 'data' if front_end is stepping.Training else 'input 0 of objective'
    with pytest.warns(UserWarning, match='Rows of %s that are not finite: 2. With ' % name):
        training.trains.update_full_grads(
            training.problem.iterator() if name == 'data' else training.problem.loader())


@both
def test_steps_without_a_snapshot_are_plain_and_warned_of_once(front_end):
    training = front_end(PROBLEM)
    (batch, _), *_ = training.batches()
    training.backward(batch)  # gradients alone are no training
    with pytest.warns(UserWarning, match='without a snapshot .* update_full_grads') as caught:
        training.epoch()
        training.epoch()
    assert len(caught) == 1
    training.check()


class _Stop(BaseException):
    """As a KeyboardInterrupt."""


@both
@pytest.mark.parametrize('error', [KeyboardInterrupt, OSError, _Stop, None])
def test_the_result_of_an_interrupted_training_says_so(front_end, error):
    training = front_end(PROBLEM)
    trains, data = training.trains, PROBLEM.iterator()
    is_module = front_end is stepping.Training
    if error is None and is_module:
        return  # a loop is left
    with pytest.raises(error) if error else contextlib.nullcontext():
        if is_module:
            def stop(param):
                if (param.epoch, param.nbatch) == (1, 1):
                    raise error
            trains.fit(data, eval_metric=[], num_epoch=3, batch_end_callback=stop)
        else:
            for epoch, batches in enumerate(trains.epochs(PROBLEM.loader(), 3)):
                for batch in batches:
                    trains.backward(*batch)
                    trains.step(len(batch[0]))
                    if epoch == 1 and error:
                        raise error
                if epoch == 1:
                    break
    result = trains.result
    assert (result.reason, result.epochs) == ('interrupted', 1)
    assert str(result).startswith('training was interrupted (')
    train_an_epoch(trains, data if is_module else PROBLEM.loader(), 0)
    assert trains.result.reason == 'epochs used up'
    assert 'converge' not in str(trains.result)  # nobody has asked for it


def test_an_earlier_loop_says_nothing_of_a_later_training():
    trainer, data = blocks.Training(PROBLEM).trains, PROBLEM.loader()
    loop = trainer.epochs(data, 3)
    next(loop)
    train_an_epoch(trainer, data, 0)
    loop.close()
    assert trainer.result.reason == 'epochs used up'


@both
def test_a_rate_that_has_become_negative_is_refused_before_the_next_epoch(front_end):
    training = front_end(PROBLEM)
    training.snapshot()
    training.epoch()
    optimizer = training.trains._optimizer
    vars(getattr(optimizer, 'default_opt', optimizer))['lr'] = -0.1  # as by its own setter
    with pytest.raises(ValueError, match='learning_rate must be a finite .*, not -0.1'):
        train_an_epoch(training.trains, PROBLEM.iterator() if front_end is stepping.Training
                       else PROBLEM.loader(), 0)
    training.check()

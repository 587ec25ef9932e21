"""'newton_cg' in both front ends: an epoch is an iteration, whose end callbacks see."""

import logging

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from blocks import Blocks, weights_of
from problems import TWO_DEVICES, Problem
from svrg_optimization.proximal import L1

SAYS = 'newton_cg moves the weights in update_full_grads: leave out forward, backward and update'


def by_module(kind, epochs=50, data=None, **given):
    problem, seen = Problem(kind, rows=37), []
    module = problem.module(**given)
    data = data or problem.iterator()
    problem.fit(module, epochs, data, optimizer='newton_cg',
                optimizer_params={'wd': 0. if given.get('proximal') else 0.01},
                epoch_end_callback=lambda _, __, weights, ___: seen.append((
                    {name: value.asnumpy() for name, value in weights.items()},
                    module.objective)))
    weights = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    return module, seen, weights, data


def by_gluon(kind, epochs=50, data=None, **given):
    problem, seen = Blocks(kind, rows=37), []
    net = problem.net()
    trainer = problem.trainer(net, optimizer='newton_cg',
                              settings={'wd': 0. if given.get('proximal') else 0.01},
                              **given)
    data = data or problem.loader()
    for batches in trainer.epochs(data, epochs):
        assert not list(batches)
        seen.append((weights_of(net), trainer.objective))
    return trainer, seen, weights_of(net), data


both = pytest.mark.parametrize('front_end', [by_module, by_gluon])


@both
@pytest.mark.parametrize('kind', ['linear', 'softmax'])
@pytest.mark.parametrize('given', [{}, {'proximal': L1(0.01)}])
def test_the_last_callback_sees_the_final_weights_and_none_a_rise(front_end, kind, given):
    trains, seen, weights, _ = front_end(kind, tol=1e-5, **given)
    assert trains.has_converged and 1 < trains.result.epochs == len(seen) < 50
    for name, value in weights.items():
        np.testing.assert_array_equal(seen[-1][0][name], value)
    objectives = [objective for _, objective in seen]
    assert all(after <= before * (1 + 1e-6) for before, after in zip(objectives, objectives[1:]))


def test_where_nothing_is_left_to_do_callbacks_are_called_once():
    trains, seen, weights, data = by_module('linear', tol=1e-6)
    again, trains.tol = [], 0.01
    trains.fit(data, eval_metric=[], num_epoch=9, optimizer='newton_cg',
               epoch_end_callback=lambda *_: again.append(trains.result.reason))
    assert again == ['converged']
    for name, value in weights.items():
        np.testing.assert_array_equal(trains.get_params()[0][name].asnumpy(), value)


@both
def test_a_call_by_hand_makes_an_iteration(front_end):
    trains, seen, _, data = front_end('softmax', 2)
    objective, number = trains.objective, trains._svrg.snapshot.num_taken
    trains.update_full_grads(data)
    assert trains.objective < objective and trains._svrg.snapshot.num_taken > number


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_steps_are_refused(context):
    problem = Problem()
    module = problem.fit(problem.module(context=context), 1, optimizer='newton_cg')
    module.forward_backward(next(iter(problem.iterator())))
    with pytest.raises(RuntimeError, match=SAYS):
        module.update()
    problem = Blocks()
    trainer = problem.trainer(problem.net(), optimizer='newton_cg', settings={})
    batch = next(iter(problem.loader()))
    for step in (trainer.step, trainer.update):
        trainer.backward(*batch)
        with pytest.raises(RuntimeError, match=SAYS):
            step(10)


@pytest.mark.parametrize('extra', [
    [], [gluon.nn.Dropout(0.5)], [gluon.nn.BatchNorm(in_channels=4)]])
def test_other_models_are_refused(extra):
    kind = 'softmax' if extra else 'perceptron'
    problem = Blocks(kind, rows=40)
    trainer = problem.trainer(problem.net(extra=extra), optimizer='newton_cg', settings={})
    with pytest.raises(ValueError, match="choose 'sgd' with a learning_rate"):
        trainer.update_full_grads(problem.loader())
    if not extra:
        problem = Problem(kind)
        with pytest.raises(ValueError, match="choose 'sgd' with a learning_rate"):
            problem.fit(problem.module(), 1, optimizer='newton_cg')


def test_weights_that_a_user_sets_are_those_of_the_next_iteration():
    trains, _, weights, data = by_module('softmax', 5)
    best = trains.objective
    trains.set_params({name: mx.nd.array(value + 1 + np.arange(value.size).reshape(value.shape))
                       for name, value in weights.items()}, {})
    trains.update_full_grads(data)
    assert trains.objective > best


def test_an_interrupt_leaves_the_weights_that_were_seen(monkeypatch):
    trains, seen, _, data = by_module('softmax', 2)
    count = [0]

    def interrupt(*args, **kwargs):
        count[0] += 1
        raise KeyboardInterrupt

    monkeypatch.setattr('svrg_optimization.rate.learning.change', interrupt)
    with pytest.raises(KeyboardInterrupt):
        trains.update_full_grads(data)
    assert count[0] == 1
    for name, value in seen[-1][0].items():
        np.testing.assert_array_equal(trains.get_params()[0][name].asnumpy(), value)
    monkeypatch.undo()
    objective = trains.objective
    trains.update_full_grads(data)
    assert trains.objective <= objective


def test_the_log_of_an_epoch_is_of_its_end(caplog):
    caplog.set_level(logging.INFO)
    trains, *_ = by_module('softmax', 3)
    logged = [float(record.getMessage().split('=')[1]) for record in caplog.records
              if 'Full objective' in record.getMessage()]
    assert len(logged) == 3 and logged[-1] == pytest.approx(trains.objective, rel=1e-4)

"""A Ctrl-C while a pass binds a further module, and training after interruptions anywhere."""

import collections
import random
import warnings

import mxnet as mx
import numpy as np
import pytest

from interruption import Interruption
from problems import Problem
from svrg_optimization import SVRGModule

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def bound(problem, **kwargs):
    module = problem.bound(**kwargs, sgd={})
    return module


@pytest.mark.slow
@pytest.mark.parametrize('rows', [400, 37])
def test_a_pass_is_exact_after_one_whose_bind_was_interrupted_at_any_step(rows):
    problem = Problem(rows=rows)
    train_data = problem.iterator()
    svrg = problem.svrg()
    svrg.take_snapshot()
    functions = {'_bind_other', 'for_batch', 'bind'}
    module = bound(problem)
    steps = Interruption(lambda: module.update_full_grads(train_data),
                         functions=functions).operations
    assert steps > 20
    for step in range(1, steps + 1):
        module = bound(problem)
        Interruption(lambda: module.update_full_grads(train_data), step, functions)  # noqa: B023
        assert not module._snapshot.is_active
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, svrg.full_gradient)


def run_of(number):
    """Draw the settings of a training run, and return a function that makes its module."""
    draw = random.Random(number)
    problem = Problem(rows=draw.choice([40, 37, 160]))
    rows = len(problem.features)
    problem.features = np.linalg.qr(problem.features)[0] * rows ** 0.5  # well conditioned
    kwargs = {'context': draw.choice([mx.cpu(), TWO_DEVICES]), 'update_freq': 1}
    kind = draw.choice(['plain', 'stored', 'few updates', 'sampled'])
    if kind == 'stored':
        kwargs['store_snapshot_grads'] = True
    elif kind == 'few updates':
        kwargs['updates_per_snapshot'] = 3
    elif kind == 'sampled':
        kwargs['full_grad_batches'] = 2
    return problem, kind, lambda: SVRGModule(problem.symbol, label_names=('label',), **kwargs)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_training_reaches_the_optimum_after_500_interruptions():
    interrupted, operations = collections.Counter(), {}
    for number in range(500):
        problem, kind, make = run_of(number % 25)
        train_data = problem.iterator()

        def fit(module, num_epoch, begin_epoch=0):
            module.fit(train_data, eval_metric=[], begin_epoch=begin_epoch,  # noqa: B023
                       num_epoch=num_epoch, kvstore='local',
                       optimizer_params={'learning_rate': 0.4})

        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            if number < 25:
                operations[number] = Interruption(lambda: fit(make(), 2)).operations  # noqa: B023
                train_data.reset()
            module, at = make(), random.Random(number).randint(1, operations[number % 25])
            Interruption(lambda: fit(module, 2), at)  # noqa: B023
            interrupted[kind, 'bound' if module.binded else 'not bound',
                        'snapshot' if module._snapshot.is_active else 'no snapshot'] += 1
            train_data.reset()
            module.full_grad_batches = None  # a sample has no optimum to reach
            fit(module, 15)
        columns = np.hstack([problem.features, np.ones((len(problem.features), 1))])
        optimum = np.linalg.lstsq(columns, problem.targets, rcond=None)[0]
        problem.assert_weights(module, {'fc_weight': optimum[None, :-1], 'fc_bias': optimum[-1:]},
                               1e-4)
    print(dict(interrupted))
    assert len(interrupted) > 8

"""Workers that make their steps alone, against float64."""


import numpy as np
import pytest

import oracle
from blocks import BIAS
from cluster import run_workers
from problems import Problem, assert_close
from svrg_optimization.proximal import L1

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SGD = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}


def shards_of(sizes):
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


@pytest.mark.parametrize('sizes, servers, kind, update_freq, devices', [
    ([24, 40], 1, 'softmax', 1, 1), ([13, 40, 22], 2, 'perceptron', 2, 1),
    ([24, 42], 1, 'perceptron', 1, 2)])
def test_modules_step_alone(tmp_path, sizes, servers, kind, update_freq, devices):
    problem = {'kind': kind, 'rows': sum(sizes)}
    results = run_workers('fit', tmp_path, len(sizes), servers, problem=problem, sizes=sizes,
                          batch_size=8, num_epoch=5, update_freq=update_freq, devices=devices,
                          optimizer=SGD, local_steps=True)
    expected = oracle.train_alone(Problem(**problem), shards_of(sizes), 8, 5, update_freq, **SGD)
    for told in results:
        assert_close(told['weights'], expected[-1])


@pytest.mark.parametrize('sizes, servers, with_np', [([24, 40], 1, False), ([13, 40, 22], 2, True)])
def test_trainers_step_alone(tmp_path, sizes, servers, with_np):
    given = {'kind': 'perceptron', 'features': 4, 'rows': sum(sizes)}
    results = run_workers('fit_gluon_alone', tmp_path, len(sizes), servers, problem=given,
                          sizes=sizes, batch_size=8, num_epoch=5, optimizer=SGD, with_np=with_np)
    expected = oracle.train_alone(Problem(**given), shards_of(sizes), 8, 5, 2, pads=False,
                                  **SGD, **BIAS)
    for weights in results:
        assert_close(weights, expected[-1])


@pytest.mark.parametrize('arguments, in_float64', [
    ({'alpha': 0.4}, {'alpha': 0.4}),
    ({'proximal': L1(0.05)}, {'proximal': {'fc_weight': oracle.soft_threshold(0.05)}}),
    ({'store_snapshot_grads': True}, {})], ids=['alpha', 'proximal', 'stored'])
def test_options_of_steps_alone(tmp_path, arguments, in_float64, sizes=(16, 24)):
    problem = {'kind': 'softmax', 'rows': sum(sizes)}
    given = {'learning_rate': 0.5, 'wd': 0.01}
    results = run_workers('fit', tmp_path, problem=problem, sizes=sizes, batch_size=24,
                          num_epoch=4, update_freq=2, optimizer=given, local_steps=True,
                          **arguments)
    expected = oracle.train_alone(Problem(**problem), shards_of(sizes), 24, 4, 2, **given,
                                  **in_float64)
    for told in results:
        assert_close(told['weights'], expected[-1])


@pytest.mark.parametrize('workers, given', [
    (2, {'unlike': False}), (2, {'unlike': True}), (3, {'unlike': True}),
    # Rates for unlike shards are so small that float32 holds no step where the gradient is 1e-6.
    *((2, {'unlike': True, 'dtype': 'float64', 'rows': 4000, 'features': 20, 'tol': 1e-6,
           'seed': seed}) for seed in (0, 1))], ids=str)
def test_workers_converge_with_two_messages_an_epoch(tmp_path, workers, given):
    results = run_workers('converge_alone', tmp_path, workers, **given)
    data, targets = results[0]['data'], results[0]['targets']
    hessian = data.T @ data / len(data) + 1e-3 * np.eye(data.shape[1])
    optimum = np.linalg.solve(hessian, data.T @ targets / len(data))
    for told in results:
        assert told['converged'] and told['epochs'] == results[0]['epochs'] < 100
        np.testing.assert_array_equal(told['weights'], results[0]['weights'])
        error = told['weights'] - optimum
        assert error @ hessian @ error < (5 * given.get('tol', 1e-5)) ** 2 * (
            optimum @ hessian @ optimum)
        assert not told['within']
        # The full gradient and the weights; and its counts, the rate and whether to end. The
        # first snapshot has the metric and the first pair, too.
        assert told['pushed'] <= 5 * (told['epochs'] + 1) + 8


def test_a_resumed_run_goes_on_to_the_bit(tmp_path, sizes=(24, 40)):
    whole, resumed = (run_workers(
        'fit', tmp_path, prefix=str(tmp_path / 'model'), problem={'kind': 'softmax', 'rows': 64},
        sizes=sizes, batch_size=8, optimizer=SGD, local_steps=True, update_freq=2, num_epoch=6,
        resume_at=begin) for begin in (0, 4))
    for first, second in zip(whole, resumed):
        for name, value in first['weights'].items():
            np.testing.assert_array_equal(second['weights'][name], value)


def test_a_resumed_trainer_goes_on_to_the_bit(tmp_path):
    whole, resumed = (run_workers(
        'resume_gluon_alone', tmp_path, sizes=[24, 40], prefix=str(tmp_path / 'files'),
        problem={'kind': 'perceptron', 'features': 4, 'rows': 64}, begin=begin)
        for begin in (0, 2))
    for first, second in zip(whole, resumed):
        for name, value in first.items():
            np.testing.assert_array_equal(second[name], value)


def test_statistics_of_batches_are_averaged(tmp_path):
    results = run_workers('statistics_alone', tmp_path, sizes=[16, 48])
    own = [told[0] for told in results]
    assert np.abs(own[0] - own[1]).max() > 1e-2
    for _, averaged in results:
        np.testing.assert_allclose(averaged, own[0] / 4 + own[1] * 3 / 4, rtol=1e-5)


def test_what_needs_all_workers_in_a_step_is_refused(tmp_path):
    given = {'problem': {'rows': 24}, 'sizes': [12, 12]}
    for message, in run_workers('refused_alone', tmp_path, **given):
        assert 'update_freq must be the same on all workers' in message
    for messages in run_workers('refused_alone', tmp_path, kind='dist_async', **given):
        for message in messages:
            assert 'kvstore must be' in message and 'dist_async' in message
    given['problem']['sparse'] = True
    for message, in run_workers('refused_alone', tmp_path, **given):
        assert message.startswith('local_steps must be False where parameters')

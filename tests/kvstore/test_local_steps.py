"""Workers that make their steps alone, against float64."""

import numpy as np
import pytest

import oracle
from blocks import BIAS
from cluster import run_workers
from problems import Problem, assert_close

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SGD = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}


def shards_of(sizes):
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


@pytest.mark.parametrize('sizes, servers, kind, update_freq, devices', [
    ([24, 40], 1, 'softmax', 1, 1), ([13, 40, 22], 2, 'perceptron', 2, 1),
    ([24, 41], 1, 'perceptron', 1, 2)])
def test_modules_step_alone(tmp_path, sizes, servers, kind, update_freq, devices):
    """Of unequal rows and numbers of batches; 5 epochs end between two snapshots of two epochs."""
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


@pytest.mark.parametrize('unlike, workers', [(False, 2), (True, 2), (True, 3)])
def test_workers_converge_with_two_messages_an_epoch(tmp_path, unlike, workers):
    """With BarzilaiBorwein also on unlike shards, though one of them is late."""
    results = run_workers('converge_alone', tmp_path, workers, unlike=unlike, rows=480,
                          sleeps=0.05)
    data, targets = results[0]['data'], results[0]['targets']
    hessian = data.T @ data / len(data) + 1e-3 * np.eye(data.shape[1])
    optimum = np.linalg.solve(hessian, data.T @ targets / len(data))
    for told in results:
        assert told['converged'] and told['epochs'] == results[0]['epochs'] < 100
        np.testing.assert_array_equal(told['weights'], results[0]['weights'])
        residual = hessian @ (told['weights'] - optimum)
        assert np.abs(residual).max() < 2e-5
        assert not told['within']
        # The full gradient, the weights, and the numbers of seven agreements.
        assert told['pushed'] <= 9 * (told['epochs'] + 2)


def test_alike_shards_take_the_epochs_of_common_steps(tmp_path):
    alone, together = (run_workers('converge_alone', tmp_path, 2, unlike=False, rows=4000,
                                   features=20, tol=1e-6, local_steps=local_steps)[0]
                       for local_steps in (True, False))
    assert alone['converged'] and together['converged']
    assert alone['epochs'] <= together['epochs'] + 2


def test_an_l1_norm_keeps_the_zeros_that_all_workers_have(tmp_path):
    results = run_workers('converge_alone', tmp_path, 2, unlike=False, strength=1.)
    for told in results:
        assert told['converged']
        assert (told['weights'] == 0).any() and (told['weights'] != 0).any()


def test_a_resumed_run_goes_on_to_the_bit(tmp_path, sizes=(24, 40)):
    """From the files of rank 0, which it writes where the weights have been averaged.

    Servers add what more than two workers send in any order.
    """
    given = {'problem': {'kind': 'softmax', 'rows': sum(sizes)}, 'sizes': sizes, 'batch_size': 8,
             'optimizer': SGD, 'local_steps': True, 'update_freq': 2}
    whole = run_workers('fit', tmp_path, len(sizes), num_epoch=6, prefix=str(tmp_path / 'whole'),
                        **given)
    resumed = run_workers('fit', tmp_path, len(sizes), num_epoch=6, resume_at=4,
                          prefix=str(tmp_path / 'whole'), **given)
    for first, second in zip(whole, resumed):
        for name, value in first['weights'].items():
            np.testing.assert_array_equal(second['weights'][name], value)


def test_statistics_of_batches_are_averaged(tmp_path):
    results = run_workers('statistics_alone', tmp_path, sizes=[16, 48])
    own = [told[0] for told in results]
    assert np.abs(own[0] - own[1]).max() > 1e-2
    for _, averaged in results:
        np.testing.assert_allclose(averaged, own[0] / 4 + own[1] * 3 / 4, rtol=1e-5)


def test_what_needs_all_workers_in_a_step_is_refused(tmp_path):
    given = {'problem': {'rows': 24}, 'sizes': [12, 12]}
    for message, in run_workers('refused_alone', tmp_path, **given):
        assert 'update_freq (0 for alpha=0) must be the same on all workers' in message
    for messages in run_workers('refused_alone', tmp_path, kind='dist_async', **given):
        for message in messages:
            assert 'kvstore must be' in message and 'dist_async' in message
    given['problem']['sparse'] = True
    for message, in run_workers('refused_alone', tmp_path, **given):
        assert message.startswith('local_steps must be False where parameters')

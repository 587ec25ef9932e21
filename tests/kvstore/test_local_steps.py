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

"""Clusters whose full gradients are over a part of the data."""

import numpy as np
import pytest

import oracle
from cluster import PROBLEM, run_workers
from problems import Problem, assert_close

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.parametrize('environment', [{}, {'MXNET_UPDATE_ON_KVSTORE': '0'}], ids=str)
def test_full_gradients_are_over_the_samples_of_all_workers(tmp_path, environment):
    """The workers meet after the same number of updates."""
    sizes, sgd = [28, 29], {'learning_rate': 0.2, 'momentum': 0.9, 'wd': 0.01}
    results = run_workers('fit_sampled', tmp_path, environment=environment, problem=PROBLEM,
                          sizes=sizes, batches=3, updates=3, num_epoch=4, optimizer=sgd)
    problem = Problem(**PROBLEM)
    svrg = oracle.Svrg(problem.network, problem.weights, problem.features, problem.targets, 16,
                       oracle.Sgd(rescale=1 / 16, **sgd))
    shards = [begin + np.array(oracle.batches_of(size, 8)) for begin, size in zip([0, 28], sizes)]
    for number, batches in enumerate(list(zip(*shards)) * 4):
        if number % 3 == 0:
            svrg.take_snapshot(np.concatenate([np.arange(24), 28 + np.arange(24)]))
        svrg.step(np.concatenate(batches))
    for weights, taken in results:
        assert_close(weights, svrg.weights)
        assert taken == 6


@pytest.mark.parametrize('kind', ['dist_sync', 'dist_async'])
def test_workers_that_cannot_meet_raise_the_same_error(tmp_path, kind):
    """All of them raise the same error, before the first step."""
    unlike = [{'batches': (2, 3)}, {'updates': (2, 3)}]
    messages = ['full_grad_batches must be the same on all workers .*, [2, 3]',
                'updates_per_snapshot must be the same on all workers .*, [2, 3]']
    if kind == 'dist_async':
        unlike.append({'updates': (3, 3)})
        messages.append("updates_per_snapshot must be None with the kvstore 'dist_async', ")
    else:  # shards of unequal sizes, which are found without a pass
        unlike.append({'sizes': 2 * ([17, 40],), 'batches': (4, 4)})
        messages.append('in the order of ranks, [3, 4]')
    for of_ranks, expected in zip(unlike, messages):
        first, second = run_workers('sampled_unlike', tmp_path, kind=kind, of_ranks=of_ranks)
        assert first == second
        message, steps = first
        for part in expected.split('.*'):
            assert part in message
        assert steps == 0


def test_asynchronous_workers_meet_at_epochs(tmp_path):
    """At epochs all workers meet."""
    results = run_workers('fit_sampled', tmp_path, kind='dist_async', problem=PROBLEM,
                          sizes=[28, 29], batches=3, updates=None, num_epoch=2,
                          optimizer={'learning_rate': 0.1})
    assert [taken for _, taken in results] == [2, 2]

"""Clusters whose full gradients are over a part of the data."""

import functools
import itertools

import numpy as np
import pytest

import oracle
from cluster import PROBLEM, run_workers
from problems import Problem, assert_close
from samples import stream_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.parametrize('environment', [{}, {'MXNET_UPDATE_ON_KVSTORE': '0'}], ids=str)
def test_workers_may_have_samples_of_different_data(tmp_path, environment):
    """The mean is over the rows of all workers; they meet after the same number of updates."""
    sizes, sgd = [28, 29], {'learning_rate': 0.2, 'momentum': 0.9, 'wd': 0.01}
    full_sizes, batch_sizes = [37, 20], [8, 5]
    results = run_workers('fit_sampled', tmp_path, environment=environment, problem=PROBLEM,
                          sizes=sizes, full_sizes=full_sizes, full_batch_sizes=batch_sizes,
                          batches=3, updates=3, num_epoch=4, optimizer=sgd)
    problem = Problem(**PROBLEM)
    svrg = oracle.Svrg(problem.network, problem.weights, problem.features, problem.targets, 16,
                       oracle.Sgd(rescale=1 / 16, **sgd))
    shards = [begin + np.array(oracle.batches_of(size, 8)) for begin, size in zip([0, 28], sizes)]
    samples = zip(*(
        map(functools.partial(np.add, begin), stream_of(size, itertools.repeat(3), batch_size))
        for begin, size, batch_size in zip([0, 37], full_sizes, batch_sizes)))
    for number, batches in enumerate(list(zip(*shards)) * 4):
        if number % 3 == 0:
            svrg.take_snapshot(np.concatenate(next(samples)))
        svrg.step(np.concatenate(batches))
    for weights, taken in results:
        assert_close(weights, svrg.weights)
        assert taken == 6


@pytest.mark.parametrize('kind', ['dist_sync', 'dist_async'])
def test_workers_that_cannot_meet_raise_the_same_error(tmp_path, kind):
    """All of them raise the same error, before the first step."""
    unlike = [{'batches': (2, 3)}, {'updates': (2, 3)}, {'own_data': (True, False)}]
    messages = ['sampling.batches .* must be the same on all workers .*, [2, 3]',
                'sampling.updates_per_snapshot .* must be the same on all workers .*, [2, 3]',
                'sampling.data .* must be the same on all workers .*, [1, 0]']
    if kind == 'dist_async':
        unlike.append({'updates': (3, 3)})
        messages.append("updates_per_snapshot must be None with the kvstore 'dist_async', ")
    else:  # shards of unequal sizes, which are found without a pass
        unlike.append({'sizes': 2 * ([17, 40],), 'batches': (4, 4), 'own_data': (False, False)})
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
                          sizes=[28, 29], full_sizes=[37, 20], full_batch_sizes=[8, 5], batches=3,
                          updates=None, num_epoch=2, optimizer={'learning_rate': 0.1})
    assert [taken for _, taken in results] == [2, 2]

"""SVRGTrainer in real clusters, against float64."""

import numpy as np
import pytest

from blocks import BIAS, SETTINGS
from cluster import PROBLEM, run_workers
from problems import Problem, assert_close
from svrg_lbfgs import SvrgLbfgs

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SGD = {'learning_rate': 0.3, 'momentum': 0.5, 'wd': 0.01}


@pytest.mark.parametrize('servers, sizes, with_np', [
    (1, [28, 29], False), (2, [25, 28, 30], True)])
def test_training_on_shards_is_svrg_on_all_rows(tmp_path, servers, sizes, with_np):
    given = {**PROBLEM, 'features': 4, 'rows': sum(sizes)}
    results = run_workers('fit_gluon', tmp_path, len(sizes), servers, problem=given, sizes=sizes,
                          batch_size=8, num_epoch=5, optimizer=SGD, with_np=with_np)
    problem = Problem(**given)
    svrg = problem.svrg(8 * len(sizes), **SGD, **BIAS)
    shards = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    for epoch in range(5):
        if epoch % 2 == 0:
            svrg.take_snapshot()
        for begin in range(0, max(sizes), 8):
            svrg.step(np.concatenate([rows[begin:begin + 8] for rows in shards]))
    for weights in results:
        assert_close(weights, svrg.weights)


def test_workers_share_the_rate_and_the_directions(tmp_path):
    given = {**PROBLEM, 'features': 4, 'rows': 48}
    results = run_workers('fit_gluon', tmp_path, 2, 1, problem=given, sizes=[24, 24], batch_size=8,
                          num_epoch=4, optimizer={'wd': 0.05}, name='svrg_lbfgs')
    twin = SvrgLbfgs(Problem(**given), wd=0.05, batch_size=16, decayed=BIAS['decayed'],
                     layer='hidden' if 'hidden_weight' in Problem(**given).weights else 'fc')
    batches = [np.r_[begin:begin + 8, begin + 24:begin + 32] for begin in (0, 8, 16)]
    for epoch in range(4):
        if epoch % 2 == 0:
            twin.take_snapshot(batches)
        for rows in batches:
            twin.step(rows)
    for weights in results:
        assert_close(weights, twin.weights)
        for name, value in results[0].items():
            np.testing.assert_array_equal(weights[name], value)


def test_the_batch_size_of_a_step_is_that_of_all_workers(tmp_path):
    for right, wrong in run_workers('warn_of_batch_sizes', tmp_path,
                                    problem={**PROBLEM, 'features': 4}, sizes=[24, 24],
                                    batch_size=8, given=[16, 8]):
        assert not right
        assert len(wrong) == 1 and (
            'the gradients of 16 rows (or words) on all 2 workers' in wrong[0]
            and 'It must be step(16)' in wrong[0])


@pytest.mark.parametrize('name, settings, loops, values', [
    ('wd of the optimizer', [{}, {'settings': {**SETTINGS, 'wd': 0.5}}], [{}, {}], [0.01, 0.5]),
    ('optimizer', [{}, {'optimizer': 'nag'}], [{}, {}], ['SGD', 'NAG']),
    ('batch_size of step (the sum since the last snapshot)',
     [{'settings': {'learning_rate': 0.2}}] * 2, [{}, {'batch_size': 8}], [64, 32]),
    ('alpha', [{}, {'alpha': 0.5}], [{}, {}], [1., 0.5]),
    ('alpha', [{}, {'alpha': 0}], [{}, {}], [1., 0.]),
    ('update_freq', [{}, {}], [{'update_freq': 1}, {}], [1, 2]),
    ('begin_epoch', [{}, {}], [{'begin_epoch': 1}, {'begin_epoch': 2}], [1, 2])])
def test_workers_that_would_hang_or_differ_are_told(tmp_path, name, settings, loops, values):
    results = run_workers('train_unlike_gluon', tmp_path, problem={**PROBLEM, 'features': 4},
                          sizes=[16, 16], settings=settings, loops=loops)
    for rank, (message, steps) in enumerate(results):
        assert message == ('%s must be the same on all workers with the kvstore %r, and is %r on '
                           'rank %d' % (name, 'dist_sync', values[rank], rank))
        assert steps == (4 if 'batch_size' in name else 0)

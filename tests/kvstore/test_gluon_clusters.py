"""SVRGTrainer in real clusters, against float64."""

import pytest

from cluster import PROBLEM, run_workers
from problems import Problem
from unions import assert_blocks, assert_optimum

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SGD = {'learning_rate': 0.3, 'momentum': 0.5, 'wd': 0.01}


@pytest.mark.parametrize('servers, sizes, given', [
    (1, [28, 29], {}), (2, [25, 28, 30], {'with_np': True, 'by_name': True})])
def test_training_on_shards_is_svrg_on_all_rows(tmp_path, servers, sizes, given):
    problem = {**PROBLEM, 'features': 4, 'rows': sum(sizes)}
    results = run_workers('fit_gluon', tmp_path, len(sizes), servers, problem=problem, sizes=sizes,
                          settings=SGD, **given)
    assert_blocks(results, Problem(**problem), sizes, SGD)


def test_workers_come_to_the_optimum_of_all_rows(tmp_path):
    results = run_workers('fit_gluon', tmp_path, problem={'kind': 'softmax'}, sizes=[24, 24],
                          settings={'wd': 0.05}, optimizer='newton_cg', tol=1e-6, num_epoch=50)
    assert_optimum(results, Problem('softmax', rows=48), 0.05)
    assert not any(result['warnings'] for result in results)


def test_the_batch_size_of_a_step_is_that_of_all_workers(tmp_path):
    results = run_workers('fit_gluon', tmp_path, problem={**PROBLEM, 'features': 4},
                          sizes=[24, 24], step_size=8)
    for result in results:
        message, = result['warnings']
        assert 'the gradients of 16 rows (or words) on all 2 workers' in message
        assert 'It must be step(16)' in message

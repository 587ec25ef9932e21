"""Barzilai-Borwein steps in clusters."""

import numpy as np
import pytest

import oracle
from cluster import run_workers
from problems import Problem, assert_close
from svrg_bb import SvrgBB

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.parametrize('kind, divided_by', [
    ('dist_sync', 16), ('dist', 8), pytest.param('dist_device', 8, marks=pytest.mark.exhaustive)])
def test_workers_that_update_share_the_rate(tmp_path, kind, divided_by):
    """Module divides by the rows of all workers only where the kind has "sync" in its name."""
    problem = Problem('softmax', rows=48)
    results = run_workers('fit_with_step_size', tmp_path, 2, 1, {'MXNET_UPDATE_ON_KVSTORE': '0'},
                          kind=kind, problem={'kind': 'softmax', 'rows': 48}, sizes=[24, 24],
                          batch_size=8, num_epoch=4, wd=0.05)
    svrg = oracle.Svrg(problem.network, problem.weights, problem.features, problem.targets, 16,
                       oracle.Sgd(lambda _: twin.rate, wd=0.05, rescale=1 / divided_by))
    twin = SvrgBB(problem, 0.05, 0.05, batch_size=divided_by, svrg=svrg)
    twin.fit(0, 4, 1, [np.r_[begin:begin + 8, begin + 24:begin + 32] for begin in (0, 8, 16)])
    for weights, rate in results:
        assert_close(weights, svrg.weights)
        np.testing.assert_allclose(rate, twin.rate, rtol=1e-5)


def test_servers_that_update_are_an_error(tmp_path):
    for message in run_workers('fit_with_step_size', tmp_path, problem={'rows': 24},
                               sizes=[12, 12], batch_size=4, num_epoch=1, wd=0):
        assert 'kvstore must leave the updates to the workers' in message

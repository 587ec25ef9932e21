"""Barzilai-Borwein steps in clusters."""

import re

import numpy as np
import pytest

import oracle
from cluster import run_workers
from problems import Problem, assert_close
from svrg_bb import SvrgBB

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.parametrize('kind, divided_by', [
    ('dist_sync', 16), ('dist', 8), pytest.param('dist_device', 8, marks=pytest.mark.exhaustive)])
def test_workers_update_and_share_the_rate(tmp_path, kind, divided_by):
    """Module divides by the rows of all workers only where the kind has "sync" in its name.

    No variable says who updates.
    """
    problem = Problem('softmax', rows=48)
    results = run_workers('fit_with_step_size', tmp_path, 2, 1, kind=kind,
                          problem={'kind': 'softmax', 'rows': 48}, sizes=[24, 24], batch_size=8,
                          num_epoch=4, wd=0.05, bounded=False)
    svrg = oracle.Svrg(problem.network, problem.weights, problem.features, problem.targets, 16,
                       oracle.Sgd(lambda _: twin.rate, wd=0.05, rescale=1 / divided_by))
    twin = SvrgBB(problem, 0.05, 0.05, bounded=False, svrg=svrg, scale=16 / divided_by)
    twin.fit(0, 4, 1, [np.r_[begin:begin + 8, begin + 24:begin + 32] for begin in (0, 8, 16)])
    for weights, rate, lines in results:
        assert_close(weights, svrg.weights)
        np.testing.assert_allclose(rate, twin.rate, rtol=1e-5)
        assert lines.count('The workers update the weights, not the servers') == 1


def test_workers_share_the_largest_curvature_of_their_batches(tmp_path):
    problem = Problem('softmax', rows=48)
    results = run_workers('fit_with_step_size', tmp_path, problem={'kind': 'softmax', 'rows': 48},
                          sizes=[24, 24], batch_size=8, num_epoch=0, wd=0.05, base_lr=None)
    twin = SvrgBB(problem, wd=0.05, bounded=True)
    shards = [np.arange(begin, begin + 24).reshape(3, 8) for begin in (0, 24)]
    curvatures, rates = [twin.curvature_of_batch(shard) for shard in shards], []
    assert abs(curvatures[0] / curvatures[1] - 1) > 0.01
    for shard in shards:
        twin.rate = 1 / max(curvatures)
        twin.backtracked(twin.batch_of(shard))
        rates.append(twin.rate)
    assert rates[0] < rates[1]
    for _, rate, _ in results:
        np.testing.assert_allclose(rate, rates[0], rtol=1e-3)


@pytest.mark.parametrize('setter, ways_back', [(None, 1), (0, 0), (1, 0)])
def test_workers_begin_anew_together_where_one_has_set_its_weights(tmp_path, setter, ways_back):
    results = run_workers('set_on_one', tmp_path, problem={'kind': 'softmax', 'rows': 48},
                          sizes=[24, 24], batch_size=8, setter=setter)
    for weights, count in results:
        assert count == ways_back
        assert_close(weights, results[0][0])


@pytest.mark.parametrize('environment, kind, sparse', [
    ({'MXNET_UPDATE_ON_KVSTORE': '1'}, 'dist_sync', False), ({}, 'dist_async', False),
    ({}, 'dist_sync', True)])
def test_servers_that_must_update_are_an_error(tmp_path, environment, kind, sparse):
    for message in run_workers('fit_with_step_size', tmp_path, 2, 1, environment, kind=kind,
                               problem={'rows': 24, 'sparse': sparse}, sizes=[12, 12],
                               batch_size=4, num_epoch=1, wd=0):
        assert 'kvstore must leave the updates to the workers' in message


@pytest.mark.parametrize('first, second', [('rule', 'plain'), ('plain', 'rule')])
def test_a_plain_module_whose_weights_servers_update_is_refused(tmp_path, first, second):
    for told in run_workers('install_two', tmp_path, kinds=[first, second]):
        assert 'must not update the weights of a plain Module' in told


def test_workers_stop_together_at_the_optimum(tmp_path):
    """Without a rate, at the same snapshot, where the gradient over all rows is small."""
    problem = Problem('softmax', rows=60)
    results = run_workers('fit_until_converged', tmp_path, 3, 1,
                          problem={'kind': 'softmax', 'rows': 60}, sizes=[20, 20, 20],
                          batch_size=5, tols=[1e-4] * 3)
    assert len({(norm, epochs) for _, norm, epochs in results}) == 1
    for weights, norm, epochs in results:
        summed = problem.network(weights, problem.features, problem.targets)
        summed['fc_weight'] = summed['fc_weight'] + 60 * 0.05 * weights['fc_weight']
        largest = max(np.abs(value).max() for value in summed.values()) / 60
        np.testing.assert_allclose(norm, largest, rtol=1e-2)
        assert norm <= 1e-4 and 0 < epochs < 200


@pytest.mark.parametrize('scenario', ['fit_on_raw_columns', 'fit_on_raw_columns_gluon'])
def test_workers_scale_by_the_columns_of_all_rows(tmp_path, scenario):
    given, units = {'kind': 'softmax', 'rows': 60}, np.array([1e-3, 1, 30, 1e3])
    results = run_workers(scenario, tmp_path, 3, 1, problem=given, sizes=[20, 20, 20],
                          batch_size=5, units=units)
    problem = Problem(**given)
    features = problem.features * units
    scales = 1 / ((features ** 2).mean(axis=0) + 1e-3)
    for found, norm, weights in results:
        np.testing.assert_allclose(found[0], scales, rtol=1e-5)
        gradient = problem.network(weights, features, problem.targets)
        largest = max(np.abs((gradient['fc_weight'] / 60 + 1e-3 * weights['fc_weight'])
                             * np.sqrt(scales)).max(), np.abs(gradient['fc_bias']).max() / 60)
        assert largest <= 1.05e-4
        np.testing.assert_allclose(norm, largest, rtol=0.05)
        for name, value in results[0][2].items():
            np.testing.assert_array_equal(weights[name], value)


@pytest.mark.parametrize('kind, tols, message', [
    ('dist_async', [1e-4, 1e-4], "tol must be None with the kvstore 'dist_async'"),
    ('dist_sync', [1e-4, 1e-3], 'tol must be the same on all workers .* in the order of ranks')])
def test_a_tol_that_workers_cannot_share_is_an_error(tmp_path, kind, tols, message):
    for told in run_workers('fit_until_converged', tmp_path, 2, 1, kind=kind,
                            problem={'kind': 'softmax', 'rows': 24}, sizes=[12, 12],
                            batch_size=4, tols=tols):
        assert isinstance(told, str) and re.search(message, told)

"""The optimizer 'svrg_lbfgs' in clusters."""

import re

import numpy as np
import pytest

from cluster import run_workers
from problems import Problem, assert_close
from svrg_lbfgs import SvrgLbfgs
from svrg_optimization.proximal import L1

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.parametrize('kind, divided_by', [
    ('dist_sync', 16), ('dist', 8), pytest.param('dist_device', 8, marks=pytest.mark.exhaustive)])
def test_workers_update_and_share_the_rate(tmp_path, kind, divided_by):
    """Module divides by the rows of all workers only where the kind has "sync" in its name.

    No variable says who updates.
    """
    problem = Problem('softmax', rows=48)
    results = run_workers('fit_with_a_rule', tmp_path, 2, 1, kind=kind,
                          problem={'kind': 'softmax', 'rows': 48}, sizes=[24, 24], batch_size=8,
                          num_epoch=2, wd=0.05)
    twin = SvrgLbfgs(problem, wd=0.05, batch_size=16, scale=16 / divided_by)
    twin.fit(2, 1, [np.r_[begin:begin + 8, begin + 24:begin + 32] for begin in (0, 8, 16)])
    for weights, rate, lines in results:
        assert_close(weights, twin.weights)
        assert rate == results[0][1]
        assert lines.count('The workers update the weights, not the servers') == 1
        for name, value in results[0][0].items():
            np.testing.assert_array_equal(weights[name], value)


def test_workers_jump_alike_with_an_operator(tmp_path):
    results = run_workers('fit_with_a_rule', tmp_path, problem={'kind': 'softmax', 'rows': 48},
                          sizes=[24, 24], batch_size=8, num_epoch=20, wd=0, proximal=L1(0.05),
                          tol=1e-6)
    for weights, _, lines in results:
        assert 'Epoch[19]' not in lines  # converged before
        for name, value in results[0][0].items():
            np.testing.assert_array_equal(weights[name], value)
    assert 0 < (weights['fc_weight'] == 0).sum() < weights['fc_weight'].size


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
    for message in run_workers('fit_with_a_rule', tmp_path, 2, 1, environment, kind=kind,
                               problem={'rows': 24, 'sparse': sparse}, sizes=[12, 12],
                               batch_size=4, num_epoch=1, wd=0):
        assert 'kvstore must leave the updates to the workers' in message


@pytest.mark.parametrize('first, second', [('rule', 'plain'), ('plain', 'rule')])
def test_a_plain_module_whose_weights_servers_update_is_refused(tmp_path, first, second):
    for told in run_workers('install_two', tmp_path, kinds=[first, second]):
        assert 'must not update the weights of a plain Module' in told


def test_workers_stop_together_at_the_optimum(tmp_path):
    """Without a rate, at the same snapshot, where the gradient over all rows is rounding."""
    problem = Problem('softmax', rows=60)
    results = run_workers('fit_until_converged', tmp_path, 3, 1,
                          problem={'kind': 'softmax', 'rows': 60}, sizes=[20, 20, 20],
                          batch_size=5, tols=[1e-4] * 3)
    assert len({(norm, epochs) for _, norm, epochs in results}) == 1
    for weights, norm, epochs in results:
        summed = problem.network(weights, problem.features, problem.targets)
        summed['fc_weight'] += 60 * 0.05 * weights['fc_weight']
        assert max(np.abs(value).max() for value in summed.values()) / 60 < 1e-5
        assert norm < 1e-5 and 0 < epochs < 200


@pytest.mark.parametrize('scenario', ['fit_on_raw_columns', 'fit_on_raw_columns_gluon'])
def test_workers_have_the_metric_of_all_rows(tmp_path, scenario):
    given, units = {'kind': 'softmax', 'rows': 60}, np.array([1e-3, 1, 30, 1e3])
    results = run_workers(scenario, tmp_path, 3, 1, problem=given, sizes=[20, 20, 20],
                          batch_size=5, units=units)
    problem = Problem(**given)
    features = problem.features * units
    for block, norm, weights in results:
        mean, spread = block.moments
        np.testing.assert_allclose(mean / units, problem.features.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(spread / np.outer(units, units),
                                   np.cov(problem.features.T, bias=True), atol=1e-6)
        np.testing.assert_array_equal(block.factor, results[0][0].factor)
        scales = 1 / (np.square(features).mean(axis=0) + block.decays[0])
        gradient = problem.network(weights, features, problem.targets)
        largest = max(np.abs((gradient['fc_weight'] / 60 + 1e-3 * weights['fc_weight'])
                             * np.sqrt(scales)).max(), np.abs(gradient['fc_bias']).max() / 60)
        assert norm > 0 and largest <= 1.05e-4
        np.testing.assert_allclose(norm, largest, rtol=0.05, atol=1e-7)  # of float32's rounding
        for name, value in results[0][2].items():
            np.testing.assert_array_equal(weights[name], value)


@pytest.mark.parametrize('kind, tols, message', [
    ('dist_async', [1e-4, 1e-4], "tol must be None with the kvstore 'dist_async'"),
    ('dist_sync', [1e-4, 1e-3], 'tol must be the same on all workers .* and is 0.0*1 on rank')])
def test_a_tol_that_workers_cannot_share_is_an_error(tmp_path, kind, tols, message):
    for told in run_workers('fit_until_converged', tmp_path, 2, 1, kind=kind,
                            problem={'kind': 'softmax', 'rows': 24}, sizes=[12, 12],
                            batch_size=4, tols=tols):
        assert isinstance(told, str) and re.search(message, told)

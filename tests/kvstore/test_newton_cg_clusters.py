"""The optimizer 'newton_cg' in clusters."""

import re

import numpy as np
import pytest
from newton_cg import SvrgLbfgs

from cluster import run_workers
from problems import Problem, assert_close
from svrg_optimization.proximal import L1
from unions import assert_alike, assert_converged, assert_rule

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SOFTMAX, SIZES = {'kind': 'softmax'}, [24, 24]
RULE = {'problem': SOFTMAX, 'optimizer': 'newton_cg', 'params': {'wd': 0.05}}


@pytest.mark.parametrize('kind, divided_by', [
    ('dist_sync', 16), ('dist', 8), pytest.param('dist_device', 8, marks=pytest.mark.exhaustive)])
def test_workers_update_and_share_the_rate(tmp_path, kind, divided_by):
    """Module divides by the rows of all workers only where the kind has "sync" in its name.

    No variable says who updates.
    """
    results = run_workers('fit', tmp_path, kind=kind, sizes=SIZES, num_epoch=2, jumps=1,
                          **RULE)
    twin = SvrgLbfgs(Problem('softmax', rows=48), wd=0.05, batch_size=16, scale=16 / divided_by,
                     jumps=1)
    assert_rule(results, twin, SIZES, 2, 1)
    for result in results:
        assert result['log'].count('The workers update the weights, not the servers') == 1


def test_workers_jump_alike_with_an_operator(tmp_path):
    results = run_workers('fit', tmp_path, sizes=SIZES, num_epoch=20, proximal=L1(0.05), tol=1e-6,
                          **{**RULE, 'params': {'wd': 0}})
    assert_alike([result['weights'] for result in results])
    assert all(result['epochs'] < 20 for result in results)  # converged before
    weight = results[0]['weights']['fc_weight']
    assert 0 < (weight == 0).sum() < weight.size


@pytest.mark.parametrize('setter, ways_back', [(None, 1), (0, 0), (1, 0)])
def test_workers_begin_anew_together_where_one_has_set_its_weights(tmp_path, setter, ways_back):
    results = run_workers('set_on_one', tmp_path, problem=SOFTMAX, sizes=SIZES, batch_size=8,
                          setter=setter)
    for weights, count in results:
        assert count == ways_back
        assert_close(weights, results[0][0])


@pytest.mark.parametrize('environment, given, says', [
    ({'MXNET_UPDATE_ON_KVSTORE': '1'}, {}, 'kvstore must leave the updates to the workers'),
    ({}, {'kind': 'dist_async'}, 'kvstore must leave the updates to the workers'),
    ({}, {'problem': {'sparse': True}}, 'kvstore must leave the updates to the workers'),
    ({}, {'kind': 'dist_async', 'tol': 1e-4}, "tol must be None with the kvstore 'dist_async'"),
    ({}, {'unlike': {'tol': [1e-4, 1e-3]}},
     'tol must be the same on all workers .* and is 0.0*1 on rank')])
def test_what_workers_cannot_share_is_an_error_on_all(tmp_path, environment, given, says):
    for message, _ in run_workers('refused', tmp_path, 2, 1, environment,
                                  **{**RULE, 'sizes': SIZES, **given}):
        assert message is not None and re.search(says, message), message


@pytest.mark.parametrize('first, second', [('rule', 'plain'), ('plain', 'rule')])
def test_a_plain_module_whose_weights_servers_update_is_refused(tmp_path, first, second):
    for told in run_workers('install_two', tmp_path, kinds=[first, second]):
        assert 'must not update the weights of a plain Module' in told


def test_workers_stop_together_at_the_optimum(tmp_path):
    """Without a rate, at the same snapshot, where the gradient over all rows is rounding."""
    results = run_workers('fit', tmp_path, 3, sizes=[20, 20, 20], batch_size=5, update_freq=2,
                          num_epoch=200, tol=1e-4, jumps=1, **RULE)
    assert_converged(results, Problem('softmax', rows=60), 0.05, 1e-5)


@pytest.mark.parametrize('scenario, given', [
    ('fit', {'params': {'wd': 1e-3}, 'update_freq': 2}), ('fit_gluon', {'settings': {'wd': 1e-3}})])
def test_workers_have_the_metric_of_all_rows(tmp_path, scenario, given):
    units = np.array([1e-3, 1, 30, 1e3])
    results = run_workers(scenario, tmp_path, 3, problem={**SOFTMAX, 'units': units},
                          sizes=[20, 20, 20], batch_size=5, num_epoch=200, tol=1e-4,
                          optimizer='newton_cg', **given)
    problem = Problem('softmax', rows=60)
    features = problem.features * units
    (first,), weights = results[0]['blocks'], results[0]['weights']
    assert_alike([result['weights'] for result in results])
    for result in results:
        block, = result['blocks']
        mean, spread = block.moments
        np.testing.assert_allclose(mean / units, problem.features.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(spread / np.outer(units, units),
                                   np.cov(problem.features.T, bias=True), atol=1e-6)
        np.testing.assert_array_equal(block.factor, first.factor)
        scales = 1 / (np.square(features).mean(axis=0) + block.decays[0])
        gradient = problem.network(weights, features, problem.targets)
        largest = max(np.abs((gradient['fc_weight'] / 60 + 1e-3 * weights['fc_weight'])
                             * np.sqrt(scales)).max(), np.abs(gradient['fc_bias']).max() / 60)
        assert result['has_converged'] and largest <= 1.05e-4
        np.testing.assert_allclose(result['norm'], largest, rtol=0.05, atol=1e-7)  # of float32

"""The optimizer 'newton_cg' in clusters."""

import re

import numpy as np
import pytest

from cluster import run_workers
from problems import Problem
from svrg_optimization.proximal import L1
from unions import assert_alike, assert_optimum

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SOFTMAX, SIZES = {'kind': 'softmax'}, [24, 24]
RULE = {'problem': SOFTMAX, 'optimizer': 'newton_cg', 'params': {'wd': 0.05}}


@pytest.mark.parametrize('kind, divided_by', [
    ('dist_sync', 16), ('dist', 8), pytest.param('dist_device', 8, marks=pytest.mark.exhaustive)])
def test_workers_come_to_the_optimum_of_all_rows(tmp_path, kind, divided_by):
    """Module divides by the rows of all workers only where the kind has "sync" in its name.

    Else the loss is larger beside the decay. No variable says who updates.
    """
    results = run_workers('fit', tmp_path, kind=kind, sizes=SIZES, num_epoch=50, tol=1e-6, **RULE)
    assert_optimum(results, Problem('softmax', rows=48), 0.05 * divided_by / 16)
    for result in results:
        assert result['log'].count('The workers update the weights, not the servers') == 1


def test_workers_move_alike_with_an_operator(tmp_path):
    results = run_workers('fit', tmp_path, sizes=SIZES, num_epoch=50, proximal=L1(0.05), tol=1e-6,
                          **{**RULE, 'params': {'wd': 0}})
    assert_alike([result['weights'] for result in results])
    assert all(result['has_converged'] for result in results)
    weight = results[0]['weights']['fc_weight']
    assert 0 < (weight == 0).sum() < weight.size


@pytest.mark.parametrize('setter', [0, 1])
def test_workers_begin_anew_together_where_one_has_set_its_weights(tmp_path, setter):
    assert_alike(run_workers('set_on_one', tmp_path, problem=SOFTMAX, sizes=SIZES, batch_size=8,
                             setter=setter))


@pytest.mark.parametrize('environment, given, says', [
    ({'MXNET_UPDATE_ON_KVSTORE': '1'}, {}, 'kvstore must leave the updates to the workers'),
    ({}, {'kind': 'dist_async'}, 'kvstore must leave the updates to the workers'),
    ({}, {'problem': {'sparse': True}}, 'kvstore must leave the updates to the workers'),
    ({}, {'kind': 'dist_async', 'tol': 1e-4}, 'tol must be None with an asynchronous kvstore'),
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


@pytest.mark.parametrize('scenario, given', [
    ('fit', {'params': {'wd': 1e-3}}), ('fit_gluon', {'settings': {'wd': 1e-3}})])
def test_workers_have_the_metric_of_all_rows(tmp_path, scenario, given):
    units = np.array([1e-3, 1, 30, 1e3])
    results = run_workers(scenario, tmp_path, 3, problem={**SOFTMAX, 'units': units},
                          sizes=[20, 20, 20], batch_size=5, num_epoch=50, tol=1e-5,
                          optimizer='newton_cg', **given)
    problem = Problem('softmax', rows=60)
    (first,), features = results[0]['blocks'], problem.features
    for result in results:
        block, = result['blocks']
        mean, spread, _ = block.moments
        np.testing.assert_allclose(mean / units, features.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(spread / np.outer(units, units),
                                   np.cov(features.T, bias=True), atol=1e-6)
        np.testing.assert_array_equal(block.root, first.root)
    problem.features = features * units
    assert_optimum(results, problem, 1e-3, 1e-5)

"""Proximal operators on the servers of a cluster."""

import numpy as np
import pytest
from sklearn.linear_model import Lasso

import oracle
from cluster import run_workers
from oracle import box, train_on_union
from own_operators import WholeCap
from problems import Problem, SparseProblem, assert_close
from svrg_optimization.proximal import (
    L1,
    GroupLasso,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SIZES = [20, 20]
HERE = {'rows': 40, 'features': 8, 'kind': 'softmax'}


@pytest.mark.parametrize('environment, servers, operator, prox', [
    ({'MXNET_KVSTORE_BIGARRAY_BOUND': '5'}, 2, L1(0.05), oracle.soft_threshold(0.05)),
    ({}, 2, GroupLasso(0.3, axis=1), oracle.block_threshold(0.3, 1)),
    ({'MXNET_UPDATE_ON_KVSTORE': '0'}, 1, GroupLasso(0.3, axis=1), oracle.block_threshold(0.3, 1)),
    ({}, 1, WholeCap(0.1, (3, 8)), box(-np.inf, 0.1))])
def test_operators_on_servers_give_the_weights_of_one_process(tmp_path, environment, servers,
                                                              operator, prox):
    """With the operators on the servers, which store weights flat and may split them."""
    settings = {'learning_rate': 0.2, 'wd': 0.01}
    results = run_workers('fit', tmp_path, 2, servers, environment, problem=HERE, sizes=SIZES,
                          batch_size=5, num_epoch=4, update_freq=2, devices=2, optimizer=settings,
                          proximal=operator)
    expected = train_on_union(Problem(**HERE), SIZES, 5, 4, 2, **settings,
                              proximal={'fc_weight': prox})
    for result in results:
        assert_close(result['weights'], expected)
        np.testing.assert_array_equal(result['weights']['fc_weight'] == 0,
                                      expected['fc_weight'] == 0)
    if not isinstance(operator, WholeCap):
        assert 0 < (expected['fc_weight'] == 0).sum() < 24


def test_servers_step_in_all_rows_of_row_sparse_weights(tmp_path):
    settings = {'learning_rate': 0.1}
    results = run_workers('fit', tmp_path, 2, 2, problem={'sparse': True}, sizes=[19, 21],
                          batch_size=6, num_epoch=4, optimizer=settings, proximal={'w': L1(0.3)})
    expected = train_on_union(SparseProblem(), [19, 21], 6, 4, 1, **settings,
                              proximal={'w': oracle.soft_threshold(0.3)})
    for result in results:
        assert_close(result['weights'], expected)
        assert 0 < (expected['w'] == 0).sum() < 12
        np.testing.assert_array_equal(result['weights']['w'] == 0, expected['w'] == 0)


def test_asynchronous_training_converges(tmp_path):
    given = {'rows': 60, 'features': 5}
    problem = Problem(**given)
    results = run_workers('fit', tmp_path, 2, 1, kind='dist_async', problem=given, sizes=[30, 30],
                          batch_size=5, num_epoch=60, optimizer={'learning_rate': 0.05},
                          proximal=L1(0.5))
    expected = Lasso(0.5, tol=1e-12, max_iter=100000).fit(problem.features, problem.targets)
    assert 0 < (expected.coef_ == 0).sum() < 5
    for result in results:
        assert_close(result['weights'], {'fc_weight': expected.coef_[None],
                                         'fc_bias': np.array([expected.intercept_])})


@pytest.mark.parametrize('environment', [{}, {'MXNET_UPDATE_ON_KVSTORE': '0'}], ids=str)
def test_operators_that_servers_cannot_have_are_refused(tmp_path, environment):
    """No key is created then, and workers that update need none of it."""
    environment['MXNET_KVSTORE_BIGARRAY_BOUND'] = '20'
    for messages in run_workers('init_with_operators', tmp_path, 2, 2, environment, problem=HERE):
        if 'MXNET_UPDATE_ON_KVSTORE' in environment:
            assert messages == [None]
            continue
        main, unpicklable, split = messages
        assert 'of a class that servers can import, not of __main__' in main
        assert 'can be pickled for the servers, not <' in unpicklable
        assert unpicklable.endswith('(not this one)')
        assert 'is_elementwise for w2_weight, whose 24 elements' in split

"""Proximal operators on a cluster, whose workers apply them."""

import numpy as np
import pytest

import oracle
from cluster import run_workers
from oracle import train_on_union
from problems import Problem, assert_close
from svrg_optimization.proximal import (
    L1,
    GroupLasso,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SIZES = [20, 20]
HERE = {'rows': 40, 'features': 8, 'kind': 'softmax'}


@pytest.mark.parametrize('environment, servers, operator, prox', [
    ({'MXNET_KVSTORE_BIGARRAY_BOUND': '5'}, 2, L1(0.05), oracle.soft_threshold(0.05)),
    ({'MXNET_UPDATE_ON_KVSTORE': '0'}, 1, GroupLasso(0.3, axis=1), oracle.block_threshold(0.3, 1))])
def test_operators_give_the_weights_of_one_process(tmp_path, environment, servers, operator, prox):
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
    assert 0 < (expected['fc_weight'] == 0).sum() < 24

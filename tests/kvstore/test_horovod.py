"""Training with Horovod in real jobs, against float64: all checks of one size share a job."""

import re
import sys

import numpy as np
import pytest

from blocks import BIAS
from blocks import SETTINGS as OF_BLOCKS
from cluster import PROBLEM, horovodrun, needs_horovod, run_checks, started
from mpi import AS_ROOT, MPIRUN
from problems import Problem, assert_close
from processes import printed_by
from unions import assert_alike, assert_blocks, assert_module, assert_optimum, train_on_union

pytestmark = [pytest.mark.cluster, pytest.mark.slow, needs_horovod]
SIZES, SGD = [27, 32], {'learning_rate': 0.2, 'momentum': 0.9, 'wd': 0.01}
SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5}
BLOCKS = {**PROBLEM, 'features': 4, 'rows': sum(SIZES)}
MODULES = {'module': {}, 'two devices': {'devices': 2}, 'alpha': {'alpha': 0.4},
           'without snapshots': {'alpha': 0}}
TRAINERS = {'gluon': {}, 'gluon, on two devices': {'devices': 2}}
UNLIKE = {
    'update_freq': ({'unlike': {'update_freq': [1, 2]}}, [1, 2]),
    'as many batches': ({'sizes': [17, 40]}, [3, 5])}


def of_module(sizes, **given):
    """Return the arguments of five epochs of `fit`."""
    return {'problem': {**PROBLEM, 'rows': sum(sizes)}, 'sizes': sizes, 'params': SGD,
            'num_epoch': 5, 'update_freq': 2, 'apart': 1, **given}


@pytest.fixture(scope='module')
def of_two(tmp_path_factory):
    """Make all checks of two ranks; return the results."""
    folder = tmp_path_factory.mktemp('horovod')
    resumed = of_module(SIZES, params=SETTINGS, apart=0)
    prefix = str(folder / 'model')
    checks = [*((name, 'fit', of_module(SIZES, **given)) for name, given in MODULES.items()),
              ('rule', 'fit', {'problem': {'kind': 'softmax'}, 'sizes': SIZES, 'num_epoch': 50,
                               'optimizer': 'newton_cg', 'params': {'wd': 0.05}, 'tol': 1e-6}),
              *(('unlike, ' + name, 'refused', {'sizes': [16, 16], **given})
                for name, (given, _) in UNLIKE.items()),
              ('unbroken', 'fit', {**resumed, 'prefix': prefix}),
              ('resumed', 'fit', {**resumed, 'load_from': prefix, 'begin_epoch': 3}),
              *((name, 'fit_gluon', {'problem': BLOCKS, 'sizes': SIZES, 'settings': SETTINGS,
                                     **given}) for name, given in TRAINERS.items()),
              ('refusals', 'refusals', {}),
              ('end', 'end_at_once', {'problem': {**PROBLEM, 'features': 4}})]
    return run_checks(folder, checks, horovodrun, 2, 'horovod')


def assert_weights_of_module(results, sizes, **given):
    assert_module(results, Problem(**{**PROBLEM, 'rows': sum(sizes)}), sizes, **SGD, **given)
    assert_alike([result['weights'] for result in results])


@pytest.mark.parametrize('name', MODULES)
def test_modules_train_on_all_rows(of_two, name):
    assert_weights_of_module(of_two[name], SIZES, alpha=MODULES[name].get('alpha', 1))


def test_the_optimum_is_that_of_all_rows(of_two):
    assert_optimum(of_two['rule'], Problem('softmax', rows=sum(SIZES)), 0.05)
    for result in of_two['rule']:
        assert 'servers' not in result['log']


@pytest.mark.parametrize('name', UNLIKE)
def test_what_differs_is_an_error_on_all_before_a_step(of_two, name):
    for rank, (message, steps) in enumerate(of_two['unlike, ' + name]):
        values = UNLIKE[name][1]
        assert name in message and message.endswith((
            "on all workers with the kvstore 'horovod_dist_sync', and is %r on rank %d"
            % (values[rank], rank), 'in the order of ranks, %s' % values))
        assert not steps


def test_a_resumed_training_ends_on_the_bits_of_an_unbroken_one(of_two):
    """From a checkpoint between two snapshots."""
    expected = train_on_union(Problem(**{**PROBLEM, 'rows': sum(SIZES)}), SIZES, 8, 5, 2,
                              **SETTINGS)
    of_both = [result['weights'] for result in of_two['unbroken'] + of_two['resumed']]
    assert_close(of_both[0], expected)
    assert_alike(of_both)


@pytest.mark.parametrize('name', TRAINERS)
def test_blocks_train_on_all_rows(of_two, name):
    assert_blocks(of_two[name], Problem(**BLOCKS), SIZES, SETTINGS)
    assert_alike([result['weights'] for result in of_two[name]])


def test_the_last_step_of_a_rank_that_has_ended_is_summed(of_two):
    svrg = Problem(**{**PROBLEM, 'features': 4}).svrg(8, **OF_BLOCKS, **BIAS)
    svrg.step(np.arange(8))
    assert_close(of_two['end'][0], svrg.weights)


def test_what_cannot_be_trained_is_refused(of_two):
    expected = {
        'row_sparse': 'gradients must be dense with Horovod, .* not row_sparse, as w',
        'wrapped': 'optimizer must not be a DistributedOptimizer',
        'wrapped in Gluon': 'optimizer must not be a DistributedOptimizer',
        'compression': 'compression_params must be None',
        'borrowed': 'shared_module must be an SVRGModule with .* Horovod',
        'sparse gradients in Gluon': 'gradients must be dense with a distributed kvstore'}
    for told in of_two['refusals']:
        assert set(told) == set(expected)
        for name, message in expected.items():
            assert told[name] and re.search(message, told[name]), (name, told[name])
    for messages in of_two['before init']:
        assert all('needs horovod.mxnet.init() before it' in message for message in messages)


def test_three_ranks_train_on_all_rows(tmp_path):
    sizes = [27, 30, 25]
    found = run_checks(tmp_path, [('module', 'fit', of_module(sizes))], horovodrun, 3, 'horovod')
    assert_weights_of_module(found['module'], sizes)


def by_mpirun(*script, workers):
    return started([MPIRUN, '--bind-to', 'none', '-np', workers, sys.executable, *script],
                   **AS_ROOT)


def test_mpirun_starts_ranks_that_train_on_all_rows(tmp_path):
    if not (MPIRUN and 'True' in printed_by('-c', 'import horovod.mxnet as hvd; '
                                            'print(hvd.mpi_built())')):
        pytest.skip('needs mpirun, and Horovod with MPI: make horovod')
    found = run_checks(tmp_path, [('module', 'fit', of_module(SIZES))], by_mpirun, 2, 'horovod')
    assert_weights_of_module(found['module'], SIZES)

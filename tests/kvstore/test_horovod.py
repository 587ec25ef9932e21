"""Training with Horovod in real jobs, against float64: all checks of one size share a job."""

import re

import numpy as np
import pytest

import oracle
from blocks import BIAS
from blocks import SETTINGS as OF_BLOCKS
from cluster import PROBLEM
from horovod_jobs import mpirun, needs_horovod, run_checks
from mpi import MPIRUN
from oracle import train_on_union
from problems import Problem, assert_close
from processes import printed_by
from svrg_lbfgs import SvrgLbfgs

pytestmark = [pytest.mark.cluster, pytest.mark.slow, needs_horovod]
SIZES, SGD = [27, 32], {'learning_rate': 0.2, 'momentum': 0.9, 'wd': 0.01}
GIVEN = {**PROBLEM, 'rows': sum(SIZES)}
SOFTMAX = {'kind': 'softmax', 'rows': sum(SIZES)}


def fits(sizes, batch_size=8):
    """Name the ways to train a Module, with the arguments of `fit`."""
    given = {'problem': {**GIVEN, 'rows': sum(sizes)}, 'sizes': sizes, 'settings': SGD,
             'batch_size': batch_size}
    return {name: {**given, **arguments} for name, arguments in {
        'module': {}, 'two devices': {'devices': 2}, 'alpha': {'alpha': 0.4},
        'without snapshots': {'alpha': 0},
    }.items()}


UNLIKE = {
    'update_freq': ({'settings': [{'update_freq': 1}, {'update_freq': 2}]}, [1, 2]),
    'begin_epoch': ({'fits': [{'begin_epoch': 0}, {'begin_epoch': 1}]}, [0, 1]),
    'as many batches': ({'sizes': [17, 40]}, [3, 5]),
    'batch size of train_data': ({'sizes': [16, 8], 'batch_sizes': [8, 4]}, [8, 4]),
}
SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5}


@pytest.fixture(scope='module')
def of_two(tmp_path_factory):
    """Make all checks of two ranks; return the results."""
    folder = tmp_path_factory.mktemp('horovod')
    gluon = {'problem': {**GIVEN, 'features': 4}, 'sizes': SIZES}
    checks = [*((name, 'fit', arguments) for name, arguments in fits(SIZES).items()),
              ('rule', 'fit_with_a_rule', {'problem': SOFTMAX, 'sizes': SIZES, 'num_epoch': 0,
                                           'batch_size': 8, 'wd': 0.05}),
              ('tol', 'fit_until_converged', {'problem': SOFTMAX, 'sizes': SIZES,
                                              'batch_size': 8, 'tols': [1e-4, 1e-4]}),
              ('other tols', 'fit_until_converged', {'problem': SOFTMAX, 'sizes': SIZES,
                                                     'batch_size': 8, 'tols': [1e-4, 1e-3]}),
              *(('unlike, ' + name, 'fit_unlike', {'sizes': [16, 16], **arguments})
                for name, (arguments, _) in UNLIKE.items()),
              ('resumed', 'resume', {'problem': GIVEN, 'sizes': SIZES,
                                     'prefix': str(folder / 'model')}),
              ('gluon', 'fit_gluon', gluon),
              ('gluon, on two devices', 'fit_gluon', {**gluon, 'devices': 2}),
              ('refusals', 'refusals', {}),
              ('end', 'end_at_once', {'problem': {**PROBLEM, 'features': 4}})]
    return run_checks(folder, checks)


def assert_alike(of_ranks):
    """Check that all ranks have the same weights, to the bit."""
    for weights in of_ranks[1:]:
        for name, value in of_ranks[0].items():
            np.testing.assert_array_equal(weights[name], value, err_msg=name)


def norm_of(problem, weights, wd=0.):
    """Return the largest component of the gradient of the mean objective over all rows."""
    rows = len(problem.features)
    weights = {name: value.astype('float64') for name, value in weights.items()}
    return max(np.abs(value / rows + wd * weights[name] * name.endswith('weight')).max()
               for name, value in
               problem.network(weights, problem.features, problem.targets).items())


def assert_svrg(results, sizes, arguments):
    """Check weights and norms of `fit` for those of float64 over all rows of all ranks."""
    given = {key: value for key, value in arguments.items() if key == 'alpha'}
    problem = Problem(**{**GIVEN, 'rows': sum(sizes)})
    at_snapshot, expected = (
        train_on_union(problem, sizes, arguments['batch_size'], epochs, 2, **given, **SGD)
        for epochs in (4, 5))
    for weights, norm in results:
        assert_close(weights, expected)
        if arguments.get('alpha') != 0:
            np.testing.assert_allclose(norm, norm_of(problem, at_snapshot, SGD['wd']), rtol=1e-5)
    assert_alike([weights for weights, _ in results])
    assert len({norm for _, norm in results}) == 1


def assert_blocks(results):
    """Check weights of `fit_gluon` for those of float64 over all rows of all ranks."""
    svrg = Problem(**{**GIVEN, 'features': 4}).svrg(16, **SETTINGS)
    for epoch in range(4):
        if epoch % 2 == 0:
            svrg.take_snapshot()
        for begin in range(0, max(SIZES), 8):
            rows = np.r_[begin:min(begin + 8, SIZES[0]),
                         SIZES[0] + begin:SIZES[0] + min(begin + 8, SIZES[1])]
            svrg.optimizer.rescale = 1 / len(rows)
            svrg.step(rows)
    for weights, _ in results:
        assert_close(weights, svrg.weights)
    assert_alike([weights for weights, _ in results])


@pytest.mark.parametrize('name', fits(SIZES))
def test_modules_train_on_all_rows(of_two, name):
    assert_svrg(of_two[name], SIZES, fits(SIZES)[name])


def test_the_rate_is_that_of_all_rows(of_two):
    problem = Problem(**SOFTMAX)
    twin = SvrgLbfgs(problem, wd=0.05, batch_size=16)
    shards = [oracle.batches_of(size, 8) for size in SIZES]
    twin.fit(0, 1, [np.r_[first, SIZES[0] + second] for first, second in zip(*shards)])
    for weights, rate, *_ in of_two['rule']:
        assert_close(weights, twin.weights)
        np.testing.assert_allclose(rate, twin.rate, rtol=1e-5)
    assert_alike([weights for weights, *_ in of_two['rule']])
    assert len({rate for _, rate, *_ in of_two['rule']}) == 1
    assert not any('servers' in line for *_, line in of_two['rule'])


def test_all_stop_at_the_same_snapshot(of_two):
    problem = Problem(**SOFTMAX)
    assert len({(norm, epochs) for _, norm, epochs, *_ in of_two['tol']}) == 1
    for weights, norm, epochs, *_ in of_two['tol']:
        assert norm <= 1e-4 and 0 < epochs < 200
        assert abs(norm_of(problem, weights, 0.05) - norm) < 1e-5
    assert_alike([weights for weights, *_ in of_two['tol']])
    for tol, message in zip((0.0001, 0.001), of_two['other tols']):
        assert "tol must be the same on all workers with the kvstore 'horovod_dist_sync', and is " \
            '%r on rank' % tol in message


@pytest.mark.parametrize('name', UNLIKE)
def test_what_differs_is_an_error_on_all_before_a_step(of_two, name):
    for rank, (message, steps) in enumerate(of_two['unlike, ' + name]):
        values = UNLIKE[name][1]
        assert name in message and message.endswith((
            'and is %r on rank %d' % (values[rank], rank), 'in the order of ranks, %s' % values))
        assert not steps


def test_a_resumed_training_ends_on_the_bits_of_an_unbroken_one(of_two):
    expected = train_on_union(Problem(**GIVEN), SIZES, 8, 5, 2, **SETTINGS)
    for unbroken, resumed in of_two['resumed']:
        assert_close(unbroken, expected)
        assert_alike([of_two['resumed'][0][0], unbroken, resumed])


@pytest.mark.parametrize('name', ['gluon', 'gluon, on two devices'])
def test_blocks_train_on_all_rows(of_two, name):
    assert_blocks(of_two[name])
    assert not any(warned for _, warned in of_two[name])


def test_the_last_step_of_a_rank_that_has_ended_is_summed(of_two):
    svrg = Problem(**{**PROBLEM, 'features': 4}).svrg(8, **OF_BLOCKS, **BIAS)
    svrg.step(np.arange(8))
    assert_close(of_two['end'][0], svrg.weights)


def test_what_cannot_be_trained_is_refused(of_two):
    expected = {
        'row_sparse': "must not be Horovod's .* row_sparse, as w:",
        'wrapped': 'optimizer must not be a DistributedOptimizer',
        'wrapped in Gluon': 'optimizer must not be a DistributedOptimizer',
        'compression': 'compression_params must be None',
        'adam by the rule': 'lr_scheduler must not be that of svrg_lbfgs with adam',
        'borrowed': 'shared_module must be an SVRGModule if .* of Horovod',
        'sparse gradients in Gluon': 'params must have dense gradients'}
    for told in of_two['refusals']:
        assert set(told) == set(expected)
        for name, message in expected.items():
            assert told[name] and re.search(message, told[name]), (name, told[name])
    for messages in of_two['before init']:
        assert all('needs horovod.mxnet.init() before it' in message for message in messages)


def test_three_ranks_train_on_all_rows(tmp_path):
    sizes = [27, 30, 25]
    arguments = fits(sizes, 15)['module']
    found = run_checks(tmp_path, [('module', 'fit', arguments)], 3)
    assert_svrg(found['module'], sizes, arguments)


def test_mpirun_starts_ranks_that_train_on_all_rows(tmp_path):
    if not (MPIRUN and 'True' in printed_by('-c', 'import horovod.mxnet as hvd; '
                                            'print(hvd.mpi_built())')):
        pytest.skip('needs mpirun, and Horovod with MPI: make horovod')
    checks = [('gluon', 'fit_gluon', {'problem': {**GIVEN, 'features': 4}, 'sizes': SIZES}),
              ('module', 'fit', fits(SIZES)['module'])]
    found = run_checks(tmp_path, checks, start=mpirun)
    assert_svrg(found['module'], SIZES, fits(SIZES)['module'])
    assert_blocks(found['gluon'])

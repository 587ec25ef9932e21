"""Training with Horovod in real jobs, against float64: all checks of one size share a job."""

import pickle
import re
import sys

import numpy as np
import pytest

import oracle
from blocks import BIAS, Blocks
from cluster import HERE, PROBLEM, horovodrun, needs_horovod
from oracle import train_on_union
from problems import Problem, assert_close
from sequences import SETTINGS as OF_SEQUENCES
from sequences import Sequences
from svrg_bb import SvrgBB
from svrg_optimization.proximal import L1

in_a_job = [pytest.mark.cluster, pytest.mark.slow, needs_horovod]
SIZES, SGD = [27, 32], {'learning_rate': 0.2, 'momentum': 0.9, 'wd': 0.01}
GIVEN = {**PROBLEM, 'rows': sum(SIZES)}
SOFTMAX = {'kind': 'softmax', 'rows': sum(SIZES)}


def run_checks(directory, checks, workers=2):
    """Make some checks in one job; return the results of each, in the order of ranks."""
    (directory / 'checks').write_bytes(pickle.dumps(checks))
    with horovodrun([HERE / 'horovod_workers.py', directory], workers) as running:
        status = running.exit_status()
    assert status == 0 and 'Traceback' not in running.output, running.output
    of_ranks = [pickle.loads((directory / ('result-%d' % rank)).read_bytes())
                for rank in range(workers)]
    return {name: [results[name] for results in of_ranks] for name in of_ranks[0]}


def fits(sizes):
    """Name the ways to train a Module, with the arguments of `fit`."""
    given = {'problem': {**GIVEN, 'rows': sum(sizes)}, 'sizes': sizes, 'settings': SGD}
    return {name: {**given, **arguments} for name, arguments in {
        'by name': {'kvstore': 'horovod', 'is_wrapped': False},
        'by name, on two devices': {'kvstore': 'horovod', 'is_wrapped': False, 'devices': 2},
        'wrapped': {},
        'wrapped, local': {'kvstore': 'local'},
        'wrapped, device, on two devices': {'kvstore': 'device', 'devices': 2},
        'wrapped, a local KVStore': {'kvstore': 'local', 'is_object': True},
        'wrapped, by name': {'kvstore': 'horovod'},
        'predivided, twice': {'wrapper': {'predivide': 4.}, 'twice': True},
        'averaged by Horovod': {'wrapper': {'predivide': 4., 'averages': True}, 'twice': True},
        'alpha': {'kvstore': 'horovod', 'is_wrapped': False, 'alpha': 0.4},
    }.items()}


UNLIKE = {
    'update_freq': ({'update_freqs': [1, 2]}, [1, 2]),
    'begin_epoch': ({'begin_epochs': [0, 1]}, [0, 1]),
    'as many batches': ({'sizes': [17, 40]}, [3, 5]),
    'batch size of train_data': ({'sizes': [16, 8], 'batch_sizes': [8, 4]}, [8, 4]),
}
SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5}


@pytest.fixture(scope='module')
def of_two(tmp_path_factory):
    """Make all checks of two ranks; return the results."""
    folder = tmp_path_factory.mktemp('horovod')
    by_rule = {'problem': SOFTMAX, 'sizes': SIZES, 'num_epoch': 4}
    gluon = {'problem': {**GIVEN, 'features': 4}, 'sizes': SIZES}
    even = {**PROBLEM, 'kind': 'linear', 'features': 4, 'rows': 48}
    checks = [*((name, 'fit', arguments) for name, arguments in fits(SIZES).items()),
              ('adam', 'fit', {'problem': GIVEN, 'sizes': SIZES, 'optimizer': 'adam',
                               'settings': {'learning_rate': 0.05}}),
              ('proximal', 'fit', {'problem': SOFTMAX, 'sizes': SIZES, 'proximal': L1(0.05),
                                   'settings': {'learning_rate': 0.2}}),
              ('rule', 'fit_by_rule', by_rule),
              ('rule, by name', 'fit_with_step_size', {**by_rule, 'batch_size': 8, 'wd': 0.05,
                                                       'bounded': False}),
              ('tol', 'fit_until_converged', {'problem': SOFTMAX, 'sizes': SIZES,
                                              'batch_size': 8, 'tols': [1e-4, 1e-4]}),
              ('other tols', 'fit_until_converged', {'problem': SOFTMAX, 'sizes': SIZES,
                                                     'batch_size': 8, 'tols': [1e-4, 1e-3]}),
              *(('unlike, ' + name, 'fit_unlike', {'sizes': [16, 16], **arguments})
                for name, (arguments, _) in UNLIKE.items()),
              ('snapshots', 'snapshots', {'problem': GIVEN, 'sizes': [20, 39],
                                          'batch_sizes': [8, 6], 'count': 3, 'seeds': [0, 1]}),
              ('tried again', 'fit_tried_again', {'sizes': [12, 12]}),
              ('stored', 'fit_held', {'problem': GIVEN, 'sizes': SIZES, 'batch_size': 8,
                                      'num_epoch': 4, 'update_freq': 2, 'optimizer': SETTINGS}),
              ('samples', 'fit_sampled', {'problem': GIVEN, 'sizes': SIZES,
                                          'full_sizes': [39, 20], 'full_batch_sizes': [8, 5],
                                          'batches': None, 'updates': 3, 'num_epoch': 2,
                                          'optimizer': SETTINGS}),
              ('buckets', 'fit_buckets', {'num_epoch': 5, 'optimizer': OF_SEQUENCES,
                                          'directory': folder}),
              ('resumed', 'resume', {'problem': GIVEN, 'sizes': SIZES,
                                     'prefix': str(folder / 'model')}),
              ('gluon', 'fit_gluon', gluon),
              ('gluon, on two devices', 'fit_gluon', {**gluon, 'devices': 2}),
              ('gluon, wrapped', 'fit_gluon', {**gluon, 'is_wrapped': True, 'kvstore': 'device'}),
              ('gluon, wrapped by name', 'fit_gluon', {**gluon, 'is_wrapped': True}),
              ('gluon converges', 'converge_gluon', {
                  'problem': even, 'sizes': [24, 24], 'batch_size': 8, 'tols': [1e-2, 1e-4],
                  'strength': 0.3}),
              ('rows of a step', 'warn_of_batch_sizes', {
                  'problem': {**PROBLEM, 'features': 4}, 'sizes': [24, 24], 'batch_size': 8,
                  'given': [16, 8]}),
              ('refusals', 'refusals', {})]
    return run_checks(folder, checks)


def assert_alike(of_ranks):
    """Check that all ranks have the same weights, to the bit."""
    for weights in of_ranks[1:]:
        for name, value in of_ranks[0].items():
            np.testing.assert_array_equal(weights[name], value, err_msg=name)


def norm_of(problem, weights, wd=0., decayed=BIAS['decayed']):
    """Return the largest component of the gradient of the mean objective over all rows."""
    rows = len(problem.features)
    weights = {name: value.astype('float64') for name, value in weights.items()}
    return max(np.abs(value / rows + wd * weights[name] * name.endswith(decayed)).max()
               for name, value in
               problem.network(weights, problem.features, problem.targets).items())


def assert_svrg(results, sizes, arguments):
    """Check weights and norms of `fit` for those of float64 over all rows of all ranks."""
    given = {key: value for key, value in arguments.items() if key == 'alpha'}
    decayed = BIAS if arguments.get('is_wrapped', True) else {}
    problem = Problem(**{**GIVEN, 'rows': sum(sizes)})
    at_snapshot, expected = (
        train_on_union(problem, sizes, 8, epochs, 2, **given, **SGD, **decayed)
        for epochs in (4, 5))
    for weights, norm in results:
        assert_close(weights, expected)
        np.testing.assert_allclose(norm, norm_of(problem, at_snapshot, SGD['wd'], tuple(
            decayed.get('decayed', ['weight']))), rtol=1e-5)
    assert_alike([weights for weights, _ in results])
    assert len({norm for _, norm in results}) == 1


@pytest.mark.parametrize('name', fits(SIZES))
class TestModule:
    pytestmark = in_a_job

    def test_trains_on_all_rows_of_all_ranks(self, of_two, name):
        assert_svrg(of_two[name], SIZES, fits(SIZES)[name])



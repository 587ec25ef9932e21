"""Distributed training in real clusters, against float64."""

import re

import mxnet as mx
import numpy as np
import pytest

import oracle
from cluster import PROBLEM, run_workers
from oracle import train_on_union
from problems import Problem, SparseProblem, assert_close
from sequences import SETTINGS, Sequences
from svrg_optimization.proximal import L1

pytestmark = pytest.mark.cluster


def full_gradient(problem, weights, batch_size):
    """Compute the float64 full gradient over all rows, in the units of a worker's batch."""
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    rows = len(problem.features)
    return {name: batch_size / rows * value for name, value in problem.network(
        weights, problem.features, problem.targets).items()}


# kind, shard sizes, batch sizes, servers, devices, environment
CLUSTERS = [
    ('dist_sync', [20, 37], [8, 6], 1, 1, {}),
    ('dist_async', [30, 0, 27], [8, 8, 8], 2, 1, {}),
    ('dist_device_sync', [26, 31], [8, 8], 1, 2, {'MXNET_UPDATE_ON_KVSTORE': '0'}),
]
MORE_CLUSTERS = [
    (kind, sizes, [8] * len(sizes), servers, devices, environment)
    for kind in ('dist_sync', 'dist_device_sync', 'dist_async')
    for sizes in ([57], [20, 37], [10, 28, 19], [5, 0, 40, 12])
    for servers, devices in ((1, 1), (2, 2))
    for environment in ({}, {'MXNET_UPDATE_ON_KVSTORE': '0'})
    if not (kind == 'dist_async' and environment)
    and not (sizes == [57] and devices == 2)  # a last batch of one row
] + [
    (kind, [20, 37], [8, 8], 2, 1, {'MXNET_KVSTORE_BIGARRAY_BOUND': '10'})
    for kind in ('dist_sync', 'dist_async')
]


@pytest.mark.slow
@pytest.mark.parametrize('cluster', CLUSTERS + [
    pytest.param(cluster, marks=pytest.mark.exhaustive) for cluster in MORE_CLUSTERS], ids=str)
def test_workers_have_the_full_gradient_of_all_rows(tmp_path, cluster):
    kind, sizes, batch_sizes, servers, devices, environment = cluster
    found = run_workers('snapshots', tmp_path, len(sizes), servers, environment, kind=kind,
                        problem=PROBLEM, sizes=sizes, batch_sizes=batch_sizes, devices=devices,
                        seeds=list(range(len(sizes))))
    problem = Problem(**PROBLEM)
    for number, of_workers in enumerate(zip(*found)):
        for rank, snapshot in enumerate(of_workers):
            for name, value in snapshot['weights'].items():
                np.testing.assert_array_equal(value, of_workers[0]['weights'][name])
                np.testing.assert_array_equal(value, snapshot['live'][name])
            assert_close(snapshot['full'], full_gradient(problem, snapshot['weights'],
                                                         batch_sizes[rank]))
        if number:
            before = found[0][number - 1]['weights']['fc_weight']
            assert np.abs(of_workers[0]['weights']['fc_weight'] - before).max() > 1e-4


def test_workers_that_update_begin_at_the_weights_of_the_first(tmp_path):
    """And they know the objective over the rows of all, which are unevenly many."""
    problem, sizes = Problem(**PROBLEM), [20, 37]
    found = run_workers('snapshots', tmp_path, environment={'MXNET_UPDATE_ON_KVSTORE': '0'},
                        problem=PROBLEM, sizes=sizes, batch_sizes=[8, 8], devices=2, count=2,
                        apart=1)
    first = found[0][0]['before']
    np.testing.assert_allclose(found[1][0]['before']['fc_weight'], first['fc_weight'] + 1)
    for of_worker in found:
        for name, value in first.items():
            np.testing.assert_array_equal(of_worker[0]['weights'][name], value)
        for number, snapshot in enumerate(of_worker):
            for name, value in found[0][number]['live'].items():
                np.testing.assert_array_equal(snapshot['live'][name], value)
            weights = {name: value.astype(float) for name, value in snapshot['weights'].items()}
            np.testing.assert_allclose(snapshot['objective'], oracle.loss(
                problem.network, weights, problem.features, problem.targets) / 57, rtol=1e-6)
            assert_close(snapshot['full'], full_gradient(problem, weights, 8))


def test_each_row_counts_alike_in_mean_losses(tmp_path):
    found = run_workers('snapshots', tmp_path, problem={**PROBLEM, 'mean': True}, sizes=[20, 37],
                        batch_sizes=[8, 6], count=2)
    for snapshot in found[0] + found[1]:
        assert_close(snapshot['full'], full_gradient(Problem(**PROBLEM), snapshot['weights'], 1))


SGD = {'learning_rate': 0.2, 'momentum': 0.9, 'wd': 0.01}


@pytest.mark.parametrize('environment, servers, given, in_float64', [
    ({}, 2, {**SGD, 'alpha': 0.4}, {}),
    pytest.param({'MXNET_KVSTORE_BIGARRAY_BOUND': '10', 'MXNET_UPDATE_ON_KVSTORE': '0'}, 2, SGD, {},
                 marks=pytest.mark.slow),
    pytest.param({'MXNET_KVSTORE_BIGARRAY_BOUND': '5'}, 1,
                 {'learning_rate': 0.2, 'proximal': L1(0.05)},
                 {'proximal': dict.fromkeys(['hidden_weight', 'fc_weight'],
                                            oracle.soft_threshold(0.05))},
                 marks=pytest.mark.slow)], ids=['alpha', 'split keys', 'proximal'])
def test_workers_step_as_one_process_on_the_union_of_the_batches(tmp_path, environment, servers,
                                                                 given, in_float64):
    sizes, sgd = [28, 29], {name: given[name] for name in SGD if name in given}
    settings = {name: value for name, value in given.items() if name not in SGD}
    results = run_workers('fit', tmp_path, 2, servers, environment, problem=PROBLEM, sizes=sizes,
                          batch_size=8, num_epoch=5, update_freq=2, devices=2, optimizer=sgd,
                          **settings)
    expected = train_on_union(Problem(**PROBLEM), sizes, 8, 5, 2, **sgd, **{**settings,
                                                                            **in_float64})
    for result in results:
        assert_close(result['weights'], expected)
        np.testing.assert_array_equal(result['weights']['fc_weight'] == 0,
                                      expected['fc_weight'] == 0)
    assert (expected['fc_weight'] == 0).any() == bool(in_float64)


@pytest.mark.slow
@pytest.mark.parametrize('environment', [{}, {'MXNET_UPDATE_ON_KVSTORE': '0'}], ids=str)
def test_full_gradients_are_over_the_samples_of_all_workers(tmp_path, environment):
    sizes = [28, 29]
    results = run_workers('fit', tmp_path, environment=environment, problem=PROBLEM, sizes=sizes,
                          batch_size=8, full_grad_batches=3, update_freq=1, num_epoch=4,
                          optimizer=SGD)
    svrg = Problem(**PROBLEM).svrg(16, **SGD)
    shards = [begin + np.array(oracle.batches_of(size, 8)) for begin, size in zip([0, 28], sizes)]
    for number, batches in enumerate(list(zip(*shards)) * 4):
        if number % 4 == 0:
            svrg.take_snapshot(np.concatenate([np.arange(24), 28 + np.arange(24)]))
        svrg.step(np.concatenate(batches))
    for result in results:
        assert_close(result['weights'], svrg.weights)


def test_asynchronous_training_converges_to_the_optimum(tmp_path):
    given = {'rows': 60, 'features': 5}
    results = run_workers('fit', tmp_path, 3, 1, kind='dist_async', problem=given,
                          sizes=[15, 25, 20], batch_size=5, num_epoch=60,
                          optimizer={'learning_rate': 0.05})
    problem = Problem(**given)
    design = np.column_stack([problem.features, np.ones(60)])
    optimum = np.linalg.lstsq(design, problem.targets, rcond=None)[0]
    for result in results:
        assert_close(result['weights'], {'fc_weight': optimum[None, :-1], 'fc_bias': optimum[-1:]})


@pytest.mark.slow
def test_workers_with_stored_gradients_step_as_one_process(tmp_path):
    sgd = {'learning_rate': 0.1, 'momentum': 0.5}
    results = run_workers('fit', tmp_path, problem=PROBLEM, sizes=[28, 29], batch_size=8,
                          num_epoch=4, update_freq=2, optimizer=sgd, store_snapshot_grads=1 << 30)
    problem = Problem(**PROBLEM)
    svrg = problem.svrg(16, **sgd)
    for number, batches in enumerate(zip(*(result['steps'] for result in results))):
        if number % 8 == 0:
            svrg.take_snapshot()
        svrg.step(np.array([np.abs(problem.features - row).sum(axis=1).argmin()
                            for row in np.concatenate(batches)]), 16)
    for result in results:
        assert_close(result['weights'], svrg.weights)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['dist_sync', pytest.param('dist_async',
                                                            marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize('servers, bound', [(1, '1000000'), (2, '6')])
def test_row_sparse_parameters_train_as_in_one_process(tmp_path, kind, servers, bound):
    sizes, sgd = [19, 21], {'learning_rate': 0.1}
    results = run_workers('fit', tmp_path, 2, servers, {'MXNET_KVSTORE_BIGARRAY_BOUND': bound},
                          kind=kind, problem={'sparse': True}, sizes=sizes, batch_size=6,
                          num_epoch=4 if kind == 'dist_sync' else 1, optimizer=sgd)
    problem = SparseProblem()
    if kind == 'dist_async':
        for result in results:
            assert_close(result['full'], full_gradient(problem, problem.weights, 6))
        return
    expected = train_on_union(problem, sizes, 6, 4, 1, **sgd)
    for result in results:
        assert_close(result['weights'], expected)


@pytest.mark.slow
def test_buckets_train_on_the_mean_over_the_workers(tmp_path):
    results = run_workers('fit_buckets', tmp_path, num_epoch=5, optimizer=SETTINGS,
                          directory=tmp_path)
    problem = Sequences()
    problem.targets += 0.5
    for weights, warned in results:
        assert_close(weights, problem.expect(5, 2, **SETTINGS).weights)
        assert warned == 1


@pytest.mark.slow
def test_init_optimizer_succeeds_after_one_that_failed(tmp_path):
    problem = Problem(rows=24)
    for message, full, is_same_kvstore, of_rate, rate in run_workers('init_optimizer_twice',
                                                                     tmp_path):
        assert 'learning_rate must not be set, to 0.2' in of_rate
        assert rate == 0.1
        assert message == 'not this one' and is_same_kvstore
        assert_close(full, full_gradient(problem, problem.weights, 4))


@pytest.mark.slow
def test_compressing_kvstore_is_an_error(tmp_path):
    for message in run_workers('compressing_kvstore', tmp_path):
        assert 'must not compress gradients' in message


@pytest.mark.slow
@pytest.mark.parametrize('kind, environment', [
    ('dist_sync', {}), ('dist_sync', {'MXNET_UPDATE_ON_KVSTORE': '0'}), ('dist_async', {})],
    ids=str)
def test_resumed_training_goes_on_with_counts_and_states(tmp_path, kind, environment):
    alone = kind == 'dist_async'  # then the order of the steps is known
    sizes = [40] if alone else [19, 21]
    sgd = {'learning_rate': 0.2, 'momentum': 0.5 if environment else 0.0}
    given = {'workers': len(sizes), 'environment': environment, 'kind': kind,
             'problem': {'rows': 40}, 'sizes': sizes, 'batch_size': 6, 'update_freq': 3,
             'optimizer': sgd, 'scheduler': {'step': 5, 'factor': 0.7},
             'prefix': str(tmp_path / 'model')}
    warned = run_workers('fit', tmp_path, num_epoch=4, **given)[0]['warnings']
    assert len(warned) == (0 if environment else 1)
    assert all('are on the servers' in message for message in warned)
    results = run_workers('fit', tmp_path, num_epoch=7, resume_at=4, **given)
    problem = Problem(rows=40)
    expected = train_on_union(problem, sizes, 6, 7, 3, momentum=sgd['momentum'],
                              learning_rate=lambda n: 0.2 * 0.7 ** ((n - 1) // 5))
    for result in results:
        assert_close(result['weights'], expected)


def by_rank(**values):
    """Return for each rank its arguments."""
    return [{name: of_ranks[rank] for name, of_ranks in values.items()} for rank in range(2)]


UPDATED_BY_WORKERS = {'MXNET_UPDATE_ON_KVSTORE': '0'}


def unlike(name, *values):
    """Return for each rank the pattern of its message about what is not the same on all."""
    return ['^%s must be the same on all workers with the kvstore .*, and is %s on rank %d$' % (
        name, value, rank) for rank, value in enumerate(values)]


# Of each cluster what the messages of both ranks say, and what differs between its workers.
DIFFERENCES = {
    'workers update': (UPDATED_BY_WORKERS, 'dist_sync', [
        (unlike('learning_rate of the optimizer', 0.05, 0.2), {'fits': by_rank(
            optimizer_params=[{'learning_rate': 0.05}, {'learning_rate': 0.2}])}),
        (unlike('optimizer', "'SGD'", "'NAG'"), {'fits': by_rank(optimizer=['sgd', 'nag'])}),
        (unlike('lr_scheduler', "'NoneType'", "'FactorScheduler'"),
         {'fits': by_rank(optimizer_params=[
             {}, {'lr_scheduler': mx.lr_scheduler.FactorScheduler(5)}])}),
        (unlike('momentum of the optimizer', 0.0, 0.9),
         {'fits': by_rank(optimizer=['sgd', mx.optimizer.SGD(
             momentum=0.9, learning_rate=0.01, rescale_grad=1 / 16)])}),
        (unlike('the batch size of train_data', 8, 4),
         {'sizes': [16, 8], 'batch_sizes': [8, 4]})]),
    'servers update': ({}, 'dist_sync', [
        ([r'in the order of ranks, \[3, 5\]$'] * 2, {'sizes': [17, 40]}),
        ([r'in the order of ranks, \[8, 0\]$'] * 2, {'sizes': [57, 0]}),
        (unlike('update_freq', 1, 2), {'settings': by_rank(update_freq=[1, 2])}),
        (unlike('proximal', r"\['L1', .*0.5.*\]", r"\['L1', .*0.25.*\]"),
         {'settings': by_rank(proximal=[L1(0.5), L1(0.25)])}),
        (unlike('full_grad_batches', 2, 3), {'settings': by_rank(full_grad_batches=[2, 3])}),
        (unlike(".* last_batch_handle='roll_over'", 0, 3),
         {'sizes': [20, 23], 'batch_sizes': [10, 10], 'last_batch_handle': 'roll_over'}),
        (unlike('begin_epoch', 0, 1), {'fits': by_rank(begin_epoch=[0, 1])}),
        (unlike('num_epoch', 4, 5), {'fits': by_rank(num_epoch=[4, 5])}),
        (unlike('a snapshot when fit begins', False, True),
         {'fits': by_rank(begin_epoch=[1, 1]), 'settings': by_rank(update_freq=[2, 2]),
          'prefixes': ['model', None]}),
        ([r'ranks, \[4, 2\]$'] * 2, {'sizes': [30, 10], 'fits': by_rank(begin_epoch=[1, 1]),
                                     'prefixes': ['model'] * 2})]),
    'without order': ({}, 'dist_async', [
        (unlike('alpha', 1.0, 0.0), {'settings': by_rank(alpha=[1, 0])}),
        ([r'at least one batch on each worker in fit.*ranks, \[2, 0\]$'] * 2,
         {'sizes': [16, 0]})])}


@pytest.mark.slow
@pytest.mark.parametrize('environment, kind, cases', DIFFERENCES.values(), ids=list(DIFFERENCES))
def test_fit_that_would_hang_or_differ_is_an_error_on_all_workers(tmp_path, environment, kind,
                                                                  cases):
    problem, prefix = Problem(rows=32), str(tmp_path / 'model')
    module = problem.module(2)
    module.fit(problem.iterator(8), num_epoch=1, eval_metric='mse')
    module.save_checkpoint(prefix, 1)
    for messages, arguments in cases:
        given = {'sizes': [16, 16], **arguments, 'prefixes': [
            name and prefix for name in arguments.get('prefixes', [None, None])]}
        for message, (found, steps) in zip(messages, run_workers(
                'fit_unlike', tmp_path, environment=environment, kind=kind, **given)):
            assert found is not None and re.search(message, found), (message, found)
            assert not steps


@pytest.mark.slow
def test_workers_may_leave_the_same_number_of_rows_over(tmp_path):
    results = run_workers('fit_unlike', tmp_path, sizes=[23, 23], batch_sizes=[10, 10],
                          last_batch_handle='roll_over', fits=[{'num_epoch': 5}] * 2)
    assert results[0] == results[1] and results[0][0] is None


@pytest.mark.slow
def test_servers_add_float64_values_in_float64(tmp_path):
    for total in run_workers('sum_of_thirds', tmp_path, environment={'MALLOC_PERTURB_': '1'}):
        np.testing.assert_array_equal(total, 2 / 3)

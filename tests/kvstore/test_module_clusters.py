"""Distributed training in real clusters, against float64."""

import re

import mxnet as mx
import numpy as np
import pytest

import oracle
from cluster import PROBLEM, run_workers
from problems import Problem, SparseProblem, assert_close
from sequences import SETTINGS, Sequences
from svrg_optimization.proximal import L1
from unions import (
    assert_alike,
    assert_blocks,
    assert_module,
    assert_optimum,
    full_gradient,
    train_on_union,
)

pytestmark = pytest.mark.cluster
BY_WORKERS = {'MXNET_UPDATE_ON_KVSTORE': '0'}


def exhaustive(*case):
    return pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.exhaustive])


def slow(*case, **given):
    return pytest.param(*case, marks=pytest.mark.slow, **given)


# kind, shard sizes, batch sizes, servers, devices, environment, whether losses are means
CLUSTERS = [
    ('dist_sync', [20, 37], [8, 6], 1, 1, BY_WORKERS, True),
    slow('dist_sync', [20, 37], [8, 6], 1, 1, {}, False),
    slow('dist_sync', [20, 37], [8, 6], 1, 1, {}, True),
    slow('dist_async', [30, 0, 27], [8, 8, 8], 2, 1, {}, False),
    slow('dist_device_sync', [26, 31], [8, 8], 1, 2, BY_WORKERS, False),
    *(exhaustive(kind, sizes, [8] * len(sizes), servers, devices, {}, False)
      for kind in ('dist_sync', 'dist_device_sync', 'dist_async')
      for sizes in ([20, 37], [10, 28, 19], [5, 0, 40, 12])
      for servers, devices in ((1, 1), (2, 2)))]


@pytest.mark.parametrize('kind, sizes, batch_sizes, servers, devices, environment, mean', CLUSTERS)
def test_workers_have_the_full_gradient_of_all_rows(tmp_path, kind, sizes, batch_sizes, servers,
                                                    devices, environment, mean):
    """At the weights of the first, and with the objective; the workers may have uneven shards."""
    found = run_workers('snapshots', tmp_path, len(sizes), servers, environment, kind=kind,
                        problem={**PROBLEM, 'mean': mean}, sizes=sizes, batch_sizes=batch_sizes,
                        devices=devices)
    problem = Problem(**PROBLEM)
    assert_alike([found[0][0]['before'], *(of_worker[0]['weights'] for of_worker in found)])
    for number, of_workers in enumerate(zip(*found)):
        weights = of_workers[0]['weights']
        assert_alike([weights, *(snapshot[name] for snapshot in of_workers
                                 for name in ('weights', 'live'))])
        expected = oracle.loss(problem.network, {
            name: value.astype(float) for name, value in weights.items()}, problem.features,
            problem.targets) / 57
        for snapshot, batch_size in zip(of_workers, batch_sizes):
            assert_close(snapshot['full'], full_gradient(
                problem, weights, 1 if mean else batch_size))
            np.testing.assert_allclose(snapshot['objective'], expected, rtol=1e-6)
        if number:
            before = found[0][number - 1]['weights']['fc_weight']
            assert np.abs(weights['fc_weight'] - before).max() > 1e-4


SGD = {'learning_rate': 0.2, 'momentum': 0.9, 'wd': 0.01}


@pytest.mark.parametrize('environment, servers, sgd, settings, in_float64', [
    ({}, 2, SGD, {'alpha': 0.4}, {'alpha': 0.4}),
    slow({'MXNET_KVSTORE_BIGARRAY_BOUND': '10', **BY_WORKERS}, 2, SGD, {}, {}),
    slow({'MXNET_KVSTORE_BIGARRAY_BOUND': '5'}, 1, {'learning_rate': 0.2},
         {'proximal': L1(0.05)}, {'proximal': dict.fromkeys(
             ['hidden_weight', 'fc_weight'], oracle.soft_threshold(0.05))})],
    ids=['alpha', 'split keys', 'proximal'])
def test_workers_step_as_one_process_on_the_union_of_the_batches(tmp_path, environment, servers,
                                                                 sgd, settings, in_float64):
    sizes = [28, 29]
    results = run_workers('fit', tmp_path, 2, servers, environment, problem=PROBLEM, sizes=sizes,
                          num_epoch=5, update_freq=2, devices=2, params=sgd, apart=1, **settings)
    expected = assert_module(results, Problem(**PROBLEM), sizes, **sgd, **in_float64)
    for result in results:
        np.testing.assert_array_equal(result['weights']['fc_weight'] == 0,
                                      expected['fc_weight'] == 0)
    assert (expected['fc_weight'] == 0).any() == ('proximal' in settings)


@pytest.mark.slow
@pytest.mark.parametrize('environment', [{}, BY_WORKERS], ids=str)
def test_snapshots_are_over_samples_of_all_workers(tmp_path, environment):
    results = run_workers('fit', tmp_path, environment=environment, problem=PROBLEM,
                          sizes=[28, 29], update_freq=1, params=SGD, full_grad_batches=3)
    problem = Problem(**PROBLEM)
    svrg = problem.svrg(16, **SGD)
    for number, batches in enumerate(zip(*(result['steps'] for result in results))):
        if number % 4 == 0:
            svrg.take_snapshot([*range(24), *range(28, 52)])
        svrg.step(np.array([np.abs(problem.features - row).sum(axis=1).argmin()
                            for row in np.concatenate(batches)]), 16)
    for result in results:
        assert_close(result['weights'], svrg.weights)


def test_asynchronous_training_converges_to_the_optimum(tmp_path):
    given = {'rows': 60, 'features': 5}
    results = run_workers('fit', tmp_path, kind='dist_async', problem=given, sizes=[22, 38],
                          batch_size=5, num_epoch=60,
                          params={'learning_rate': 0.05})
    problem = Problem(**given)
    design = np.column_stack([problem.features, np.ones(60)])
    optimum = np.linalg.lstsq(design, problem.targets, rcond=None)[0]
    for result in results:
        assert_close(result['weights'], {'fc_weight': optimum[None, :-1], 'fc_bias': optimum[-1:]})


@pytest.mark.parametrize('servers, bound', [(1, '1000000'), (2, '6')])
@pytest.mark.parametrize('kind', [slow('dist_sync'), exhaustive('dist_async')])
def test_row_sparse_parameters_train_as_in_one_process(tmp_path, kind, servers, bound):
    sizes, epochs, problem = [19, 21], 4 if kind == 'dist_sync' else 1, SparseProblem()
    results = run_workers('fit', tmp_path, 2, servers, {'MXNET_KVSTORE_BIGARRAY_BOUND': bound},
                          kind=kind, problem={'sparse': True}, sizes=sizes, batch_size=6,
                          num_epoch=epochs, params={'learning_rate': 0.1})
    expected = train_on_union(problem, sizes, 6, epochs, 1, learning_rate=0.1)
    for result in results:
        if kind == 'dist_sync':
            assert_close(result['weights'], expected)
        else:
            assert_close(result['full'], full_gradient(problem, problem.weights, 6))


@pytest.mark.slow
def test_buckets_train_on_the_mean_over_the_workers(tmp_path):
    results = run_workers('fit_buckets', tmp_path, num_epoch=5, params=SETTINGS,
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
        assert 'learning_rate must not be set with servers' in of_rate
        assert rate == 0.1
        assert message == 'not this one' and is_same_kvstore
        assert_close(full, full_gradient(problem, problem.weights, 4))


@pytest.mark.slow
def test_compressing_kvstore_is_an_error(tmp_path):
    for message in run_workers('compressing_kvstore', tmp_path):
        assert 'must not compress gradients' in message


@pytest.mark.slow
@pytest.mark.parametrize('kind, environment', [
    ('dist_sync', {}), ('dist_sync', BY_WORKERS), ('dist_async', {})], ids=str)
def test_resumed_training_goes_on_with_counts_and_states(tmp_path, kind, environment):
    alone = kind == 'dist_async'  # then the order of the steps is known
    sizes, momentum = [40] if alone else [19, 21], 0.5 if environment else 0.0
    given = {'workers': len(sizes), 'environment': environment, 'kind': kind, 'sizes': sizes,
             'batch_size': 6, 'update_freq': 3, 'scheduler': {'step': 5, 'factor': 0.7},
             'params': {'learning_rate': 0.2, 'momentum': momentum}}
    prefix = str(tmp_path / 'model')
    warned = run_workers('fit', tmp_path, prefix=prefix, **given)[0]['warnings']
    assert len(warned) == (0 if environment else 1)
    assert all('are on the servers' in message for message in warned)
    results = run_workers('fit', tmp_path, num_epoch=7, begin_epoch=4, load_from=prefix, **given)
    expected = train_on_union(Problem(rows=40), sizes, 6, 7, 3, momentum=momentum,
                              learning_rate=lambda n: 0.2 * 0.7 ** ((n - 1) // 5))
    for result in results:
        assert_close(result['weights'], expected)


def gluon(name, *values, **arguments):
    """Return a case of SVRGTrainer: the values that a message has, and arguments."""
    return name, values, {'way': 'fit_gluon', 'problem': {**PROBLEM, 'features': 4},
                          **arguments}


LOADED = {'begin_epoch': 1, 'load_from': 'model', 'with_states': False}
# Of each cluster: what messages call that which differs between the workers, their values of it,
# or their numbers of batches, and arguments.
DIFFERENCES = {
    'workers update': (BY_WORKERS, 'dist_sync', [
        ('learning_rate of the optimizer', (0.05, 0.2),
         {'unlike': {'params': [{'learning_rate': 0.05}, {'learning_rate': 0.2}]}}),
        ('lr_scheduler', ("'NoneType'", "'FactorScheduler'"),
         {'unlike': {'scheduler': [None, {'step': 5}]}}),
        ('momentum of the optimizer', (0.0, 0.9), {'unlike': {'optimizer': [
            'sgd', mx.optimizer.SGD(momentum=0.9, learning_rate=0.01, rescale_grad=1 / 16)]}}),
        ('the batch size of train_data', (8, 4),
         {'sizes': [16, 8], 'unlike': {'batch_size': [8, 4]}})]),
    'servers update': ({}, 'dist_sync', [
        ('as many batches', [8, 0], {'sizes': [57, 0]}),
        (".* last_batch_handle='roll_over'", (0, 3),
         {'sizes': [20, 23], 'batch_size': 10, 'last_batch_handle': 'roll_over'}),
        ('begin_epoch', (0, 1), {'unlike': {'begin_epoch': [0, 1]}}),
        ('a snapshot when fit begins', (False, True),
         {**LOADED, 'update_freq': 2, 'unlike': {'load_from': ['model', None]}}),
        ('as many batches', [4, 2], {**LOADED, 'sizes': [30, 10]})]),
    'without order': ({}, 'dist_async', [
        ('alpha', (1.0, 0.0), {'unlike': {'alpha': [1, 0]}}),
        ('at least one batch', [2, 0], {'sizes': [16, 0]})]),
    'of a trainer': ({}, 'dist_sync', [
        gluon('wd of the optimizer', 0.01, 0.5,
              unlike={'settings': [{'wd': 0.01}, {'wd': 0.5}]}),
        gluon(r'batch_size of step \(the sum since the last snapshot\)', 64, 32,
              settings={'learning_rate': 0.2}, unlike={'step_size': [16, 8]}),
        gluon('begin_epoch', 1, 2, unlike={'begin_epoch': [1, 2]})])}


@pytest.mark.slow
@pytest.mark.parametrize('environment, kind, cases', DIFFERENCES.values(), ids=list(DIFFERENCES))
def test_training_that_would_hang_or_differ_is_an_error_on_all_workers(
        tmp_path, monkeypatch, environment, kind, cases):
    monkeypatch.chdir(tmp_path)
    problem = Problem(rows=32)
    problem.fit(problem.module(2), 1).save_checkpoint('model', 1)
    for name, values, arguments in cases:
        for rank, (found, steps) in enumerate(run_workers(
                'refused', tmp_path, environment=environment, kind=kind,
                **{'sizes': [16, 16], **arguments})):
            message = '%s on each worker.* in the order of ranks, %s$' % (
                name, re.escape(str(values)))
            if isinstance(values, tuple):
                message = '^%s must be the same on all workers with the kvstore %r, and is %s on ' \
                    'rank %d$' % (name, kind, values[rank], rank)
            assert found is not None and re.search(message, found), (message, found)
            assert steps == (4 if 'step_size' in arguments.get('unlike', {}) else 0)


@pytest.mark.slow
def test_workers_may_leave_the_same_number_of_rows_over(tmp_path):
    first, second = run_workers('fit', tmp_path, sizes=[23, 23], batch_size=10, num_epoch=5,
                                last_batch_handle='roll_over')
    assert len(first['steps']) == len(second['steps']) > 0


@pytest.mark.slow
def test_servers_add_float64_values_in_float64(tmp_path):
    for total in run_workers('sum_of_thirds', tmp_path, environment={'MALLOC_PERTURB_': '1'}):
        np.testing.assert_array_equal(total, 2 / 3)


# SVRGTrainer

OF_BLOCKS = {'learning_rate': 0.3, 'momentum': 0.5, 'wd': 0.01}


@pytest.mark.slow
@pytest.mark.parametrize('servers, sizes, given', [
    (1, [28, 29], {}), (2, [25, 28, 30], {'with_np': True, 'by_name': True})])
def test_blocks_train_on_all_rows(tmp_path, servers, sizes, given):
    problem = {**PROBLEM, 'features': 4, 'rows': sum(sizes)}
    results = run_workers('fit_gluon', tmp_path, len(sizes), servers, problem=problem, sizes=sizes,
                          settings=OF_BLOCKS, **given)
    assert_blocks(results, Problem(**problem), sizes, OF_BLOCKS)


@pytest.mark.slow
def test_blocks_come_to_the_optimum_of_all_rows(tmp_path):
    results = run_workers('fit_gluon', tmp_path, problem={'kind': 'softmax'}, sizes=[24, 24],
                          settings={'wd': 0.05}, optimizer='newton_cg', tol=1e-6, num_epoch=50)
    assert_optimum(results, Problem('softmax', rows=48), 0.05)
    assert not any(result['warnings'] for result in results)


@pytest.mark.slow
def test_the_batch_size_of_a_step_is_that_of_all_workers(tmp_path):
    results = run_workers('fit_gluon', tmp_path, problem={**PROBLEM, 'features': 4},
                          sizes=[24, 24], step_size=8)
    for result in results:
        message, = result['warnings']
        assert 'the gradients of 16 rows (or words) on all 2 workers' in message
        assert 'It must be step(16)' in message

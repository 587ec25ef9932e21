"""KVStores that cannot be right are errors before anything has changed; none needs a cluster."""

import gc
import sys
import warnings
import weakref
from unittest import mock

import mxnet as mx
import numpy as np
import pytest

from blocks import Blocks, train
from checkpoints import bound, load
from full_gradients import assert_pass
from problems import TWO_DEVICES, Problem, SparseProblem, prepared
from svrg_optimization import SVRGModule
from svrg_optimization.kvstore.keys import KVStoreKeys
from svrg_optimization.mxnet_repair.kvstore import warn_of_rounding

DISTRIBUTED = ['dist', 'dist_sync', 'dist_device_sync', 'dist_async', 'dist_async_device']


def assert_unusable(module, kvstore, message):
    with pytest.raises(ValueError, match=message):
        module.init_optimizer(kvstore)
    assert not module.optimizer_initialized
    assert module._kvstore is None and module._optimizer is None


# A dense weight with a row_sparse gradient:
TABLE = mx.sym.LinearRegressionOutput(mx.sym.flatten(mx.sym.Embedding(
    mx.sym.Variable('data'), mx.sym.Variable('table_weight'), input_dim=6, output_dim=1,
    sparse_grad=True)), mx.sym.Variable('label'))


def with_row_sparse_gradients(context=mx.cpu()):
    module = SVRGModule(TABLE, label_names=('label',), update_freq=1, context=context)
    module.bind([('data', (4, 1))], [('label', (4,))])
    module.init_params()
    return module


def with_states(tmp_path):
    problem = Problem()
    problem.bound(sgd={}).save_checkpoint(tmp_path / 'model', 1, save_optimizer_states=True)
    return bound(load(tmp_path / 'model', 1), problem)


@pytest.mark.parametrize('kinds, updates, make, message', [
    (DISTRIBUTED, None, lambda _: Problem().bound(), 'kvstore %r needs a cluster'),
    (DISTRIBUTED, None, lambda _: Problem().bound(compression_params={'type': '2bit'}),
     "compression_params must be None with a distributed kvstore.* not {'type'"),
    (DISTRIBUTED, None, lambda _: with_row_sparse_gradients(),
     'gradients must be dense with a distributed kvstore, .* not row_sparse, as table_weight'),
    (['dist_async', 'dist_async_device'], '0', lambda _: Problem().bound(),
     'MXNET_UPDATE_ON_KVSTORE must be 1 with an asynchronous kvstore'),
    (['dist_sync', 'dist_device_sync'], '0', lambda _: SparseProblem().bound(),
     'gradients must be dense .*MXNET_UPDATE_ON_KVSTORE=1.* not row_sparse, as w'),
    (['dist_sync'], None, with_states, 'load_optimizer_states must be False')])
def test_distributed_kvstores_that_cannot_be_are_refused(monkeypatch, tmp_path, kinds, updates,
                                                         make, message):
    monkeypatch.delenv('DMLC_PS_ROOT_URI', raising=False)
    if updates:
        monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', updates)
    for kind in kinds:
        assert_unusable(make(tmp_path), kind, message % kind if '%' in message else message)


@pytest.mark.parametrize('update_on_kvstore', ['0', '1'])
@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_row_sparse_gradients_train_exactly_or_are_refused(monkeypatch, context, update_on_kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem, rng = Problem(rows=37, features=1), np.random.RandomState(0)
    problem.features = rng.randint(6, size=(37, 1)).astype(float)
    problem.weights = {'table_weight': rng.normal(size=(6, 1))}
    problem.network = lambda weights, features, targets: {'table_weight': (
        np.eye(6)[features[:, 0].astype(int)].T @ (
            weights['table_weight'][features[:, 0].astype(int), 0] - targets))[:, None]}
    problem.symbol = TABLE
    module, params = problem.module(2, context=context), {'learning_rate': 0.1, 'momentum': 0.5}
    if context is TWO_DEVICES and update_on_kvstore == '0':
        with pytest.raises(ValueError, match='not row_sparse, as table_weight'):
            problem.fit(module, 5, optimizer_params=params)
    else:
        problem.fit(module, 5, optimizer_params=params)
        problem.assert_weights(module, problem.svrg(**params).fit(5, 2))


@pytest.mark.parametrize('install', [
    lambda kvstore: Problem().bound().init_optimizer(kvstore),
    lambda kvstore: Blocks().trainer(Blocks().net(), kvstore=kvstore)], ids=['Module', 'Gluon'])
def test_horovod_that_is_not_there_is_an_error(monkeypatch, install):
    monkeypatch.setitem(sys.modules, 'horovod', None)
    monkeypatch.delitem(sys.modules, 'horovod.mxnet', raising=False)
    with pytest.raises(ValueError, match="kvstore 'horovod' needs Horovod, built for MXNet"):
        install('horovod')
    with pytest.raises(ValueError, match=r"must be the name 'horovod', not a KVStore of mx\.kv"):
        install(mx.kv.create('horovod'))  # a local one


@pytest.mark.parametrize('contexts', [[mx.cpu()], [mx.cpu(0), mx.cpu(1)]], ids=len)
def test_devices_that_train_apart_without_a_kvstore_are_warned_of_once(contexts):
    problem = Problem(rows=20)
    module, blocks = problem.module(1, context=contexts), Blocks()
    trainer = blocks.trainer(blocks.net(contexts), kvstore=None)
    for fit in (lambda: problem.fit(module, 2, kvstore=None), lambda: train(
            trainer, blocks.loader(), 2, contexts=contexts if len(contexts) > 1 else None)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            fit()
        said = [each for each in caught if 'weights drift apart' in str(each.message)]
        assert len(said) == len(contexts) - 1


def other():
    return Problem('softmax', rows=20, seed=1, weight={'name': 'other_weight'},
                   bias={'name': 'other_bias'}).bound()


@pytest.mark.parametrize('update_on_kvstore', ['0', '1'])
def test_a_kvstore_takes_one_module(monkeypatch, update_on_kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    kvstore, problem = mx.kv.create('local'), Problem(rows=20)
    module = problem.bound()
    module.init_optimizer(kvstore)
    for second in (problem.bound(), other()):
        assert_unusable(second, kvstore, "no keys of another SVRGModule.* and 'local' has")
        second.init_optimizer('local')
    optimizer = module._optimizer
    with pytest.raises(ValueError, match='no keys of another SVRGModule'):
        module.init_optimizer(kvstore, force_init=True)
    assert module._optimizer is optimizer


@pytest.mark.parametrize('is_first', [True, False])
def test_a_plain_module_whose_weights_a_kvstore_updates_shares_it_with_none(monkeypatch, is_first):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', '1')
    kvstore, problem = mx.kv.create('local'), Problem(rows=20)
    plain, module = mx.mod.Module(other().symbol, label_names=('label',)), problem.bound()
    prepared(plain, problem.iterator())
    first, second = (plain, module) if is_first else (module, plain)
    first.init_optimizer(kvstore)
    with pytest.raises(ValueError, match='must not update the weights of a plain Module'):
        second.init_optimizer(kvstore)


def test_kvstore_and_module_are_freed_without_a_collection():
    """Else MXNet's connection to servers would outlive the training, and hang at exit."""
    gc.disable()
    try:
        problem = Problem(rows=20)
        kvstore = mx.kv.create('local')
        module = problem.module()
        module.fit(problem.iterator(), num_epoch=2, kvstore=kvstore, eval_metric='mse')
        known = weakref.ref(kvstore), weakref.ref(module)
        del kvstore, module
        assert [reference() for reference in known] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize('devices, when, threshold', [
    (1, 0, 0.5), (2, 0, 2.0 ** -10), (2, 0, 2.0 ** -11), (1, 1, 0.5)])
def test_a_kvstore_does_not_compress_the_full_gradient(devices, when, threshold):
    """Also on one device, where a 'device' KVStore compresses as well, and in a second pass."""
    problem = Problem('perceptron', rows=37)
    module, kvstore = problem.bound(context=[mx.cpu(i) for i in range(devices)]), mx.kv.create(
        'device')
    for number in range(3):
        if number == when:
            kvstore.set_gradient_compression({'type': '2bit', 'threshold': threshold})
        if number == 0:
            module.init_optimizer(kvstore)
        assert_pass(problem, module)


@pytest.mark.parametrize('contexts, kvstore, sparse', [
    (mx.cpu(), 'local', True), (TWO_DEVICES, 'local', False), (TWO_DEVICES, 'device', False),
    (TWO_DEVICES, 'device', True)])
def test_weights_that_are_set_stay_in_a_kvstore(contexts, kvstore, sparse):
    """Also of gradients that are compressed, or stored in another way than the weights."""
    kvstore = mx.kv.create(kvstore)
    if sparse:
        module, batch = with_row_sparse_gradients(contexts), mx.io.DataBatch(
            [mx.nd.array([[0], [1], [2], [2]])], [mx.nd.ones((4,))])
    else:
        module, batch = Problem().bound(context=contexts), Problem().batch(10)
        if kvstore.type == 'device':
            kvstore.set_gradient_compression({'type': '2bit'})
    module.init_optimizer(kvstore, optimizer_params={'learning_rate': 0})
    module.alpha = 0
    for number in range(2):
        weights = {name: mx.nd.full(each.shape, number)
                   for name, each in module.get_params()[0].items()}
        module.set_params(weights, {})
        module.forward_backward(batch)
        module.update()
        assert all((each == number).min().asscalar()
                   for each in module.get_params()[0].values())


def test_a_kvstore_is_refused_after_an_init_optimizer_that_failed(tmp_path):
    module, kvstore = Problem(rows=20).bound(), mx.kv.create('local')
    module._preload_opt_states = str(tmp_path / 'none')
    with pytest.raises(FileNotFoundError):
        module.init_optimizer(kvstore)
    module._preload_opt_states = None
    with pytest.raises(ValueError, match='nor of a failed init_optimizer'):
        module.init_optimizer(kvstore)
    module.init_optimizer(mx.kv.create('local'))


def test_servers_that_make_float32_of_float64_values_are_told():
    third = mx.nd.full((2,), 1 / 3, dtype='float64')
    kvstore = mock.Mock(type='dist_sync', pull=lambda _, out: third.astype('float32').copyto(out))
    with pytest.warns(UserWarning, match="servers of 'dist_sync' make float32 of float64 values"):
        warn_of_rounding(kvstore, 'key', third)
    warn_of_rounding(mock.Mock(pull=lambda _, out: third.copyto(out)), 'key', third)


def test_no_key_has_the_name_of_another():
    names = ['w_full_full', 'w', 'w_full', 'svrg_first', 'svrg_gathered', 'svrg_total']
    for params in names, names[::-1]:
        keys = KVStoreKeys(params, params)
        found = [*params, *keys.full.values(), keys.gathered, keys.first, keys.total]
        assert len(set(found)) == len(found)
    assert KVStoreKeys(['b', 'w'], ['w']).full == {'w': 'w_full'}


@pytest.mark.parametrize('place, error', [
    ('mxnet.kvstore.kvstore._ndarray_cls', KeyboardInterrupt),  # MXNet's own part of an update
    ('svrg_optimization.svrg_optimizer._AssignmentOptimizer.update', ZeroDivisionError)])
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_an_error_that_mxnet_forgets_stops_the_pass(monkeypatch, place, error):
    """Else an update would be missing in the full gradient."""
    problem = Problem()
    module, train_data = problem.bound(), problem.iterator()
    module.init_optimizer(mx.kv.create('local'))
    module.update_full_grads(train_data)
    before = module._param_dict
    with monkeypatch.context() as patched:
        patched.setattr(place, mock.Mock(side_effect=error))
        with pytest.raises(error):
            module.update_full_grads(train_data)
    assert module._param_dict is before
    module.update_full_grads(train_data)
    assert module._param_dict is not before

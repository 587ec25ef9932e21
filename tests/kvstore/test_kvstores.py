"""KVStores that cannot be right are errors before anything has changed; none needs a cluster."""

import gc
import subprocess
import sys
import warnings
import weakref

import mxnet as mx
import numpy as np
import pytest

from blocks import Blocks, train
from problems import Problem, SparseProblem
from svrg_optimization import SVRGModule
from svrg_optimization.kvstore import kinds
from svrg_optimization.kvstore.agreement import tally, told_by_each
from svrg_optimization.kvstore.keys import KVStoreKeys

DISTRIBUTED = ['dist', 'dist_sync', 'dist_device_sync', 'dist_async', 'dist_async_device']


def assert_unusable(module, kvstore, message):
    with pytest.raises(ValueError, match=message):
        module.init_optimizer(kvstore)
    assert not module.optimizer_initialized
    assert module._kvstore is None and module._optimizer is None


@pytest.mark.parametrize('kvstore', DISTRIBUTED)
def test_distributed_kvstores_refuse_compression_params(kvstore):
    compression = {'type': '2bit', 'threshold': 0.5}
    module = Problem().bound(compression_params=compression)
    assert_unusable(module, kvstore, "compression_params must be None.*%r, not {'type'" % kvstore)


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


@pytest.mark.parametrize('kvstore', ['dist_async', 'dist_async_device'])
def test_asynchronous_kvstores_need_update_on_kvstore(monkeypatch, kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', '0')
    assert_unusable(Problem().bound(), kvstore, 'kvstore %r needs MXNET_UPDATE_ON_KVSTORE=1'
                    % kvstore)


@pytest.mark.parametrize('kvstore', ['dist_sync', 'dist_device_sync'])
def test_row_sparse_parameters_need_update_on_kvstore(monkeypatch, kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', '0')
    assert_unusable(SparseProblem().bound(), kvstore,
                    'MXNET_UPDATE_ON_KVSTORE=1.*w would be wrong')


@pytest.mark.parametrize('kvstore', DISTRIBUTED)
def test_distributed_kvstores_refuse_row_sparse_gradients_of_dense_parameters(kvstore):
    embedded = mx.sym.Embedding(mx.sym.Variable('data'), mx.sym.Variable('table_weight'),
                                input_dim=6, output_dim=1, sparse_grad=True)
    symbol = mx.sym.LinearRegressionOutput(mx.sym.flatten(embedded), mx.sym.Variable('label'))
    module = SVRGModule(symbol, label_names=('label',), update_freq=1)
    module.bind([('data', (4, 1))], [('label', (4,))])
    module.init_params()
    assert_unusable(module, kvstore, 'row_sparse gradients, as table_weight has')


@pytest.mark.parametrize('kvstore', DISTRIBUTED)
def test_distributed_kvstores_need_a_cluster(monkeypatch, kvstore):
    monkeypatch.delenv('DMLC_PS_ROOT_URI', raising=False)
    assert_unusable(Problem().bound(), kvstore, 'kvstore %r needs a cluster' % kvstore)


@pytest.mark.process
@pytest.mark.parametrize('error, status', [('KeyboardInterrupt', 130), ('ValueError', 1)])
def test_a_worker_that_raises_has_the_exit_status_of_python(error, status):
    """A shell ends a loop over commands after a Ctrl-C in one of them, whose status is 130."""
    script = ('import functools, sys\n'
              'from svrg_optimization.mxnet_repair.kvstore import _leave\n'
              'sys.excepthook = functools.partial(_leave, sys.excepthook)\nraise ' + error)
    done = subprocess.run([sys.executable, '-c', script], stderr=subprocess.PIPE, text=True,
                          check=False)
    assert done.returncode == status and done.stderr.endswith(error + '\n')


def test_states_that_servers_would_hold_cannot_be_loaded(tmp_path):
    problem = Problem()
    module = problem.bound()
    module.init_optimizer()
    module.save_checkpoint(str(tmp_path / 'model'), 1, save_optimizer_states=True)
    loaded = SVRGModule.load(str(tmp_path / 'model'), 1, load_optimizer_states=True,
                             label_names=('label',))
    iterator = problem.iterator()
    loaded.bind(iterator.provide_data, iterator.provide_label)
    assert_unusable(loaded, 'dist_sync', 'load_optimizer_states must be False')


def other(**kwargs):
    return Problem('softmax', rows=20, seed=1, weight={'name': 'other_weight'},
                   bias={'name': 'other_bias'}, **kwargs)


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


@pytest.mark.parametrize('update_on_kvstore', ['0', '1'])
def test_a_kvstore_takes_one_module(monkeypatch, update_on_kvstore):
    """Whatever the names of another one, which can train in a KVStore of its own."""
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    kvstore = mx.kv.create('local')
    module = Problem(rows=20).bound()
    module.init_optimizer(kvstore)
    second = other().bound()
    assert_unusable(second, kvstore, r"no keys of another SVRGModule.* and 'local' has: give this "
                    r"module one of its own, as mx.kv.create\('local'\) makes")
    second.init_optimizer('local')


def test_a_kvstore_refuses_the_same_names_twice():
    kvstore = mx.kv.create('local')
    problem = Problem()
    module = problem.bound()
    module.init_optimizer(kvstore)
    assert_unusable(problem.bound(), kvstore, 'no keys of another SVRGModule')
    optimizer = module._optimizer
    with pytest.raises(ValueError, match='no keys of another SVRGModule'):
        module.init_optimizer(kvstore, force_init=True)
    assert module._optimizer is optimizer
    module.fit(problem.iterator(), num_epoch=2, arg_params=problem.arg_params(),
               eval_metric='mse')


def test_a_kvstore_that_updates_a_plain_module_is_refused():
    kvstore = mx.kv.create('local')
    plain = mx.mod.Module(mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=2, name='p'),
                          label_names=None)
    plain.bind([('data', (4, 3))])
    plain.init_params()
    plain.init_optimizer(kvstore)
    assert_unusable(Problem().bound(), kvstore, 'must not update the weights of a plain Module')


def test_workers_tell_each_other_any_number_of_numbers():
    numbers, kvstore = list(range(80)), mx.kv.create('local')
    kvstore.init('key', tally(kvstore))
    assert told_by_each(kvstore, 'key', numbers).tolist() == [numbers]


def test_keys_have_the_order_of_their_creation():
    keys = KVStoreKeys(['a', 'b', 'a_full', 'svrg_tally'], ['a', 'b'], ['b'])
    assert keys.full == {'a': 'a_full_full', 'b': 'b_full'}
    assert keys.on_servers == [keys.first, 'a', 'b', 'a_full', 'svrg_tally', 'a_full_full',
                               'b_full', 'b_rows', 'svrg_tally_tally']
    assert len(set(keys.on_servers)) == 9


def test_a_module_without_trainable_parameters_keeps_its_weights():
    problem = Problem()
    module = problem.bound(fixed_param_names=['fc_weight', 'fc_bias'])
    module.init_optimizer(mx.kv.create('local'))
    module.fit(problem.iterator(), num_epoch=1, eval_metric='mse')
    np.testing.assert_array_equal(module.get_params()[0]['fc_bias'].asnumpy(),
                                  problem.arg_params()['fc_bias'].asnumpy())


def test_a_plain_module_cannot_join_the_kvstore_of_an_svrg_module(monkeypatch):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', '1')
    kvstore = mx.kv.create('local')
    problem = Problem(rows=20)
    module = problem.bound()
    module.init_optimizer(kvstore, 'sgd', {'learning_rate': 0.1})
    plain = mx.mod.Module(mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=2, name='p'),
                          label_names=None)
    plain.bind([('data', (4, 3))])
    plain.init_params()
    with pytest.raises(ValueError, match='must not update the weights of a plain Module'):
        plain.init_optimizer(kvstore)
    module.update_full_grads(problem.iterator())
    for batch in problem.iterator():
        module.forward_backward(batch)
        module.update()
    problem.assert_weights(module, problem.svrg().fit(1, 1))


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


@pytest.mark.parametrize('threshold', [0.5, 2.0 ** -10])
@pytest.mark.parametrize('devices', [1, 2])
def test_a_kvstore_does_not_compress_the_full_gradient(devices, threshold):
    """Also on one device, where a 'device' KVStore compresses as well, and in a second pass."""
    problem = Problem('perceptron', rows=37)
    module = problem.bound(context=[mx.cpu(i) for i in range(devices)])
    kvstore = mx.kv.create('device')
    kvstore.set_gradient_compression({'type': '2bit', 'threshold': threshold})
    module.init_optimizer(kvstore)
    svrg = problem.svrg()
    svrg.take_snapshot()
    for _ in range(2):
        module.update_full_grads(problem.iterator())
        problem.assert_full_gradient(module, svrg.full_gradient)


def test_the_kind_of_a_kvstore_says_whether_it_is_synchronous():
    for kind in ('dist', 'dist_sync', 'dist_device', 'dist_device_sync', 'p3store_dist'):
        assert kinds.is_synchronous(kind) and not kinds.is_asynchronous(kind)
    for kind in ('dist_async', 'dist_async_device'):
        assert kinds.is_asynchronous(kind) and not kinds.is_synchronous(kind)
    for kind in ('local', 'device', None):
        assert not kinds.is_asynchronous(kind) and not kinds.is_synchronous(kind)


def test_compression_that_is_set_later_leaves_the_full_gradient_exact():
    problem = Problem('perceptron', rows=37)
    svrg = problem.svrg()
    svrg.take_snapshot()
    kvstore, module = mx.kv.create('device'), problem.bound()
    module.init_optimizer(kvstore)
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, svrg.full_gradient)
    kvstore.set_gradient_compression({'type': '2bit', 'threshold': 0.5})
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, svrg.full_gradient)


def test_a_kvstore_is_refused_after_an_init_optimizer_that_failed(tmp_path):
    problem = Problem(rows=20)
    module = problem.bound()
    kvstore = mx.kv.create('local')
    module._preload_opt_states = str(tmp_path / 'none')
    with pytest.raises(FileNotFoundError):
        module.init_optimizer(kvstore)
    module._preload_opt_states = None
    with pytest.raises(ValueError, match='nor of an init_optimizer that has failed'):
        module.init_optimizer(kvstore)
    module.init_optimizer(mx.kv.create('local'))


def test_local_steps_of_one_process_are_those_of_all():
    problem, found = Problem('perceptron', rows=30), []
    for local_steps in (False, True):
        module = problem.module(2, local_steps=local_steps)
        module.fit(problem.iterator(), arg_params=problem.arg_params(), eval_metric='mse',
                   num_epoch=4, optimizer_params={'learning_rate': 0.1, 'momentum': 0.5})
        found.append(module.get_params()[0])
    for name, value in found[0].items():
        np.testing.assert_array_equal(value.asnumpy(), found[1][name].asnumpy())


def test_bad_local_steps_are_refused():
    problem = Problem()
    with pytest.raises(TypeError, match='local_steps must be True or False, not 1'):
        problem.module(local_steps=1)
    with pytest.raises(ValueError, match='alpha must not be 0 with local_steps'):
        problem.module(local_steps=True, alpha=0)
    with pytest.raises(ValueError, match="kvstore must be synchronous .*, and not 'dist_async'"):
        problem.bound(local_steps=True).init_optimizer('dist_async')

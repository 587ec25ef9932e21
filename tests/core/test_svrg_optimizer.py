"""The optimizer stands in for the one that it wraps."""

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest

from problems import Problem
from svrg_optimization.kvstore.keys import KVStoreKeys
from svrg_optimization.svrg_optimizer import _AssignmentOptimizer, _SVRGOptimizer


@pytest.mark.parametrize('names, keys', [
    (['w', 'b'], ['w_full', 'b_full']),
    (['fullyconnected0_weight', 'full'], ['fullyconnected0_weight_full', 'full_full']),
    (['w', 'w_full'], ['w_full_full', 'w_full_full_full']),
    (['w_full', 'w'], ['w_full_full', 'w_full_full_full']),
    (['w', 'w_full_full', 'w_full'], ['w_full_full_full', 'w_full_full_full_full',
                                      'w_full_full_full_full_full']),
    ([], []),
])
def test_each_full_gradient_has_a_key_of_its_own(names, keys):
    assert KVStoreKeys(names, names).full == dict(zip(names, keys))


def test_keys_of_row_counts_differ():
    keys = KVStoreKeys(['w', 'w_rows'], ['w', 'w_rows'], ['w', 'w_rows'])
    assert keys.row_counts == {'w': 'w_rows_rows', 'w_rows': 'w_rows_rows_rows'}
    assert len(set(keys.on_servers)) == len(keys.on_servers)


BY_NAME = {0: 'w', 1: 'w_full'}


@pytest.mark.parametrize('given, tell', [
    (BY_NAME, lambda optimizer, names: None),
    (None, lambda optimizer, names: setattr(optimizer, 'idx2name', names)),  # as Module tells them
    (None, lambda optimizer, names: optimizer.default_opt.idx2name.update(names))])
@pytest.mark.parametrize('names, full_keys, full, plain', [
    (BY_NAME, None, ['w_full', 1], ['w', 0]),
    ({0: 'w'}, None, ['w_full'], ['w', 0, 'b_full', 1]),
    ({0: 'w_full', 1: 'fullyconnected0_weight'}, None,
     ['fullyconnected0_weight_full', 'w_full_full'], ['w_full', 0, 'fullyconnected0_weight', 1]),
    ({}, None, [], ['w_full', 'w', 0]),
    (BY_NAME, ['g', 7], ['g', 7], ['w', 0, 'w_full', 1])])
def test_full_gradients_are_known_by_names_or_keys(given, tell, names, full_keys, full, plain):
    optimizer = _SVRGOptimizer('sgd', full_keys=full_keys, learning_rate=0.5,
                               param_idx2name=given and names)
    tell(optimizer, names)
    assert_routes(optimizer, full, plain)


def assert_routes(optimizer, full, plain):
    """Check one key at a time, and all at once."""
    keys = plain + full
    for several in [[key] for key in keys] + [keys]:
        for update in (optimizer.update, optimizer.update_multi_precision):
            weights = [mx.nd.ones((2,)) for _ in several]
            given = (several, weights, [mx.nd.ones((2,)) * 3 for _ in several], [
                optimizer.create_state(key, weight) for key, weight in zip(several, weights)])
            update(*(given if len(several) > 1 else [values[0] for values in given]))
            assert [weight.asnumpy().tolist() for weight in weights] == [
                [3 if key in full else -0.5] * 2 for key in several]


def test_a_kvstore_takes_an_optimizer_built_by_hand():
    kvstore = mx.kv.create('local')
    kvstore.set_optimizer(_SVRGOptimizer(default_optimizer='sgd', learning_rate=1.0,
                                         param_idx2name={0: 'weight', 1: 'weight_full'}))
    for key, expected in ((0, [-2, -2]), (1, [2, 2])):
        value = mx.nd.zeros((2,))
        kvstore.init(key, value)
        kvstore.push(key, [mx.nd.ones((2,)), mx.nd.ones((2,))])
        kvstore.pull(key, out=value)
        assert value.asnumpy().tolist() == expected


def test_everything_set_reaches_the_wrapped_optimizer():
    sgd = mx.optimizer.SGD(momentum=0.9, learning_rate=0.1, wd=0.01)
    optimizer = _SVRGOptimizer(sgd, param_idx2name={0: 'w'})
    assert isinstance(optimizer, mx.optimizer.Optimizer)
    assert (optimizer.lr, optimizer.wd, optimizer.momentum, optimizer.aggregate_num) == (
        0.1, 0.01, 0.9, sgd.aggregate_num)
    assert optimizer.idx2name is sgd.idx2name and sgd.idx2name == {0: 'w'}
    optimizer.set_learning_rate(0.2)
    assert sgd.lr == 0.2 and optimizer.learning_rate == 0.2
    optimizer.lr = 0.3
    optimizer.momentum = 0.5
    optimizer.rescale_grad = 0.25
    optimizer.lr_scheduler = mx.lr_scheduler.FactorScheduler(10, base_lr=0.7)
    assert (sgd.lr, sgd.momentum, sgd.rescale_grad, sgd.learning_rate) == (0.3, 0.5, 0.25, 0.7)
    assert optimizer.learning_rate == 0.7
    with pytest.raises(UserWarning):
        optimizer.set_learning_rate(0.1)
    optimizer.set_lr_mult({'w': 2.0})
    optimizer.set_wd_mult({'w': 3.0})
    assert sgd.lr_mult == {'w': 2.0} and sgd.wd_mult == {'w': 3.0}
    sgd.num_update = 17
    assert optimizer.num_update == 17
    with pytest.raises(AttributeError):
        _ = optimizer.no_such_attribute


def test_overridden_methods_of_the_wrapped_optimizer_are_used():
    class Halving(mx.optimizer.SGD):
        @property
        def learning_rate(self):
            return self.lr / 2

        def set_learning_rate(self, lr):
            self.lr = lr * 2

    optimizer = _SVRGOptimizer(Halving())
    optimizer.set_learning_rate(0.3)
    assert optimizer.lr == 0.6 and optimizer.learning_rate == 0.3


def test_table_of_names_is_not_replaced():
    sgd = mx.optimizer.SGD(param_idx2name={0: 'theirs'})
    _SVRGOptimizer(sgd, param_idx2name={0: 'ours'})
    assert sgd.idx2name == {0: 'theirs'}


def test_full_gradients_count_no_update():
    optimizer = _SVRGOptimizer('adam', param_idx2name=BY_NAME)
    updater = mx.optimizer.get_updater(optimizer)
    for index in (0, 1, 1, 1):
        updater(index, mx.nd.ones((2,)), mx.nd.zeros((2,)))
    assert optimizer.num_update == 1


@pytest.mark.parametrize('bad, error, message', [
    *((bad, TypeError, 'default_optimizer must be') for bad in (None, 3, mx.optimizer.SGD)),
    ('no_such_optimizer', ValueError, 'Cannot find optimizer')])
def test_only_an_optimizer_or_a_name_can_be_wrapped(bad, error, message):
    with pytest.raises(error, match=message):
        _SVRGOptimizer(bad)


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_and_copies_keep_all_settings(protocol):
    optimizer = _SVRGOptimizer('sgd', full_keys=['g'], momentum=0.9, learning_rate=0.1,
                               param_idx2name={0: 'w'},
                               lr_scheduler=mx.lr_scheduler.FactorScheduler(10, base_lr=0.1))
    optimizer.num_update = 5
    for twin in (pickle.loads(pickle.dumps(optimizer, protocol)), copy.deepcopy(optimizer)):
        assert type(twin.default_opt) is mx.optimizer.SGD
        assert type(twin.aux_opt) is _AssignmentOptimizer
        assert (twin.momentum, twin.learning_rate, twin.num_update) == (0.9, 0.1, 5)
        twin.momentum, twin.lr_scheduler, twin.lr = 0.0, None, 0.5
        assert_routes(twin, ['g'], ['w', 0, 'w_full'])


def test_multi_tensor_updates_stay_fused(monkeypatch):
    """SGD updates several parameters in one call, and as many as without the wrapper."""
    problem = Problem('perceptron')
    calls = []
    original = mx.optimizer.SGD._update_impl
    monkeypatch.setattr(mx.optimizer.SGD, '_update_impl', lambda self, indices, *args, **kwargs: (
        calls.append(len(indices)), original(self, indices, *args, **kwargs))[1])
    module = problem.bound(alpha=0, sgd={})
    module.forward_backward(next(problem.iterator()))
    module.update()
    assert calls == [4]


def test_an_optimizer_can_be_created_by_hand():
    problem = Problem()
    module = problem.bound()
    kvstore = mx.kv.create('local')
    optimizer = module._create_optimizer(
        _SVRGOptimizer.__name__, default_opt='sgd', kvstore=kvstore,
        optimizer_params=(('learning_rate', 0.01), ('momentum', 0.9)))
    assert type(optimizer) is _SVRGOptimizer
    assert type(optimizer.default_opt) is mx.optimizer.SGD
    assert (optimizer.default_opt.lr, optimizer.default_opt.momentum) == (0.01, 0.9)
    assert optimizer.default_opt.rescale_grad == 0.1
    with pytest.raises(ValueError, match="optimizer must be '_SVRGOptimizer', not 'sgd'"):
        module._create_optimizer('sgd', 'sgd', kvstore, {})


def test_wrapped_optimizer_is_not_wrapped_again():
    problem = Problem()
    first, second = problem.bound(sgd={}), problem.bound()
    second.init_optimizer(optimizer=first._optimizer)
    assert type(second._optimizer.default_opt) is mx.optimizer.SGD


def test_plain_module_takes_an_optimizer_built_by_hand():
    problem, results = Problem(), []
    for optimizer in (_SVRGOptimizer('sgd', learning_rate=0.1, rescale_grad=0.1),
                      mx.optimizer.SGD(learning_rate=0.1, rescale_grad=0.1)):
        module = problem.fit(mx.mod.Module(problem.symbol, label_names=('label',)), 1,
                             optimizer=optimizer)
        results.append(module.get_params()[0])
    for name, value in results[0].items():
        np.testing.assert_array_equal(value.asnumpy(), results[1][name].asnumpy())


class Schedule(mx.lr_scheduler.LRScheduler):
    """A schedule in NumPy."""

    def __call__(self, num_update):
        return np.float64(self.base_lr) / np.float64(num_update)


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('as_instance', [False, True])
def test_scalars_of_numpy_become_pythons(as_instance):
    """So that they are pickled without NumPy, and servers with another one can read them."""
    given = {'learning_rate': np.float32(0.25), 'momentum': np.float64(0.9),
             'wd': np.float32(1e-4), 'clip_gradient': np.float16(4),
             'begin_num_update': np.int64(3), 'lr_scheduler': Schedule(np.float32(0.5))}
    optimizer = _SVRGOptimizer(mx.optimizer.SGD(**given) if as_instance else 'sgd',
                               **({} if as_instance else given))
    optimizer.rescale_grad = np.float32(0.125)
    optimizer.set_lr_mult({'w': np.float32(2)})
    optimizer.set_wd_mult({'w': np.float64(0)})
    assert b'numpy' not in pickle.dumps(optimizer, 0)
    assert [type(getattr(optimizer, name)) for name in
            ('momentum', 'wd', 'clip_gradient', 'rescale_grad', 'begin_num_update')] == [
                float, float, float, float, int]
    assert type(optimizer.lr_scheduler.base_lr) is float
    weight, grad = mx.nd.ones((2,)), mx.nd.ones((2,))
    expected = mx.optimizer.SGD(learning_rate=0.25, momentum=0.9, wd=float(np.float32(1e-4)),
                                clip_gradient=4, begin_num_update=3, rescale_grad=0.125,
                                lr_scheduler=Schedule(0.5))
    other = weight.copy()
    for one, stepped in ((optimizer, weight), (expected, other)):
        state = one.create_state(0, stepped)
        for _ in range(3):
            one.update([0], [stepped], [grad], [state])
    assert weight.asnumpy().tobytes() == other.asnumpy().tobytes()

"""The optimizer stands in for the one that it wraps."""

import copy
import pickle
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from problems import Problem
from svrg_optimization.module.workers import counts_of_updates
from svrg_optimization.svrg_optimizer import _SVRGOptimizer

BY_NAME = {0: 'w', 1: 'w_full'}


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


@pytest.mark.parametrize('names, full_keys, full, plain', [
    (BY_NAME, None, ['w_full', 1], ['w', 0]),
    ({0: 'w_full', 1: 'w'}, None, ['w_full_full'], ['w', 1]),
    ({0: 'w_full', 1: 'b'}, None, ['b_full', 'w_full_full'], ['w_full', 0, 'b', 1]),
    ({}, None, [], ['w_full', 'w', 0]),
    (BY_NAME, ['g', 7], ['g', 7], ['w', 0, 'w_full', 1])])
def test_full_gradients_are_known_by_names_or_keys(names, full_keys, full, plain):
    given, told = (_SVRGOptimizer('sgd', full_keys=full_keys, learning_rate=0.5, **arguments)
                   for arguments in ({'param_idx2name': names}, {}))
    told.idx2name = names  # as Module tells them
    for optimizer in given, told:
        assert_routes(optimizer, full, plain)


def test_full_gradients_count_no_update():
    optimizer = _SVRGOptimizer('adam', param_idx2name=BY_NAME)
    updater = mx.optimizer.get_updater(optimizer)
    for index in (0, 1, 1, 1):
        updater(index, mx.nd.ones((2,)), mx.nd.zeros((2,)))
    assert optimizer.num_update == 1


class Halving(mx.optimizer.SGD):
    """An optimizer that overrides."""

    @property
    def learning_rate(self):
        return self.lr / 2


def test_everything_set_reaches_the_wrapped_optimizer():
    sgd = Halving(momentum=0.9, learning_rate=0.1, wd=0.01)
    optimizer = _SVRGOptimizer(sgd, param_idx2name={0: 'w'})
    assert (optimizer.lr, optimizer.wd, optimizer.momentum) == (0.1, 0.01, 0.9)
    assert optimizer.idx2name is sgd.idx2name and sgd.idx2name == {0: 'w'}
    _SVRGOptimizer(sgd, param_idx2name={0: 'ours'})
    assert sgd.idx2name == {0: 'w'}  # a table that is there is not replaced
    optimizer.set_learning_rate(0.2)
    assert sgd.lr == 0.2 and optimizer.learning_rate == 0.1
    optimizer.momentum, optimizer.rescale_grad = 0.5, 0.25
    assert (sgd.momentum, sgd.rescale_grad) == (0.5, 0.25)
    optimizer.set_lr_mult({'w': 2.0})
    optimizer.set_wd_mult({'w': 3.0})
    assert sgd.lr_mult == {'w': 2.0} and sgd.wd_mult == {'w': 3.0}
    optimizer.lr_scheduler = mx.lr_scheduler.FactorScheduler(10, base_lr=0.7)
    with pytest.raises(UserWarning):
        optimizer.set_learning_rate(0.1)
    with pytest.raises(AttributeError):
        _ = optimizer.no_such_attribute


@pytest.mark.parametrize('bad, error, message', [
    *((bad, TypeError, 'default_optimizer must be') for bad in (None, 3, mx.optimizer.SGD)),
    ('no_such_optimizer', ValueError, 'Cannot find optimizer')])
def test_only_an_optimizer_or_a_name_can_be_wrapped(bad, error, message):
    with pytest.raises(error, match=message):
        _SVRGOptimizer(bad)


class Schedule(mx.lr_scheduler.LRScheduler):
    """A schedule in NumPy."""

    def __call__(self, num_update):
        return np.float64(self.base_lr) / np.float64(num_update)


@pytest.mark.parametrize('copied', [copy.deepcopy, *(
    lambda optimizer, protocol=protocol: pickle.loads(pickle.dumps(optimizer, protocol))
    for protocol in (0, pickle.HIGHEST_PROTOCOL))])
@pytest.mark.parametrize('as_instance', [False, True])
def test_copies_and_pickles_keep_all_settings_without_numpy(copied, as_instance):
    """Servers with another NumPy can read them."""
    given = {'learning_rate': np.float32(0.25), 'momentum': np.float64(0.9),
             'wd': np.float32(1e-4), 'clip_gradient': np.float16(4),
             'begin_num_update': np.int64(3), 'lr_scheduler': Schedule(np.float32(0.5))}
    optimizer = _SVRGOptimizer(mx.optimizer.SGD(**given) if as_instance else 'sgd',
                               full_keys=['g'], **({} if as_instance else given))
    optimizer.rescale_grad = np.float32(0.125)
    optimizer.set_lr_mult({'w': np.float32(2)})
    assert b'numpy' not in pickle.dumps(optimizer, 0)
    twin = copied(optimizer)
    assert type(twin.default_opt) is mx.optimizer.SGD
    expected = mx.optimizer.SGD(**{**given, 'lr_scheduler': Schedule(0.5)}, rescale_grad=0.125)
    expected.set_lr_mult({'w': 2.})
    weights = [mx.nd.ones((2,)), mx.nd.ones((2,))]
    for one, weight in zip((twin, expected), weights):
        state = one.create_state('w', weight)
        for _ in range(3):
            one.update(['w'], [weight], [mx.nd.full((2,), 9)], [state])
    assert weights[0].asnumpy().tolist() == weights[1].asnumpy().tolist()
    twin.momentum, twin.lr_scheduler, twin.lr, twin.wd, twin.rescale_grad = 0., None, 0.5, 0., 1.
    assert_routes(twin, ['g'], ['x', 0, 'w_full'])


def test_multi_tensor_updates_stay_fused(monkeypatch):
    """SGD updates several parameters in one call, and as many as without the wrapper."""
    problem, calls = Problem('perceptron'), []
    original = mx.optimizer.SGD._update_impl
    monkeypatch.setattr(mx.optimizer.SGD, '_update_impl', lambda self, indices, *args, **kwargs: (
        calls.append(len(indices)), original(self, indices, *args, **kwargs))[1])
    module = problem.bound(alpha=0, sgd={})
    module.forward_backward(problem.batch(10))
    module.update()
    assert calls == [4]


def test_an_optimizer_that_wraps_one_is_not_wrapped_again():
    module = Problem().bound()
    module.init_optimizer(optimizer=_SVRGOptimizer('sgd', rescale_grad=0.1))
    assert type(module._optimizer.default_opt) is mx.optimizer.SGD


@pytest.mark.parametrize('kind, updates', [
    ('dist_sync', 5), ('dist_device_sync', 5), ('dist_async', 15), ('dist_async_device', 15)])
def test_servers_count_the_push_of_each_worker_where_these_do_not_wait(kind, updates):
    """A worker cannot read the counts: five steps of it, of three, since it joined after 40."""
    module = SimpleNamespace(_kvstore=SimpleNamespace(type=kind, num_workers=3),
                             _update_on_kvstore=True, _trainable=['w', 'b'],
                             _snapshot=SimpleNamespace(num_update=12),
                             _counts_at_start=({'num_update': 40, 'counts': {'w': 38}}, 7),
                             _optimizer=SimpleNamespace(begin_num_update=30))
    assert counts_of_updates(module) == {
        'num_update': 40 + updates, 'counts': {'w': 38 + updates, 'b': 30 + updates}}

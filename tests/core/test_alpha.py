"""α-SVRG: the coefficient of the variance reduction, constant and as a schedule."""

import warnings
from fractions import Fraction

import mxnet as mx
import numpy as np
import pytest

from pairs import in_pairs
from problems import Problem, SparseProblem
from svrg_optimization import LinearDecay, SVRGModule
from svrg_optimization.core.svrg import SVRG

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}


def fit(problem, module, epochs, train_data=None, **kwargs):
    return problem.fit(module, epochs, train_data, optimizer_params=SETTINGS, **kwargs)


def oracle_of(problem, alpha):
    svrg = problem.svrg(**SETTINGS)
    svrg.alpha = alpha if callable(alpha) else lambda _: float(alpha)
    return svrg


def alternating(num_update):
    return 0.9 if num_update % 2 else 0.2


@in_pairs({
    'alpha': [1, 0.7, Fraction(1, 4), np.float32(0.5), alternating,
                                       LinearDecay(0.75, 12), lambda _: 0],
    'kind': ['linear', 'perceptron'],
    'context, kvstore': [(mx.cpu(), None), (TWO_DEVICES, 'local')]})
def test_training_is_alpha_svrg(alpha, kind, context, kvstore):
    problem = Problem(kind, rows=37)
    module = fit(problem, problem.module(2, context=context, alpha=alpha), 5, kvstore=kvstore)
    problem.assert_weights(module, oracle_of(problem, alpha).fit(5, 2))
    assert module._snapshot.is_active


def test_large_parameters_train_with_alpha():
    problem = Problem('softmax', rows=40, features=600, classes=40)
    assert problem.weights['fc_weight'].size > 1 << 14
    problem.features *= 0.1
    module = fit(problem, problem.module(1, alpha=0.3), 3)
    problem.assert_weights(module, oracle_of(problem, 0.3).fit(3, 1))


@pytest.mark.parametrize('alpha', [0.4, alternating])
def test_sparse_parameters_train_with_alpha(alpha):
    problem = SparseProblem(rows=37)
    module = problem.module(1, alpha=alpha)
    problem.fit(module, 3, kvstore=None, optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg(learning_rate=0.1)
    svrg.alpha = alpha if callable(alpha) else lambda _: float(alpha)
    problem.assert_weights(module, svrg.fit(3, 1))


def test_alpha_scales_the_sparse_full_gradient():
    """On the rows of a batch, g - α (s - μ over the part of the batches with the row)."""
    problem = SparseProblem(rows=40)
    module = problem.bound(sparse_full_grad=True, alpha=0.4)
    module.init_optimizer(kvstore=None, optimizer_params={'learning_rate': 0.1})
    module.update_full_grads(problem.iterator())
    module.set_params({'w': mx.nd.ones((12, 1)).tostype('row_sparse'),
                       'fc_bias': mx.nd.zeros(1)}, {})
    svrg = problem.svrg()
    svrg.take_snapshot()
    now = {'w': np.ones((12, 1)), 'fc_bias': np.zeros(1)}
    batches = [np.arange(start, start + 10) for start in range(0, 40, 10)]
    occurs = [(problem.features[rows] != 0).any(axis=0) for rows in batches]
    module.forward_backward(next(problem.iterator()))
    module._update_svrg_gradients()
    full = svrg.full_gradient['w'][:, 0] * len(batches) / np.maximum(sum(occurs), 1)
    expected = (svrg.gradients(now, batches[0])['w'][:, 0] - 0.4 * (
        svrg.gradients(svrg.snapshot, batches[0])['w'][:, 0] - full)) * occurs[0]
    gradient = dict(zip(module._exec_group.param_names, module._exec_group.grad_arrays))['w'][0]
    np.testing.assert_allclose(gradient.asnumpy()[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_alpha_scales_stored_gradients():
    problem = Problem('perceptron', rows=40)
    module = problem.module(2, alpha=0.6, store_snapshot_grads=True)
    steps = []
    fit(problem, module, 4, batch_end_callback=lambda param: steps.append(
        (param.epoch, param.locals['data_batch'].data[0].asnumpy())))
    svrg = oracle_of(problem, 0.6)
    for number, (_, data) in enumerate(steps):
        if number % 8 == 0:
            svrg.take_snapshot()
        svrg.step(np.array([np.abs(problem.features - row).sum(axis=1).argmin() for row in data]))
    problem.assert_weights(module, svrg.weights)


def test_a_rule_of_ones_own_sees_scaled_gradients():
    class Own(SVRGModule):
        def _svrg_grads_update_rule(self, current, at_snapshot, full):
            return current - at_snapshot + full

    problem = Problem(rows=37)
    module = Own(problem.symbol, label_names=('label',), update_freq=1, alpha=0.3)
    problem.assert_weights(fit(problem, module, 3), oracle_of(problem, 0.3).fit(3, 1))


def test_alpha_may_be_set_later():
    problem = Problem(rows=40)
    module = problem.bound(sgd=SETTINGS)
    svrg, train_data = problem.svrg(**SETTINGS), problem.iterator()
    for alpha in (1, 0.5, 0.1):
        module.alpha = alpha
        svrg.alpha = lambda _, alpha=alpha: alpha
        svrg.take_snapshot()
        module.update_full_grads(train_data)
        train_data.reset()
        for start, batch in zip(range(0, 40, 10), train_data):
            module.forward_backward(batch)
            module.update()
            svrg.step(np.arange(start, start + 10))
    assert module.alpha == 0.1
    module.alpha = 0
    assert module.alpha == 0
    problem.assert_weights(module, svrg.weights)


def test_alpha_zero_trains_on_no_held_batches():
    """It is plain Module then, on the data that it is given."""
    problem, other = Problem(rows=40), Problem(rows=40, seed=5)
    module = fit(problem, problem.module(1, store_snapshot_grads=True), 1)
    module.alpha = 0
    rows = []
    module.fit(other.iterator(), eval_metric='mse', begin_epoch=1, num_epoch=2,
               batch_end_callback=lambda param: rows.append(
                   param.locals['data_batch'].data[0].asnumpy()))
    np.testing.assert_allclose(np.concatenate(rows), other.features, rtol=1e-6)
    train_data = other.iterator()
    assert module.training_batches(train_data) is train_data


def dropout():
    layer = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=5, name='hidden')
    layer = mx.sym.Dropout(mx.sym.Activation(layer, act_type='relu'))
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(layer, num_hidden=3, name='fc'),
                                mx.sym.Variable('label'), name='loss')


@in_pairs({
    'symbol, stored': [
        (Problem('perceptron').symbol, False), (Problem('perceptron').symbol, True),
        (dropout(), False)],
    'context, kvstore': [
        (mx.cpu(), None), (TWO_DEVICES, 'local'), (TWO_DEVICES, 'device')],
    'optimizer': ['sgd', 'adam']})
def test_constant_alpha_of_zero_is_module(monkeypatch, symbol, stored, context, kvstore, optimizer):
    problem = Problem('perceptron', rows=37)
    passes = []
    monkeypatch.setattr(SVRG, 'take_snapshot', lambda *args: passes.append(args))
    svrg = SVRGModule(symbol, label_names=('label',), context=context, update_freq=1, alpha=0,
                      store_snapshot_grads=stored)
    results = []
    for module in (mx.mod.Module(symbol, label_names=('label',), context=context), svrg):
        mx.random.seed(3)
        problem.fit(module, 3, kvstore=kvstore, optimizer=optimizer,
                    optimizer_params={'learning_rate': 0.1, 'wd': 0.01})
        results.append({name: value.asnumpy().tobytes()
                        for name, value in module.get_params()[0].items()})
    assert results[0] == results[1]
    svrg.update_full_grads(problem.iterator())
    assert not passes and not svrg._snapshot.is_active


def test_a_schedule_counts_updates_over_a_resume(tmp_path):
    seen = []

    def alpha(num_update):
        seen.append(num_update)
        return 1 / (1 + num_update)

    problem = Problem(rows=37)
    prefix = str(tmp_path / 'model')
    unbroken = fit(problem, problem.module(2, alpha=alpha), 5)
    module = problem.module(2, alpha=alpha)
    fit(problem, module, 3)
    module.save_checkpoint(prefix, 3, save_optimizer_states=True)
    del seen[:]
    resumed = SVRGModule.load(prefix, 3, load_optimizer_states=True, label_names=('label',),
                              alpha=alpha)
    resumed.fit(problem.iterator(), eval_metric='mse', begin_epoch=3, num_epoch=5,
                optimizer_params=SETTINGS)
    assert seen == list(range(12, 20))
    for name, value in unbroken.get_params()[0].items():
        assert (resumed.get_params()[0][name].asnumpy() == value.asnumpy()).all()


def test_checkpoints_keep_a_number_and_warn_of_a_schedule(tmp_path):
    problem = Problem(rows=40)
    prefix = str(tmp_path / 'model')

    def saved(alpha):
        fit(problem, problem.module(2, alpha=alpha), 1).save_checkpoint(prefix, 1)

    saved(0.25)
    assert SVRGModule.load(prefix, 1, label_names=('label',)).alpha == 0.25
    assert SVRGModule.load(prefix, 1, label_names=('label',), alpha=0.5).alpha == 0.5
    decay = LinearDecay(0.5, 10)
    saved(decay)
    with pytest.warns(UserWarning, match='saved with alpha of your own'):
        assert SVRGModule.load(prefix, 1, label_names=('label',)).alpha == 1
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert SVRGModule.load(prefix, 1, label_names=('label',), alpha=decay).alpha is decay


@pytest.mark.parametrize('bad, error', [(2, ValueError), (None, TypeError)])
def test_bad_value_of_a_schedule_changes_nothing(bad, error):
    problem = Problem(rows=40)
    module = problem.bound(alpha=lambda _: bad, sgd={})
    module.update_full_grads(problem.iterator())
    with pytest.raises(error, match='^alpha must be .*here after 0 updates'):
        module.forward_backward(next(problem.iterator()))
    problem.assert_weights(module, problem.weights, 1e-7)


@pytest.mark.parametrize('arguments, error, message', [
    ((1.5, 10), ValueError, '^initial must be a number from 0 to 1, not 1.5$'),
    (('1', 10), TypeError, "^initial must be a number from 0 to 1, not '1'$"),
    ((0.5, 0), ValueError, 'num_updates'), ((0.5, 2.5), TypeError, 'num_updates'),
    ((0.5, True), TypeError, 'num_updates')])
def test_linear_decay_refuses_bad_numbers(arguments, error, message):
    with pytest.raises(error, match=message):
        LinearDecay(*arguments)


def test_linear_decay_ends_at_zero():
    decay = LinearDecay(1, num_updates=1)
    assert [decay(number) for number in (0, 1, 2)] == [1, 0, 0]
    decay = LinearDecay(0.75, np.int64(8))
    for number in range(12):
        assert decay(number) == pytest.approx(0.75 * max(0, 1 - number / 8), abs=1e-12)
    assert (decay.initial, decay.num_updates) == (0.75, 8)
    assert repr(LinearDecay(0.75, 8)) == 'LinearDecay(0.75, num_updates=8)'


@pytest.mark.parametrize('resumed', [False, True])
def test_snapshot_from_before_alpha_was_zero_is_stale(tmp_path, resumed):
    """After a constant 0 the next epoch takes a new one."""
    problem = Problem(rows=40)
    module, svrg = problem.module(10, alpha=0.8), oracle_of(problem, 0.8)
    taken = []
    monitor = {'epoch_end_callback': lambda *_: taken.append(module._snapshot.taken_at)}
    fit(problem, module, 1, **monitor)
    module.alpha = 0
    fit(problem, module, 2, begin_epoch=1, **monitor)
    if resumed:
        module.save_checkpoint(str(tmp_path / 'model'), 2, save_optimizer_states=True)
        module = SVRGModule.load(str(tmp_path / 'model'), 2, load_optimizer_states=True,
                                 label_names=('label',))
    module.alpha = 0.5
    fit(problem, module, 4, begin_epoch=2, **monitor)
    assert taken == [0, 0, 8, 8]
    svrg.fit(1, 10)
    for alpha, epoch in ((0, 1), (0.5, 2), (0.5, 3)):
        svrg.alpha = lambda _, alpha=alpha: alpha
        if epoch == 2:
            svrg.take_snapshot()
        for start in range(0, 40, 10):
            svrg.step(np.arange(start, start + 10))
    problem.assert_weights(module, svrg.weights)

"""BarzilaiBorwein without a number: its first rate, and the way back where a rate led astray."""

import functools
import logging
from unittest.mock import Mock

import mxnet as mx
import numpy as np
import pytest

import oracle
from pairs import in_pairs
from problems import Problem, SparseProblem
from samples import Lengths
from svrg_bb import SvrgBB, float64
from svrg_optimization import BarzilaiBorwein, SVRGModule
from svrg_optimization.module.reference import ModuleReference

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def begun(problem, module, params, optimizer='sgd', rule=None, **kwargs):
    """Install the optimizer of a bound module with a rule that has no number, and return it."""
    rule = rule or BarzilaiBorwein()
    module.init_optimizer(optimizer=optimizer, optimizer_params={**params, 'lr_scheduler': rule},
                          **kwargs)
    return rule


def step_through(module, train_data):
    train_data.reset()
    for batch in train_data:
        module.forward_backward(batch)
        module.update()


@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'],
    'wd': [0, 0.05],
    'rows': [40, 37],
    'optimizer, momentum': [('sgd', 0), ('sgd', 0.5), ('nag', 0.9)],
    'context, kvstore, update_on_kvstore': [
        (mx.cpu(), None, '1'), (TWO_DEVICES, 'local', '1'), (TWO_DEVICES, 'device', '0')]})
def test_first_rate_is_two_over_the_curvature_of_batch(
        monkeypatch, capfd, kind, wd, rows, optimizer, momentum, context, kvstore,
        update_on_kvstore):
    """Differences of float32 gradients have four digits."""
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem(kind, rows=rows)
    module = problem.bound(context=context)
    rule = begun(problem, module, {'wd': wd, 'momentum': momentum}, optimizer, kvstore=kvstore)
    train_data = problem.iterator()
    module.update_full_grads(train_data)
    expected = SvrgBB(problem, wd=wd).curvature_of_batch(oracle.batches_of(rows, 10)[:rows // 10]
                                                           + [np.arange(30, rows)] * (rows == 37))
    np.testing.assert_allclose(rule.curvature, expected, rtol=1e-3)
    assert rule.rate == (1 - momentum) / rule.curvature
    assert rule.rate == module._optimizer.learning_rate
    twin = problem.svrg()  # the snapshot is where it was
    twin.take_snapshot()
    problem.assert_full_gradient(module, twin.full_gradient)
    problem.assert_weights(module, problem.weights, 1e-7)
    for name, value in module._mod_aux.get_params()[0].items():
        np.testing.assert_allclose(value.asnumpy(), problem.weights[name], rtol=1e-7)
    assert 'overwritten' not in ''.join(capfd.readouterr())


def test_in_float64_it_is_exact():
    problem, rule, found = Problem('softmax'), BarzilaiBorwein(), []
    train_data, arg_params = float64(problem)
    problem.module().fit(
        train_data, eval_metric=[], num_epoch=1, optimizer_params={'lr_scheduler': rule},
        arg_params=arg_params, batch_end_callback=lambda _: found.append(rule.curvature))
    expected = SvrgBB(problem).curvature_of_batch(oracle.batches_of(40, 10))
    rounded = float(np.float32(0.1)) / 0.1  # rescale_grad, as MXNet steps with it
    np.testing.assert_allclose(found, [expected * rounded] * 4, rtol=1e-9)


def test_row_sparse_parameters_have_the_rate_of_dense_ones():
    problem = SparseProblem(rows=40)
    module = problem.bound()
    rule = begun(problem, module, {}, kvstore=None)
    module.update_full_grads(problem.iterator())
    expected = SvrgBB(problem).curvature_of_batch(oracle.batches_of(40, 10))
    np.testing.assert_allclose(rule.curvature, expected, rtol=1e-3)


def test_buckets_share_one_first_rate():
    problem, rule = Lengths(), BarzilaiBorwein()
    module = problem.module(tol=1e-9)
    with pytest.warns(UserWarning, match='did not converge: gradient'):
        problem.fit(module, 3, optimizer_params={'lr_scheduler': rule})
    assert rule.rate > 0 and module.gradient_norm > 1e-9


@pytest.mark.filterwarnings('ignore:.*since the last snapshot')
@pytest.mark.parametrize('stored', [False, True])
@pytest.mark.parametrize('shuffle', [False, True])
def test_the_measurement_moves_no_data(stored, shuffle):
    """The batches that fit trains on are each row once, and it takes no pass."""
    problem, rows = Problem('softmax', rows=40), []
    train_data = problem.iterator(shuffle=shuffle)
    module = problem.module(store_snapshot_grads=stored)
    module.fit(train_data, eval_metric='acc', num_epoch=1, arg_params=problem.arg_params(),
               optimizer_params={'lr_scheduler': BarzilaiBorwein()},
               batch_end_callback=lambda param: rows.append(
                   param.locals['data_batch'].data[0].asnumpy()))
    assert module._snapshot.num_taken == 2  # one is taken at the end
    np.testing.assert_array_equal(np.sort(np.concatenate(rows), axis=0),
                                  np.sort(np.float32(problem.features), axis=0))


def test_there_is_no_rate_before_the_first_snapshot():
    problem = Problem('softmax')
    module = problem.bound()
    begun(problem, module, {})
    batch = next(problem.iterator())
    module.forward_backward(batch)
    with pytest.raises(RuntimeError, match='call update_full_grads.* or give base_lr'):
        module.update()
    problem.assert_weights(module, problem.weights, 1e-7)


def test_a_rule_that_comes_between_two_snapshots_takes_one():
    problem, rule = Problem('softmax'), BarzilaiBorwein()
    module = problem.module(update_freq=100)
    problem.fit(module, 1, optimizer_params={'learning_rate': 0.1})
    begun(problem, module, {}, rule=rule, force_init=True)
    rates = []
    module.fit(problem.iterator(), eval_metric='acc', begin_epoch=1, num_epoch=2,
               batch_end_callback=lambda _: rates.append(rule.rate))
    assert rates[0] > 0


def test_where_there_is_no_curvature_a_warning_names_the_rate():
    symbol = mx.sym.MakeLoss(mx.sym.broadcast_mul(
        mx.sym.Variable('data'), mx.sym.Variable('w', shape=(1,), init=mx.init.One()))
        + 0 * mx.sym.Variable('label'))
    module, rule = SVRGModule(symbol, label_names=['label'], update_freq=1), BarzilaiBorwein()
    train_data = mx.io.NDArrayIter(np.ones((8, 1)), np.ones((8, 1)), 4, label_name='label')
    with pytest.warns(UserWarning, match='cannot be measured .* the first learning rate is 0.01'):
        module.fit(train_data, eval_metric=mx.metric.Loss(), num_epoch=2,
                   optimizer_params={'lr_scheduler': rule})
    assert rule.rate == 0.01


# The way back

@pytest.mark.filterwarnings('ignore:the full gradient is not finite')
@in_pairs({
    'rate': [100, 1e30],
    'optimizer, momentum': [('sgd', 0), ('nag', 0.9)],
    'context, kvstore, update_on_kvstore': [
        (mx.cpu(), None, '1'), (mx.cpu(), 'object', '1'), (TWO_DEVICES, 'local', '1'),
        (TWO_DEVICES, 'device', '0')]})
def test_a_rate_that_led_astray_is_halved_at_the_best_snapshot(
        monkeypatch, caplog, rate, optimizer, momentum, context, kvstore, update_on_kvstore):
    """Weights, snapshot and momentum are those of the good snapshot; counts go on."""
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem('linear')
    module = problem.bound(context=context)
    rule = begun(problem, module, {'momentum': momentum}, optimizer,
                 kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore)
    train_data = problem.iterator()
    module.update_full_grads(train_data)
    step_through(module, train_data)
    module.update_full_grads(train_data)
    good = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    full = [share['fc_weight'].asnumpy() for share in module._param_dict]
    norm, slowdown, ways_back = module.gradient_norm, rule.slowdown, rule.ways_back
    rule.rate = rate
    step_through(module, train_data)
    caplog.set_level(logging.INFO)
    module.update_full_grads(train_data)
    assert 'Epoch[0] The learning rate was too large: back to the best snapshot' in caplog.text
    assert (rule.rate, rule.slowdown, rule.ways_back) == (
        rate / 2, 2 * slowdown, ways_back + 1)
    assert module.gradient_norm == norm and module._snapshot.num_update == 8
    for share, before in zip(module._param_dict, full):
        np.testing.assert_array_equal(share['fc_weight'].asnumpy(), before)
    for owner in (module, module._mod_aux):
        for name, value in owner.get_params()[0].items():
            np.testing.assert_array_equal(value.asnumpy(), good[name])
    rule.rate = 0.1
    batch = next(problem.iterator())
    module.forward_backward(batch)
    module.update()
    full = {name: sum(share[name].asnumpy() for share in module._param_dict) for name in good}
    for name, value in module.get_params()[0].items():
        # At the snapshot the SVRG gradient is the full one, and the momentum begins with it.
        np.testing.assert_allclose(
            value.asnumpy(), good[name] - 0.1 * (1 + momentum) * full[name] / 10,
            rtol=1e-5, atol=1e-6)


def test_training_comes_to_the_optimum_from_a_first_rate_that_is_far_too_large():
    problem, rule = Problem('linear'), BarzilaiBorwein(1e4, bounded=False)
    module = problem.fit(problem.module(tol=1e-4), 300, optimizer_params={'lr_scheduler': rule})
    assert rule.ways_back > 10
    weights = {name: value.asnumpy().astype(float)
               for name, value in module.get_params()[0].items()}
    gradients = oracle.linear_regression(weights, problem.features, problem.targets)
    assert max(np.abs(value).max() for value in gradients.values()) / 40 <= 1.01e-4


def test_same_bits_after_a_stop_without_a_number(tmp_path):
    problem, prefix = Problem('linear'), str(tmp_path / 'model')

    def fit(module, begin, end):
        problem.fit(module, end, begin_epoch=begin, optimizer='nag',
                    optimizer_params={'momentum': 0.9, 'lr_scheduler': BarzilaiBorwein()})
        return module

    unbroken = problem.module()
    unbroken.fit = functools.partial(unbroken.fit, epoch_end_callback=mx.callback.module_checkpoint(
        unbroken, prefix, save_optimizer_states=True))
    fit(unbroken, 0, 6)
    resumed = fit(SVRGModule.load(prefix, 3, load_optimizer_states=True, label_names=('label',)),
                  3, 6)
    for name, value in unbroken.get_params()[0].items():
        np.testing.assert_array_equal(resumed.get_params()[0][name].asnumpy(), value.asnumpy())


@pytest.mark.parametrize('other', ['weights', 'data'])
def test_a_new_fit_may_begin_far_from_the_last(other, recwarn):
    """With other weights or data the gradient is large, and no rate is to blame."""
    problem, rule = Problem('linear'), BarzilaiBorwein()
    module = problem.fit(problem.module(tol=1e-4), 200, optimizer_params={'lr_scheduler': rule})
    if other == 'weights':
        module.set_params({name: 100 + value for name, value in problem.arg_params().items()}, {})
    else:
        problem.targets = 1000 * problem.targets[::-1]
    module.fit(problem.iterator(), eval_metric='mse', num_epoch=400)
    weights = {name: value.asnumpy().astype(float)
               for name, value in module.get_params()[0].items()}
    gradients = oracle.linear_regression(weights, problem.features, problem.targets)
    largest = max(np.abs(value).max() for value in gradients.values()) / 40
    assert largest < (1e-3 if other == 'weights' else 1e-1)
    assert not [one for one in recwarn if 'too large' in str(one.message)]


@pytest.mark.filterwarnings('ignore:the full gradient is not finite')
@pytest.mark.parametrize('rate', [1e6, 1e30])
def test_the_end_of_fit_leaves_no_weights_that_diverged(rate):
    """There is no snapshot any more that would find it."""
    problem, rule = Problem('linear'), BarzilaiBorwein(rate, bounded=False)
    module = problem.module()
    with pytest.warns(UserWarning, match='too large since .* weights are those of the best'):
        problem.fit(module, 1, optimizer_params={'lr_scheduler': rule})
    problem.assert_weights(module, problem.weights, 1e-6)


@pytest.mark.filterwarnings('ignore:.*since the last snapshot')
def test_an_interrupted_measurement_is_made_up_for(monkeypatch):
    problem, rule, train_data = Problem('linear'), BarzilaiBorwein(), Problem('linear').iterator()
    module = problem.module(update_freq=100)
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr(ModuleReference, 'shift_weights', Mock(side_effect=KeyboardInterrupt))
        module.fit(train_data, eval_metric='mse', num_epoch=1, arg_params=problem.arg_params(),
                   optimizer_params={'lr_scheduler': rule})
    module.fit(train_data, eval_metric='mse', begin_epoch=1, num_epoch=2)
    assert rule.rate > 0


@pytest.mark.parametrize('rows', [30, 37, 47])
def test_stored_batches_are_measured_and_not_the_data_again(rows):
    """Of 37 rows the last seven are a batch of their own."""
    problem, rule, passes, found = Problem('softmax', rows=rows), BarzilaiBorwein(), [], []
    real = [batch[batch >= batch[0]] for batch in oracle.batches_of(rows, 10)]
    expected = SvrgBB(problem).curvature_of_batch(real)

    class Counted(mx.io.NDArrayIter):
        def __iter__(self):
            passes.append(0)
            return super().__iter__()

    for kind in (Counted, mx.io.NDArrayIter):
        train_data = kind(problem.features, problem.targets, 10, label_name='label')
        problem.module(store_snapshot_grads=True).fit(
            train_data, eval_metric=[], num_epoch=1, arg_params=problem.arg_params(),
            optimizer_params={'lr_scheduler': rule},
            batch_end_callback=lambda _: found.append(rule.curvature))
        np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert len(passes) == 2  # one at the end


@pytest.mark.filterwarnings('ignore:the learning rate was too large')  # as chance may have it
def test_random_layers_begin_with_a_rate_that_is_not_measured():
    data = mx.sym.Variable('data') + mx.sym.random.normal(shape=(10, 4))
    symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(data, num_hidden=1, name='fc'), mx.sym.Variable('label'))
    problem, rule = Problem('linear'), BarzilaiBorwein()
    module, found = SVRGModule(symbol, label_names=('label',), update_freq=1), []
    with pytest.warns(UserWarning, match='cannot be measured|draw random numbers anew'):
        problem.fit(module, 1, optimizer_params={'lr_scheduler': rule},
                    batch_end_callback=lambda _: found.append((rule.rate, rule.curvature)))
    assert set(found) == {(0.01, 0)}


def test_dropout_is_measured_with_the_same_masks():
    problem = Problem('linear', rows=10)
    data = mx.sym.Dropout(mx.sym.Variable('data'), p=0.5)
    problem.symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(data, num_hidden=1, name='fc'), mx.sym.Variable('label'))
    module = problem.bound()
    rule = begun(problem, module, {})
    module.update_full_grads(problem.iterator())
    executor, = module._mod_aux._exec_group.execs
    mask, = (executor.arg_dict[name] for name in module._masks.names)
    problem.features = problem.features * mask.asnumpy()
    expected = SvrgBB(problem).curvature_of_batch([np.arange(10)])
    np.testing.assert_allclose(rule.curvature, expected, rtol=1e-3)


def test_parameters_without_gradients_have_no_part():
    problem = Problem('linear')
    module, rule = problem.module(), BarzilaiBorwein()
    train_data = problem.iterator()
    module.bind(train_data.provide_data, train_data.provide_label, grad_req={
        'fc_weight': 'write', 'fc_bias': 'null', 'data': 'null', 'label': 'null'})
    module.fit(train_data, eval_metric='mse', num_epoch=3, arg_params=problem.arg_params(),
               optimizer_params={'lr_scheduler': rule})
    assert rule.rate > 0 and module.gradient_norm > 0


def test_the_first_rate_is_logged(caplog):
    caplog.set_level(logging.INFO)
    problem, rule = Problem('softmax'), BarzilaiBorwein()
    found = []
    problem.module().fit(problem.iterator(), eval_metric='acc', num_epoch=1,
                         optimizer_params={'lr_scheduler': rule},
                         batch_end_callback=lambda _: found.append(rule.rate))
    assert 'Epoch[0] Learning rate=%g' % found[0] in caplog.text


def test_fit_ends_at_the_best_snapshot_whatever_the_last_gradient():
    """A saturated loss has a bounded gradient: Huber's is the same far from its optimum."""
    rows = np.random.RandomState(0).normal(size=(40, 3))
    targets = rows @ [100., -200., 300.]
    symbol = mx.sym.MakeLoss(mx.sym.smooth_l1(mx.sym.reshape(mx.sym.FullyConnected(
        mx.sym.Variable('data'), num_hidden=1, no_bias=True, name='fc'), (-1,))
        - mx.sym.Variable('label'), scalar=1))
    module = SVRGModule(symbol, label_names=('label',), update_freq=1)
    rule = BarzilaiBorwein(1e4, bounded=False)
    with pytest.warns(UserWarning, match='weights are those of the best snapshot'):
        module.fit(mx.io.NDArrayIter(rows, targets, 10, label_name='label'), eval_metric=[],
                   initializer=mx.init.Zero(), num_epoch=1,
                   optimizer_params={'lr_scheduler': rule})
    np.testing.assert_array_equal(module.get_params()[0]['fc_weight'].asnumpy(), 0)


def test_where_nothing_is_updated_nothing_is_measured():
    problem, rule = Problem('linear'), BarzilaiBorwein()
    optimizer = mx.optimizer.create('nag', rescale_grad=0.1, lr_scheduler=rule)
    optimizer.set_lr_mult({'fc_weight': 0, 'fc_bias': 0})
    module = problem.bound()
    module.init_optimizer(kvstore=None, optimizer=optimizer)
    with pytest.warns(UserWarning, match='cannot be measured'):
        module.update_full_grads(problem.iterator())
    assert rule.rate == 0.01


@pytest.mark.filterwarnings('ignore:.*since the last snapshot')
def test_stored_batches_outlast_a_way_back():
    problem, rule = Problem('linear'), BarzilaiBorwein(1e3, bounded=False)
    module = problem.module(store_snapshot_grads=True)
    problem.fit(module, 2, optimizer_params={'lr_scheduler': rule},
                epoch_end_callback=lambda epoch, *_: module._svrg.store.batches or 1 / 0)
    assert rule.ways_back

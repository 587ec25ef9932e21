"""How far a snapshot is from the optimum, and fit that ends when that is near: float64 decides."""

import logging

import mxnet as mx
import numpy as np
import pytest

import oracle
from pairs import in_pairs
from problems import Problem, SparseProblem
from svrg_optimization import BarzilaiBorwein, SVRGModule
from svrg_optimization.proximal import L1

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def weights_of(module):
    """Return the weights in float64."""
    return {name: value.asnumpy().astype(float) for name, value in module.get_params()[0].items()}


def mean_gradient(problem, weights, wd=0., decayed=('fc_weight', 'hidden_weight')):
    """Return the gradient of the mean objective per row, in float64."""
    summed = problem.network(weights, problem.features, problem.targets)
    return {name: value / len(problem.features) + wd * weights[name] * (name in decayed)
            for name, value in summed.items()}


def largest(gradients):
    return max(np.abs(value).max() for value in gradients.values())


def fit(problem, module, epochs, rate=0.3, **kwargs):
    params = {**({'learning_rate': rate} if rate else {}), **kwargs.pop('params', {})}
    return problem.fit(module, epochs, optimizer_params=params, eval_metric='mse', **kwargs)


# The gradient's norm

@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'],
    'wd': [0, 0.05],
    'rows': [40, 37],
    'context, kvstore, update_on_kvstore': [
        (mx.cpu(), None, '1'), (TWO_DEVICES, 'local', '1'), (TWO_DEVICES, 'device', '0')]})
def test_norm_is_that_of_the_mean_objective(monkeypatch, kind, wd, rows, context, kvstore,
                                            update_on_kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem(kind, rows=rows)
    module = problem.module(context=context)
    assert module.gradient_norm is None
    fit(problem, module, 2, kvstore=kvstore, params={'wd': wd})
    module.update_full_grads(problem.iterator())
    np.testing.assert_allclose(module.gradient_norm, largest(
        mean_gradient(problem, weights_of(module), wd)), rtol=1e-5)


@pytest.mark.parametrize('multiplier', ['wd', 'lr'])
def test_norm_is_over_the_parameters_that_are_updated(multiplier):
    """wd_mult scales a parameter's decay, and lr_mult = 0 takes it out."""
    wd = 0.3
    problem = Problem('perceptron')
    module = problem.bound(sgd={'learning_rate': 0.1, 'wd': wd})
    if multiplier == 'wd':
        module._optimizer.set_wd_mult({'hidden_weight': 3.})
    else:
        module._optimizer.set_lr_mult({'hidden_weight': 0., 'hidden_bias': 0.})
    module.update_full_grads(problem.iterator())
    expected = mean_gradient(problem, problem.weights, wd)
    if multiplier == 'wd':
        expected['hidden_weight'] += 2 * wd * problem.weights['hidden_weight']
    else:
        del expected['hidden_weight'], expected['hidden_bias']
    np.testing.assert_allclose(module.gradient_norm, largest(expected), rtol=1e-5)


@pytest.mark.parametrize('sparse_full_grad', [False, True])
def test_rows_that_few_batches_contain_are_decayed_as_rarely(sparse_full_grad):
    """With sparse_full_grad training ends where that is balanced."""
    wd = 0.3
    problem = SparseProblem(rows=40)
    module = problem.bound(sparse_full_grad=sparse_full_grad)
    optimizer = mx.optimizer.SGD(wd=wd, rescale_grad=0.1,
                                 param_idx2name=dict(enumerate(module._param_names)))
    optimizer.set_wd_mult({'w': 1.})  # by its name it would have none
    module.init_optimizer(kvstore=None, optimizer=optimizer)
    module.update_full_grads(problem.iterator())
    batches = problem.features.reshape(4, 10, -1)
    share = (batches != 0).any(axis=1).mean(axis=0) if sparse_full_grad else np.ones(12)
    expected = mean_gradient(problem, problem.weights)
    expected['w'] += wd * share[:, None] * problem.weights['w']
    np.testing.assert_allclose(module.gradient_norm, largest(expected), rtol=1e-5)


@pytest.mark.filterwarnings('ignore:Optimizer created manually')
@pytest.mark.parametrize('is_mean', [False, True])
def test_a_rescale_grad_of_ones_own_has_its_own_optimum(is_mean):
    """It is the zero of μ/B + wd w / (B r), or of μ + wd w / r where the loss is a mean."""
    wd, rescale = 0.05, 0.25
    problem = Problem('softmax')
    if is_mean:
        problem.symbol = mx.sym.SoftmaxOutput(problem.symbol.get_internals()['fc_output'],
                                              mx.sym.Variable('label'), normalization='batch')
    module = problem.bound()
    module.init_optimizer(optimizer=mx.optimizer.SGD(
        learning_rate=0.1, wd=wd, rescale_grad=rescale,
        param_idx2name=dict(enumerate(['fc_weight', 'fc_bias']))))
    module.update_full_grads(problem.iterator())
    decay = wd / rescale if is_mean else wd / (10 * rescale)
    np.testing.assert_allclose(module.gradient_norm, largest(
        mean_gradient(problem, problem.weights, decay)), rtol=1e-5)


def test_with_a_proximal_operator_it_is_the_gradient_mapping():
    strength, rate, wd = 0.2, 0.4, 0.03
    problem = Problem('softmax')
    module = fit(problem, problem.module(proximal=L1(strength)), 3, rate, params={'wd': wd})
    module.update_full_grads(problem.iterator())
    weights = weights_of(module)
    mapping = mean_gradient(problem, weights, wd)
    stepped = oracle.soft_threshold(strength)(
        weights['fc_weight'] - rate * mapping['fc_weight'], rate)
    mapping['fc_weight'] = (weights['fc_weight'] - stepped) / rate
    np.testing.assert_allclose(module.gradient_norm, largest(mapping), rtol=1e-5)


# fit with tol

def test_fit_ends_before_the_epoch_whose_snapshot_finds_convergence(caplog):
    caplog.set_level(logging.INFO)
    problem, epochs = Problem('linear'), []
    train_data = problem.iterator()
    module = problem.module(update_freq=2, tol=1e-3)
    module.fit(train_data, eval_metric='mse', num_epoch=400, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.3, 'wd': 0.01},
               epoch_end_callback=lambda epoch, *_: epochs.append(epoch))
    last = epochs[-1] + 1
    assert last % 2 == 0 and epochs == list(range(last)) and last < 100
    norm = largest(mean_gradient(problem, weights_of(module), 0.01))
    np.testing.assert_allclose(module.gradient_norm, norm, rtol=1e-3)
    assert norm <= 1e-3
    messages = [record.getMessage() for record in caplog.records]
    assert [line.split('=')[0] for line in messages if 'Epoch[%d]' % last in line] == [
        'Epoch[%d] Full gradient time' % last, 'Epoch[%d] Full gradient norm' % last,
        'Epoch[%d] Full objective' % last]
    assert 'Epoch[%d] Time cost' % (last - 1) in messages[-4]
    assert len(list(train_data)) == 4  # they stand at their beginning
    twin = problem.svrg(learning_rate=0.3, wd=0.01)
    for epoch in range(last):
        if epoch % 2 == 0:
            twin.take_snapshot()
            assert largest(mean_gradient(problem, twin.weights, 0.01)) > 1e-3
        for rows in oracle.batches_of(40, 10):
            twin.step(rows)
    problem.assert_weights(module, twin.weights)


def test_fit_ends_the_epoch_within_which_a_snapshot_finds_convergence(caplog):
    caplog.set_level(logging.INFO)
    problem, batches, epochs, evaluated = Problem('linear'), [], [], []
    module = problem.module(tol=0.1, updates_per_snapshot=3)
    fit(problem, module, 400, eval_data=problem.iterator(),
        batch_end_callback=lambda param: batches.append((param.epoch, param.nbatch)),
        epoch_end_callback=lambda epoch, *_: epochs.append(epoch),
        eval_end_callback=lambda param: evaluated.append(param.epoch))
    assert len(batches) % 3 == 0 and len(batches) % 4  # it ended within an epoch
    last, _ = batches[-1]
    assert last < 50 and epochs == evaluated == list(range(last + 1))
    messages = [record.getMessage() for record in caplog.records]
    assert [line.split('=')[0].split('] ')[1] for line in messages[-4:]] == [
        'Full objective', 'Train-mse', 'Time cost', 'Validation-mse']
    norm = largest(mean_gradient(problem, weights_of(module)))
    assert norm <= 0.1
    np.testing.assert_allclose(module.gradient_norm, norm, rtol=1e-4)


def test_num_epoch_is_the_limit_and_a_last_snapshot_decides():
    problem = Problem('linear')
    module = problem.module(update_freq=2, tol=1e-3)
    with pytest.warns(UserWarning, match='training did not converge: gradient') as caught:
        fit(problem, module, 3)
    [message] = [str(one.message) for one in caught if 'converge' in str(one.message)]
    norm = largest(mean_gradient(problem, weights_of(module)))
    assert 'gradient %.1e, tol 0.001' % norm in message
    np.testing.assert_allclose(module.gradient_norm, norm, rtol=1e-4)


def test_a_last_snapshot_that_finds_convergence_warns_of_nothing(recwarn):
    problem, epochs = Problem('linear'), []
    fit(problem, problem.module(tol=1e-3), 400,
        epoch_end_callback=lambda epoch, *_: epochs.append(epoch))
    module = fit(problem, problem.module(tol=1e-3), len(epochs))
    assert module.gradient_norm <= 1e-3
    assert not [one for one in recwarn if 'converge' in str(one.message)]


@pytest.mark.filterwarnings('ignore:tol may not be reached', 'ignore:.*since the last snapshot')
@pytest.mark.parametrize('handle, shuffle, scheduler, advice', [
    ('pad', True, None, 'another learning rate'),
    ('pad', False, BarzilaiBorwein, r'BarzilaiBorwein\(scaled=True\)'),
    ('discard', False, None, 'another learning rate'), ('discard', True, None, 'without rows left'),
    ('roll_over', False, BarzilaiBorwein, 'without rows left')])
def test_the_advice_names_what_keeps_it_from_convergence(handle, shuffle, scheduler, advice):
    problem = Problem('softmax', rows=37)
    train_data = problem.iterator(last_batch_handle=handle, shuffle=shuffle)
    params = {'lr_scheduler': scheduler()} if scheduler else {'learning_rate': 0.01}
    with pytest.warns(UserWarning, match='did not converge: .*; .*%s' % advice) as caught:
        problem.module(tol=1e-9).fit(train_data, eval_metric='acc', num_epoch=3,
                                     optimizer_params=params)
    messages = [str(one.message) for one in caught]
    assert sum('train_data lacks other rows' in one for one in messages) == ('rows' in advice)


def test_the_advice_names_rows_that_a_file_iterator_leaves_out(tmp_path):
    """Three rows more each pass: with round_batch MXNet begins after those that it padded with."""
    problem, path = Problem('softmax', rows=437), str(tmp_path / 'rows')
    with open(path, 'w') as file:
        for target, row in zip(problem.targets, problem.features):
            file.write('%d %s\n' % (target, ' '.join('%d:%.9g' % one for one in enumerate(row))))
    train_data = mx.io.LibSVMIter(data_libsvm=path, data_shape=(4,), batch_size=10)
    module = SVRGModule(problem.symbol, label_names=('label',), update_freq=1, tol=1e-9)
    module.bind(train_data.provide_data, [mx.io.DataDesc('label', (10,))])
    with pytest.warns(UserWarning, match='converge: .*; passes had .* rows, .* batch_size divides'):
        module.fit(train_data, eval_metric=[], num_epoch=2)


@pytest.mark.parametrize('strength, advice', [
    (None, r'BarzilaiBorwein\(scaled=True\), or more epochs'),
    (L1(.1), r'BarzilaiBorwein\(scaled=True\), larger batches, or more epochs')])
def test_the_advice_with_a_proximal_operator_names_larger_batches(strength, advice):
    problem = Problem('softmax')
    with pytest.warns(UserWarning, match='converge: .*; ' + advice):
        problem.module(tol=1e-9, proximal=strength).fit(
            problem.iterator(), eval_metric=[], num_epoch=2,
            optimizer_params={'lr_scheduler': BarzilaiBorwein()})


def test_a_run_that_converged_within_an_epoch_is_over_when_it_is_resumed(tmp_path):
    prefix, problem = str(tmp_path / 'saved'), Problem('linear')
    given = {'updates_per_snapshot': 3}
    module, epochs = problem.module(tol=0.1, **given), []
    fit(problem, module, 50, epoch_end_callback=[
        mx.callback.module_checkpoint(module, prefix, save_optimizer_states=True),
        lambda epoch, *_: epochs.append(epoch)])
    resumed = SVRGModule.load(prefix, len(epochs), load_optimizer_states=True,
                              label_names=('label',), **given)
    again = []
    fit(problem, resumed, 50, begin_epoch=len(epochs),
        epoch_end_callback=lambda epoch, *_: again.append(epoch))
    assert not again
    for name, value in weights_of(module).items():
        np.testing.assert_array_equal(weights_of(resumed)[name], value)
    resumed.set_params({name: 1 + value for name, value in resumed.get_params()[0].items()}, {})
    fit(problem, resumed, 50, begin_epoch=len(epochs),
        epoch_end_callback=lambda epoch, *_: again.append(epoch))
    assert again


def test_an_override_that_takes_no_snapshot_is_trained_as_before():
    class Own(SVRGModule):
        def update_full_grads(self, train_data, *args, **kwargs):
            pass

    problem = Problem('linear')
    module = Own(problem.symbol, label_names=('label',), update_freq=1, tol=1e-3)
    with pytest.warns(UserWarning, match='plain steps'):
        fit(problem, module, 2)
    assert module.gradient_norm is None


def test_the_norm_follows_the_optimizer():
    """Before it is installed there is no weight decay."""
    problem = Problem('softmax')
    module = problem.bound()
    module.update_full_grads(problem.iterator())
    np.testing.assert_allclose(module.gradient_norm, largest(
        mean_gradient(problem, problem.weights)), rtol=1e-5)
    for wd in (0.1, 0.5):
        module.init_optimizer(optimizer_params={'wd': wd}, force_init=True)
        np.testing.assert_allclose(module.gradient_norm, largest(
            mean_gradient(problem, problem.weights, wd)), rtol=1e-5)


@pytest.mark.parametrize('given, error, message', [
    ({'tol': 0}, ValueError, 'tol must be None or a number above 0, not 0'),
    ({'tol': np.inf}, ValueError, 'not inf'),
    ({'tol': '1e-3'}, TypeError, "not '1e-3'"),
    ({'tol': True}, TypeError, 'not True'),
    ({'tol': 1e-3, 'alpha': 0}, ValueError, 'alpha must not be 0 with tol'),
    ({'tol': 1e-3, 'full_grad_batches': 3}, ValueError, 'full_grad_batches must be None with tol')])
def test_bad_settings_are_refused(given, error, message):
    problem = Problem('linear')
    with pytest.raises(error, match=message):
        problem.module(**given)
    module = problem.module(tol=given.pop('tol') if len(given) == 2 else None)
    before = module.tol, module.alpha, module.full_grad_batches
    [(name, value)] = given.items()
    with pytest.raises(error, match=message):
        setattr(module, name, value)
    assert (module.tol, module.alpha, module.full_grad_batches) == before


def test_unknown_settings_are_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'update_frequency'"):
        SVRGModule(Problem().symbol, update_frequency=2)

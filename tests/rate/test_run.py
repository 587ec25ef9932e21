"""How far a snapshot is from the optimum, and fit that ends when that is near: float64 decides."""

import logging

import mxnet as mx
import numpy as np
import pytest

from blocks import Blocks, train_epochs
from pairs import in_pairs
from problems import TWO_DEVICES, Problem, SparseProblem
from svrg_optimization import SVRGModule


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


def assert_norm(module, gradients, tolerance=1e-5):
    np.testing.assert_allclose(module.gradient_norm, largest(gradients), rtol=tolerance)


def fit(problem, module, epochs, **kwargs):
    kwargs.setdefault('optimizer_params', {'learning_rate': 0.3})
    return problem.fit(module, epochs, **kwargs)


# The gradient's norm

@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'],
    'wd': [0, 0.05],
    'rows': [40, 37],
    'context, kvstore, update_on_kvstore': [
        (mx.cpu(), None, '1'), (TWO_DEVICES, 'local', '1'), (TWO_DEVICES, 'device', '0')]})
def test_norm_is_that_of_the_mean_objective(monkeypatch, kind, wd, rows, context, kvstore,
                                            update_on_kvstore):
    """Before an optimizer is installed there is no weight decay."""
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem(kind, rows=rows)
    module = problem.bound(context=context)
    assert module.gradient_norm is None
    module.update_full_grads(problem.iterator())
    assert_norm(module, mean_gradient(problem, problem.weights))
    fit(problem, module, 2, kvstore=kvstore, optimizer_params={'learning_rate': 0.3, 'wd': wd})
    module.update_full_grads(problem.iterator())
    assert_norm(module, mean_gradient(problem, weights_of(module), wd))
    module.init_optimizer(kvstore, optimizer_params={'wd': 0.5}, force_init=True)
    assert_norm(module, mean_gradient(problem, weights_of(module), 0.5))


def problem_with_a_mean():
    problem = Problem('softmax')
    problem.symbol = mx.sym.SoftmaxOutput(problem.symbol.get_internals()['fc_output'],
                                          mx.sym.Variable('label'), normalization='batch')
    return problem


@pytest.mark.filterwarnings('ignore:Optimizer created manually')
@pytest.mark.parametrize('problem, sgd, wd_mult, lr_mult, decay', [
    (Problem('perceptron'), {}, {'hidden_weight': 3.}, {},
     {'hidden_weight': 0.9, 'fc_weight': 0.3}),
    # Parameters that are not updated are left out:
    (Problem('perceptron'), {}, {}, {'hidden_weight': 0., 'hidden_bias': 0.},
     {'fc_weight': 0.3}),
    # By its name `w` would have no decay:
    (SparseProblem(rows=40), {}, {'w': 1.}, {}, {'w': 0.3}),
    # The optimum is the zero of μ/B + wd w / (B r), or of μ + wd w / r where the loss is a mean:
    (Problem('softmax'), {'rescale_grad': 0.25}, {}, {}, {'fc_weight': 0.3 / 2.5}),
    (problem_with_a_mean(), {'rescale_grad': 0.25}, {}, {}, {'fc_weight': 0.3 / 0.25})])
def test_the_optimizer_says_what_is_decayed(problem, sgd, wd_mult, lr_mult, decay):
    module = problem.bound()
    optimizer = mx.optimizer.SGD(wd=0.3, **{'rescale_grad': 0.1, **sgd},
                                 param_idx2name=dict(enumerate(module._param_names)))
    optimizer.set_wd_mult(wd_mult)
    optimizer.set_lr_mult(lr_mult)
    module.init_optimizer(kvstore=None, optimizer=optimizer)
    module.update_full_grads(problem.iterator())
    assert_norm(module, {
        name: value + decay.get(name, 0) * problem.weights[name]
        for name, value in mean_gradient(problem, problem.weights).items()
        if lr_mult.get(name, 1)})


# fit with tol

def test_fit_ends_before_the_epoch_whose_snapshot_finds_convergence(caplog, recwarn):
    caplog.set_level(logging.INFO)
    problem, sgd = Problem(), {'learning_rate': 0.3, 'wd': 0.01}
    train_data, epochs = problem.iterator(), []
    module = problem.module(update_freq=2, tol=1e-3)
    fit(problem, module, 400, train_data=train_data, eval_metric='mse', optimizer_params=sgd,
        epoch_end_callback=lambda epoch, *_: epochs.append(epoch))
    last = epochs[-1] + 1
    assert last % 2 == 0 and epochs == list(range(last)) and last < 100
    assert_norm(module, mean_gradient(problem, weights_of(module), 0.01), 1e-3)
    assert module.gradient_norm <= 1e-3
    messages = [record.getMessage() for record in caplog.records]
    assert [line.split('=')[0] for line in messages if 'Epoch[%d]' % last in line] == [
        'Epoch[%d] %s' % (last, what) for what in (
            'Full gradient time', 'Full gradient norm', 'Full objective', 'Distance')]
    assert 'Epoch[%d] Time cost' % (last - 1) in messages[-6]
    assert len(list(train_data)) == 4  # they stand at their beginning
    twin = problem.svrg(**sgd)
    for epoch in range(0, last, 2):
        assert largest(mean_gradient(problem, twin.weights, 0.01)) > 1e-3
        twin.fit(epoch + 2, 2, begin_epoch=epoch)
    problem.assert_weights(module, twin.weights)
    # A last snapshot that finds convergence warns of nothing.
    assert fit(problem, problem.module(2, tol=1e-3), last, optimizer_params=sgd).has_converged
    assert not [one for one in recwarn if 'converge' in str(one.message)]


@pytest.mark.exact_data
def test_a_run_that_has_converged_is_over_when_it_is_resumed(tmp_path):
    """Unless the weights are others."""
    problem, prefix = Problem(), str(tmp_path / 'saved')
    epochs, again = [], []
    module = problem.module(tol=0.1)
    fit(problem, module, 50, epoch_end_callback=lambda epoch, *_: epochs.append(epoch))
    assert module.has_converged and 0 < len(epochs) < 50
    module.save_checkpoint(prefix, len(epochs), save_optimizer_states=True)
    resumed = SVRGModule.load(prefix, len(epochs), load_optimizer_states=True,
                              label_names=('label',))
    for changed in (False, True):
        if changed:
            resumed.set_params({name: 1 + value
                                for name, value in resumed.get_params()[0].items()}, {})
        fit(problem, resumed, 50, begin_epoch=len(epochs),
            epoch_end_callback=lambda epoch, *_: again.append(epoch))
        assert bool(again) == changed
        for name, value in weights_of(module).items():
            assert changed or (weights_of(resumed)[name] == value).all()


@pytest.mark.filterwarnings('ignore:tol may not be reached')
@pytest.mark.parametrize('data, advice', [
    ({'shuffle': True}, 'another learning rate or more epochs may be needed'),
    ({'last_batch_handle': 'discard'}, 'another'),
    ({'last_batch_handle': 'discard', 'shuffle': True}, 'passes had'),
    ({'last_batch_handle': 'roll_over'}, 'passes had'),
    # By Gluon:
    ({'last_batch': 'rollover'}, 'passes had'),
    ({'last_batch': 'discard', 'shuffle': True}, 'passes had'),
    ({'last_batch': 'discard'}, 'another'), ({'last_batch': 'keep', 'shuffle': True}, 'another')])
def test_the_advice_names_what_keeps_it_from_convergence(data, advice):
    problem = Blocks('softmax', rows=37)
    with pytest.warns(UserWarning, match='did not converge to tol=1e-09: %s' % advice) as caught:
        if 'last_batch' in data:
            train_epochs(problem.trainer(problem.net(), tol=1e-9), problem.loader(**data), 3, 1)
        else:
            problem.module(tol=1e-9).fit(problem.iterator(**data), eval_metric=[], num_epoch=3)
    lacks = 'passes' in advice
    assert lacks == any('train_data leaves out other rows' in str(one.message) for one in caught)

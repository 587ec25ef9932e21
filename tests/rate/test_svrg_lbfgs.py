"""The optimizer 'svrg_lbfgs' by Module, against float64."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from pairs import in_pairs
from problems import TWO_DEVICES, Problem
from svrg_lbfgs import SvrgLbfgs, fit
from svrg_optimization.rate import smooth


@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'],
    'wd': [0, 0.05],
    'rows': [40, 37],
    'momentum': [0, 0.5, 0.9],
    'jumps': [0, 2],
    'multipliers': [{}, {'fc_weight': 3.}, {'fc_bias': 0.5}],
    'context, kvstore, update_on_kvstore': [
        (mx.cpu(), None, '1'), (TWO_DEVICES, 'local', '1'), (TWO_DEVICES, 'device', '0')]})
def test_training_is_that_of_two_loops(monkeypatch, kind, wd, rows, momentum, jumps,
                                       multipliers, context, kvstore, update_on_kvstore):
    monkeypatch.setattr(smooth.Smooth, 'most_jumps', jumps)
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem(kind, rows=rows, **{name[3:]: {'name': name, 'lr_mult': value}
                                          for name, value in multipliers.items()})
    module = problem.module(2, context=context)
    epochs = 4 if jumps else 8  # jumps soon find the optimum, where all is rounding
    rule = fit(problem, module, epochs, kvstore=kvstore, wd=wd, momentum=momentum)
    twin = SvrgLbfgs(problem, momentum, wd, multipliers, jumps=jumps,
                     layer='hidden' if kind == 'perceptron' else 'fc')
    twin.fit(epochs, 2, oracle.batches_of(rows, 10))
    assert rule.num_rollbacks == twin.rollbacks and rule.regime.slowdown == twin.slowdown
    np.testing.assert_allclose([rule.gamma, rule.rate], [twin.gamma, twin.rate], rtol=1e-5)
    problem.assert_weights(module, twin.weights, 1e-6)


@pytest.mark.parametrize('rescale_grad', [0.02, 0.5])
def test_with_a_factor_of_gradients_decays_in_the_metric_are_times_its_inverse(
        monkeypatch, rescale_grad):
    """It scales the loss against the decay; at first gamma is one over the factor of a row."""
    monkeypatch.setattr(smooth.Smooth, 'most_jumps', 2)  # more would end in rounding
    problem = Problem('softmax')
    module = problem.module(2)
    rule = fit(problem, module, 4, wd=0.05, rescale_grad=rescale_grad)
    twin = SvrgLbfgs(problem, wd=0.05, scale=10 * rescale_grad, jumps=2)
    twin.fit(4, 2, oracle.batches_of(40, 10))
    np.testing.assert_allclose([rule.gamma, rule.rate], [twin.gamma, twin.rate], rtol=1e-5)
    problem.assert_weights(module, twin.weights, 1e-6)

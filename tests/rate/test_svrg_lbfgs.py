"""The optimizer 'svrg_lbfgs' by Module, against float64."""

import mxnet as mx
import numpy as np
import pytest

import oracle
from pairs import in_pairs
from problems import TWO_DEVICES, Problem
from svrg_lbfgs import SvrgLbfgs
from svrg_optimization.rate import smooth
from svrg_optimization.rate.algorithm import pays
from svrg_optimization.rate.learned import Learned


@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'],
    'wd': [0, 0.05],
    'rows': [40, 37],
    'momentum': [0, 0.5, 0.9],
    'jumps': [0, 2],
    'multipliers': [{}, {'fc_weight': 3.}, {'fc_bias': 0.5}],
    'rescale_grad': [0.1, 0.02, 0.5],
    'context, kvstore, update_on_kvstore': [
        (mx.cpu(), None, '1'), (TWO_DEVICES, 'local', '1'), (TWO_DEVICES, 'device', '0')]})
def test_training_is_that_of_two_loops(monkeypatch, kind, wd, rows, momentum, jumps, multipliers,
                                       rescale_grad, context, kvstore, update_on_kvstore):
    """A factor of gradients scales the loss against the decay, and with it those in the metric."""
    monkeypatch.setattr(smooth.Smooth, 'most_jumps', jumps)
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem(kind, rows, dtype='float64', **{
        name[3:]: {'name': name, 'lr_mult': value} for name, value in multipliers.items()})
    epochs = 4 if jumps else 8  # jumps soon find the optimum, where all is rounding
    module = problem.fit(problem.module(2, context=context), epochs, kvstore=kvstore,
                         optimizer='svrg_lbfgs', optimizer_params={
                             'wd': wd, 'momentum': momentum, 'rescale_grad': rescale_grad})
    rule = module._optimizer.lr_scheduler
    twin = SvrgLbfgs(problem, momentum, wd, multipliers, scale=10 * rescale_grad, jumps=jumps,
                     layer='hidden' if kind == 'perceptron' else 'fc')
    twin.fit(epochs, 2, oracle.batches_of(rows, 10))
    assert rule.num_rollbacks == twin.rollbacks and rule.regime.slowdown == twin.slowdown
    np.testing.assert_allclose([rule.gamma, rule.rate], [twin.gamma, twin.rate], rtol=1e-5)
    problem.assert_weights(module, twin.weights, 1e-6)


# How many jumps were made, by how many powers of e they, and a pass of steps, shortened the way.
@pytest.mark.parametrize('jumps, earned, of_steps, expected', [
    (0, -1., 0.1, True), (2, -1., 0.1, True), (3, -1., 0.1, False), (3, 0.31, 0.1, True),
    (3, 0.29, 0.1, False), (3, 0., 0., True), (3, -0.01, 0., False), (19, 5., 0.1, True)])
def test_jumps_go_on_as_long_as_they_pay(jumps, earned, of_steps, expected):
    """An epoch of steps costs three passes."""
    assert pays(jumps, earned, Learned(steps_earn=of_steps)) == expected

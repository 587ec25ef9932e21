"""Which weights and optimizers an operator goes with, and its checkpoints."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from own_operators import Cap
from problems import Problem
from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1, Box, GroupLasso
from svrg_optimization.svrg_optimizer import _SVRGOptimizer


def test_an_operator_is_for_the_weights_with_weight_decay():
    """A wd_mult of the symbol has the last word; gammas and fixed weights have no operator."""
    variable = mx.sym.Variable
    data = mx.sym.BatchNorm(variable('data'), name='norm', fix_gamma=False)
    data = mx.sym.FullyConnected(data, num_hidden=4, name='one')
    for name, weight in (('two', variable('two_weight', wd_mult=0.)),
                         ('three', variable('w', wd_mult=2., init=mx.init.One()))):
        data = mx.sym.FullyConnected(data, weight, num_hidden=4, name=name)
    data = mx.sym.FullyConnected(data, num_hidden=1, name='four')
    module = SVRGModule(mx.sym.LinearRegressionOutput(data, variable('label')), update_freq=1,
                        label_names=('label',), fixed_param_names=['four_weight'],
                        proximal=Box(-0.01, 0.01), alpha=0)
    module.bind([('data', (4, 3))], [('label', (4,))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={'learning_rate': 1e-9})
    module.forward_backward(mx.io.DataBatch([mx.nd.ones((4, 3))], [mx.nd.ones((4,))]))
    module.update()
    bounded = {name for name, value in module.get_params()[0].items()
               if np.abs(value.asnumpy()).max() < 0.1 and not name.endswith(('bias', 'beta'))}
    assert bounded == {'one_weight', 'w'}


@pytest.mark.parametrize('proximal', [Cap(0.5), {'fc_weight': L1(0.1), 'fc_bias': Cap(0.5)}])
def test_own_operators_are_not_saved(tmp_path, proximal):
    prefix = str(tmp_path / 'model')
    Problem().bound(proximal=proximal).save_checkpoint(prefix, 1)
    with pytest.warns(UserWarning, match='give proximal='):
        assert not SVRGModule.load(prefix, 1, label_names=('label',))._proximal.by_name
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        for given in (L1(0.2), None):
            SVRGModule.load(prefix, 1, label_names=('label',), proximal=given)


class Jumping(mx.optimizer.SGD):
    """A subclass that steps otherwise."""

    def update(self, index, weight, grad, state):
        """Do nothing."""


@pytest.mark.parametrize('optimizer, params, named', [
    ('adam', {}, 'adam'), ('nag', {'momentum': 0.5}, 'nag with momentum 0.5'),
    (mx.optimizer.SGD(momentum=0.5), {}, 'sgd with momentum 0.5'), (Jumping(), {}, 'jumping'),
    (_SVRGOptimizer('sgd', momentum=0.5), {}, 'sgd with momentum 0.5')])
def test_other_optimizers_are_refused(optimizer, params, named):
    module = Problem().bound(proximal=L1(0.1))
    with pytest.raises(ValueError, match='^optimizer must be .* with proximal, .* not %s$' % named):
        module.init_optimizer(optimizer=optimizer, optimizer_params=params)
    assert not module.optimizer_initialized and module._kvstore is None
    module.init_optimizer(optimizer_params={'momentum': 0})


@pytest.mark.parametrize('optimizer', ['sgd', 'newton_cg'])
def test_an_axis_that_a_parameter_lacks_is_mxnets_error(optimizer):
    module = Problem().module(proximal={'fc_bias': GroupLasso(0.1, axis=1)})
    with pytest.raises(mx.MXNetError):
        Problem().fit(module, 1, optimizer=optimizer)


@pytest.mark.parametrize('own, lent, fits', [
    (L1(1), None, False), (None, L1(1), False), (None, 'plain', True), (L1(1), 'plain', False)])
def test_no_optimizer_is_borrowed_where_weights_have_operators(own, lent, fits):
    """A plain Module lends none."""
    problem = Problem()
    if lent == 'plain':
        lender = mx.mod.Module(problem.symbol, label_names=('label',))
        lender.bind(problem.iterator().provide_data, problem.iterator().provide_label)
        lender.init_params()
    else:
        lender = problem.bound(proximal=lent)
    lender.init_optimizer()
    module = problem.bound(proximal=own, alpha=0)
    if fits:
        module.borrow_optimizer(lender)
        module.forward_backward(problem.batch(10))
        module.update()
    else:
        with pytest.raises(ValueError, match='proximal must be None with a borrowed optimizer'):
            module.borrow_optimizer(lender)
        assert not module.optimizer_initialized

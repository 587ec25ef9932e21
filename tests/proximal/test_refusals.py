"""What cannot have a proximal operator."""

import mxnet as mx
import pytest

from problems import Problem
from svrg_optimization.proximal import L1, GroupLasso
from svrg_optimization.svrg_optimizer import _SVRGOptimizer


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

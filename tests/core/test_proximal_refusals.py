"""What cannot have a proximal operator."""

import mxnet as mx
import pytest

from problems import Problem
from sequences import Sequences
from svrg_optimization.proximal import (
    L1,
    GroupLasso,
    ProximalOperators,
)
from svrg_optimization.svrg_optimizer import _SVRGOptimizer


class NoValue:
    def prox(self, weight, step_size):
        """Do nothing."""


@pytest.mark.parametrize('module_of', [lambda **kwargs: Problem().module(**kwargs),
                                       lambda **kwargs: Sequences().module(**kwargs)])
@pytest.mark.parametrize('arguments, error, message', [
    ({'proximal': 0.1}, TypeError, 'proximal must be None, an operator with the methods prox and '
                                   'value, or a dict .*, not 0.1'),
    ({'proximal': 0}, TypeError, 'or a dict .*, not 0'),
    ({'proximal': L1}, TypeError, 'proximal must be None, an operator'),
    ({'proximal': NoValue()}, TypeError, 'with the methods prox and value'),
    ({'proximal': {'fc_weight': None}}, TypeError, 'proximal must be .* not None'),
    ({'proximal': {'weight': L1(1)}}, ValueError,
     r"proximal must be for trained parameters \(.*fc_weight.*\), not for 'weight'"),
    ({'proximal': {'fc_bias': L1(1)}, 'fixed_param_names': ['fc_bias']}, ValueError,
     r"trained parameters \(fc_weight\), not for 'fc_bias'"),
    ({'proximal': L1(1), 'fixed_param_names': ['fc_weight']}, ValueError,
     'proximal must be a dict from parameter name to operator .*: fc_bias'),
    ({'proximal': L1(1), 'sparse_full_grad': True}, ValueError,
     'sparse_full_grad must be False for proximal')])
def test_bad_arguments_are_refused(module_of, arguments, error, message):
    with pytest.raises(error, match=message):
        module_of(**arguments)


class Jumping(mx.optimizer.SGD):
    """A subclass that steps otherwise."""

    def update(self, index, weight, grad, state):
        """Do nothing."""


@pytest.mark.parametrize('optimizer, params, named', [
    ('adam', {}, 'adam'), ('nag', {}, 'nag'), ('sgld', {}, 'sgld'), ('no such', {}, 'no such'),
    ('sgd', {'momentum': 0.9}, 'sgd with momentum 0.9'),
    (mx.optimizer.SGD(momentum=0.5), {}, 'sgd with momentum 0.5'), (Jumping(), {}, 'jumping'),
    (_SVRGOptimizer('sgd', momentum=0.5), {}, 'sgd with momentum 0.5')])
def test_other_optimizers_are_refused(optimizer, params, named):
    module = Problem().bound(proximal=L1(0.1))
    with pytest.raises(ValueError, match='^optimizer must be sgd without momentum for proximal, '
                                         'not %s:' % named):
        module.init_optimizer(optimizer=optimizer, optimizer_params=params)
    assert not module.optimizer_initialized and module._kvstore is None
    module.init_optimizer(optimizer_params={'momentum': 0})


def test_an_axis_that_a_parameter_lacks_is_refused():
    module = Problem().bound(proximal={'fc_bias': GroupLasso(0.1, axis=1)})
    with pytest.raises(ValueError, match=r'axis must be an axis of fc_bias.* \(1,\), not 1'):
        module.init_optimizer()
    assert not module.optimizer_initialized


@pytest.mark.parametrize('own, lent', [(L1(1), None), (None, L1(1)), (L1(1), L1(2))])
def test_a_borrowed_optimizer_must_have_the_operator(own, lent):
    lender = Problem().bound(proximal=lent)
    lender.init_optimizer()
    module = Problem().bound(proximal=own)
    with pytest.raises(ValueError, match='proximal must be that of shared_module'):
        module.borrow_optimizer(lender)
    assert not module.optimizer_initialized
    if lent is not None:
        module = Problem().bound(proximal=lent, alpha=0)
        module.borrow_optimizer(lender)
        module.forward_backward(next(Problem().iterator()))
        module.update()


def test_a_plain_module_lends_no_operator():
    problem = Problem()
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    plain.bind(problem.iterator().provide_data, problem.iterator().provide_label)
    plain.init_params()
    plain.init_optimizer()
    problem.bound().borrow_optimizer(plain)
    with pytest.raises(ValueError, match='proximal must be that of shared_module'):
        problem.bound(proximal=L1(0.2)).borrow_optimizer(plain)


def test_parameters_with_other_numbers_need_a_kvstore_that_updates(monkeypatch):
    """Of a bucket without the first parameter, for instance."""
    problem, operator = Problem(), L1(1)
    fewer = Problem()
    fewer.symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(mx.sym.Variable('data'), mx.sym.Variable('fc_weight'), no_bias=True,
                              num_hidden=1), mx.sym.Variable('label'))
    for update_on_kvstore, kvstore in (('0', 'local'), ('1', 'object')):
        monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
        lender = problem.bound(proximal=operator)
        lender.init_optimizer(mx.kv.create('local') if kvstore == 'object' else kvstore)
        module = fewer.module(proximal=operator)
        module.bind(problem.iterator().provide_data, problem.iterator().provide_label)
        module.init_params()
        if update_on_kvstore == '1':
            module.borrow_optimizer(lender)
            continue
        with pytest.raises(ValueError, match='proximal needs a kvstore that updates the weights'):
            module.borrow_optimizer(lender)


def test_a_bucket_without_the_parameter_is_refused():
    operators = ProximalOperators({'a_weight': L1(1)}, ['a_weight'], ['a_weight'])
    with pytest.raises(ValueError, match='parameters of the bucket.*a_weight is not one'):
        operators.check_optimizer('sgd', {}, {'b_weight': (2,)})


def test_servers_that_update_are_refused():
    operators = ProximalOperators(L1(1), ['a_weight'], ['a_weight'])
    with pytest.raises(ValueError, match='^proximal must be None where the servers of a kvstore'):
        operators.check_optimizer('sgd', {}, {'a_weight': (2,)}, on_servers=True)


def test_borrowed_operators_may_be_equal():
    one, other = [ProximalOperators(L1(0.1), ['a_weight'], ['a_weight'])
                  for _ in range(2)]
    one.check_borrowed(other, has_same_keys=True)
    with pytest.raises(ValueError, match='proximal must be that of shared_module'):
        one.check_borrowed(ProximalOperators(L1(0.2), ['a_weight'], ['a_weight']),
                           has_same_keys=True)

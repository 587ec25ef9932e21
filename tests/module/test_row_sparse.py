"""row_sparse parameters with csr data: the dense trajectory."""

import mxnet as mx
import numpy as np
import pytest

from problems import TWO_DEVICES, Problem, SparseProblem


def make_kvstore(kind):
    return mx.kv.create('local') if kind == 'object' else kind


@pytest.mark.parametrize('kvstore', ['local', 'device', 'object'])
def test_several_devices_without_update_on_kvstore_are_an_error(monkeypatch, kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', '0')
    problem = SparseProblem()
    module = problem.bound(context=TWO_DEVICES)
    with pytest.raises(ValueError, match='MXNET_UPDATE_ON_KVSTORE=1.*not row_sparse, as w'):
        module.init_optimizer(kvstore=make_kvstore(kvstore))
    assert not module.optimizer_initialized
    single = problem.fit(problem.module(1), 5, kvstore=mx.kv.create('local'),
                         optimizer_params={'learning_rate': 0.1})
    problem.assert_weights(single, problem.svrg().fit(5, 1))


@pytest.mark.parametrize('update_on_kvstore', ['0', '1'])
@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_a_dense_weight_may_have_a_sparse_gradient(monkeypatch, context, update_on_kvstore):
    """An Embedding with sparse_grad: exact, or the same error."""
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem, rng = Problem(rows=37, features=1), np.random.RandomState(0)
    problem.features = rng.randint(6, size=(37, 1)).astype(float)
    problem.weights = {'table': rng.normal(size=(6, 1))}
    problem.network = lambda weights, features, targets: {'table': (
        np.eye(6)[features[:, 0].astype(int)].T @ (
            weights['table'][features[:, 0].astype(int), 0] - targets))[:, None]}
    embedded = mx.sym.Embedding(mx.sym.Variable('data'), mx.sym.Variable('table'), input_dim=6,
                                output_dim=1, sparse_grad=True)
    problem.symbol = mx.sym.LinearRegressionOutput(mx.sym.flatten(embedded),
                                                   mx.sym.Variable('label'))
    module, params = problem.module(2, context=context), {'learning_rate': 0.1, 'momentum': 0.5}
    if context is TWO_DEVICES and update_on_kvstore == '0':
        with pytest.raises(ValueError, match='not row_sparse, as table'):
            problem.fit(module, 5, optimizer_params=params)
    else:
        problem.fit(module, 5, optimizer_params=params)
        problem.assert_weights(module, problem.svrg(**params).fit(5, 2))

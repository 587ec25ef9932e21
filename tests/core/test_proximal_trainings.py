"""Proximal SVRG against float64, and its checkpoints."""

import math
import warnings

import mxnet as mx
import numpy as np
import pytest

import oracle
from oracle import box
from own_operators import Cap
from pairs import in_pairs
from problems import Problem, SparseProblem
from sequences import Sequences
from svrg_optimization import SVRGModule
from svrg_optimization.module.executor_group import parameters
from svrg_optimization.proximal import (
    L1,
    Box,
    GroupLasso,
)

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
PLACES = [(mx.cpu(), None, '1'), (mx.cpu(), 'object', '1'), (TWO_DEVICES, 'local', '1'),
          (TWO_DEVICES, 'device', '1'), (TWO_DEVICES, 'device', '0')]


def fit(problem, module, kvstore='local', begin=0, end=5, **params):
    problem.fit(module, end, begin_epoch=begin,
                kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore,
                optimizer_params={'learning_rate': 0.1, **params})
    return module


def assert_zeros(module, name, expected):
    actual = module.get_params()[0][name].asnumpy()
    np.testing.assert_array_equal(actual == 0, expected == 0)
    assert 0 < (expected == 0).sum() < expected.size


@in_pairs({
    'kind': ['linear', 'softmax', 'perceptron'],
    'context, kvstore, update_on_kvstore': PLACES,
    'update_freq': [1, 2]})
def test_training_is_proximal_svrg(monkeypatch, kind, context, kvstore, update_on_kvstore,
                                   update_freq):
    """L1 on all weights, and not on biases, beside weight decay."""
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem(kind, rows=37, features=8)
    module = fit(problem, problem.module(update_freq, context=context, proximal=L1(0.3)), kvstore,
                 wd=0.05)
    twin = problem.svrg(wd=0.05, proximal={name: oracle.soft_threshold(0.3)
                                           for name in ('fc_weight', 'hidden_weight')})
    twin.fit(5, update_freq)
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'fc_weight', twin.weights['fc_weight'])
    for copies in parameters(module).values():
        assert len({copy.asnumpy().tobytes() for copy in copies}) == 1


@pytest.mark.parametrize('context, kvstore, update_on_kvstore', PLACES)
def test_each_parameter_may_have_its_operator(monkeypatch, context, kvstore, update_on_kvstore):
    """With a schedule of the rate and a multiplier of each parameter."""
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem('perceptron', rows=40, features=6, weight={
        'name': 'fc_weight', 'lr_mult': 0.5})
    proximal = {'hidden_weight': GroupLasso(0.15, axis=1), 'fc_weight': L1(0.1),
                'hidden_bias': Box(0)}
    module = fit(problem, problem.module(2, context=context, proximal=proximal), kvstore,
                 learning_rate=0.4, lr_scheduler=mx.lr_scheduler.FactorScheduler(3, 0.9))
    twin = problem.svrg(
        learning_rate=lambda update: 0.4 * 0.9 ** ((update - 1) // 3), lr_mult={'fc_weight': 0.5},
        proximal={'hidden_weight': oracle.block_threshold(0.15, 1), 'hidden_bias': box(0, math.inf),
                  'fc_weight': oracle.soft_threshold(0.1)})
    twin.fit(5, 2)
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'hidden_weight', twin.weights['hidden_weight'])
    assert_zeros(module, 'hidden_bias', twin.weights['hidden_bias'])


@pytest.mark.parametrize('alpha', [0, 0.5])
def test_alpha_and_operators_go_together(alpha):
    problem = Problem('softmax', rows=37, features=8)
    module = fit(problem, problem.module(2, alpha=alpha, proximal=L1(0.1)))
    twin = problem.svrg(proximal={'fc_weight': oracle.soft_threshold(0.1)})
    twin.alpha = lambda _: alpha
    twin.fit(5, 2)
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'fc_weight', twin.weights['fc_weight'])


def test_steps_before_the_first_snapshot_are_proximal():
    problem = Problem('softmax', rows=40, features=8)
    module = problem.bound(proximal=L1(0.1), sgd={'learning_rate': 0.2})
    twin = problem.svrg(learning_rate=0.2, proximal={'fc_weight': oracle.soft_threshold(0.1)})
    with pytest.warns(UserWarning, match='without a snapshot'):
        for rows, batch in zip(oracle.batches_of(40, 10), problem.iterator()):
            module.forward_backward(batch)
            module.update()
            twin.step(rows)
    problem.assert_weights(module, twin.weights)


def test_steps_on_stored_batches_are_proximal():
    problem = Problem('softmax', rows=40, features=8)
    module = problem.module(2, store_snapshot_grads=True, proximal=L1(0.1))
    steps = []
    module.fit(problem.iterator(), eval_metric=[], num_epoch=5, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.1}, batch_end_callback=lambda param: (
                   steps.append(param.locals['data_batch'].data[0].asnumpy())))
    twin = problem.svrg(proximal={'fc_weight': oracle.soft_threshold(0.1)})
    for number, batch in enumerate(steps):
        if number % 8 == 0:
            twin.take_snapshot()
        twin.step(np.array([np.abs(problem.features - row).sum(axis=1).argmin() for row in batch]))
    assert len(steps) == 20
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'fc_weight', twin.weights['fc_weight'])


@pytest.mark.parametrize('context, kvstore', [
    (mx.cpu(), None), (mx.cpu(), 'object'), (TWO_DEVICES, 'local'), (TWO_DEVICES, 'device')])
@pytest.mark.parametrize('alpha', [0, 1])
def test_row_sparse_weights_step_in_all_rows(context, kvstore, alpha):
    """A step goes over the whole table, also where the gradient has only some rows."""
    problem = SparseProblem(rows=37)
    module = problem.module(2, context=context, alpha=alpha, proximal={'w': L1(0.5)})
    problem.fit(module, 4, kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore,
                optimizer_params={'learning_rate': 0.1},
                sparse_row_id_fn=kvstore and (lambda batch: {'w': batch.data[0].indices}))
    twin = problem.svrg(proximal={'w': oracle.soft_threshold(0.5)})
    twin.alpha = lambda _: alpha
    twin.fit(4, 2)
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'w', twin.weights['w'])
    assert np.abs(twin.weights['w'][-2:] - problem.weights['w'][-2:]).min() > 0.1


def test_an_operator_is_for_the_weights_with_weight_decay():
    """A wd_mult of the symbol has the last word; gammas and fixed weights have no operator."""
    def variable(name, **attributes):
        return mx.sym.Variable(name, **attributes)

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


class Counting(mx.optimizer.SGD):
    """A subclass that steps as sgd does."""

    def create_state(self, index, weight):
        return super().create_state(index, weight)


@pytest.mark.parametrize('optimizer', [
    mx.optimizer.SGD, Counting, mx.optimizer.ccSGD,
    lambda **kwargs: mx.optimizer.SGD(param_idx2name={5: 'theirs'}, **kwargs)])
@pytest.mark.parametrize('kvstore', [None, 'object'])
@pytest.mark.filterwarnings('ignore:Optimizer created manually')
def test_an_optimizer_of_the_user_may_be_given(optimizer, kvstore):
    """Their rescale_grad scales the loss and not R, and their names of parameters do not matter."""
    problem = Problem('softmax', rows=40, features=8)
    module = problem.module(2, proximal=L1(0.03))
    problem.fit(module, 4, kvstore=mx.kv.create('local') if kvstore else None,
                optimizer=optimizer(learning_rate=0.5, rescale_grad=0.02, clip_gradient=100.))
    twin = problem.svrg(proximal={'fc_weight': oracle.soft_threshold(0.03)}, learning_rate=0.5)
    twin.optimizer.rescale = 0.02
    twin.fit(4, 2)
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'fc_weight', twin.weights['fc_weight'])


def test_an_operator_of_ones_own_may_be_given():
    problem = Problem(rows=40)
    module = fit(problem, problem.module(2, proximal=Cap(0.25)))
    twin = problem.svrg(proximal={'fc_weight': box(-np.inf, 0.25)})
    twin.fit(5, 2)
    problem.assert_weights(module, twin.weights)
    assert twin.weights['fc_weight'].max() == 0.25


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('update_on_kvstore', ['0', '1'])
def test_buckets_share_the_operator(monkeypatch, context, update_on_kvstore):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Sequences()
    module = problem.module(2, context=context, proximal=L1(0.47))
    problem.fit(module, 5, optimizer_params={'learning_rate': 0.02})
    twin = problem.expect(5, 2, learning_rate=0.02,
                          proximal={'fc_weight': oracle.soft_threshold(0.47)})
    problem.assert_weights(module, twin.weights)
    assert_zeros(module, 'fc_weight', twin.weights['fc_weight'])


@pytest.mark.parametrize('proximal', [
    L1(0.2), {'fc_weight': GroupLasso(0.3, 1), 'hidden_weight': L1(0.1)},
    {'fc_weight': Box(-math.inf, 0.1), 'hidden_bias': Box(0)},
    L1(0.2, high=0.1)], ids=str)
@pytest.mark.parametrize('stop', [2, 3])
def test_a_resumed_run_is_bit_identical(tmp_path, proximal, stop):
    problem = Problem('perceptron', rows=37)
    prefix = str(tmp_path / 'model')
    unbroken = fit(problem, problem.module(2, proximal=proximal))
    module = fit(problem, problem.module(2, proximal=proximal), end=stop)
    module.save_checkpoint(prefix, stop, save_optimizer_states=True)
    resumed = SVRGModule.load(prefix, stop, load_optimizer_states=True, label_names=('label',))
    fit(problem, resumed, begin=stop)
    plain = SVRGModule.load(prefix, stop, label_names=('label',), proximal=None)
    fit(problem, plain, begin=stop)
    unlike = 0
    for name, value in unbroken.get_params()[0].items():
        assert (value.asnumpy() == resumed.get_params()[0][name].asnumpy()).all()
        unlike += (value.asnumpy() != plain.get_params()[0][name].asnumpy()).sum()
    assert unlike


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


def test_a_bucketing_checkpoint_holds_the_operator(tmp_path):
    problem = Sequences()
    module = problem.module(2, proximal=L1(0.47))
    settings = {'eval_metric': [], 'arg_params': problem.arg_params(),
                'optimizer_params': {'learning_rate': 0.02}}
    module.fit(problem.iterator(), num_epoch=3, **settings)
    module.save_checkpoint(str(tmp_path / 'model'), 3)
    loaded = type(module).load(str(tmp_path / 'model'), 3, problem.sym_gen, 8)
    for trained in (module, loaded):
        trained.fit(problem.iterator(), begin_epoch=3, num_epoch=5, **settings)
    for name, value in module.get_params()[0].items():
        assert (value.asnumpy() == loaded.get_params()[0][name].asnumpy()).all()
    assert_zeros(loaded, 'fc_weight', module.get_params()[0]['fc_weight'].asnumpy())


@pytest.mark.parametrize('proximal', [None, {}])
def test_no_operator_is_plain_svrg(proximal):
    problem = Problem('softmax')
    module = fit(problem, problem.module(2, proximal=proximal))
    problem.assert_weights(module, problem.svrg().fit(5, 2))

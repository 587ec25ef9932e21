"""α-SVRG: the coefficient of the variance reduction, constant and as a schedule."""

import mxnet as mx
import numpy as np
import pytest

from checkpoints import bits
from held_batches import SETTINGS, assert_svrg
from pairs import in_pairs
from problems import TWO_DEVICES, Problem
from svrg_optimization import LinearDecay, SVRGModule


def dropout():
    layer = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=5, name='hidden')
    layer = mx.sym.Dropout(mx.sym.Activation(layer, act_type='relu'))
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(layer, num_hidden=3, name='fc'),
                                mx.sym.Variable('label'), name='loss')


@in_pairs({
    'symbol, settings': [
        (Problem('perceptron').symbol, {'full_grad_batches': 2}), (dropout(), {})],
    'context, kvstore': [
        (mx.cpu(), None), (TWO_DEVICES, 'local'), (TWO_DEVICES, 'device')],
    'optimizer': ['sgd', 'adam']})
def test_constant_alpha_of_zero_is_module(symbol, settings, context, kvstore, optimizer):
    problem, results = Problem('perceptron', rows=37), []
    svrg = SVRGModule(symbol, label_names=('label',), context=context, alpha=0,
                      **{'update_freq': 1, **settings})
    for module in (mx.mod.Module(symbol, label_names=('label',), context=context), svrg):
        mx.random.seed(3)
        problem.fit(module, 3, kvstore=kvstore, optimizer=optimizer,
                    optimizer_params={'learning_rate': 0.1, 'wd': 0.01})
        results.append(bits(module))
    assert results[0] == results[1]
    svrg.update_full_grads(problem.iterator())
    assert svrg._snapshot.num_taken == 0 and not svrg._snapshot.is_active


def test_linear_decay_ends_at_zero():
    assert [LinearDecay(1, num_updates=1)(number) for number in (0, 1, 2)] == [1, 0, 0]
    decay = LinearDecay(0.75, np.int64(8))
    assert [decay(number) for number in range(12)] == pytest.approx(
        [0.75 * max(0, 1 - number / 8) for number in range(12)], abs=1e-12)
    assert repr(decay) == 'LinearDecay(0.75, num_updates=8)'


@pytest.mark.parametrize('resumed', [False, True])
def test_snapshot_from_before_alpha_was_zero_is_stale(tmp_path, resumed):
    """After a constant 0 the next epoch takes a new one."""
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    module, svrg = problem.module(10, alpha=0.8), problem.svrg(alpha=0.8, **SETTINGS)
    assert_svrg(problem, module, 1, 10, svrg)
    module.alpha, svrg.alpha = 0, lambda _: 0
    assert_svrg(problem, module, 2, 10, svrg, begin_epoch=1)
    if resumed:
        module.save_checkpoint(prefix, 2, save_optimizer_states=True)
        module = SVRGModule.load(prefix, 2, load_optimizer_states=True, label_names=('label',))
    module.alpha, svrg.alpha = 0.5, lambda _: 0.5
    svrg.take_snapshot()
    assert_svrg(problem, module, 4, 10, svrg, begin_epoch=2)
    assert module._snapshot.taken_at == 8

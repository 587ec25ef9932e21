"""The correction of a gradient: the rule, by itself and when it fails, and its coefficient α."""

import mxnet as mx
import numpy as np
import pytest

from held_batches import SETTINGS, assert_svrg
from problems import Problem, prepared
from svrg_optimization import LinearDecay, SVRGModule


@pytest.mark.parametrize('dtype, three, expected', [
    ('float32', ([[1, 2], [3, 4]], [[1, 1], [1, 1]], [[10, 20], [30, 40]]), [[10, 21], [32, 43]]),
    ('float64', ([1 + 2. ** -50], [1], [2. ** -50]), [2. ** -49]),
    ('float16', ([1000.5], [1000], [0.0001]), [np.float16(0.5001)])])  # computed in float32
def test_the_update_rule_may_be_called_by_hand(dtype, three, expected):
    arrays = [mx.nd.array(value, dtype=dtype) for value in three[:2]]
    full = mx.nd.array(three[2], dtype='float32' if dtype == 'float16' else dtype)
    before = arrays[1].asnumpy(), full.asnumpy()
    result = Problem().module()._svrg_grads_update_rule(*arrays, full)
    assert result is arrays[0] and result.dtype == np.dtype(dtype)
    assert result.asnumpy().tolist() == expected
    assert (arrays[1].asnumpy() == before[0]).all() and (full.asnumpy() == before[1]).all()


def test_update_is_refused_after_a_correction_that_failed(training):
    training.snapshot()
    training.module.alpha = lambda _: 2
    for call in (lambda: training.module.forward_backward(training.problem.batch(10)),
                 training.module.update):
        with pytest.raises(ValueError, match='alpha must be'):
            call()
    training.check()
    training.module.alpha = 1
    training.module.update()
    training.svrg.step(np.arange(10))
    training.check()


@pytest.mark.parametrize('kind', ['rule', 'method'])
def test_an_interrupted_correction_is_never_done_twice(kind):
    class Own(SVRGModule):
        fails = False

        def _svrg_grads_update_rule(self, current, at_snapshot, full):
            self.calls += 1
            if self.fails and self.calls == 2 and kind == 'rule':
                raise KeyboardInterrupt
            return super()._svrg_grads_update_rule(current, at_snapshot, full)

        def _update_svrg_gradients(self):
            self.calls = 0
            super()._update_svrg_gradients()
            if self.fails and kind == 'method':
                raise KeyboardInterrupt

    problem, svrg = Problem(rows=40), Problem(rows=40).svrg()
    module = prepared(Own(problem.symbol, label_names=('label',)), problem.iterator(),
                      problem.arg_params(), {'learning_rate': 0.1})
    module.update_full_grads(problem.iterator())
    svrg.take_snapshot()
    for number, batch in enumerate(problem.iterator()):
        module.forward(batch)
        module.fails = number in {0, 2}
        if module.fails:
            with pytest.raises(KeyboardInterrupt):
                module.backward()
            module.fails = False
            if kind == 'rule':
                with pytest.raises(RuntimeError, match='^update needs another forward and back'):
                    module.update()
                module.forward_backward(batch)
        else:
            module.backward()
        module.update()
        svrg.step(np.arange(10 * number, 10 * number + 10))
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('dtype, count, alpha', [
    ('float32', 1, 0.25), ('float64', 61, 0.25), ('float32', 121, 1)])
def test_many_small_parameters_are_corrected_as_each_by_itself(dtype, count, alpha):
    """So many are corrected, and summed, in one operation, and the others in the next one."""
    problem = Problem(features=count, dtype=dtype)
    names = ['w%d' % number for number in range(count)]
    columns = [mx.sym.Variable(name, shape=(1, 1)) for name in names]
    problem.symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(mx.sym.Variable('data'), mx.sym.concat(*columns, dim=1),
                              num_hidden=1, no_bias=True), mx.sym.Variable('label'))
    problem.network = lambda weights, features, targets: dict(zip(names, (
        (features @ np.hstack([weights[name] for name in names]).T - targets[:, None]).T
        @ features).reshape(count, 1, 1)))
    problem.weights = {name: problem.weights['fc_weight'][:, i:i + 1]
                       for i, name in enumerate(names)}
    module = problem.fit(problem.module(2, alpha=alpha), 3, problem.iterator(8),
                         optimizer_params={'learning_rate': 2 ** -8})
    svrg = problem.svrg(8, alpha=alpha, learning_rate=2 ** -8)
    problem.assert_weights(module, svrg.fit(3, 2))
    problem.assert_full_gradient(module, svrg.full_gradient)


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

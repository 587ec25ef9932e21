"""What code for mxnet.contrib.svrg_optimization calls, overrides and reaches into."""

import inspect
import warnings

import mxnet as mx
import numpy as np
import pytest

from problems import TWO_DEVICES, Problem
from stepping import Training
from svrg_optimization import SVRGModule

with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    from mxnet.contrib.svrg_optimization import svrg_module as contrib


def described(function):
    return [(parameter.name, parameter.kind, parameter.default.dumps() if isinstance(
        parameter.default, mx.init.Initializer) else str(parameter.default))
        for parameter in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize('base, name', [
    (base, name) for base in (mx.mod.Module, contrib.SVRGModule)
    for name, member in inspect.getmembers(base, inspect.isfunction)
    if name == '__init__' or not name.startswith('_') or name in vars(contrib.SVRGModule)])
def test_signatures_are_theirs_and_new_arguments_are_keyword_only(base, name):
    theirs, ours = described(getattr(base, name)), described(getattr(SVRGModule, name))
    assert [argument for argument in ours if argument in theirs] == theirs
    assert all(argument[0] == 'update_freq' or argument[1] is inspect.Parameter.KEYWORD_ONLY
               for argument in ours if argument not in theirs)


def test_update_freq_is_2_where_theirs_must_be_given():
    given = {'symbol': Problem().symbol, 'label_names': ('label',)}
    assert SVRGModule(**given).update_freq == 2
    with pytest.raises(TypeError):
        contrib.SVRGModule(**given)


def test_a_full_gradient_may_be_computed_by_hand():
    problem = Problem()
    module = problem.bound(sgd={})
    assert type(module._mod_aux) is mx.mod.Module
    module._mod_aux.set_params(*module.get_params())
    total = 0
    for batch in problem.iterator():
        module.forward(batch)
        module.backward()
        module._mod_aux.forward(batch)
        module._mod_aux.backward()
        total = total + module._mod_aux._exec_group.grad_arrays[0][0].asnumpy()
    module.update_full_grads(problem.iterator())
    np.testing.assert_allclose(module._param_dict[0]['fc_weight'].asnumpy(), total / 4, rtol=1e-6)


def test_a_full_gradient_may_be_set_by_hand():
    problem = Problem()
    module = problem.bound(sgd={'learning_rate': 0.1})
    svrg = problem.svrg()
    svrg.take_snapshot()
    module._mod_aux.set_params(*module.get_params())
    module._param_dict = [{name: mx.nd.array(value) for name, value in svrg.full_gradient.items()}]
    problem.train_epoch(module, svrg)
    problem.assert_weights(module, svrg.weights)


class CountsPasses(SVRGModule):
    def update_full_grads(self, train_data):
        self.passes = [*getattr(self, 'passes', ()), self._snapshot.num_update]
        super().update_full_grads(train_data)


class Halved(CountsPasses):
    def _svrg_grads_update_rule(self, g_curr, g_special, g_all):
        return (g_curr - g_special + g_all) * 0.5


class HalvedInPlace(CountsPasses):
    def _svrg_grads_update_rule(self, g_curr, g_special, g_all):
        g_curr -= g_special
        g_curr += g_all
        g_curr *= 0.5
        return g_curr


class WrittenForContrib(CountsPasses):
    """Steps as in mxnet.contrib: the correction is a method of its own, which update calls."""

    def _update_svrg_gradients(self):
        for device in range(self._ctx_len):
            for index, name in enumerate(self._exec_group.param_names):
                arrays = self._exec_group.grad_arrays[index]
                arrays[device] = self._svrg_grads_update_rule(
                    arrays[device], self._mod_aux._exec_group.grad_arrays[index][device],
                    self._param_dict[device][name])

    def update(self):
        self._update_svrg_gradients()
        super(SVRGModule, self).update()


class StepsOfModule(CountsPasses):
    def update(self):
        super(SVRGModule, self).update()


class CorrectsAndStepsOfModule(CountsPasses):
    def update(self):
        self._update_svrg_gradients()
        super(SVRGModule, self).update()


class CorrectsByUpdate(WrittenForContrib):
    def update(self):
        super(WrittenForContrib, self).update()


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
@pytest.mark.parametrize('cls', [Halved, HalvedInPlace, WrittenForContrib, StepsOfModule,
                                 CorrectsAndStepsOfModule, CorrectsByUpdate])
def test_methods_overridden_in_a_subclass_are_used(cls, context):
    problem = Problem('perceptron', rows=37)
    module = cls(problem.symbol, label_names=('label',), update_freq=2, context=context)
    rate = 0.2 if 'Halved' in cls.__name__ else 0.1
    problem.fit(module, 3, optimizer_params={'learning_rate': rate})
    assert module.passes == [0, 2 * 4]
    problem.assert_weights(module, problem.svrg(learning_rate=0.1).fit(3, 2))


@pytest.mark.parametrize('cls', [SVRGModule, WrittenForContrib, StepsOfModule])
def test_steps_of_a_subclass_are_counted(cls):
    """By the update counts a schedule goes on, and a last snapshot decides on convergence."""
    problem, seen = Problem(), []
    module = cls(problem.symbol, label_names=('label',), tol=1e-9,
                 alpha=lambda updates: seen.append(updates) or 1.)
    with pytest.warns(UserWarning, match='did not converge to tol'):
        problem.fit(module, 1, optimizer_params={'learning_rate': 0.1})
    assert module._snapshot.num_update == 4 and module._snapshot.num_taken == 2
    assert not seen or seen == [0, 1, 2, 3]


@pytest.mark.parametrize('steps_before', [0, 1])
def test_a_method_may_be_wrapped_on_the_module(steps_before):
    training, calls = Training(Problem()), []
    module = training.module
    training.snapshot()
    for number, (batch, rows) in enumerate(training.batches()):
        if number == steps_before:
            ours = module._update_svrg_gradients
            module._update_svrg_gradients = lambda: calls.append(ours())  # noqa: B023
        training.backward(batch)
        training.step(rows)
    assert len(calls) == 4 - steps_before
    training.check()


def test_gradients_may_be_accumulated_and_allocated_by_hand():
    problem = Problem()
    module = problem.bound(context=TWO_DEVICES)
    module.init_optimizer(kvstore=mx.kv.create('local'))
    values = [mx.nd.ones((1, 4), ctx=device) for device in TWO_DEVICES for _ in range(2)]
    module._accumulate_kvstore('fc_weight', values)
    assert all((value.asnumpy() == 4).all() for value in values)
    assert all((share['fc_weight'].asnumpy() == 2).all() for share in module._param_dict)
    module._allocate_gradients('fc_weight', [value * 2 for value in values])
    assert all((share['fc_weight'].asnumpy() == 4).all() for share in module._param_dict)

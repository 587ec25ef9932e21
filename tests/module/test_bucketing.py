"""SVRGBucketingModule: one snapshot and one full gradient over all buckets."""

import mxnet as mx
import pytest

from problems import assert_close
from sequences import LENGTHS, SETTINGS, Sequences
from svrg_optimization import SVRGBucketingModule


def fit(problem, module, begin, end, train_data=None, **kwargs):
    kwargs.setdefault('optimizer_params', SETTINGS)
    module.fit(train_data or problem.iterator(), eval_metric=[], begin_epoch=begin, num_epoch=end,
               arg_params=problem.arg_params(), **kwargs)
    return module


def test_the_full_gradient_and_objective_are_over_all_buckets_time_after_time():
    problem = Sequences()
    module = problem.bound(4, sgd={})
    svrg = problem.svrg(4)
    svrg.take_snapshot()
    for _ in range(4):
        module.update_full_grads(problem.iterator())
        problem.assert_full_gradient(module, svrg.full_gradient)
    errors = problem.sums(problem.features) @ problem.weights['fc_weight'].T + problem.weights[
        'fc_bias'] - problem.targets.reshape(-1, 1)
    assert module.full_objective == pytest.approx((errors ** 2).mean() / 2, rel=1e-5)


def test_a_learning_rate_and_convergence_are_of_all_buckets():
    problem = Sequences()
    module = fit(problem, problem.module(1), 0, 2, optimizer_params={'learning_rate': 0.1})
    weights, _ = module.get_params()
    weights = {name: value.asnumpy() for name, value in weights.items()}
    module.learning_rate, module.tol = 1e-30, 1e-9
    with pytest.warns(UserWarning, match='did not converge'):
        fit(problem, module, 2, 3)
    assert_close({name: value.asnumpy() for name, value in module.get_params()[0].items()}, weights)
    assert module.learning_rate == 1e-30 and not module.has_converged
    module.tol = 1e9
    fit(problem, module, 3, 4)
    assert module.has_converged


def test_set_params_and_bind_keep_the_snapshot_and_forced_init_params_drops_it():
    problem = Sequences()
    train_data = problem.iterator()
    module = fit(problem, problem.module(4), 0, 1, train_data)
    svrg = problem.expect(1, 4, **SETTINGS)
    module.set_params(*module.get_params())
    assert module._snapshot.is_active
    fit(problem, module, 1, 2, train_data)
    fit(problem, module, 2, 4, train_data, force_rebind=True)
    problem.assert_weights(module, problem.expect(4, 4, 1, svrg).weights)
    module.init_params(arg_params=module.get_params()[0], force_init=True)
    assert not module._snapshot.is_active


def loaded_from_plain(problem, prefix):
    plain = mx.mod.BucketingModule(problem.sym_gen, max(LENGTHS))
    plain.bind(problem.iterator().provide_data, problem.iterator().provide_label)
    plain.init_params(arg_params=problem.arg_params())
    plain.save_checkpoint(prefix, 0)
    with pytest.warns(UserWarning, match='model-0000.svrg is not there'):
        return SVRGBucketingModule.load(prefix, 0, problem.sym_gen, max(LENGTHS), update_freq=4)


def loaded_from_a_dict(problem, _):
    symbols = {length: problem.sym_gen(length)[0] for length in LENGTHS}
    return SVRGBucketingModule.load_dict(symbols, problem.sym_gen, max(LENGTHS),
                                         problem.arg_params(), {}, update_freq=4)


@pytest.mark.parametrize('loaded', [loaded_from_plain, loaded_from_a_dict])
def test_training_goes_on_with_weights_of_plain_bucketing_module(prefix, loaded):
    problem = Sequences()
    module = loaded(problem, prefix)
    module.fit(problem.iterator(), eval_metric=[], begin_epoch=1, num_epoch=3,
               optimizer_params=SETTINGS)
    problem.assert_weights(module, problem.expect(3, 4, 1, **SETTINGS).weights)


def test_bind_that_fails_leaves_nothing_bound():
    problem = Sequences()
    module = problem.module()
    train_data = problem.iterator()
    for bad in ([('data', (4,))], train_data.provide_label), (
            train_data.provide_data, [('label', (5,))]):
        with pytest.raises((mx.MXNetError, RuntimeError, AssertionError)):
            module.bind(*bad)
        assert not module.binded
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(arg_params=problem.arg_params())
    module.update_full_grads(train_data)
    svrg = problem.svrg(4)
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)

"""SVRGBucketingModule: one snapshot and one full gradient over all buckets."""

import mxnet as mx
import pytest

from full_gradients import assert_pass
from problems import prepared
from sequences import LENGTHS, SETTINGS, Sequences
from svrg_optimization import SVRGBucketingModule


def test_the_full_gradient_and_objective_are_over_all_buckets_time_after_time():
    problem = Sequences()
    module = problem.bound(4, sgd={})
    for _ in range(4):
        assert_pass(problem, module, units=4)
    errors = problem.sums(problem.features) @ problem.weights['fc_weight'].T + problem.weights[
        'fc_bias'] - problem.targets.reshape(-1, 1)
    assert module.full_objective == pytest.approx((errors ** 2).mean() / 2, rel=1e-5)


def test_a_learning_rate_and_convergence_are_of_all_buckets():
    problem = Sequences()
    module = problem.fit(problem.module(1), 2, optimizer_params={'learning_rate': 0.1})
    weights = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    module.learning_rate, module.tol = 1e-30, 1e-9
    with pytest.warns(UserWarning, match='did not converge'):
        problem.fit(module, 3, begin_epoch=2)
    problem.assert_weights(module, weights)
    assert module.learning_rate == 1e-30 and not module.has_converged
    module.tol = 1e9
    problem.fit(module, 4, begin_epoch=3)
    assert module.has_converged


def test_set_params_and_bind_keep_the_snapshot_and_forced_init_params_drops_it():
    problem, given = Sequences(), {'optimizer_params': SETTINGS}
    train_data = problem.iterator()
    module = problem.fit(problem.module(4), 1, train_data, **given)
    svrg = problem.expect(1, 4, **SETTINGS)
    module.set_params(*module.get_params())
    assert module._snapshot.is_active
    problem.fit(module, 2, train_data, begin_epoch=1, **given)
    problem.fit(module, 4, train_data, begin_epoch=2, force_rebind=True, **given)
    problem.assert_weights(module, problem.expect(4, 4, 1, svrg).weights)
    module.init_params(arg_params=module.get_params()[0], force_init=True)
    assert not module._snapshot.is_active


def loaded_from_plain(problem, prefix):
    plain = mx.mod.BucketingModule(problem.sym_gen, max(LENGTHS))
    prepared(plain, problem.iterator(), problem.arg_params()).save_checkpoint(prefix, 0)
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
    problem.fit(module, 1, optimizer_params=SETTINGS)
    problem.assert_weights(module, problem.expect(1, 1, **SETTINGS).weights)

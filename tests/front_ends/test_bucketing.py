"""SVRGBucketingModule: one snapshot and one full gradient over all buckets."""

import functools

import mxnet as mx
import numpy as np
import pytest

from problems import assert_close
from sequences import LENGTHS, SETTINGS, BucketIter, Sequences
from svrg_optimization import SVRGBucketingModule
from svrg_optimization.module.reference import ModuleReference

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def fit(problem, module, begin, end, **kwargs):
    kwargs.setdefault('optimizer_params', SETTINGS)
    module.fit(problem.iterator(), eval_metric=[], begin_epoch=begin, num_epoch=end,
               arg_params=problem.arg_params(), **kwargs)
    return module


@pytest.mark.parametrize('context, kvstore', [
    (mx.cpu(), 'local'), (mx.cpu(), 'object'), (TWO_DEVICES, 'local'), (TWO_DEVICES, 'device')])
@pytest.mark.parametrize('update_on_kvstore', ['0', '1'])
def test_buckets_train_as_zero_padded_sequences(monkeypatch, context, kvstore, update_on_kvstore):
    """The float64 twin sees all sequences at full length, filled up with zeros."""
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Sequences()
    module = fit(problem, problem.module(2, context=context), 0, 5,
                 kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore)
    expected = problem.expect(5, 2, **SETTINGS)
    problem.assert_weights(module, expected.weights)
    problem.assert_full_gradient(module, expected.full_gradient)


def test_alpha_is_one_for_all_buckets(tmp_path):
    problem = Sequences()
    module = fit(problem, problem.module(2, alpha=0.3), 0, 3)
    svrg = problem.svrg(4, **SETTINGS)
    svrg.alpha = lambda _: 0.3
    problem.expect(3, 2, svrg=svrg)
    problem.assert_weights(module, svrg.weights)
    module.save_checkpoint(str(tmp_path / 'model'), 3)
    loaded = SVRGBucketingModule.load(str(tmp_path / 'model'), 3, problem.sym_gen, max(LENGTHS))
    assert loaded.alpha == 0.3
    module.alpha = 0
    before = module._snapshot.full_gradient
    module.update_full_grads(problem.iterator())
    assert module._snapshot.full_gradient is before
    svrg.alpha = lambda _: 0
    fit(problem, module, 3, 4)
    for _, rows, _ in problem.plan(4):
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_steps_on_stored_batches_compute_nothing_at_the_snapshot(monkeypatch, context):
    problem = Sequences()
    rows_of = {np.float32(problem.targets[rows]).tobytes(): rows
               for _, rows, _ in problem.plan(4)}
    steps, computed = [], []
    monkeypatch.setattr(ModuleReference, 'gradients_of_step', lambda *_: computed.append(None))
    module = problem.module(2, context=context, store_snapshot_grads=True)
    fit(problem, module, 0, 4, batch_end_callback=lambda param: steps.append(
        (param.epoch, param.nbatch, param.locals['data_batch'].label[0].asnumpy().tobytes())))
    svrg = problem.svrg(4, **SETTINGS)
    for epoch, nbatch, labels in steps:
        if epoch % 2 == 0 and nbatch == 0:
            svrg.take_snapshot()
        svrg.step(rows_of[labels])
    problem.assert_weights(module, svrg.weights)
    assert not computed and len(steps) == 4 * len(rows_of)
    assert len({labels for epoch, _, labels in steps if epoch == 1}) == len(rows_of)
    assert [labels for *_, labels in steps[:9]] != [labels for *_, labels in steps[9:18]]
    batches = module.training_batches(module._svrg.store.train_data)
    assert len(batches) == len(rows_of)


def test_the_full_gradient_is_over_all_buckets_time_after_time():
    problem = Sequences()
    module = problem.bound(4)
    train_data = problem.iterator()
    module.init_optimizer()
    svrg = problem.svrg(4)
    svrg.take_snapshot()
    for _ in range(4):
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, svrg.full_gradient)
    assert module._curr_bucket_key == max(LENGTHS)
    weights = {name: value.astype('float64') for name, value in problem.weights.items()}
    errors = problem.sums(problem.features) @ weights['fc_weight'].T + weights['fc_bias'] - (
        problem.targets.reshape(-1, 1))
    assert module.objective == pytest.approx((errors ** 2).mean() / 2, rel=1e-5)


def test_a_bucket_may_first_appear_after_the_snapshot():
    problem = Sequences()
    module = problem.bound(4)
    train_data = problem.iterator()
    module.init_optimizer(optimizer_params=SETTINGS)
    batches = [(batch, rows) for batch, (_, rows, _) in zip(train_data, problem.plan(4))]
    longest = [pair for pair in batches if pair[0].bucket_key == max(LENGTHS)]

    class Longest:
        def reset(self):
            pass

        def __iter__(self):
            return (batch for batch, _ in longest)

    svrg = problem.svrg(4, **SETTINGS)
    module.update_full_grads(Longest())
    rows = np.concatenate([rows for _, rows in longest])
    svrg.take_snapshot()
    svrg.full_gradient = {name: value * 4 / len(rows) for name, value
                          in svrg.gradients(svrg.snapshot, rows).items()}
    assert list(module._buckets) == [max(LENGTHS)]
    for batch, rows in batches:
        module.forward_backward(batch)
        module.update()
        svrg.step(rows)
    assert sorted(module._buckets) == sorted(LENGTHS)
    problem.assert_weights(module, svrg.weights)


def test_a_learning_rate_and_convergence_are_of_all_buckets():
    problem = Sequences()
    module = fit(problem, problem.module(1), 0, 2, optimizer_params={'learning_rate': 0.1})
    weights, _ = module.get_params()
    weights = {name: value.asnumpy() for name, value in weights.items()}
    module.learning_rate, module.tol = 0, 1e-9
    with pytest.warns(UserWarning, match='did not converge'):
        fit(problem, module, 2, 3)
    assert_close({name: value.asnumpy() for name, value in module.get_params()[0].items()}, weights)
    assert module.learning_rate == 0 and not module.has_converged
    module.tol = 1e9
    fit(problem, module, 3, 4)
    assert module.has_converged


def test_set_params_and_bind_keep_the_snapshot_and_forced_init_params_drops_it():
    problem = Sequences()
    module = fit(problem, problem.module(4), 0, 1)
    svrg = problem.expect(1, 4, **SETTINGS)
    module.set_params(*module.get_params())
    assert module._snapshot.is_active
    fit(problem, module, 1, 2)
    fit(problem, module, 2, 4, force_rebind=True)
    problem.assert_weights(module, problem.expect(4, 4, 1, svrg).weights)
    module.init_params(arg_params=module.get_params()[0], force_init=True)
    assert not module._snapshot.is_active


@pytest.mark.parametrize('stop', [1, 2, 3, 4])
@pytest.mark.parametrize('optimizer', ['sgd', 'adam'])
def test_a_resumed_run_is_bit_identical(tmp_path, stop, optimizer):
    prefix = str(tmp_path / 'model')
    problem = Sequences()
    params = SETTINGS if optimizer == 'sgd' else {'learning_rate': 0.02}
    unbroken = fit(problem, problem.module(3), 0, 5, optimizer=optimizer,
                   optimizer_params=params)
    stopped = problem.module(3)
    fit(problem, stopped, 0, stop, optimizer=optimizer, optimizer_params=params,
        epoch_end_callback=mx.callback.module_checkpoint(stopped, prefix,
                                                         save_optimizer_states=True))
    resumed = SVRGBucketingModule.load(prefix, stop, problem.sym_gen, max(LENGTHS), True)
    assert resumed.update_freq == 3
    fit(problem, resumed, stop, 5, optimizer=optimizer, optimizer_params=params)
    for name, value in unbroken.get_params()[0].items():
        assert resumed.get_params()[0][name].asnumpy().tobytes() == value.asnumpy().tobytes()


def test_plain_bucketing_module_reads_the_files_of_a_checkpoint(tmp_path):
    prefix = str(tmp_path / 'model')
    problem = Sequences()
    module = fit(problem, problem.module(), 0, 2)
    module.save_checkpoint(prefix, 2)
    plain = mx.mod.BucketingModule.load(prefix, 2, problem.sym_gen, max(LENGTHS))
    train_data = problem.iterator()
    plain.bind(train_data.provide_data, train_data.provide_label, for_training=False)
    assert plain.score(problem.iterator(), 'mse') == module.score(problem.iterator(), 'mse')


def test_training_goes_on_from_a_checkpoint_of_plain_bucketing_module(tmp_path):
    prefix = str(tmp_path / 'model')
    problem = Sequences()
    plain = mx.mod.BucketingModule(problem.sym_gen, max(LENGTHS))
    train_data = problem.iterator()
    plain.bind(train_data.provide_data, train_data.provide_label)
    plain.init_params(arg_params=problem.arg_params())
    plain.save_checkpoint(prefix, 0)
    with pytest.warns(UserWarning, match='model-0000.svrg is not there'):
        module = SVRGBucketingModule.load(prefix, 0, problem.sym_gen, max(LENGTHS), update_freq=4)
    module.fit(problem.iterator(), eval_metric=[], begin_epoch=1, num_epoch=3,
               optimizer_params=SETTINGS)
    problem.assert_weights(module, problem.expect(3, 4, 1, **SETTINGS).weights)


def test_load_dict_makes_a_module_that_trains():
    problem = Sequences()
    symbols = {length: problem.sym_gen(length)[0] for length in LENGTHS}
    module = SVRGBucketingModule.load_dict(symbols, problem.sym_gen, max(LENGTHS),
                                           problem.arg_params(), {}, update_freq=2)
    module.fit(problem.iterator(), eval_metric=[], num_epoch=3, optimizer_params=SETTINGS)
    problem.assert_weights(module, problem.expect(3, 2, **SETTINGS).weights)


def test_a_bucket_may_first_appear_with_a_short_batch():
    problem = Sequences()
    module = problem.bound(4, sgd=SETTINGS)
    svrg = problem.svrg(4, **SETTINGS)
    plan = [(3, np.arange(2)), (3, np.arange(2, 6)), (8, np.arange(24, 28)), (5, np.arange(14, 15)),
            (5, np.arange(15, 19))]

    class Short(BucketIter):
        def reset(self):
            self.plan = iter([(length, rows, None) for length, rows in plan])

        def next(self):
            batch = super().next()
            rows = len(batch.label[0])
            batch.provide_data = [('data', (rows, batch.bucket_key))]
            batch.provide_label = [('label', (rows,))]
            return batch

    rows = np.concatenate([rows for _, rows in plan])
    for _ in range(3):
        short = Short(problem, 4)
        module.update_full_grads(short)
        svrg.take_snapshot()
        svrg.full_gradient = {name: value * 4 / len(rows) for name, value
                              in svrg.gradients(svrg.snapshot, rows).items()}
        problem.assert_full_gradient(module, svrg.full_gradient)
        short.reset()
        for batch, (_, numbers) in zip(short, plan):
            module.forward_backward(batch)
            module.update()
            svrg.step(numbers)
    problem.assert_weights(module, svrg.weights)


def test_warnings_come_once_for_all_buckets():
    def sym_gen(length):
        data = mx.sym.Variable('data') + mx.sym.random.normal(shape=(4, length), name='noise')
        output = mx.sym.FullyConnected(mx.sym.sum(data, axis=1, keepdims=True), num_hidden=1)
        return (mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')), ('data',),
                ('label',))

    train_data = Sequences((8, 8, 8)).iterator()
    module = SVRGBucketingModule(sym_gen, 8, update_freq=1)
    module.bind([('data', (4, 8))], [('label', (4,))])
    module.init_params()
    module.init_optimizer()
    with pytest.warns(UserWarning, match='without a snapshot') as caught:
        for batch in train_data:
            module.forward_backward(batch)
            module.update()
    assert len(caught) == 1
    with pytest.warns(UserWarning, match='random numbers') as caught:
        for _ in range(2):
            module.update_full_grads(train_data)
    assert len(caught) == 1


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
    assert module._default_bucket._snapshot.full_gradient.rows == len(problem.targets)


def test_larger_buckets_cause_as_few_messages_as_in_mxnet(capfd):
    """The default bucket is the smallest here, and MXNet reports each that is larger."""
    problem, counts = Sequences(), []
    for make in (functools.partial(SVRGBucketingModule, update_freq=1), mx.mod.BucketingModule):
        module = make(problem.sym_gen, min(LENGTHS))
        module.bind([('data', (4, min(LENGTHS)))], [('label', (4,))])
        module.init_params()
        module.init_optimizer()
        if isinstance(module, SVRGBucketingModule):
            module.update_full_grads(problem.iterator())
        for batch in problem.iterator():
            module.forward_backward(batch)
            module.update()
        mx.nd.waitall()
        counts.append(capfd.readouterr().err.count('Need to re-allocate'))
    assert counts[0] == counts[1] > 0

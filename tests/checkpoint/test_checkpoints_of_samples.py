"""Checkpoints of trainings with full gradients over a part of the data."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from problems import Problem
from samples import Lengths, bits, fit
from svrg_optimization import Growing, SVRGBucketingModule, SVRGModule
from svrg_optimization.checkpoint import save


@pytest.mark.parametrize('batches', [3, 4])
def test_a_run_that_begins_between_snapshots_stores_nothing_again(tmp_path, batches):
    """Neither for a loaded module nor for another iterator than that of the stored batches."""
    problem = Problem(rows=40)
    prefix = str(tmp_path / 'model')
    module = problem.module(4, full_grad_batches=batches, store_snapshot_grads=True)
    fit(problem, module, 2).save_checkpoint(prefix, 2)
    loaded = SVRGModule.load(prefix, 2, label_names=('label',), store_snapshot_grads=True)
    assert (not module._svrg.store.batches) == (batches == 3)
    for goes_on in (loaded, module):
        seen = []
        goes_on.fit(problem.iterator(), eval_metric=[], begin_epoch=2, num_epoch=3,
                    batch_end_callback=lambda param: seen.append(  # noqa: B023
                        param.locals['data_batch'].label[0].asnumpy()))
        np.testing.assert_array_equal(seen, problem.targets.reshape(4, 10).astype(np.float32))
        assert not goes_on._svrg.store.batches


def moved(train_data, batches):
    """Read so many batches of an iterator, which begins again at its end."""
    for _ in range(batches):
        try:
            next(train_data)
        except StopIteration:
            train_data.reset()
            next(train_data)
    return train_data


@pytest.mark.parametrize('batches, updates, own_data, read, stop', [
    (2, None, False, 0, 3), (2, None, False, 0, 4), (Growing(1), None, False, 0, 1),
    (Growing(1), None, False, 0, 2), (None, 3, True, None, 2), (None, 3, True, None, 3),
    (3, 5, True, lambda taken: 3 * taken, 1), (3, 5, True, lambda taken: 3 * taken, 4),
    (3, None, True, lambda taken: 3 * taken, 1), (3, None, True, lambda taken: 3 * taken, 2)])
def test_samples_go_on_with_the_same_bits_after_a_stop(tmp_path, stop, batches, updates, own_data,
                                                       read):
    problem, prefix = Problem('perceptron', rows=37), str(tmp_path / 'model')

    def data(taken=0):
        if not own_data:
            return {}
        return {'full_grad_data': moved(problem.iterator(), read(taken) if read else 0)}

    def made():
        return problem.module(2, full_grad_batches=batches, updates_per_snapshot=updates, **data())

    unbroken = fit(problem, made(), 5)
    stopped = fit(problem, made(), stop)
    stopped.save_checkpoint(prefix, stop, save_optimizer_states=True)
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        loaded = SVRGModule.load(prefix, stop, load_optimizer_states=True, label_names=('label',),
                                 **data(stopped._snapshot.num_taken))
    assert loaded._snapshot.num_taken == stopped._snapshot.num_taken
    fit(problem, loaded, 5, begin_epoch=stop)
    assert bits(loaded) == bits(unbroken)
    assert loaded._snapshot.num_taken == unbroken._snapshot.num_taken


def test_buckets_on_samples_go_on_with_the_same_bits_after_a_stop(tmp_path):
    problem, prefix = Lengths(), str(tmp_path / 'model')

    def fitted(module, begin, end):
        module.fit(problem.iterator(), eval_metric=[], begin_epoch=begin, num_epoch=end,
                   arg_params=problem.arg_params(), optimizer_params={'learning_rate': 0.02})
        return module

    made = {'full_grad_batches': Growing(1), 'updates_per_snapshot': 25}
    unbroken = fitted(problem.module(full_grad_data=problem.iterator(), **made), 0, 4)
    stopped = fitted(problem.module(full_grad_data=problem.iterator(), **made), 0, 2)
    stopped.save_checkpoint(prefix, 2, True)
    loaded = SVRGBucketingModule.load(
        prefix, 2, problem.sym_gen, problem.iterator().default_bucket_key, True,
        full_grad_data=moved(problem.iterator(), stopped._snapshot.num_taken))
    assert (loaded.updates_per_snapshot, repr(loaded.full_grad_batches)) == (
        25, 'Growing(1, factor=2, limit=10000)')
    assert stopped._snapshot.num_taken == 1
    assert bits(fitted(loaded, 2, 4)) == bits(unbroken)


def test_a_checkpoint_keeps_all_but_data_and_schedules(tmp_path):
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')

    def saved(**kwargs):
        fit(problem, problem.module(3, **kwargs), 1).save_checkpoint(prefix, 1)

    def load(**kwargs):
        module = SVRGModule.load(prefix, 1, label_names=('label',), **kwargs)
        return module.update_freq, module.full_grad_batches, module.updates_per_snapshot

    data = problem.iterator()
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        saved(full_grad_batches=np.int64(2))
        assert load() == (3, 2, None)
        assert load(full_grad_batches=None) == (3, None, None)
        saved(full_grad_batches=Growing(2, np.float32(1.5), 50), updates_per_snapshot=7,
              full_grad_data=problem.iterator())
        freq, growing, updates = load(full_grad_data=data)
        assert (freq, repr(growing), updates) == (3, 'Growing(2, factor=1.5, limit=50)', 7)
        assert load(full_grad_data=data, full_grad_batches=5, updates_per_snapshot=8) == (3, 5, 8)
        assert load(full_grad_data=None, full_grad_batches=5) == (3, 5, None)
    with pytest.warns(UserWarning, match='saved with full_grad_data, which it cannot hold'):
        load()
    saved(full_grad_batches=lambda _: 2)
    with pytest.warns(UserWarning, match='saved with a schedule of full_grad_batches'):
        assert load() == (3, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        assert load(full_grad_batches=4) == (3, 4, None)


@pytest.mark.parametrize('epochs', [1, 0])
def test_checkpoints_of_version_1_0_load(tmp_path, monkeypatch, epochs):
    """They lack the settings that came later."""
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    module = problem.module(2) if epochs else problem.bound()
    if epochs:
        fit(problem, module, epochs)
    known = ('update_freq', 'alpha', 'num_update', 'num_taken', 'full_grad_batches',
             'updates_per_snapshot', 'full_grad_data', 'proximal', 'optimizer', 'snapshot',
             'step_size')
    facts_and_arrays = save._facts_and_arrays

    def older(*args):
        facts, arrays = facts_and_arrays(*args)
        return {name: facts[name] for name in known}, arrays

    monkeypatch.setattr(save, '_facts_and_arrays', older)
    module.save_checkpoint(prefix, 1)
    loaded = SVRGModule.load(prefix, 1, label_names=('label',))
    assert loaded._snapshot.num_taken == epochs
    assert loaded.full_grad_batches is loaded.updates_per_snapshot is loaded.tol is None


def test_a_growing_sample_of_an_older_checkpoint_has_no_limit(tmp_path, monkeypatch):
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    module = fit(problem, problem.module(full_grad_batches=Growing(2)), 1)
    facts_and_arrays = save._facts_and_arrays

    def older(*args):
        facts, arrays = facts_and_arrays(*args)
        return {**facts, 'full_grad_batches': {'first': 2, 'factor': 2}}, arrays

    monkeypatch.setattr(save, '_facts_and_arrays', older)
    module.save_checkpoint(prefix, 1)
    loaded = SVRGModule.load(prefix, 1, label_names=('label',))
    assert repr(loaded.full_grad_batches) == 'Growing(2, factor=2, limit=None)'


def test_a_checkpoint_of_plain_module_has_no_samples(tmp_path):
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    fit(problem, plain, 1).save_checkpoint(prefix, 1)
    loaded = SVRGModule.load(prefix, 1, label_names=('label',))
    assert loaded._snapshot.num_taken == 0 and loaded.full_grad_batches is None

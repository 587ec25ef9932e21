"""Checkpoints of trainings with full gradients over a part of the data."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from problems import Problem
from samples import Lengths, bits, fit
from svrg_optimization import Growing, Sampling, SVRGBucketingModule, SVRGModule
from svrg_optimization.checkpoint import save


@pytest.mark.parametrize('batches', [3, 4])
def test_a_run_that_begins_between_snapshots_stores_nothing_again(tmp_path, batches):
    """Neither for a loaded module nor for another iterator than that of the stored batches."""
    problem = Problem(rows=40)
    prefix = str(tmp_path / 'model')
    module = problem.module(4, sampling=Sampling(batches), store_snapshot_grads=True)
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

    def sampling(taken=0):
        return Sampling(batches, updates, moved(problem.iterator(), read(taken) if read else 0)
                        if own_data else None)

    def made():
        return problem.module(2, sampling=sampling())

    unbroken = fit(problem, made(), 5)
    stopped = fit(problem, made(), stop)
    stopped.save_checkpoint(prefix, stop, save_optimizer_states=True)
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        given = {'sampling': sampling(stopped._snapshot.num_taken)} if own_data else {}
        loaded = SVRGModule.load(prefix, stop, load_optimizer_states=True, label_names=('label',),
                                 **given)
    assert loaded._snapshot.num_taken == stopped._snapshot.num_taken
    fit(problem, loaded, 5, begin_epoch=stop)
    assert bits(loaded) == bits(unbroken)
    assert loaded._snapshot.num_taken == unbroken._snapshot.num_taken


def test_buckets_on_samples_go_on_with_the_same_bits_after_a_stop(tmp_path):
    problem, prefix = Lengths(), str(tmp_path / 'model')

    def fitted(module, begin, end):
        return problem.fit(module, end, begin_epoch=begin, optimizer_params={'learning_rate': 0.02})

    def sampling(taken=0):
        return Sampling(Growing(1), 25, moved(problem.iterator(), taken))

    unbroken = fitted(problem.module(sampling=sampling()), 0, 4)
    stopped = fitted(problem.module(sampling=sampling()), 0, 2)
    stopped.save_checkpoint(prefix, 2, True)
    loaded = SVRGBucketingModule.load(
        prefix, 2, problem.sym_gen, problem.iterator().default_bucket_key, True,
        sampling=sampling(stopped._snapshot.num_taken))
    assert stopped._snapshot.num_taken == 1
    assert bits(fitted(loaded, 2, 4)) == bits(unbroken)


def test_a_checkpoint_keeps_all_but_data_and_schedules(tmp_path):
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')

    def saved(*parts):
        fit(problem, problem.module(3, sampling=Sampling(*parts)), 1).save_checkpoint(prefix, 1)

    def load(**kwargs):
        module = SVRGModule.load(prefix, 1, label_names=('label',), **kwargs)
        return module.update_freq, repr(module.sampling)

    data, growing = problem.iterator(), Growing(2, np.float32(1.5), 50)
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        saved(np.int64(2))
        assert load() == (3, repr(Sampling(2)))
        assert load(sampling=None) == (3, repr(Sampling()))
        saved(growing)
        assert load() == (3, repr(Sampling(Growing(2, 1.5, 50))))
        saved(growing, 7, problem.iterator())
        assert load(sampling=Sampling(5, 8, data)) == (3, repr(Sampling(5, 8, data)))
    with pytest.warns(UserWarning, match='saved with sampling.data, which it cannot hold: give'):
        assert load() == (3, repr(Sampling(growing)))
    saved(lambda _: 2)
    with pytest.warns(UserWarning, match='saved with a schedule of sampling.batches, which'):
        assert load() == (3, repr(Sampling()))
    saved(lambda _: 2, 7, data)
    with pytest.warns(UserWarning, match='sampling.data and a schedule of sampling.batches, whi'):
        assert load() == (3, repr(Sampling()))


@pytest.mark.filterwarnings('ignore:full_grad_batches, .* are one argument now')
def test_the_older_names_are_given_beside_what_a_checkpoint_has(tmp_path):
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    data, growing = problem.iterator(), Growing(2)
    module = problem.module(3, sampling=Sampling(growing, 7, problem.iterator()))
    fit(problem, module, 1).save_checkpoint(prefix, 1)
    for given, expected in (
            ({'full_grad_data': data}, Sampling(growing, 7, data)),
            ({'full_grad_data': data, 'full_grad_batches': 5}, Sampling(5, 7, data)),
            ({'full_grad_data': data, 'updates_per_snapshot': 8}, Sampling(growing, 8, data)),
            ({'full_grad_data': None, 'full_grad_batches': None}, Sampling())):
        loaded = SVRGModule.load(prefix, 1, label_names=('label',), **given)
        assert repr(loaded.sampling) == repr(expected)
    with pytest.warns(UserWarning, match='saved with sampling.data, which it cannot hold'):
        loaded = SVRGModule.load(prefix, 1, label_names=('label',), full_grad_batches=5)
    assert repr(loaded.sampling) == repr(Sampling(5))


@pytest.mark.parametrize('epochs', [1, 0])
def test_checkpoints_of_version_1_0_load(tmp_path, monkeypatch, epochs):
    """They lack the settings that came later."""
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    module = problem.module(2) if epochs else problem.bound()
    if epochs:
        fit(problem, module, epochs)
    known = ('update_freq', 'alpha', 'num_update', 'num_taken', 'proximal', 'optimizer', 'snapshot',
             'step_size')
    parts = {'full_grad_batches': None, 'updates_per_snapshot': None, 'full_grad_data': False}
    facts_and_arrays = save._facts_and_arrays

    def older(*args):
        facts, arrays = facts_and_arrays(*args)
        return {**parts, **{name: facts[name] for name in known}}, arrays

    monkeypatch.setattr(save, '_facts_and_arrays', older)
    module.save_checkpoint(prefix, 1)
    loaded = SVRGModule.load(prefix, 1, label_names=('label',))
    assert loaded._snapshot.num_taken == epochs
    assert repr(loaded.sampling) == repr(Sampling()) and loaded.tol is None


def test_older_checkpoints_have_the_parts_of_a_sampling(tmp_path, monkeypatch):
    """And a growing sample without a limit."""
    older_facts = {'full_grad_batches': {'first': 2, 'factor': 2}, 'updates_per_snapshot': 5,
                   'full_grad_data': True}
    data = Problem(rows=40).iterator()
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    module = fit(problem, problem.module(sampling=Sampling(Growing(2))), 1)
    facts_and_arrays = save._facts_and_arrays

    def older(*args):
        facts, arrays = facts_and_arrays(*args)
        del facts['sampling']
        return {**facts, **older_facts}, arrays

    monkeypatch.setattr(save, '_facts_and_arrays', older)
    module.save_checkpoint(prefix, 1)
    with pytest.warns(UserWarning, match='saved with sampling.data, which it cannot hold'):
        loaded = SVRGModule.load(prefix, 1, label_names=('label',))
    assert repr(loaded.sampling) == repr(Sampling(Growing(2, limit=None)))
    with pytest.warns(UserWarning, match='are one argument now'):
        loaded = SVRGModule.load(prefix, 1, label_names=('label',), full_grad_data=data)
    assert repr(loaded.sampling) == repr(Sampling(Growing(2, limit=None), 5, data))


def test_a_checkpoint_of_plain_module_has_no_samples(tmp_path):
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    fit(problem, plain, 1).save_checkpoint(prefix, 1)
    loaded = SVRGModule.load(prefix, 1, label_names=('label',))
    assert loaded._snapshot.num_taken == 0 and loaded.sampling.batches is None

"""Checkpoints of trainings with full gradients over a part of the data."""

import warnings

import numpy as np
import pytest

from problems import Problem
from samples import bits, fit
from svrg_optimization import SVRGModule


def doubled(number):
    return 2 ** number


@pytest.mark.parametrize('settings, stop', [
    ({'full_grad_batches': 2}, 3), ({'full_grad_batches': 2}, 4),
    ({'full_grad_batches': doubled}, 2), ({'updates_per_snapshot': 3}, 2),
    ({'full_grad_batches': 3, 'updates_per_snapshot': 5}, 1)])
def test_samples_go_on_with_the_same_bits_after_a_stop(tmp_path, settings, stop):
    problem, prefix = Problem('perceptron', rows=37), str(tmp_path / 'model')
    unbroken = fit(problem, problem.module(2, **settings), 5)
    stopped = fit(problem, problem.module(2, **settings), stop)
    stopped.save_checkpoint(prefix, stop, save_optimizer_states=True)
    given = {name: value for name, value in settings.items() if callable(value)}
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        loaded = SVRGModule.load(prefix, stop, load_optimizer_states=True, label_names=('label',),
                                 **given)
    assert all(getattr(loaded, name) == value for name, value in settings.items())
    fit(problem, loaded, 5, begin_epoch=stop)
    assert bits(loaded) == bits(unbroken)
    assert loaded._snapshot.num_taken == unbroken._snapshot.num_taken


def test_a_checkpoint_keeps_numbers_and_tells_of_functions(tmp_path):
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    fit(problem, problem.module(full_grad_batches=np.int64(2)), 1).save_checkpoint(prefix, 1)
    loaded = SVRGModule.load(prefix, 1, label_names=('label',))
    assert loaded.full_grad_batches == 2
    fit(problem, problem.module(full_grad_batches=doubled), 1).save_checkpoint(prefix, 1)
    with pytest.warns(UserWarning, match='saved with full_grad_batches of your own, wh'):
        loaded = SVRGModule.load(prefix, 1, label_names=('label',))
    assert loaded.full_grad_batches is None

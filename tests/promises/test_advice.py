"""Warnings and errors that say what to do: no snapshot, outputs without a loss."""

import mxnet as mx
import pytest

from problems import Problem
from svrg_optimization import SVRGModule


def fit_without_convergence(folder):
    problem = Problem()
    problem.module(tol=1e-9).fit(problem.iterator(), eval_metric='mse', num_epoch=1)


def step_without_a_snapshot(folder):
    module = Problem().bound(sgd={})
    module.forward_backward(next(Problem().iterator()))
    module.update()


def fit_of_mxnet(folder):
    """SequentialModule calls our update from MXNet's fit."""
    chain = mx.mod.SequentialModule().add(Problem().module(), take_labels=True)
    chain.fit(Problem().iterator(), eval_metric='mse', num_epoch=1)


def load_without_the_schedule(folder):
    module = Problem().bound(alpha=lambda _: 0.5)
    module.save_checkpoint(folder / 'model', 0)
    SVRGModule.load(folder / 'model', 0, label_names=('label',))


@pytest.mark.parametrize('warns', [fit_without_convergence, step_without_a_snapshot, fit_of_mxnet,
                                   load_without_the_schedule])
def test_a_warning_is_of_the_users_line(warns, tmp_path):
    with pytest.warns(UserWarning) as caught:
        warns(tmp_path)
    assert {warning.filename for warning in caught} == {__file__}

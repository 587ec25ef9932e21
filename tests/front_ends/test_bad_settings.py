"""Bad settings of the algorithm: each is an error that changes nothing."""

import functools

import mxnet as mx
import numpy as np
import pytest

import bad_input
from problems import Problem
from samples import Lengths
from svrg_optimization import BarzilaiBorwein

GOOD = Problem(rows=40).iterator()
COUNT = 'must be None or an int of 1 or more'


def given(**kwargs):
    return bad_input.made(**kwargs)


def fit_sampled(data=GOOD, **kwargs):
    """Call fit of a new module with such settings."""
    return lambda _, problem: problem.module(**kwargs).fit(data, eval_metric='mse', num_epoch=1)


ROWS = {
    'update_freq of a list': (given(update_freq=[1]), TypeError, '^update_freq must be an int'),
    'update_freq of NumPy': (given(update_freq=np.float32(1)), TypeError, '^update_freq must be'),
    'alpha negative': (given(alpha=-0.1), ValueError, '^alpha must be a number from 0 to 1 or a'),
    'alpha bool': (given(alpha=True), TypeError, '^alpha must be a number from 0 to 1 or a call'),
    'alpha none': (given(alpha=None), TypeError, '^alpha must be a number from 0 to 1 or a call'),
    'set alpha str': (bad_input.attribute('alpha', '1'), TypeError, '^alpha must be a number'),
    'batches zero': (given(full_grad_batches=0), ValueError, '^full_grad_batches must be None, an '
                     'int of 1 or more or a callable that returns one, not 0'),
    'batches float': (given(full_grad_batches=1.5), TypeError, '^full_grad_batches .*not 1.5'),
    'batches bool': (given(full_grad_batches=True), TypeError, '^full_grad_batches .*not True'),
    'batches of a function': (
        fit_sampled(full_grad_batches=lambda _: 0), ValueError,
        r'^full_grad_batches must be a callable that returns an int of 1 or more \(here after 0 '
        r'snapshots\), not 0'),
    'batches of a function, float': (fit_sampled(full_grad_batches=lambda _: 2.0), TypeError,
                                     'after 0 .* not 2.0'),
    'updates zero': (given(updates_per_snapshot=0), ValueError,
                     '^updates_per_snapshot %s, not 0' % COUNT),
    'updates of a function': (given(updates_per_snapshot=len), TypeError,
                              '^updates_per_snapshot %s' % COUNT),
    'updates stored': (given(updates_per_snapshot=3, store_snapshot_grads=True), ValueError,
                       '^updates_per_snapshot must be None with store_snapshot_grads'),
    'updates of other data': (
        fit_sampled(mx.io.ResizeIter(GOOD, 4), updates_per_snapshot=3), ValueError,
        '^updates_per_snapshot must be None unless train_data is an NDArrayIter'),
    'buckets': (bad_input.bucketing(full_grad_batches=[]), TypeError, '^full_grad_batches must'),
    'set batches': (bad_input.attribute('full_grad_batches', 0), ValueError,
                    '^full_grad_batches must'),
    'set updates': (bad_input.attribute('updates_per_snapshot', 0), ValueError,
                    '^updates_per_snapshot %s' % COUNT),
    'step size': (lambda module, problem: problem.bound(full_grad_batches=2).init_optimizer(
        optimizer_params={'lr_scheduler': BarzilaiBorwein()}), ValueError,
        '^full_grad_batches must be None with BarzilaiBorwein'),
}


@pytest.mark.parametrize('call, error, message', ROWS.values(), ids=list(ROWS))
def test_a_bad_setting_is_refused(trained, call, error, message):
    bad_input.assert_refused(trained, call, error, message)


def test_settings_are_checked_together():
    stored = Problem(rows=40).module(store_snapshot_grads=True)
    with pytest.raises(ValueError, match='^updates_per_snapshot must be None with store_snap'):
        stored.updates_per_snapshot = 3
    assert stored.updates_per_snapshot is None


@pytest.mark.filterwarnings('ignore:the learning rate was too large')
@pytest.mark.parametrize('in_fit', [True, False])
@pytest.mark.parametrize('problem', [Problem(), Lengths()])
def test_barzilai_borwein_refuses_samples_that_are_set_later(problem, in_fit):
    module = problem.fit(problem.module(), 1, optimizer_params={'lr_scheduler': BarzilaiBorwein()})
    module.full_grad_batches = 3
    call = functools.partial(module.fit, num_epoch=1) if in_fit else module.update_full_grads
    with pytest.raises(ValueError, match='^full_grad_batches must be None with BarzilaiBorwein'):
        call(problem.iterator())

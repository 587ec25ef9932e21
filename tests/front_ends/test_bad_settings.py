"""Bad settings of the algorithm: each is an error that changes nothing."""

import numpy as np
import pytest

import bad_input
from problems import Problem
from samples import Lengths
from svrg_optimization import BarzilaiBorwein, Growing, Sampling


def given(**kwargs):
    return bad_input.made(**kwargs)


def sampled(*parts, **kwargs):
    return lambda module, problem: problem.module(sampling=Sampling(*parts), **kwargs)


def fit_given(data, **kwargs):
    """Call fit of a new module with such data for the full gradient."""
    def call(_, problem):
        problem.module(sampling=Sampling(data=data), **kwargs).fit(
            problem.iterator(), eval_metric='mse', num_epoch=1)
    return call


def fit_on_itself(_, problem):
    data = problem.iterator()
    problem.module(sampling=Sampling(data=data)).fit(data, eval_metric='mse', num_epoch=1)


def with_step_size(call):
    def install_and_call(_, problem):
        module = problem.bound(sgd={'lr_scheduler': BarzilaiBorwein()})
        call(module, problem)
    return install_and_call


DATA = bad_input.Data
GOOD = Problem(rows=40).iterator()
COUNT = 'must be None or an int of 1 or more'
ROWS = {
    'update_freq of a list': (given(update_freq=[1]), TypeError, '^update_freq must be an int'),
    'update_freq of NumPy': (given(update_freq=np.float32(1)), TypeError, '^update_freq must be'),
    'alpha negative': (given(alpha=-0.1), ValueError, '^alpha must be a number from 0 to 1 or a'),
    'alpha bool': (given(alpha=True), TypeError, '^alpha must be a number from 0 to 1 or a call'),
    'alpha none': (given(alpha=None), TypeError, '^alpha must be a number from 0 to 1 or a call'),
    'set alpha str': (bad_input.attribute('alpha', '1'), TypeError, '^alpha must be a number'),
    'batches zero': (sampled(0), ValueError, '^batches must be None, an '
                     'int of 1 or more or a callable that returns one, not 0'),
    'batches float': (sampled(1.5), TypeError, '^batches .*not 1.5'),
    'batches bool': (sampled(True), TypeError, '^batches .*not True'),
    'batches of a schedule': (
        lambda module, problem: problem.module(sampling=Sampling(lambda _: 0)).fit(
            problem.iterator(), eval_metric='mse', num_epoch=1), ValueError,
        r'^sampling.batches must be a callable that returns an int of 1 or more \(here after 0 '
        r'snapshots\), not 0'),
    'batches of a schedule, float': (
        lambda module, problem: problem.module(sampling=Sampling(lambda _: 2.0)).fit(
            problem.iterator(), eval_metric='mse', num_epoch=1), TypeError, 'after 0 .* not 2.0'),
    'updates zero': (sampled(None, 0, GOOD), ValueError,
                     '^updates_per_snapshot %s, not 0' % COUNT),
    'updates schedule': (sampled(None, len, GOOD), TypeError,
                         '^updates_per_snapshot %s' % COUNT),
    'updates alone': (sampled(None, 5), ValueError,
                      '^data must be a DataIter where updates_per_snapshot is given'),
    'data': (sampled(None, None, 3), TypeError, '^data must be a DataIter, not 3'),
    'data stored': (sampled(None, None, GOOD, store_snapshot_grads=True), ValueError,
                    '^sampling.data must be None with store_snapshot_grads'),
    'no sampling': (given(sampling=5), TypeError, '^sampling must be None or a Sampling, not 5'),
    'buckets': (bad_input.bucketing(sampling=5), TypeError, '^sampling must be None or a'),
    'both': (given(sampling=Sampling(2), full_grad_data=GOOD), TypeError,
             '^sampling must have all its parts'),
    'set batches': (bad_input.attribute('full_grad_batches', 0), ValueError, '^batches must'),
    'set updates': (bad_input.attribute('updates_per_snapshot', 3), ValueError,
                    '^data must be a DataIter where'),
    'set data': (bad_input.attribute('full_grad_data', []), TypeError, '^data must be'),
    'set sampling': (bad_input.attribute('sampling', []), TypeError, '^sampling must be None or'),
    'fit itself': (fit_on_itself, ValueError, '^sampling.data must be another iterator than'),
    'fit empty': (fit_given(DATA()), ValueError, '^sampling.data must yield at least one row'),
    'fit width': (fit_given(DATA(bad_input.batch((10, 5)))), ValueError,
                  r'^sampling.data must yield batches of the shapes .*\(10, 5\)'),
    'fit of none': (fit_given(DATA(None)), TypeError, '^sampling.data must yield DataBatches'),
    'pass zero': (bad_input.full_grads(GOOD, batches=0), ValueError,
                  '^batches %s, not 0' % COUNT),
    'pass float': (bad_input.full_grads(GOOD, batches=1e3), TypeError, '^batches must be'),
    'pass step size': (with_step_size(bad_input.full_grads(GOOD, batches=2)), ValueError,
                       '^batches must be None with BarzilaiBorwein'),
    'step size': (lambda module, problem: problem.bound(sampling=Sampling(2)).init_optimizer(
        optimizer_params={'lr_scheduler': BarzilaiBorwein()}), ValueError,
        '^sampling.batches must be None with BarzilaiBorwein'),
    'growing first': (lambda *_: Growing(0), ValueError, '^first must be an int of 1 or more'),
    'growing factor': (lambda *_: Growing(2, 0.5), ValueError, '^factor must be a number of 1 or'),
    'growing inf': (lambda *_: Growing(2, np.inf), ValueError, '^factor must be .* not inf'),
    'growing str': (lambda *_: Growing(2, '2'), TypeError, "^factor must be .* not '2'"),
    'growing limit': (lambda *_: Growing(9, limit=8), ValueError, '^limit must be .* of 9 .first'),
    'growing limit float': (lambda *_: Growing(9, limit=9.5), TypeError, '^limit must be .* 9.5'),
}


@pytest.mark.parametrize('call, error, message', ROWS.values(), ids=list(ROWS))
def test_a_bad_setting_is_refused(trained, call, error, message):
    bad_input.assert_refused(trained, call, error, message)


def test_settings_are_checked_together():
    problem = Problem(rows=40)
    stored = problem.module(store_snapshot_grads=True)
    with pytest.raises(ValueError, match='^sampling.data must be None with store_snapshot'):
        stored.sampling = Sampling(data=problem.iterator())
    assert stored.sampling.data is None


def test_a_sampling_does_not_change():
    with pytest.raises(AttributeError, match="cannot assign to field 'batches'"):
        Sampling().batches = 3


@pytest.mark.parametrize('problem', [Problem(), Lengths()])
def test_the_older_names_of_a_sampling_go_on_working(problem):
    data = problem.iterator()
    with pytest.warns(UserWarning) as caught:
        module = problem.module(None, full_grad_batches=3, updates_per_snapshot=5,
                                full_grad_data=data)
    assert [str(warning.message) for warning in caught] == [
        'full_grad_batches, updates_per_snapshot and full_grad_data are one argument now: '
        'sampling=Sampling(batches, updates_per_snapshot, data)']
    assert repr(module.sampling) == repr(Sampling(3, 5, data)) and module.update_freq == 1
    module.full_grad_batches = 4
    assert (module.full_grad_batches, module.updates_per_snapshot, module.full_grad_data) == (
        4, 5, data)
    with pytest.raises(ValueError, match='^data must be a DataIter where'):
        module.full_grad_data = None
    module.updates_per_snapshot = None
    module.full_grad_data = None
    assert repr(module.sampling) == repr(Sampling(4))


def test_barzilai_borwein_names_the_argument_that_was_set():
    problem = Problem()
    module = problem.module()
    module.fit(problem.iterator(), eval_metric=[], num_epoch=1,
               optimizer_params={'lr_scheduler': BarzilaiBorwein()})
    module.sampling = Sampling(3)
    with pytest.raises(ValueError, match='sampling.batches must be None with BarzilaiBorwein'):
        module.fit(problem.iterator(), eval_metric=[], num_epoch=1)


@pytest.mark.filterwarnings('ignore:the learning rate was too large')
@pytest.mark.parametrize('in_fit', [True, False])
def test_barzilai_borwein_with_buckets_names_the_argument_that_was_set(in_fit):
    problem = Lengths()
    module = problem.fit(problem.module(), 1, optimizer_params={'lr_scheduler': BarzilaiBorwein()})
    with pytest.raises(ValueError, match='^%s must be None with BarzilaiBorwein'
                       % ('sampling.batches' if in_fit else 'batches')):
        if in_fit:
            module.sampling = Sampling(3)
            module.fit(problem.iterator(), eval_metric=[], num_epoch=1)
        else:
            module.update_full_grads(problem.iterator(), batches=3)

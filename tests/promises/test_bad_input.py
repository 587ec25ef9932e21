"""Bad input: the error says what is wrong and what is allowed, and nothing has changed."""

import pickle
import warnings

import mxnet as mx
import pytest

from bad_input import (
    GOOD,
    Data,
    assert_refused,
    attribute,
    batch,
    bucketing,
    dropout,
    fit,
    for_inference,
    full_grads,
    made,
    on,
    optimizer,
    symbol_with,
    unbound,
    uninitialized,
)
from problems import Problem
from samples import Lengths
from svrg_optimization import LinearDecay, SVRGModule
from svrg_optimization.diagnostics import gradient_variance


def names(**kwargs):
    """Call fit of a new module with an iterator of other names."""
    def call(module, problem):
        data = mx.io.NDArrayIter(problem.features, problem.targets, 10, **kwargs)
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', "Data provided by label_shapes don't match names")
            problem.module(1).fit(data, eval_metric='mse', num_epoch=1)
    return call


def default_labels(module, problem):
    with pytest.warns(UserWarning, match="You created Module|label_shapes don't match names"):
        SVRGModule(problem.symbol).fit(problem.iterator(), num_epoch=1)


def load(prefix, epoch, **kwargs):
    return lambda module, _: SVRGModule.load(prefix, epoch, label_names=('label',), **kwargs)


def load_states(name):
    return lambda module, _: module.load_optimizer_states(name)


INT = 'must be an int of 1 or more'


def fit_sampled(**kwargs):
    """Call fit of a new module with such settings."""
    return lambda _, problem: problem.module(**kwargs).fit(problem.iterator(), num_epoch=1)


ROWS = {
    # The constructor
    'batches zero': (made(full_grad_batches=0), ValueError, '^full_grad_batches must be None, an '
                     'int of 1 or more or a callable that returns one, not 0'),
    'batches bool': (made(full_grad_batches=True), TypeError, '^full_grad_batches .*not True'),
    'batches of a function': (
        fit_sampled(full_grad_batches=lambda _: 0), ValueError,
        r'^full_grad_batches must be a callable that returns an int of 1 or more \(here after 0 '
        r'snapshots\), not 0'),
    'batches of a function, float': (fit_sampled(full_grad_batches=lambda _: 2.0), TypeError,
                                     'after 0 .* not 2.0'),
    'buckets': (bucketing(full_grad_batches=[]), TypeError, '^full_grad_batches must'),
    'update_freq float': (made(update_freq=1.5), TypeError, 'update_freq ' + INT + ', not 1.5'),
    'loss_is_mean int': (made(loss_is_mean=1), TypeError, 'loss_is_mean must be None, True or F'),
    'store zero': (made(store_snapshot_grads=0), ValueError, 'store_snapshot_grads must be'),
    'store dropout': (made(symbol=symbol_with(dropout), store_snapshot_grads=True), ValueError,
                      'store_snapshot_grads must be False for a network with random layers: drop'),
    'store states': (made(state_names=['fc_bias'], store_snapshot_grads=True), ValueError,
                     'store_snapshot_grads must be False for a network with states: fc_bias'),
    'alpha high': (made(alpha=1.1), ValueError, 'alpha must be a number from 0 to 1'),
    'nonfinite': (made(nonfinite='ignore'), ValueError, "must be 'warn' or 'raise', not 'ignore'"),
    'data_names': (made(data_names=('other',)), ValueError, 'other'),
    # Attributes
    'set batches': (attribute('full_grad_batches', 0), ValueError, '^full_grad_batches must'),
    'set alpha': (attribute('alpha', -1), ValueError, 'alpha must be a number from 0 to 1'),
    # The pass for the full gradient: the data
    'data none': (full_grads(None), TypeError, 'train_data must be a DataIter, not None'),
    'data not to be reset': (full_grads(Data(GOOD, resets=OSError('no seek'))), OSError, 'seek'),
    'data empty': (full_grads(Data()), ValueError, 'train_data must yield at least one row'),
    'data of padding': (full_grads(Data(batch((10, 4), pad=10))), ValueError, 'at least one row'),
    'data raises': (full_grads(Data(GOOD, raises=OSError('disk'))), OSError, 'disk'),
    'data of none': (full_grads(Data(None)), AttributeError, "'NoneType' .* 'data'"),
    'data other width': (full_grads(Data(GOOD, batch((10, 5)))), ValueError,
                         r"train_data .*\(10, 4\).*\(10, 5\)"),
    'data inputs extra': (full_grads(Data(batch((10, 4), (10, 4)))), ValueError,
                          r"batches with the data \['data'\], not with 2"),
    'data labels missing': (full_grads(Data(GOOD, batch((10, 4), label=None))), ValueError,
                            'train_data must yield batches with the label'),
    'data labels short': (full_grads(Data(batch((10, 4), label=(7,)))), AssertionError,
                          'batch size'),
    # ... and the order of calls
    'pass unbound': (on(unbound, full_grads(Data(GOOD))), RuntimeError, 'update_full_grads needs'),
    'pass uninitialized': (on(uninitialized, full_grads(Data(GOOD))), RuntimeError, 'parameters'),
    'pass for inference': (on(for_inference, full_grads(Data(GOOD))), RuntimeError, 'for_training'),
    'update uninitialized': (on(uninitialized, lambda module, _: module.update()),
                             AssertionError, None),
    'backward unbound': (on(unbound, lambda module, _: module.backward()), AssertionError, None),
    # fit
    'fit no epochs': (fit(num_epoch=None), TypeError, 'num_epoch must be an int .*, not None'),
    'fit metric': (fit(eval_metric='no such'), AssertionError, 'no such'),
    'fit tol': (fit(tol=0.1), TypeError, "unexpected keyword argument 'tol'"),
    'fit label name': (names(label_name='other'), KeyError, 'other'),
    'labels of a parameter': (default_labels, ValueError, 'label_names must be inputs of'),
    'fit data name': (names(data_name='other', label_name='label'), ValueError, 'other'),
    'fit begin_epoch': (fit(begin_epoch=-1), ValueError, 'begin_epoch must be an int of 0 or mo'),
    'fit eval_data': (lambda module, problem: fit(eval_data=problem.features)(module, problem),
                      TypeError, 'eval_data must be a DataIter'),
    # Checkpoints
    'save nowhere': (lambda module, _: module.save_checkpoint('no/such', 2), OSError, 'no/such'),
    'load missing': (load('model', 7), FileNotFoundError, 'model-0007.params'),
    'load alpha': (load('model', 2, alpha=7), ValueError, 'alpha must be a number from 0 to 1'),
    'states of params': (load_states('model-0002.params'), pickle.UnpicklingError, 'load key'),
    'save epoch': (lambda module, _: module.save_checkpoint('model', '1'), TypeError,
                   'a (real )?number is required, not str'),
    'save prefix': (lambda module, _: module.save_checkpoint(None, 2), TypeError,
                    'PathLike'),
    'save uninitialized': (on(uninitialized, lambda module, _: module.save_checkpoint('new', 2)),
                           AssertionError, None),
    'load prefix': (load(3, 2), TypeError, 'PathLike'),
    'states no optimizer': (on(lambda problem: problem.bound(), load_states('model-0002.states')),
                            AssertionError, None),
    'params missing': (lambda module, _: module.set_params({}, {}), RuntimeError, 'fc_'),
    # The optimizer
    'optimizer name': (optimizer(optimizer='no such'), ValueError, 'no such'),
    'force_init params': (lambda module, _: module.init_optimizer(
        optimizer_params={'tol': 1}, force_init=True), TypeError,
        "unexpected keyword argument 'tol'"),
    'borrow none': (lambda module, problem: module.borrow_optimizer(uninitialized(problem)),
                    AssertionError, None),
    'kvstore type': (optimizer(kvstore=3), TypeError, 'kvstore'),
    'rule of adam': (optimizer(optimizer='adam', optimizer_params={
        'lr_scheduler': mx.optimizer.create('svrg_lbfgs').lr_scheduler}), ValueError,
        'lr_scheduler must not be that of svrg_lbfgs with adam'),
    **{'lbfgs ' + name: (optimizer(optimizer='svrg_lbfgs', optimizer_params={name: value}),
                         ValueError, name + ' must ') for name, value in (
        ('learning_rate', 0.1), ('clip_gradient', 1.), ('momentum', 1), ('lr_scheduler', len))},
    'decay initial': (lambda *_: LinearDecay(2, 10), ValueError, 'initial must be a number from'),
    # Diagnostics
    'variance module': (lambda module, problem: gradient_variance(None, problem.iterator()),
                        TypeError, 'mod must be an SVRGModule or an SVRGTrainer, '
                        'not None'),
    'variance data': (lambda module, _: gradient_variance(module, 3), TypeError,
                      'data must be a DataIter, not 3'),
    'variance empty': (lambda module, _: gradient_variance(module, Data()), ValueError,
                       'data must yield at least one batch'),
    'variance raises': (lambda module, _: gradient_variance(
        module, Data(GOOD, raises=OSError('disk'))), OSError, 'disk'),
    'variance no snapshot': (on(lambda problem: problem.bound(), lambda module, problem:
                                gradient_variance(module, problem.iterator())), RuntimeError,
                             'mod must have a snapshot'),
}


@pytest.mark.parametrize('call, error, message', ROWS.values(), ids=list(ROWS))
def test_bad_input_is_refused(trained, call, error, message):
    assert_refused(trained, call, error, message)


@pytest.mark.parametrize('problem', [Problem(), Lengths()])
def test_svrg_lbfgs_refuses_samples_that_are_set_later(problem):
    module = problem.fit(problem.module(), 1, optimizer='svrg_lbfgs')
    module.full_grad_batches = 3
    for call in (module.update_full_grads, lambda data: module.fit(data, num_epoch=1)):
        with pytest.raises(ValueError, match='^full_grad_batches must be None with svrg_lbfgs'):
            call(problem.iterator())

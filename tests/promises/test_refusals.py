"""Bad input: the error says what is wrong and what is allowed, and nothing has changed."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from bad_input import SETTINGS, Data, state_of
from problems import Problem
from sequences import Sequences
from svrg_optimization import LinearDecay, SVRGBucketingModule, SVRGModule, SVRGTrainer
from svrg_optimization.diagnostics import gradient_variance
from svrg_optimization.proximal import L1


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Train a module for two epochs and save it in the working directory, a new one."""
    monkeypatch.chdir(tmp_path)
    problem = Problem(rows=40)
    module = problem.module(2)
    module.fit(problem.iterator(), eval_metric='mse', num_epoch=2,
               arg_params=problem.arg_params(), optimizer_params=SETTINGS)
    module.save_checkpoint('model', 2, save_optimizer_states=True)
    return module, problem


def batch(*shapes, label=(10,), pad=0):
    return mx.io.DataBatch([mx.nd.ones(shape) for shape in shapes],
                           None if label is None else [mx.nd.ones(label)], pad=pad)


GOOD = batch((10, 4))


def made(**kwargs):
    return SVRGModule(**{'symbol': Problem().symbol, 'label_names': ('label',), **kwargs})


def bucketing(**kwargs):
    return SVRGBucketingModule(lambda key: (Problem().symbol, ('data',), ('label',)), 1, **kwargs)


def trainer(params=None, optimizer='sgd', **kwargs):
    params = [table('fc_weight'), table('fc_bias')] if params is None else params
    return SVRGTrainer(params, optimizer, **{'objective': len, **kwargs})


def wide_data():
    return mx.io.NDArrayIter(np.ones((20, 6)), np.ones(20), 20, label_name='label')


def plain_with_rate(problem, rate):
    module = mx.mod.Module(problem.symbol, label_names=['label'])
    module.bind(problem.iterator().provide_data, problem.iterator().provide_label)
    module.init_params()
    module.init_optimizer(optimizer_params={'learning_rate': rate})
    return module


def table(name, stype='default', lr_mult=1.):
    param = gluon.Parameter(name, shape=(6, 2), stype=stype, grad_stype=stype, lr_mult=lr_mult)
    param.initialize()
    return param


def full_grads(data):
    return lambda module, problem: module.update_full_grads(data)


def fit(data=None, **kwargs):
    def call(module, problem):
        return module.fit(problem.iterator() if data is None else data,
                          **{'eval_metric': 'mse', 'num_epoch': 3, 'begin_epoch': 2, **kwargs})
    return call


def attribute(name, value):
    return lambda module, problem: setattr(module, name, value)


def on(make, call):
    return lambda module, problem: call(make(problem), problem)


def unbound(problem):
    return problem.module(1)


def uninitialized(problem, **kwargs):
    module = problem.module(1)
    module.bind(problem.iterator().provide_data, problem.iterator().provide_label, **kwargs)
    return module


def for_inference(problem):
    module = uninitialized(problem, for_training=False)
    module.init_params()
    return module


def optimizer(**kwargs):
    return lambda module, problem: problem.bound().init_optimizer(**kwargs)


def fit_new(optimizer='sgd', **settings):
    """Call fit of a new module with such settings."""
    return lambda _, problem: problem.module(**settings).fit(
        problem.iterator(), eval_metric=[], num_epoch=1, optimizer=optimizer)


OF_ALL = [  # settings of SVRGModule, SVRGBucketingModule and SVRGTrainer
    ({'proximal': 0.1}, TypeError, 'proximal must be None, an operator .* or a dict .*, not 0.1'),
    ({'proximal': L1}, TypeError, 'an operator with the methods prox and value'),
    ({'proximal': {'fc_weight': None}}, TypeError, 'proximal must be .* not None'),
    ({'proximal': {'weight': L1(1)}}, ValueError,
     r"proximal must be for trained parameters \(.*fc_weight.*\), not for 'weight'"),
    ({'alpha': 0, 'tol': 1e-3}, ValueError, '^alpha must not be 0 with tol'),
    ({'alpha': 1.1}, ValueError, 'alpha must be a number from 0 to 1'),
    ({'tol': 0}, ValueError, 'tol must be None or a number above 0, not 0'),
    ({'tol': True}, TypeError, 'not True'),
    ({'loss_is_mean': 1}, TypeError, 'loss_is_mean must be None, True or False'),
    ({'nonfinite': 'ignore'}, ValueError, "nonfinite must be 'warn' or 'raise', not 'ignore'"),
    ({'tolerance': 1}, TypeError, "unexpected keyword argument 'tolerance'")]
OF_MODULES = [
    ({'proximal': {'fc_bias': L1(1)}, 'fixed_param_names': ['fc_bias']}, ValueError,
     r"trained parameters \(fc_weight\), not for 'fc_bias'"),
    ({'proximal': L1(1), 'fixed_param_names': ['fc_weight']}, ValueError,
     'proximal must be a dict from parameter name to operator .*: fc_bias'),
    ({'full_grad_batches': 0}, ValueError, '^full_grad_batches must .* int of 1 or more .*, not 0'),
    ({'full_grad_batches': 3, 'tol': 1e-3}, ValueError, 'full_grad_batches must be None with tol')]
OF_MODULE = [
    ({'update_freq': 1.5}, TypeError, 'update_freq must be an int of 1 or more, not 1.5')]
OF_TRAINER = [
    ({'params': [table('table', 'row_sparse')]}, ValueError, 'params .* not row_sparse, as table'),
    ({'params': [table('table'), table('table')]}, ValueError, 'params must have different names'),
    ({'objective': None}, TypeError, 'objective must be a function'),
    ({'optimizer': 'lbfgs'}, ValueError, "optimizer must be 'newton_cg', .* and not 'lbfgs'"),
    ({'alpha': 0, 'optimizer': 'newton_cg'}, ValueError, '^alpha must not be 0 with newton_cg'),
    ({'batch_axis': [0, '1']}, TypeError, "batch_axis must be an int of 0 or more, not '1'"),
    ({'kvstore': 'dist_async'}, ValueError, "kvstore must be 'dist_sync' or of one process"),
    ({'kvstore': 'dist_sync', 'update_on_kvstore': True}, ValueError,
     'update_on_kvstore must be None or False'),
    ({'optimizer_params': {'learning_rate': -0.1}}, ValueError, 'learning_rate must .* not -0.1'),
    ({'optimizer': 'newton_cg', 'optimizer_params': {'wd': -1}}, ValueError, 'wd must .* not -1'),
    ({'optimizer': mx.optimizer.Adam(wd=-0.1)}, ValueError, 'wd must be a finite .* not -0.1'),
    ({'params': [table('fc_weight', lr_mult=-1.)]}, ValueError,
     'lr_mult of fc_weight must .*, not -1'),
    ({'compression_params': {'type': '2bit'}}, ValueError, 'compression_params must be None'),
    ({'proximal': L1(1), 'update_on_kvstore': True}, ValueError,
     'update_on_kvstore must be None or False with proximal'),
    ({'proximal': L1(1), 'optimizer_params': {'momentum': 0.9}}, ValueError,
     'optimizer must be newton_cg, or sgd without .*momentum 0.9'),
    *(({'optimizer': 'newton_cg', 'optimizer_params': {name: value}}, ValueError,
       name + ' must not be given with newton_cg')
      for name, value in (('learning_rate', 0.1), ('clip_gradient', 1.), ('lr_scheduler', len))),
    ({'optimizer': 'newton_cg', 'update_on_kvstore': True}, ValueError,
     'update_on_kvstore must be None or False with newton_cg')]


@pytest.mark.parametrize('make, given, error, message', [
    (make, *row) for make, rows in (
        (made, OF_ALL + OF_MODULES + OF_MODULE), (bucketing, OF_ALL + OF_MODULES),
        (trainer, OF_ALL + OF_TRAINER)) for row in rows])
def test_bad_arguments_are_refused(make, given, error, message):
    with pytest.raises(error, match=message):
        make(**given)


FINITE = 'learning_rate must be a finite number of 0 or more, not'


def optimizer_with(**attributes):
    optimizer = mx.optimizer.SGD(learning_rate=0.1)
    vars(optimizer).update(attributes)
    return optimizer


ROWS = {
    # A training with bad arguments
    'batches of a function': (
        fit_new(full_grad_batches=lambda _: 0), ValueError,
        '^full_grad_batches must be a callable that returns an int of 1 or more .*, not 0'),
    'batches': (fit_new('newton_cg', full_grad_batches=3), ValueError,
                '^full_grad_batches must be None with newton_cg'),
    'alpha of 0': (fit_new('newton_cg', alpha=0), ValueError, '^alpha must not be 0'),
    # Attributes
    'set batches': (attribute('full_grad_batches', 0), ValueError, '^full_grad_batches must'),
    **{'set %s beside tol' % name: (
        lambda *_, name=name, value=value: setattr(Problem().module(tol=1e-3), name, value),
        ValueError, name + ' must .* with tol')
       for name, value in (('alpha', 0), ('full_grad_batches', 3))},
    **{'set rate %r' % rate: (attribute('learning_rate', rate), error, FINITE)
       for rate, error in (('0.1', TypeError), (True, TypeError), (float('nan'), ValueError))},
    **{'%s %s' % (message.split()[0], given.get('wd', len(given))): (
        optimizer(optimizer_params=given), error, message)
       for given, error, message in (
           ({'learning_rate': -0.1}, ValueError, FINITE + ' -0.1'),
           ({'wd': float('nan')}, ValueError, 'wd must be a finite number of 0 or more, not nan'),
           ({'wd': '0.1'}, TypeError, "wd must be .*, not '0.1'"))},
    **{'optimizer instance %d' % number: (optimizer(optimizer=instance), ValueError, message)
       for number, (instance, message) in enumerate((
           (mx.optimizer.SGD(learning_rate=-0.1), FINITE), (mx.optimizer.Adam(wd=-0.1), 'wd must'),
           (optimizer_with(lr_mult={'fc_weight': -1}), 'lr_mult of fc_weight must .*, not -1'),
           (optimizer_with(wd_mult={'fc_weight': -2}), 'wd_mult of fc_weight must .*, not -2')))},
    'wd of an optimizer': (lambda module, _: setattr(module._optimizer, 'wd', -0.1), ValueError,
                           'wd must be a finite number of 0 or more, not -0.1'),
    'rate of a trainer': (lambda *_: trainer().set_learning_rate(-0.1), ValueError, FINITE),
    'borrowed rate': (lambda module, problem: problem.bound().borrow_optimizer(
        plain_with_rate(problem, -0.1)), ValueError, FINITE),
    'lr of an optimizer': (lambda module, _: setattr(module._optimizer, 'lr', np.float32('nan')),
                           ValueError, FINITE),
    **{'set rate %g beside scheduler' % rate: (
        lambda *_, rate=rate: setattr(Problem().bound(sgd={
            'lr_scheduler': mx.lr_scheduler.FactorScheduler(9)}), 'learning_rate', rate),
        ValueError, 'learning_rate must not be set') for rate in (0.1, 0)},
    'set rate without an optimizer': (
        on(lambda problem: problem.bound(), attribute('learning_rate', 0.1)), RuntimeError,
        'learning_rate needs an optimizer: call init_optimizer'),
    # The pass for the full gradient: the data
    'data none': (full_grads(None), TypeError, 'train_data must be a DataIter, .* not None'),
    'data not to be reset': (full_grads(Data(GOOD, resets=OSError('no seek'))), OSError, 'seek'),
    'data empty': (full_grads(Data()), ValueError, 'train_data must yield at least one row'),
    **{'data with %s' % type(other).__name__: (full_grads(Data(GOOD, other)), TypeError,
                                   'train_data must yield DataBatches')
       for other in (None, [GOOD, None])},
    'data other width': (full_grads(Data(GOOD, batch((10, 5)))), ValueError,
                         r"train_data .*\(10, 4\).*\(10, 5\)"),
    'data inputs extra': (full_grads(Data(batch((10, 4), (10, 4)))), ValueError, 'not with 2'),
    'data labels missing': (full_grads(Data(GOOD, batch((10, 4), label=None))), ValueError,
                            'train_data must yield batches with the label'),
    # ... and the order of calls
    'pass unbound': (on(unbound, full_grads(Data(GOOD))), RuntimeError, 'update_full_grads needs'),
    'pass uninitialized': (on(uninitialized, full_grads(Data(GOOD))), RuntimeError, 'parameters'),
    'pass for inference': (on(for_inference, full_grads(Data(GOOD))), RuntimeError, 'for_training'),
    'backward at first': (on(lambda problem: problem.bound(), lambda module, _: module.backward()),
                          RuntimeError, 'backward needs a forward before it'),
    'backward after a pass': (on(lambda problem: problem.bound(), lambda module, problem: [
        module.update_full_grads(problem.iterator()), module.backward()]), RuntimeError,
        'backward needs a forward'),
    # fit
    'fit no epochs': (fit(num_epoch=None), TypeError, 'num_epoch must be an int .*, not None'),
    'fit begin_epoch': (fit(begin_epoch=-1), ValueError, 'begin_epoch must be an int of 0 or mo'),
    'fit eval_data': (lambda module, problem: fit(eval_data=problem.features)(module, problem),
                      TypeError, 'eval_data must be a DataIter'),
    'fit arrays': (lambda module, problem: module.fit(problem.features, problem.targets), TypeError,
                   r'train_data must be a DataIter, as mx.io.NDArrayIter\(.* not array'),
    'score array': (lambda module, problem: module.score(problem.features, 'mse'), TypeError,
                    r'eval_data must be a DataIter, as mx.io.NDArrayIter\('),
    **{'other columns %s' % name: (
        call, ValueError, r'batches must be .* bound for, like .*10, 4.* and not .*\(20, 6\)')
       for name, call in (
           ('predict array', lambda module, _: module.predict(np.ones((20, 6)))),
           ('predict', lambda module, _: module.predict(wide_data())),
           ('score', lambda module, _: module.score(wide_data(), 'mse')),
           ('forward', lambda module, _: module.forward(next(wide_data()))),
           ('fit', lambda _, problem: problem.module().fit(
               problem.iterator(), wide_data(), eval_metric='mse', num_epoch=1)))},
    **{'scheduler of %s' % ''.join(given): (optimizer(**given, force_init=True), TypeError,
                                            'lr_scheduler must be an object or None')
       for given in ({'optimizer_params': {'lr_scheduler': mx.lr_scheduler.FactorScheduler}},
                     {'optimizer': optimizer_with(lr_scheduler=0.1)})},
    'optimizer name': (optimizer(optimizer='lbfgs'), ValueError,
                       "optimizer must be 'newton_cg', .* adam.* and not 'lbfgs'"),
    'optimizer none': (optimizer(optimizer=None), TypeError, 'optimizer must be a str .*not None'),
    # Checkpoints
    'save nowhere': (lambda module, _: module.save_checkpoint('no/such', 2), OSError, 'no/such'),
    # The optimizer
    'force_init params': (lambda module, _: module.init_optimizer(
        optimizer_params={'tol': 1}, force_init=True), TypeError,
        "unexpected keyword argument 'tol'"),
    **{'decay %s %s' % given: (lambda *_, given=given: LinearDecay(*given), error, message)
       for given, error, message in (
           ((1.5, 10), ValueError, '^initial must be a number from 0 to 1, not 1.5$'),
           ((0.5, 0), ValueError, 'num_updates'), ((0.5, True), TypeError, 'num_updates'))},
    # Calls of beginners
    **{'%s unbound' % name: (on(unbound, lambda module, problem, call=call: call(module, problem)),
                             AssertionError, '^%s needs a module .*: call fit' % name)
       for name, call in (
           ('forward', lambda module, problem: module.forward(problem.batch(10))),
           ('backward', lambda module, _: module.backward()),
           ('update', lambda module, _: module.update()),
           ('init_optimizer', lambda module, _: module.init_optimizer()),
           ('predict', lambda module, problem: module.predict(problem.iterator())),
           ('score', lambda module, problem: module.score(problem.iterator(), 'mse')),
           ('get_params', lambda module, _: module.get_params()))},
    'update without an optimizer': (on(lambda problem: problem.bound(), lambda module, problem: [
        module.forward_backward(problem.batch(10)), module.update()]), AssertionError,
        'update needs .* and an optimizer: call fit before it, .* and init_optimizer'),
    'labels of another shape': (
        lambda module, _: module.update_full_grads(Data(mx.io.DataBatch(
            [mx.nd.ones((10, 4))], [mx.nd.ones((10, 2))]))), ValueError,
        r"train_data must .* like .*'label', .10,.*, and not .*\(10, 2\)"),
    'predict list': (lambda module, _: module.predict([[1, 2, 3, 4]]), TypeError,
                     'eval_data must be .* to_numpy'),
    'other numbers of rows': (
        lambda _, problem: problem.module().fit(mx.io.NDArrayIter(
            np.ones((200, 4)), np.ones(150), 10, label_name='label'), num_epoch=1), ValueError,
        r"train_data must have as many rows of each input, and not .'data': 200, 'label': 150."),
    'other label_names': (
        lambda _, problem: SVRGModule(problem.symbol, label_names=('other',)).fit(
            mx.io.NDArrayIter(np.ones((20, 4)), np.ones(20), 10, label_name='other'), num_epoch=1),
        ValueError, r"label_names must be inputs of the symbol, .*'label'\], and not .*'other'"),
    # Diagnostics
    'variance module': (lambda module, problem: gradient_variance(None, problem.iterator()),
                        TypeError, 'mod must be .*, not None'),
    'variance data': (lambda module, _: gradient_variance(module, 3), TypeError,
                      'data must be a DataIter, .* not 3'),
    'variance empty': (lambda module, _: gradient_variance(module, Data()), ValueError,
                       'data must yield at least one batch'),
    'variance none': (lambda module, _: gradient_variance(module, Data(GOOD, None)), TypeError,
                      'data must yield DataBatches, and not None'),
    'variance no snapshot': (on(lambda problem: problem.bound(), lambda module, problem:
                                gradient_variance(module, problem.iterator())), RuntimeError,
                             'mod must have a snapshot'),
}


@pytest.mark.parametrize('call, error, message', ROWS.values(), ids=list(ROWS))
@pytest.mark.filterwarnings('ignore:.*You created Module')
def test_bad_input_is_refused(trained, call, error, message):
    """And training goes on as if it had not been."""
    module, problem = trained
    before = state_of(module)
    with pytest.raises(error, match=message):
        call(module, problem)
    after = state_of(module)
    for kind, value in before.items():
        assert after[kind] == value, kind
    module.fit(problem.iterator(), eval_metric='mse', begin_epoch=2, num_epoch=3)
    problem.assert_weights(module, problem.svrg(**SETTINGS).fit(3, 2))


@pytest.mark.parametrize('problem', [Problem(), Sequences()])
def test_newton_cg_refuses_samples_that_are_set_later(problem):
    module = problem.fit(problem.module(), 1, optimizer='newton_cg')
    module.full_grad_batches = 3
    for call in (module.update_full_grads, lambda data: module.fit(data, num_epoch=1)):
        with pytest.raises(ValueError, match='^full_grad_batches must be None with newton_cg'):
            call(problem.iterator())

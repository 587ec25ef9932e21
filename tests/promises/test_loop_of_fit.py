"""fit calls what Module.fit calls, in the same order, as callbacks and metrics see it."""

import gc
import logging
import re
import warnings
import weakref

import mxnet as mx
import numpy as np
import pytest

from problems import Problem
from svrg_optimization import SVRGBucketingModule, SVRGModule

# What callbacks may read in param.locals, beside what only has meaning within the loop.
NAMES = {'self', 'train_data', 'eval_data', 'eval_metric', 'epoch_end_callback',
         'batch_end_callback', 'kvstore', 'optimizer', 'optimizer_params', 'eval_end_callback',
         'eval_batch_end_callback', 'initializer', 'arg_params', 'aux_params', 'allow_missing',
         'force_rebind', 'force_init', 'begin_epoch', 'num_epoch', 'validation_metric', 'monitor',
         'sparse_row_id_fn', 'epoch', 'tic', 'nbatch', 'data_iter', 'end_of_batch', 'data_batch',
         'next_data_batch'}
SYMBOL = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3,
                                                    name='fc'), name='softmax')


class Data(mx.io.DataIter):
    """Batches of 4 rows; lists of two where asked for. `events` gets what is asked of them."""

    def __init__(self, events, batches=3, lists=False, name='train'):
        super().__init__(4)
        rng = np.random.RandomState(0)
        self.rows = rng.normal(size=(batches, 4, 2)), rng.randint(3, size=(batches, 4))
        self.events, self.batches, self.lists, self.name = events, batches, lists, name
        self.provide_data = [mx.io.DataDesc('data', (4, 2))]
        self.provide_label = [mx.io.DataDesc('softmax_label', (4,))]
        self.place = 0

    def reset(self):
        self.events.append((self.name, 'reset'))
        self.place = 0

    def next(self):
        if self.place == self.batches:
            self.events.append((self.name, 'end'))
            raise StopIteration
        self.events.append((self.name, 'next', self.place))
        data, label = (mx.nd.array(rows[self.place]) for rows in self.rows)
        self.place += 1
        batch = mx.io.DataBatch([data], [label], pad=0)
        if self.lists:
            return [mx.io.DataBatch([data[half]], [label[half]], pad=0)
                    for half in (slice(2), slice(2, 4))]
        return batch


def recording(base, events, *names):
    """Return a class that records calls of some methods, those that a user may override."""
    def recorded(name):
        def method(self, *args, **kwargs):
            events.append((name, len(args), sorted(kwargs)))
            return None if name == 'prepare' else getattr(super(cls, self), name)(*args, **kwargs)
        return method

    cls = type('Recorded', (base,), {name: recorded(name) for name in names})
    return cls


def recorded(base, lists=False, fails_at=None, **arguments):
    """Train and return all that somebody saw: calls, callbacks with their arguments, log lines."""
    events, loggers = [], logging.getLogger('loop of %s' % base.__name__)

    class Handler(logging.Handler):
        def emit(self, record):
            line = re.sub(r'=[\d.]+$', '=', record.getMessage())
            if 'Full ' not in line:
                events.append(('log', line))

    loggers.handlers, loggers.propagate = [Handler()], False
    loggers.setLevel(logging.INFO)
    train_data = Data(events, lists=lists)
    module = recording(base, events, 'forward_backward', 'update', 'update_metric', 'prepare',
                       'score', 'get_params', 'set_params')(
        SYMBOL, logger=loggers, context=[mx.cpu(0), mx.cpu(1)] if lists else mx.cpu(), **arguments)
    metric = recording(mx.metric.Accuracy, events, 'reset', 'get_global_name_value')
    monitor = recording(mx.mon.Monitor, events, 'tic', 'toc_print')(1, pattern='nothing')

    def saw(name):
        def callback(param):
            metric = param.eval_metric and param.eval_metric.get()
            seen = param.locals
            events.append((name, param.epoch, param.nbatch, metric))
            if name == 'batch_end':
                assert set(seen) >= NAMES
                assert seen['self'] is module and seen['train_data'] is train_data
                assert seen['eval_metric'] is param.eval_metric
                assert (seen['epoch'], seen['nbatch']) == (param.epoch, param.nbatch)
                events.append((seen['end_of_batch'], seen['next_data_batch'] is seen['data_batch'],
                               seen['begin_epoch'], seen['num_epoch'],
                               sorted(seen['arg_params'] or {}),
                               seen['eval_name_vals'] if seen['end_of_batch'] else None))
            if (name, param.epoch, param.nbatch) == fails_at:
                raise KeyError(name)
        return callback

    def epoch_end(epoch, symbol, arg_params, aux_params):
        events.append(('epoch_end', epoch, symbol is module.symbol, aux_params,
                       {name: value.asnumpy().tolist() for name, value in arg_params.items()}))
        if fails_at == ('epoch_end', epoch):
            raise KeyError('epoch_end')

    mx.random.seed(0)
    try:
        module.fit(train_data, Data(events, 2, lists, 'eval'), metric(),
                   epoch_end_callback=[epoch_end, epoch_end], batch_end_callback=saw('batch_end'),
                   eval_end_callback=saw('eval_end'), eval_batch_end_callback=saw('eval_batch_end'),
                   begin_epoch=2, num_epoch=4, monitor=None if lists else monitor,
                   validation_metric=metric(name='other'),
                   sparse_row_id_fn=lambda batch: None)
    except KeyError as error:
        events.append(('raised', str(error)))
    return events


@pytest.mark.parametrize('lists', [False, True])
@pytest.mark.parametrize('fails_at', [
    None, ('batch_end', 3, 1), ('epoch_end', 2), ('eval_end', 2, 2), ('eval_batch_end', 3, 0)])
def test_all_that_others_see_is_as_in_module(lists, fails_at):
    expected = recorded(mx.mod.Module, lists, fails_at)
    assert len(expected) > 25
    assert recorded(SVRGModule, lists, fails_at, update_freq=1, alpha=0) == expected


@pytest.mark.parametrize('lists', [False, True])
def test_snapshots_add_only_reads_of_the_data(lists):
    def seen(base, **arguments):
        """Leave out what a pass changes: reads of the data, weights, and what comes of them."""
        return [event[:3] if event[0] in ('batch_end', 'eval_end', 'eval_batch_end', 'epoch_end')
                else event for event in recorded(base, lists, **arguments)
                if event[0] != 'train' and event[-1] != [] and not isinstance(event[0], bool)]

    assert seen(SVRGModule, update_freq=1) == seen(mx.mod.Module)


@pytest.mark.parametrize('bucketing', [False, True])
def test_no_batch_is_kept_after_the_next(bucketing):
    alive, most = weakref.WeakSet(), []
    data = Data([], 20)
    data.default_bucket_key, read = 0, data.next

    def next_batch():
        batch = read()
        batch.bucket_key, batch.provide_data, batch.provide_label = (
            0, data.provide_data, data.provide_label)
        alive.add(batch)
        return batch

    data.next = next_batch
    module = SVRGModule(SYMBOL, update_freq=5)
    if bucketing:
        module = SVRGBucketingModule(lambda key: (SYMBOL, ['data'], ['softmax_label']), 0,
                                     update_freq=5)
    gc.collect()
    gc.disable()
    try:
        module.fit(data, num_epoch=2, batch_end_callback=lambda param: most.append(len(alive)))
    finally:
        gc.enable()
    assert len(most) == 40 and max(most[5:]) <= 4


@pytest.mark.parametrize('second, ignored', [
    ({'optimizer_params': {'learning_rate': 0.1, 'wd': 0.5}}, 'wd=0.5 is ignored'),
    ({'optimizer_params': {'learning_rate': 0.2, 'momentum': 0.9}},
     'learning_rate=0.2 and momentum=0.9 is ignored'),
    ({'optimizer': 'adam', 'optimizer_params': {'learning_rate': 0.1}}, "optimizer='adam' is ign"),
    ({'optimizer': mx.optimizer.SGD(learning_rate=0.1, rescale_grad=0.1)}, 'optimizer=<.*is ign'),
    ({'optimizer_params': {'learning_rate': 0.1, 'wd': 0.25}}, None), ({}, None)])
def test_what_a_second_fit_ignores_is_named(second, ignored):
    problem = Problem()
    module = problem.module()
    problem.fit(module, 1, optimizer_params={'learning_rate': 0.1, 'wd': 0.25})
    optimizer = module._optimizer
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        module.fit(problem.iterator(), eval_metric=[], num_epoch=1, **second)
    told = [str(each.message) for each in told]
    assert module._optimizer is optimizer
    assert len(told) == (ignored is not None) and all(re.match(ignored, each) for each in told)


def test_each_fit_calls_init_params_once_and_says_what_it_ignores():
    calls = []

    class Initialized(SVRGModule):
        def init_params(self, *args, **kwargs):
            if kwargs.get('initializer') is not None:  # not that of set_params
                calls.append(kwargs['arg_params'])
            super().init_params(*args, **kwargs)

    problem = Problem()
    module = Initialized(problem.symbol, label_names=('label',), update_freq=1)
    for given in (problem.arg_params(), None):
        module.fit(problem.iterator(), eval_metric=[], num_epoch=1, arg_params=given)
    assert [given is not None for given in calls] == [True, False]
    with pytest.warns(UserWarning, match='Parameters already initialized'):
        module.fit(problem.iterator(), eval_metric=[], num_epoch=1,
                   arg_params=problem.arg_params())

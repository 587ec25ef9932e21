"""Batches that a loop changes, which the full gradient has not seen, are told."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from blocks import Blocks
from svrg_optimization import SVRGModule
from svrg_optimization._warn_once import WarnOnce
from svrg_optimization.data.custom_loop import LoopOverIterator

CHANGES = {'smoothing': (lambda data, label: (data, label * 0.8 + 0.1), True),
           'scaling': (lambda data, label: (data / 255, label), True),
           'mixup': (lambda data, label: (data * 0.5 + data[::-1] * 0.5, label), True),
           'in place': (lambda data, label: (data, label.__imul__(0.8)), True),
           'nothing': (lambda data, label: (data, label), False),
           'a copy': (lambda data, label: (data.copy(), label.astype('float64')), False),
           'a reshape': (lambda data, label: (data.reshape((-1, 2, 2)), label), False),
           'half': (lambda data, label: (data[:5], label[:5]), False)}


@pytest.mark.parametrize('change, is_told', CHANGES.values(), ids=list(CHANGES))
@pytest.mark.parametrize('front_end, shuffle, ahead', [
    ('module', False, False), ('module', True, False), ('module', True, True),
    ('sampled', True, False),
    ('gluon', True, False), ('gluon', True, True), ('two devices', False, False),
    ('loader', True, False), ('iterator', False, False)])
def test_batches_that_are_changed_within_the_loop_are_told_once(front_end, shuffle, ahead, change,
                                                                is_told):
    problem = Blocks('linear_regression', rows=37)

    def two_ahead(batches):
        waiting = []
        for batch in batches:
            waiting.append(batch)
            if len(waiting) == 3:
                yield waiting.pop(0)

    order = two_ahead if ahead else iter
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        if front_end in ('module', 'sampled'):
            module = problem.bound(full_grad_batches=1 if front_end == 'sampled' else None)
            train_data = problem.iterator(
                shuffle=shuffle, last_batch_handle='discard')
            module.init_optimizer()
            for _ in range(3):
                module.update_full_grads(train_data)
                train_data.reset()
                for batch in order(train_data):
                    data, label = change(batch.data[0], batch.label[0])
                    module.forward_backward(mx.io.DataBatch(
                        [data.reshape((-1, 4))], [label]))
                    module.update()
        else:
            contexts = [mx.cpu(0), mx.cpu(1)] if 'two' in front_end else [mx.cpu()]
            trainer = problem.trainer(problem.net(contexts), settings={'learning_rate': 0.1})
            train_data = problem.iterator() if front_end == 'iterator' else (
                problem.loader(shuffle=shuffle))
            for batches in trainer.epochs(train_data, 3, 1):
                if front_end == 'iterator':
                    batches = ((*batch.data, *batch.label) for batch in train_data if not batch.pad)
                for data, label in order(train_data if front_end == 'loader' else batches):
                    if len(contexts) == 1:
                        data, label = change(data, label)
                    else:
                        data, label = zip(*map(change, data, label))
                    trainer.backward(data, label)
                    trainer.step(10)
    told = [str(each.message) for each in told if 'has changed a batch' in str(each.message)]
    assert len(told) == is_told


@pytest.mark.parametrize('change, is_told', CHANGES.values(), ids=list(CHANGES))
@pytest.mark.parametrize('method, padded', [('forward', True), ('forward_backward', False)])
def test_batches_that_a_subclass_changes_are_told_once(padded, method, change, is_told):
    class Changing(SVRGModule):
        pass

    def changed(self, batch, *args, **kwargs):
        data, label = change(batch.data[0], batch.label[0])
        batch = mx.io.DataBatch([data.reshape((-1, 4))], [label], batch.pad)
        getattr(super(Changing, self), method)(batch, *args, **kwargs)

    setattr(Changing, method, changed)
    problem = Blocks('linear_regression', rows=40)
    data = problem.iterator(25) if padded else mx.io.ResizeIter(problem.iterator(), 3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        problem.fit(Changing(problem.symbol, label_names=('label',)), 2, data,
                    optimizer_params={'learning_rate': 1e-3})
    assert sum('has changed a batch' in str(each.message) for each in told) == is_told


def test_a_loop_may_read_other_data_than_a_sampled_pass():
    problem = Blocks('linear_regression', rows=40)
    module, of_passes = problem.bound(full_grad_batches=2), problem.iterator(shuffle=True)
    module.init_optimizer()
    for batch in problem.iterator(shuffle=True):
        module.update_full_grads(of_passes)
        module.forward_backward(batch)
        module.update()


def test_a_new_iterator_is_watched_where_a_dead_one_was():
    loop = LoopOverIterator(WarnOnce())
    for _ in range(20):  # some of them have the address of the one before
        data = mx.io.NDArrayIter(np.ones((4, 1)), np.ones(4), 2)
        loop.end_pass(data, 1)
        assert loop.unchecked is data
        loop.unchecked = data = None

"""Batches that a loop changes, which the full gradient has not seen, are told."""

import mxnet as mx
import numpy as np
import pytest

from blocks import Blocks
from svrg_optimization import SVRGModule
from svrg_optimization.data.custom_loop import Watch

CHANGES = {'mixup': lambda data, label: (data * 0.5 + data[::-1] * 0.5, label),
           'in place': lambda data, label: (data, label.__imul__(0.8)),
           'none': lambda data, label: (data.copy().reshape((-1, 2, 2)), label.astype('float64')),
           'half': lambda data, label: (data[:5], label[:5])}


def two_ahead(batches):
    waiting = []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) == 3:
            yield waiting.pop(0)


def changed_batch(batch, change):
    data, label = change(batch.data[0], batch.label[0])
    return mx.io.DataBatch([data.reshape((-1, 4))], [label], batch.pad)


def module(problem, change, **settings):
    module, train_data = problem.bound(sgd={}, **settings), problem.iterator(
        shuffle=True, last_batch_handle='discard')
    for _ in range(3):
        module.update_full_grads(train_data)
        train_data.reset()
        for batch in two_ahead(train_data):
            module.forward_backward(changed_batch(batch, change))
            module.update()


def subclass(problem, change):
    class Changing(SVRGModule):
        def forward(self, data_batch, is_train=None):
            super().forward(changed_batch(data_batch, change), is_train)

    problem.fit(Changing(problem.symbol, label_names=('label',)), 2, problem.iterator(25))


def trainer(problem, change, read='epochs', devices=1):
    trainer = problem.trainer(problem.net([mx.cpu(i) for i in range(devices)]))
    train_data = problem.iterator() if read == 'iterator' else problem.loader(shuffle=True)
    for batches in trainer.epochs(train_data, 3, 1):
        for batch in two_ahead(batches if read == 'epochs' else train_data):
            pair = (*batch.data, *batch.label) if read == 'iterator' else batch
            trainer.backward(*(change(*pair) if devices == 1 else zip(*map(change, *pair))))
            trainer.step(10)


@pytest.mark.filterwarnings('always')
@pytest.mark.parametrize('train, given, change, is_told', [
    (module, {}, 'mixup', True), (module, {}, 'none', False), (module, {}, 'half', False),
    (module, {'full_grad_batches': 1}, 'in place', True),
    (subclass, {}, 'mixup', True), (trainer, {}, 'none', False),
    (trainer, {'devices': 2}, 'in place', True), (trainer, {'read': 'loader'}, 'none', False),
    (trainer, {'read': 'loader'}, 'mixup', True), (trainer, {'read': 'iterator'}, 'mixup', True)])
def test_batches_that_are_changed_are_told_once(recwarn, train, given, change, is_told):
    train(Blocks('linear_regression', rows=40), CHANGES[change], **given)
    assert sum('has changed a batch' in str(each.message) for each in recwarn) == is_told


def test_a_loop_may_read_other_data_than_a_sampled_pass():
    problem = Blocks('linear_regression', rows=40)
    module, of_passes = problem.bound(full_grad_batches=2), problem.iterator(shuffle=True)
    module.init_optimizer()
    for batch in problem.iterator(shuffle=True):
        module.update_full_grads(of_passes)
        module.forward_backward(batch)
        module.update()


def test_a_new_iterator_is_watched_where_a_dead_one_was():
    said = []
    watch = Watch(lambda *message: said.append(message), list, 'data', 'loss')
    for _ in range(20):  # some of them have the address of the one before
        data = mx.io.NDArrayIter(np.ones((4, 1)), np.ones(4), 2)
        watch.end_pass(data, 1)
        data.reset()
        next(data)
        watch.check_step([mx.nd.zeros((2, 1)), mx.nd.ones(2)])
        data = None
    assert len(said) == 20

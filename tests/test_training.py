"""Whole trainings against float64 SVRG."""

import logging

import mxnet as mx
import numpy as np
import pytest

import oracle
from problems import Problem
from svrg_optimization import SVRGModule
from trainings import CountedResets, HeadGradients, labels_of_epochs

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def fit(problem, num_epoch=8, update_freq=1, batch_size=10, module=None, **kwargs):
    if module is None:
        module = problem.module(update_freq)
    kwargs.setdefault('optimizer_params', {'learning_rate': 0.1})
    module.fit(problem.iterator(batch_size), eval_metric=[], arg_params=problem.arg_params(),
               num_epoch=num_epoch, **kwargs)
    return module


@pytest.mark.parametrize('kind', ['linear', 'softmax', 'perceptron'])
@pytest.mark.parametrize('update_freq', [1, 2, 3])
@pytest.mark.parametrize('rows', [40, 37, 31])
def test_momentum_and_weight_decay(kind, update_freq, rows):
    problem = Problem(kind, rows=rows)
    settings = {'learning_rate': 0.05, 'momentum': 0.9, 'wd': 0.01}
    module = fit(problem, 8, update_freq, optimizer_params=settings)
    problem.assert_weights(module, problem.svrg(**settings).fit(8, update_freq))


def test_lr_mult_of_the_symbol():
    problem = Problem(bias={'name': 'fc_bias', 'lr_mult': 3.0})
    module = fit(problem, optimizer_params={'learning_rate': 0.05})
    expected = problem.svrg(learning_rate=0.05, lr_mult={'fc_bias': 3.0}).fit(8, 1)
    problem.assert_weights(module, expected)


def test_wd_mult_of_the_symbol():
    problem = Problem(bias={'name': 'fc_bias', 'wd_mult': 1.0})
    settings = {'learning_rate': 0.05, 'wd': 0.1}
    module = fit(problem, optimizer_params=settings)
    expected = problem.svrg(decayed=('weight', 'bias'), **settings).fit(8, 1)
    problem.assert_weights(module, expected)


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_lr_scheduler(context):
    problem = Problem()
    scheduler = mx.lr_scheduler.FactorScheduler(step=6, factor=0.5, base_lr=0.2)
    module = fit(problem, module=problem.module(2, context=context),
                 optimizer_params={'learning_rate': 0.2, 'lr_scheduler': scheduler})
    expected = problem.svrg(learning_rate=lambda update: 0.2 * 0.5 ** ((update - 1) // 6)).fit(8, 2)
    problem.assert_weights(module, expected)


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_learning_rate_changed_in_a_callback(context):
    problem = Problem()
    module = problem.module(context=context)

    def halve(epoch, *_):
        module._optimizer.set_learning_rate(0.2 * 0.5 ** (epoch + 1))

    fit(problem, module=module, optimizer_params={'learning_rate': 0.2}, epoch_end_callback=halve)
    expected = problem.svrg(learning_rate=lambda update: 0.2 * 0.5 ** ((update - 1) // 4)).fit(8, 1)
    problem.assert_weights(module, expected)


@pytest.mark.parametrize('update_on_kvstore', ['1', '0'])
@pytest.mark.parametrize('kvstore', ['local', 'device', 'local object', 'device object'])
@pytest.mark.parametrize('devices, work_load_list', [
    (1, None), (2, None), (2, [1, 3]), (3, [2, 1, 1])])
def test_devices_and_kvstores(monkeypatch, update_on_kvstore, kvstore, devices, work_load_list):
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)
    problem = Problem('perceptron', rows=37)
    module = problem.module(2, context=[mx.cpu(i) for i in range(devices)],
                            work_load_list=work_load_list)
    kind, _, is_object = kvstore.partition(' ')
    settings = {'learning_rate': 0.05, 'momentum': 0.9, 'wd': 0.01}
    fit(problem, module=module, optimizer_params=settings,
        kvstore=mx.kv.create(kind) if is_object else kind)
    expected = problem.svrg(**settings)
    problem.assert_weights(module, expected.fit(8, 2))
    problem.assert_full_gradient(module, expected.full_gradient)


def test_no_kvstore():
    problem = Problem()
    problem.assert_weights(fit(problem, kvstore=None), problem.svrg().fit(8, 1))


@pytest.mark.parametrize('names', [
    {'weight': 'fullyconnected0_weight', 'bias': 'fullyconnected0_bias'},
    {'weight': 'w_full', 'bias': 'full'},
    {'weight': 'w', 'bias': 'w_full'},
    {'weight': 'w_full', 'bias': 'w'},
    {'weight': 'w_full_full', 'bias': 'w'},
])
@pytest.mark.parametrize('kvstore', ['local', 'object'])
def test_full_in_parameter_names(names, kvstore):
    problem = Problem(**{role: {'name': name} for role, name in names.items()})
    module = fit(problem, kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore)
    problem.assert_weights(module, problem.svrg().fit(8, 1))


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_fixed_parameters(context):
    # A fixed weight would not do: MXNet then gets the gradient of its layer's bias wrong.
    problem = Problem('perceptron')
    module = fit(problem, module=problem.module(fixed_param_names=['hidden_bias'], context=context))
    problem.assert_weights(module, problem.svrg(fixed=('hidden_bias',)).fit(8, 1))
    np.testing.assert_array_equal(module.get_params()[0]['hidden_bias'].asnumpy(),
                                  problem.weights['hidden_bias'].astype(np.float32))
    assert set(module._param_dict[0]) == {'hidden_weight', 'fc_weight', 'fc_bias'}


def test_update_freq_may_change_during_training():
    problem = Problem()
    module = problem.module(2)

    def snapshot_every_epoch_from_3(epoch, *_):
        if epoch == 3:
            module.update_freq = 1

    fit(problem, 6, module=module, epoch_end_callback=snapshot_every_epoch_from_3)
    expected = problem.svrg()
    expected.fit(4, 2)
    problem.assert_weights(module, expected.fit(6, 1, begin_epoch=4))


def test_fit_that_begins_between_snapshots():
    problem = Problem()
    module = fit(problem, 7, update_freq=4, begin_epoch=3)
    problem.assert_weights(module, problem.svrg().fit(7, 4, begin_epoch=3))


def test_second_fit_goes_on_with_the_snapshot():
    problem = Problem()
    module = fit(problem, 3, update_freq=4)
    fit(problem, 6, module=module, begin_epoch=3)
    problem.assert_weights(module, problem.svrg().fit(6, 4))


def test_fit_with_force_init_takes_a_new_snapshot():
    problem, other = Problem(), Problem(seed=1)
    module = problem.module(4)
    module.fit(problem.iterator(), eval_metric=[], num_epoch=3, arg_params=other.arg_params())
    fit(problem, 7, module=module, begin_epoch=5, force_init=True)
    svrg = problem.svrg(learning_rate=0.01)  # of the optimizer that is there already
    problem.assert_weights(module, svrg.fit(7, 4, begin_epoch=5))


def test_gradient_compression_spares_the_full_gradient():
    problem = Problem()
    module = problem.bound(context=TWO_DEVICES,
                           compression_params={'type': '2bit', 'threshold': 0.5})
    module.init_optimizer(kvstore='device', optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg()
    svrg.take_snapshot()
    module.update_full_grads(problem.iterator())
    problem.assert_full_gradient(module, svrg.full_gradient)
    for shares in zip(*(share.values() for share in module._param_dict)):
        np.testing.assert_array_equal(*(share.asnumpy() for share in shares))


def test_optimizer_instance():
    problem = Problem()
    sgd = mx.optimizer.SGD(learning_rate=0.05, momentum=0.9, rescale_grad=1 / 10)
    module = fit(problem, optimizer=sgd)
    assert module._optimizer.default_opt is sgd
    assert sgd.idx2name == {0: 'fc_weight', 1: 'fc_bias'}
    problem.assert_weights(module, problem.svrg(learning_rate=0.05, momentum=0.9).fit(8, 1))


@pytest.mark.parametrize('optimizer', ['adam', 'rmsprop', 'adagrad', 'nag', 'adadelta', 'ftrl',
                                       'lamb', 'signum', 'nadam', 'adamax', 'ftml'])
@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_any_registered_optimizer(optimizer, context):
    """Each step is MXNet's own optimizer applied to the SVRG gradient."""
    problem = Problem('softmax')
    module = problem.bound(context=context)
    module.init_optimizer(optimizer=optimizer, optimizer_params={'learning_rate': 0.01, 'wd': 0.01})
    train_data = problem.iterator()
    reference = mx.optimizer.create(optimizer, learning_rate=0.01, wd=0.01, rescale_grad=0.1,
                                    param_idx2name={0: 'fc_weight', 1: 'fc_bias'})
    updater = mx.optimizer.get_updater(reference)
    svrg = problem.svrg()
    weights = [mx.nd.array(problem.weights[name]) for name in ('fc_weight', 'fc_bias')]
    module.update_full_grads(train_data)
    svrg.take_snapshot()
    train_data.reset()
    for batch in train_data:
        module.forward_backward(batch)
        module.update()
        current = {name: weight.asnumpy().astype(float)
                   for name, weight in zip(('fc_weight', 'fc_bias'), weights)}
        features, targets = batch.data[0].asnumpy(), batch.label[0].asnumpy()
        now = svrg.network(current, features, targets)
        then = svrg.network(svrg.snapshot, features, targets)
        for i, name in enumerate(current):
            updater(i, mx.nd.array(now[name] - then[name] + svrg.full_gradient[name]), weights[i])
        problem.assert_weights(module, {name: weight.asnumpy() for name, weight
                                        in zip(('fc_weight', 'fc_bias'), weights)})


def test_intermediate_level_loop():
    problem = Problem('softmax', rows=37)
    module = problem.bound(update_freq=2)
    module.init_optimizer(optimizer_params={'learning_rate': 0.2, 'momentum': 0.5})
    train_data = problem.iterator()
    for epoch in range(6):
        if epoch % module.update_freq == 0:
            module.update_full_grads(train_data)
        train_data.reset()
        for batch in train_data:
            module.forward(batch)
            module.backward()
            module.update()
    problem.assert_weights(module, problem.svrg(learning_rate=0.2, momentum=0.5).fit(6, 2))


def test_converges_to_the_solution_of_the_unpadded_data():
    problem = Problem(rows=33)
    module = fit(problem, 60, batch_size=8, optimizer_params={'learning_rate': 0.15})
    design = np.column_stack([problem.features, np.ones(33)])
    solution = np.linalg.lstsq(design, problem.targets, rcond=None)[0]
    problem.assert_weights(module, {'fc_weight': solution[None, :4], 'fc_bias': solution[4:]}, 1e-6)


def test_log_lines_and_callbacks(caplog):
    problem = Problem(rows=37)
    passes, steps, epochs = [], [], []
    module = problem.module(2, full_grad_callback=[passes.append, mx.callback.Speedometer(10, 2),
                                                   mx.callback.ProgressBar(4)])
    with caplog.at_level(logging.INFO):
        module.fit(problem.iterator(), problem.iterator(), eval_metric='mse', num_epoch=3,
                   batch_end_callback=steps.append,
                   epoch_end_callback=lambda epoch, *_: epochs.append(epoch))
    assert [(param.epoch, param.nbatch) for param in passes] == [
        (epoch, nbatch) for epoch in (0, 2) for nbatch in range(4)]
    assert all(param.locals['self'] is module for param in passes)
    assert [(param.epoch, param.nbatch) for param in steps] == [
        (epoch, nbatch) for epoch in range(3) for nbatch in range(4)]
    assert epochs == [0, 1, 2]
    lines = [record.getMessage() for record in caplog.records]
    heads = [line.split('=')[0] for line in lines if line.startswith('Epoch')]
    assert heads == [
        'Epoch[0] Full gradient time', 'Epoch[0] Train-mse', 'Epoch[0] Time cost',
        'Epoch[0] Validation-mse', 'Epoch[1] Train-mse', 'Epoch[1] Time cost',
        'Epoch[1] Validation-mse', 'Epoch[2] Full gradient time', 'Epoch[2] Train-mse',
        'Epoch[2] Time cost', 'Epoch[2] Validation-mse']
    seconds = {head: float(line.split('=')[1]) for head, line in zip(heads, (
        line for line in lines if line.startswith('Epoch')))}
    assert 0 <= seconds['Epoch[0] Full gradient time'] <= seconds['Epoch[0] Time cost']
    assert sum('samples/sec' in line for line in lines) == 2
    assert sum('100%' in line or '75%' in line for line in lines) == 2


def test_logs_through_the_modules_logger(caplog):
    logger = logging.getLogger('training')
    problem = Problem()
    with caplog.at_level(logging.INFO):
        fit(problem, 1, module=problem.module(logger=logger))
    assert {record.name for record in caplog.records} == {'training'}


def test_fit_of_a_base_class():
    """Its arguments are passed on, be they by keyword alone."""
    class Tagged(mx.mod.Module):
        def fit(self, train_data, *, begin_epoch=0, tag=None, **kwargs):
            self.tag = tag
            super().fit(train_data, begin_epoch=begin_epoch, **kwargs)

    class TaggedSVRG(SVRGModule, Tagged):
        pass

    problem = Problem()
    module = TaggedSVRG(problem.symbol, label_names=('label',), update_freq=2)
    fit(problem, 5, module=module, begin_epoch=1, tag='one')
    assert module.tag == 'one'
    problem.assert_weights(module, problem.svrg().fit(5, 2, begin_epoch=1))


def test_monitor_sees_the_training_alone():
    problem = Problem()
    monitor = mx.monitor.Monitor(1, pattern='.*output')
    seen = []
    monitor.toc_print = lambda: seen.append(len(monitor.toc()))
    fit(problem, 2, monitor=monitor)
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    expected = []
    monitor = mx.monitor.Monitor(1, pattern='.*output')
    monitor.toc_print = lambda: expected.append(len(monitor.toc()))
    plain.fit(problem.iterator(), eval_metric=[], num_epoch=2, monitor=monitor)
    assert seen == expected and sum(seen) > 0


@pytest.mark.parametrize('context', [mx.cpu(), [mx.cpu(0), mx.cpu(1)]])
def test_batches_smaller_than_those_bound(context):
    """The full gradient is in the units of each batch, and the rate's scale that of the bound."""
    problem = Problem(rows=40)
    module = problem.bound(batch_size=20, update_freq=2, context=context)
    module.init_optimizer(optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg(batch_size=20)
    for epoch in range(6):
        if epoch % 2 == 0:
            svrg.take_snapshot()
        for rows in oracle.batches_of(40, 4):
            svrg.step(rows)
    module.fit(problem.iterator(4), eval_metric='mse', num_epoch=6)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)


@pytest.mark.parametrize('stored', [False, True])
def test_second_fit_on_smaller_batches(stored):
    problem = Problem(rows=60)
    module = problem.module(2, store_snapshot_grads=stored)
    module.fit(problem.iterator(20), eval_metric='mse', num_epoch=2,
               optimizer_params={'learning_rate': 0.2})
    module.fit(problem.iterator(4), eval_metric='mse', begin_epoch=2, num_epoch=150)
    design = np.column_stack([problem.features, np.ones(60)])
    optimum = np.linalg.lstsq(design, problem.targets, rcond=None)[0]
    problem.assert_weights(module, {'fc_weight': optimum[None, :-1], 'fc_bias': optimum[-1:]})


def test_fit_of_a_symbol_without_a_loss():
    """It trains as plain Module, and that is said once."""
    problem = Problem(rows=40)
    output = problem.symbol.get_internals()['fc_output']
    symbol = mx.sym.broadcast_sub(output, mx.sym.Variable('label'))
    train_data = mx.io.NDArrayIter(problem.features, problem.targets[:, None], 10,
                                   label_name='label')
    module = HeadGradients(symbol, label_names=('label',), update_freq=1)
    with pytest.warns(UserWarning, match='no loss, .*: fit trains as plain Module') as caught:
        module.fit(train_data, eval_metric=mx.metric.Loss(), num_epoch=3,
                   arg_params=problem.arg_params(), optimizer_params={'learning_rate': 0.1})
    assert sum('plain Module' in str(warning.message) for warning in caught) == 1
    sgd = problem.svrg()
    for rows in 3 * oracle.batches_of(40, 10):
        sgd.step(rows)
    problem.assert_weights(module, sgd.weights)


class Once:
    """A stream that can be read once."""

    def __init__(self, problem):
        self._data = problem.iterator()
        self.provide_data, self.provide_label = self._data.provide_data, self._data.provide_label
        self.batch_size = 10

    def __iter__(self):
        return self._data

    def reset(self):
        """Do nothing."""


def test_stream_that_can_be_read_once():
    problem = Problem(rows=40)
    with pytest.raises(ValueError, match=r'train_data must yield at least one batch .*Once.* in '
                                         r'epoch 0\. A snapshot reads the data before'):
        problem.module().fit(Once(problem), eval_metric='mse', num_epoch=1)
    module = problem.module(store_snapshot_grads=True)
    module.fit(Once(problem), eval_metric='mse', num_epoch=1, arg_params=problem.arg_params())
    assert module._snapshot.num_update == 4


def test_iterator_whose_second_pass_is_empty():
    class Twice(mx.io.NDArrayIter):
        passes = 0

        def __iter__(self):
            self.passes += 1
            return super().__iter__() if self.passes < 2 else iter(())

    problem = Problem(rows=40)
    with pytest.raises(ValueError, match='yielded none in epoch 0'):
        problem.module().fit(Twice(problem.features, problem.targets, 10, label_name='label'),
                             eval_metric='mse', num_epoch=1)


def test_data_that_callbacks_see():
    """As in Module they are a DataIter, and the one that was given."""
    problem, seen = Problem(rows=40), []
    train_data = problem.iterator()
    problem.module().fit(
        train_data, eval_metric='mse', num_epoch=1,
        batch_end_callback=lambda param: seen.append(param.locals['train_data']))
    assert all(isinstance(data, mx.io.DataIter) and isinstance(data, mx.io.NDArrayIter)
               and data.num_data == 40 for data in seen)


@pytest.mark.parametrize('alpha', [1.0, 0.5, 0.0, lambda _: 0.0])
@pytest.mark.parametrize('update_freq', [1, 2])
@pytest.mark.parametrize('shuffle', [False, True])
@pytest.mark.parametrize('handle', ['pad', 'discard', 'roll_over'])
def test_batches_of_each_epoch_are_those_of_module(handle, shuffle, update_freq, alpha):
    problem = Problem(rows=37)
    found = []
    for module in (mx.mod.Module(problem.symbol, label_names=('label',)),
                   problem.module(update_freq, alpha=alpha)):
        np.random.seed(3)
        train_data = problem.iterator(shuffle=shuffle, last_batch_handle=handle)
        found.append(labels_of_epochs(module, train_data, problem))
    assert [len(epoch) for epoch in found[1]] == [len(epoch) for epoch in found[0]]
    for expected, actual in zip(*found):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize('handle', ['pad', 'roll_over'])
def test_snapshot_is_over_the_rows_in_the_order_of_the_epoch(handle):
    problem = Problem(rows=37)
    passes = []
    module = problem.module(full_grad_callback=lambda param: passes.append(
        (param.epoch, param.locals['data_batch'].label[0].asnumpy())))
    train_data = problem.iterator(shuffle=True, last_batch_handle=handle)
    epochs = labels_of_epochs(module, train_data, problem)
    for number, labels in enumerate(epochs):
        np.testing.assert_array_equal([seen for epoch, seen in passes if epoch == number], labels)


@pytest.mark.parametrize('store, update_freq, expected', [
    (False, 1, 5), (False, 2, 5), (True, 1, 5), (True, 2, 3), (True, 5, 1)])
def test_resets_of_an_ndarray_iter(store, update_freq, expected, monkeypatch):
    """As many as in Module; with stored gradients one for each snapshot."""
    problem, resets = Problem(rows=37), []
    train_data = problem.iterator()
    reset = mx.io.NDArrayIter.reset
    monkeypatch.setattr(mx.io.NDArrayIter, 'reset', lambda self: (resets.append(self), reset(self)))
    labels_of_epochs(problem.module(update_freq, store_snapshot_grads=store), train_data, problem)
    assert len(resets) == expected


@pytest.mark.parametrize('update_freq, expected', [(1, 1 + 5 + 5), (2, 1 + 3 + 5)])
def test_resets_of_another_iterator(update_freq, expected):
    """One before the first pass, one after each pass, and those of Module."""
    problem = Problem(rows=37)
    train_data = CountedResets(problem.features, problem.targets, 10, label_name='label')
    train_data.resets = 0
    labels_of_epochs(problem.module(update_freq), train_data, problem)
    assert train_data.resets == expected


def test_a_partly_read_iterator_is_reset_before_the_first_snapshot():
    problem, rows = Problem(rows=40), []
    train_data = problem.iterator()
    next(train_data)
    module = problem.module(full_grad_callback=lambda param: rows.append(param.nbatch))
    epochs = labels_of_epochs(module, train_data, problem, num_epoch=1)
    assert rows == [0, 1, 2, 3] and len(epochs[0]) == 4


def test_a_pass_that_a_callback_asks_for_is_over_all_rows():
    """Within fit too: only the iterator that fit has set to its beginning is not reset."""
    problem, seen = Problem(rows=40), []
    module, other = problem.module(), problem.iterator()

    def callback(_):
        other.reset()
        next(other)
        seen.clear()
        module.update_full_grads(other, lambda param: seen.append(param.nbatch))

    module.fit(problem.iterator(), eval_metric=[], num_epoch=2, batch_end_callback=callback)
    assert seen == [0, 1, 2, 3]

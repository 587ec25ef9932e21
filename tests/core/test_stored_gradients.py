"""store_snapshot_grads: SVRG on held batches, with one forward and backward pass a step."""

import mxnet as mx
import numpy as np
import pytest

from held_batches import (
    SETTINGS,
    ReusingIter,
    cost_of_batch,
    cost_of_gradient,
    expect,
    rows_of,
    train,
)
from pairs import in_pairs
from problems import Problem, SparseProblem
from svrg_optimization import SVRGModule
from svrg_optimization.module.executors import Executors

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@in_pairs({
    'rows': [40, 37],
    'kind': ['linear', 'perceptron'],
    'context, kvstore': [
        (mx.cpu(), None), (mx.cpu(), 'object'), (TWO_DEVICES, 'local')],
    'shuffle': [False, True]})
def test_training_is_svrg_without_gradients_at_the_snapshot(runs, rows, kind, context, kvstore,
                                                            shuffle):
    np.random.seed(0)
    problem = Problem(kind, rows=rows)
    module = problem.module(2, context=context, store_snapshot_grads=True)
    steps = train(problem, module, 5, problem.iterator(shuffle=shuffle),
                  kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore)
    problem.assert_weights(module, expect(problem, steps, 2).weights)
    assert not runs
    for batches in steps.values():
        assert sorted(np.concatenate(batches)) == list(range(rows))
    orders = [[rows[0] for rows in batches] for batches in steps.values()]
    assert len({tuple(order) for order in orders}) > 2
    sets = [{tuple(sorted(rows)) for rows in batches} for batches in steps.values()]
    assert sets[0] == sets[1] and sets[2] == sets[3]
    if shuffle:
        assert sets[1] != sets[2]


@pytest.mark.parametrize('make', [
    lambda problem: ReusingIter(problem.features, problem.targets, 10, label_name='label'),
    lambda problem: mx.io.PrefetchingIter(problem.iterator())])
def test_iterators_that_may_reuse_their_arrays_are_copied_from(runs, make):
    problem = Problem(rows=40)
    module = problem.module(1, store_snapshot_grads=10 ** 9)
    steps = train(problem, module, 3, make(problem))
    problem.assert_weights(module, expect(problem, steps, 1).weights)
    assert not runs


@pytest.mark.parametrize('stored', [0, 1, 3])
def test_gradients_that_do_not_fit_are_computed_again(runs, stored):
    problem = Problem('perceptron', rows=40)
    budget = 4 * cost_of_batch(problem) + stored * cost_of_gradient(problem)
    module = problem.module(2, store_snapshot_grads=budget)
    message = ('store_snapshot_grads: %d bytes have room for all 4 batches and the gradients of '
               '%d: the others' % (budget, stored))
    with pytest.warns(UserWarning, match=message) as caught:
        steps = train(problem, module, 5, problem.iterator())
    assert sum('store_snapshot_grads' in str(warning.message) for warning in caught) == 1
    problem.assert_weights(module, expect(problem, steps, 2).weights)
    assert len(runs) == 5 * (4 - stored)


def test_data_that_do_not_fit_are_read_from_the_iterator(runs):
    problem = Problem(rows=40)
    module = problem.module(2, store_snapshot_grads=3 * cost_of_batch(problem) + 20)
    with pytest.warns(UserWarning, match='first 4 of 4 batches are more than 620 bytes') as caught:
        steps = train(problem, module, 4, problem.iterator())
    assert sum('store_snapshot_grads' in str(warning.message) for warning in caught) == 1
    assert not module._svrg.store.batches and len(runs) == 16
    assert all((np.concatenate(batches) == np.arange(40)).all() for batches in steps.values())
    problem.assert_weights(module, problem.svrg(**SETTINGS).fit(4, 2))


def test_a_loop_of_ones_own_trains_on_held_batches(runs):
    problem = Problem(rows=37)
    module = problem.bound(store_snapshot_grads=True, sgd=SETTINGS)
    train_data, steps = problem.iterator(), {}
    for epoch in range(4):
        if epoch % 2 == 0:
            module.update_full_grads(train_data)
        steps[epoch] = []
        for batch in module.training_batches(train_data):
            module.forward_backward(batch)
            module.update()
            steps[epoch].append(rows_of(problem, batch))
    problem.assert_weights(module, expect(problem, steps, 2).weights)
    assert not runs
    plain = problem.bound(sgd={})
    plain.update_full_grads(train_data)
    assert len(list(plain.training_batches(train_data))) == 4


def test_batch_of_another_snapshot_is_computed_anew(runs):
    problem = Problem(rows=40)
    module = problem.bound(store_snapshot_grads=True, sgd=SETTINGS)
    train_data = problem.iterator()
    module.update_full_grads(train_data)
    old = module.training_batches(train_data)
    svrg = problem.svrg(**SETTINGS)
    svrg.take_snapshot()
    for batch in old:
        module.forward_backward(batch)
        module.update()
        svrg.step(rows_of(problem, batch))
    module.update_full_grads(problem.iterator())
    svrg.take_snapshot()
    assert not runs
    for batch in old:
        module.forward_backward(batch)
        module.update()
        svrg.step(rows_of(problem, batch))
    assert len(runs) == 4
    problem.assert_weights(module, svrg.weights)


def test_gradients_may_be_added_up(runs):
    problem = Problem(rows=40)
    module = problem.bound(grad_req='add', store_snapshot_grads=True, sgd={'learning_rate': 0.05})
    train_data = problem.iterator()
    module.update_full_grads(train_data)
    svrg = problem.svrg(learning_rate=0.05)
    svrg.take_snapshot()
    batches = module.training_batches(train_data)
    for pair in (batches[:2], batches[2:]):
        for array in [array for arrays in module._exec_group.grad_arrays for array in arrays]:
            array[:] = 0
        for batch in pair:
            module.forward_backward(batch)
        module.update()
        total = {}
        for batch in pair:
            rows = rows_of(problem, batch)
            now, then = (svrg.gradients(weights, rows) for weights in (svrg.weights, svrg.snapshot))
            for name in now:
                total[name] = (total.get(name, 0) + now[name] - then[name]
                               + svrg.full_gradient[name])
        svrg.optimizer.step(svrg.weights, total)
    problem.assert_weights(module, svrg.weights)
    assert not runs


def test_sparse_data_and_gradients_are_held(runs):
    problem = SparseProblem(rows=37)
    module = problem.module(1, store_snapshot_grads=True)
    params = {'learning_rate': 0.1}
    steps = []
    module.fit(problem.iterator(), eval_metric='mse', num_epoch=3, optimizer_params=params,
               arg_params=problem.arg_params(), batch_end_callback=lambda param: steps.append(
                   (param.epoch, rows_of(problem, param.locals['data_batch']))))
    svrg = problem.svrg(**params)
    for number, (_, rows) in enumerate(steps):
        if number % 4 == 0:
            svrg.take_snapshot()
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights)
    assert not runs


def test_held_batches_are_made_again_between_snapshots(tmp_path, runs):
    """The held batches are made again, at the snapshot of the checkpoint."""
    problem = Problem('perceptron', rows=37)
    module = problem.module(3, store_snapshot_grads=True)
    steps = train(problem, module, 2, problem.iterator())
    svrg = expect(problem, steps, 3)
    module.save_checkpoint(str(tmp_path / 'model'), 2, save_optimizer_states=True)
    resumed = SVRGModule.load(str(tmp_path / 'model'), 2, load_optimizer_states=True,
                              label_names=('label',), store_snapshot_grads=True)
    steps = train(problem, resumed, 5, problem.iterator(), begin=2)
    problem.assert_weights(resumed, expect(problem, steps, 3, svrg).weights)
    assert not runs


def test_data_are_at_their_beginning_after_a_pass_without_room(tmp_path):
    """The pass that finds no room must leave the data at their beginning."""
    problem = Problem(rows=40)
    module = problem.module(3)
    train(problem, module, 1, problem.iterator())
    module.save_checkpoint(str(tmp_path / 'model'), 1)
    resumed = SVRGModule.load(str(tmp_path / 'model'), 1, label_names=('label',),
                              store_snapshot_grads=100)
    seen = []
    with pytest.warns(UserWarning, match='none is stored until the next snapshot'):
        resumed.fit(problem.iterator(), eval_metric=[], begin_epoch=1, num_epoch=3,
                    batch_end_callback=lambda param: seen.append(
                        param.locals['data_batch'].label[0].asnumpy()))
    np.testing.assert_allclose(np.concatenate(seen), np.tile(problem.targets, 2), rtol=1e-6)


def test_fit_that_is_called_epoch_by_epoch_holds_once(monkeypatch, runs):
    problem = Problem(rows=40)
    module = problem.module(3, store_snapshot_grads=True)
    train_data, steps, passes = problem.iterator(), {}, []
    compute = Executors.gradients
    monkeypatch.setattr(Executors, 'gradients',
                        lambda *args: passes.append(None) or compute(*args))
    for epoch in range(5):
        steps.update(train(problem, module, epoch + 1, train_data, begin=epoch))
    problem.assert_weights(module, expect(problem, steps, 3).weights)
    assert len(passes) == 2 * 4 and not runs
    train(problem, module, 6, problem.iterator(), begin=5)
    assert len(passes) == 3 * 4  # other data


@pytest.mark.parametrize('shuffle', [False, True])
def test_stored_batches_share_no_memory_with_the_rows(shuffle):
    """Neither the user's writes to the rows nor those to the batches reach the others."""
    problem = Problem(rows=37)
    module, train_data = problem.bound(store_snapshot_grads=True), problem.iterator(shuffle=shuffle)
    module.update_full_grads(train_data)
    arrays = [train_data.data[0][1], train_data.label[0][1]]
    for array in arrays:
        array[:] = 7
    batches = module.training_batches(train_data)
    assert sorted(np.concatenate([rows_of(problem, batch) for batch in batches])) == list(range(37))
    for batch in batches:
        for array in batch.data + batch.label:
            mx.nd.clip(array, 100, 101, out=array)
    assert all((array.asnumpy() == 7).all() for array in arrays)


@pytest.mark.parametrize('seen', [False, True])
def test_fit_copies_only_the_batches_that_others_see(monkeypatch, seen):
    problem, copied = Problem(rows=40), []
    getdata = mx.io.NDArrayIter.getdata
    monkeypatch.setattr(mx.io.NDArrayIter, 'getdata',
                        lambda iterator: copied.append(0) or getdata(iterator))

    def fit(**kwargs):
        module = problem.module(2, store_snapshot_grads=stored)
        module.fit(problem.iterator(), eval_metric='mse', num_epoch=2,
                   arg_params=problem.arg_params(), **kwargs)
        return {name: value.asnumpy() for name, value in module.get_params()[0].items()}

    for stored in (False, True):
        np.random.seed(0)
        weights = fit(batch_end_callback=(lambda param: None) if seen else None)
        # Each epoch reads the batches, or both take the stored ones.
        assert len(copied) == (4 if stored else 8 * seen)
        np.random.seed(0)
        again = fit(batch_end_callback=lambda param: None)
        assert all((weights[name] == again[name]).all() for name in weights)
        copied.clear()


@pytest.mark.parametrize('rows', [170, 37])
def test_a_loss_may_be_a_mean(runs, rows):
    problem = Problem('softmax', rows=rows)
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'), normalization='batch')
    module = problem.module(2, store_snapshot_grads=True)
    steps = []
    module.fit(problem.iterator(), eval_metric=[], num_epoch=3, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.1, 'rescale_grad': 1.0},
               batch_end_callback=lambda param: steps.append(
                   (param.epoch, param.nbatch, rows_of(problem, param.locals['data_batch']))))
    svrg = problem.svrg()
    for epoch, number, batch in steps:
        if number == 0 and epoch % 2 == 0:
            svrg.take_snapshot()
        svrg.optimizer.rescale = 1 / 10
        # The mean over a batch that was cut is one over fewer rows.
        assert len(batch) == 10 or len(batch) == rows % 10
        gradients, at_snapshot = ({name: value * 10 / len(batch) for name, value
                                   in svrg.gradients(weights, batch).items()}
                                  for weights in (svrg.weights, svrg.snapshot))
        svrg.optimizer.step(svrg.weights, {
            name: gradients[name] - at_snapshot[name] + svrg.full_gradient[name]
            for name in gradients})
    problem.assert_weights(module, svrg.weights)
    assert not runs


def test_random_layers_are_an_error():
    data = mx.sym.Variable('data')
    noisy = mx.sym.random.uniform(shape=(10, 4), name='noise') * data
    symbol = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(noisy, num_hidden=1),
                                           mx.sym.Variable('label'))
    with pytest.raises(ValueError, match='store_snapshot_grads must be False for a network with '
                                         'random layers: noise'):
        SVRGModule(symbol, label_names=('label',), update_freq=1, store_snapshot_grads=True)


class Bare:
    """A batch with data and labels, and nothing else."""

    def __init__(self, batch):
        self.data, self.label = batch.data, batch.label


class BareIter(mx.io.NDArrayIter):
    def next(self):
        return Bare(super().next())


def test_batches_may_say_nothing_of_padding(runs):
    problem = Problem(rows=40)
    module = problem.module(1, store_snapshot_grads=True)
    train_data = BareIter(problem.features, problem.targets, 10, label_name='label')
    steps = train(problem, module, 3, train_data)
    problem.assert_weights(module, expect(problem, steps, 1).weights)
    assert not runs


def test_weight_decay_keeps_the_optimum_beside_a_short_last_batch():
    """At the optimum of the regularized loss no step moves the weights, the last one neither."""
    problem = Problem(rows=33)
    design = np.column_stack([problem.features, np.ones(33)])
    decay = np.diag([0.1] * 4 + [0])
    optimum = np.linalg.solve(design.T @ design / 33 + decay, design.T @ problem.targets / 33)
    problem.weights = {'fc_weight': optimum[None, :-1], 'fc_bias': optimum[-1:]}
    module = problem.module(1, store_snapshot_grads=True)
    problem.fit(module, 10, optimizer_params={'learning_rate': 0.1, 'wd': 0.1})
    problem.assert_weights(module, problem.weights)


def test_nothing_is_kept_of_a_pass_that_is_not_finite():
    problem = Problem(rows=40)
    module = problem.module(nonfinite='raise', store_snapshot_grads=True)
    good = problem.iterator()
    module.fit(good, eval_metric=[], num_epoch=1)
    bad = mx.io.NDArrayIter(problem.features * np.inf, problem.targets, 10, label_name='label')
    with pytest.raises(FloatingPointError):
        module.update_full_grads(bad)
    assert not module._svrg.store.batches and module.training_batches(good) is good


def test_stored_batches_are_of_the_data_that_are_asked_for():
    problem = Problem(rows=40)
    module = problem.bound(store_snapshot_grads=True)
    train_data, others = problem.iterator(), problem.iterator(batch_size=20)
    module.update_full_grads(train_data)
    with pytest.warns(UserWarning, match='stored batches are of another iterator'):
        assert module.training_batches(others) is others
    assert all(len(batch.data[0]) == 20 for batch in others)
    assert {len(batch.data[0]) for batch in module.training_batches(train_data)} == {10}


def test_fit_trains_on_its_own_data_after_a_snapshot_over_others():
    """Someone takes a snapshot over other rows in a callback."""
    problem, others = Problem(rows=40), Problem(rows=40, seed=1)
    module = problem.module(update_freq=5, store_snapshot_grads=True)
    seen = []

    def of_others(epoch, *_):
        if epoch == 1:
            module.update_full_grads(others.iterator())

    def note(param):
        batch = param.locals['data_batch']
        seen.append((param.epoch, np.sort(batch.label[0].asnumpy())))

    with pytest.warns(UserWarning, match='stored batches are of another iterator'):
        module.fit(problem.iterator(), eval_metric='mse', num_epoch=4, epoch_end_callback=of_others,
                   batch_end_callback=note, optimizer_params={'learning_rate': 0.01})
    assert module._snapshot.num_taken == 2 and module._svrg.store.lacks(problem)
    for epoch in range(4):
        labels = [labels for of_epoch, labels in seen if of_epoch == epoch]
        np.testing.assert_allclose(np.sort(np.concatenate(labels)), np.sort(problem.targets),
                                   rtol=1e-6)


def test_an_override_may_pass_another_iterator_on(runs):
    class Own(SVRGModule):
        def update_full_grads(self, train_data):
            train_data.reset()
            super().update_full_grads(mx.io.ResizeIter(train_data, 4, reset_internal=False))

    problem = Problem(rows=40)
    module = Own(problem.symbol, label_names=('label',), update_freq=2, store_snapshot_grads=True)
    steps = train(problem, module, 4, problem.iterator())
    problem.assert_weights(module, expect(problem, steps, 2).weights)
    assert not runs

"""store_snapshot_grads: SVRG on held batches, with one forward and backward pass a step."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from problems import Problem, SparseProblem
from svrg_optimization import SVRGModule
from svrg_optimization.core.side_by_side import SideBySide
from svrg_optimization.core.snapshot_module import SnapshotModule
from svrg_optimization.core.stored_batches import StoredBatches, StoredGradients
from svrg_optimization.mxnet_bridge.storage import bytes_of

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]
SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}


class ReusingIter(mx.io.NDArrayIter):
    """Yield batches in the same arrays each time."""

    def next(self):
        batch = super().next()
        for kind in ('data', 'label'):
            buffers = self.__dict__.setdefault('buffers_' + kind, [
                mx.nd.empty(array.shape) for array in getattr(batch, kind)])
            for array, buffer in zip(getattr(batch, kind), buffers):
                array.copyto(buffer)
            setattr(batch, kind, buffers)
        return batch


@pytest.fixture
def runs(monkeypatch):
    """Count how often gradients at the snapshot are computed outside of a pass."""
    calls = []
    compute = SnapshotModule.run_on_inputs_of
    monkeypatch.setattr(SnapshotModule, 'run_on_inputs_of',
                        lambda *args: (calls.append(None), compute(*args)))
    return calls


def rows_of(problem, batch):
    """Tell which rows of the problem a batch has, by their values."""
    data = batch.data[0].asnumpy()
    return np.array([np.abs(problem.features - row).sum(axis=1).argmin() for row in data])


def train(problem, module, epochs, train_data, begin=0, **kwargs):
    """Train with fit; return the rows of each step of each epoch."""
    steps = {epoch: [] for epoch in range(begin, epochs)}

    def record(param):
        steps[param.epoch].append(rows_of(problem, param.locals['data_batch']))

    module.fit(train_data, eval_metric='mse', num_epoch=epochs, begin_epoch=begin,
               arg_params=problem.arg_params(), optimizer_params=SETTINGS,
               batch_end_callback=record, **kwargs)
    return steps


def expect(problem, steps, update_freq, svrg=None):
    svrg = svrg or problem.svrg(**SETTINGS)
    for epoch, batches in steps.items():
        if epoch % update_freq == 0:
            svrg.take_snapshot()
        for rows in batches:
            svrg.step(rows, 10)  # fewer were cut from a padded batch of 10
    return svrg


@pytest.mark.parametrize('rows', [40, 37])
@pytest.mark.parametrize('kind', ['linear', 'perceptron'])
@pytest.mark.parametrize('context, kvstore', [
    (mx.cpu(), None), (mx.cpu(), 'object'), (TWO_DEVICES, 'local')])
@pytest.mark.parametrize('shuffle', [False, True])
def test_is_svrg_without_gradients_at_the_snapshot(runs, rows, kind, context, kvstore, shuffle):
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


def cost_of_batch(problem, rows=10):
    return 4 * rows * (problem.features.shape[1] + 1)


def cost_of_gradient(problem):
    return 4 * sum(value.size for value in problem.weights.values())


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


@pytest.fixture
def runs_side_by_side(monkeypatch):
    """List how many batches each run of copies side by side has."""
    counts = []
    run = SideBySide.run
    monkeypatch.setattr(SideBySide, 'run', lambda copies, batches, module: (
        counts.append(len(batches)), run(copies, batches, module)))
    return counts


@pytest.mark.parametrize('kind', ['linear', 'perceptron'])
@pytest.mark.parametrize('rows', [370, 373])
@pytest.mark.parametrize('stored', [37, 20, 16, 3])
def test_small_batches_are_computed_side_by_side(runs, runs_side_by_side, kind, rows, stored):
    problem = Problem(kind, rows=rows)
    budget = rows * cost_of_batch(problem, 1) + stored * cost_of_gradient(problem)
    module = problem.module(1, store_snapshot_grads=budget)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)
        steps = train(problem, module, 2, problem.iterator())
    svrg = expect(problem, steps, 1)
    problem.assert_weights(module, svrg.weights)
    assert module._snapshot.full_gradient.rows == rows
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert runs_side_by_side == 2 * [12, 12, 12]
    assert len(runs) == 2 * (len(steps[0]) - stored)


@pytest.mark.parametrize('batch_size, batches, expected', [
    (20, 13, [12]), (42, 13, [6, 6]), (50, 13, [])])
def test_batches_of_two_mebibytes_are_computed_side_by_side(runs_side_by_side, batch_size,
                                                            batches, expected):
    """With 2000 features a row has 8 kB."""
    problem = Problem('perceptron', rows=batches * batch_size, features=2000)
    problem.weights['hidden_weight'] /= 30  # or all hidden units are saturated
    module = problem.bound(batch_size, store_snapshot_grads=True)
    module.update_full_grads(problem.iterator(batch_size))
    svrg = problem.svrg(batch_size)
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert runs_side_by_side == expected


def test_copies_side_by_side_follow_the_snapshot(runs_side_by_side):
    problem = Problem('perceptron', rows=160)
    module = problem.bound(store_snapshot_grads=True)
    svrg = problem.svrg()
    rng = np.random.RandomState(0)
    for _ in range(3):
        weights = {name: rng.normal(size=value.shape) for name, value in svrg.weights.items()}
        module.set_params({name: mx.nd.array(value) for name, value in weights.items()}, {})
        module.update_full_grads(problem.iterator())
        held = module._svrg.stored.latest.batches
        assert len(held) == 16
        for batch in held:
            expected = svrg.gradients(weights, rows_of(problem, batch))
            for name, value in expected.items():
                np.testing.assert_allclose(batch.at_snapshot[name][0].asnumpy(), value,
                                           rtol=1e-5, atol=1e-5)
    assert runs_side_by_side == [16, 16, 16]


def test_a_cut_batch_does_not_bind_anew_in_each_epoch(reshaped):
    problem = Problem('perceptron', rows=37)
    module = problem.module(2, store_snapshot_grads=True)
    module.fit(problem.iterator(), eval_metric='acc', num_epoch=6)
    assert reshaped == [7]


def test_as_many_copies_as_pay_run_side_by_side(runs_side_by_side):
    """Seven runs of five copies would be the fewest, but would take longer than alone."""
    problem = Problem('linear', rows=35 * 600, features=134)
    module = problem.bound(600, store_snapshot_grads=True)
    module.update_full_grads(problem.iterator(600))
    svrg = problem.svrg(600)
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert runs_side_by_side == 5 * [6]


def test_as_many_run_side_by_side_as_suit_the_batches_that_are_bound(runs_side_by_side):
    problem = Problem('linear', rows=240, features=4000)
    module = problem.bound(40, store_snapshot_grads=True)
    for batch_size, expected in ((40, []), (20, [6, 6]), (10, [12, 12]), (40, [])):
        train_data = problem.iterator(batch_size)
        module.bind(train_data.provide_data, train_data.provide_label, force_rebind=True)
        module.update_full_grads(train_data)
        assert runs_side_by_side == expected
        runs_side_by_side.clear()


def test_callbacks_of_a_stored_pass_may_change_batches():
    problem = Problem(rows=40)

    def change(param):
        batch = param.locals['data_batch']
        batch.data[0] = batch.data[0] * 2
        batch.label = [batch.label[0] + 1]

    module = problem.bound(store_snapshot_grads=True)
    module.update_full_grads(problem.iterator(), change)


def test_number_of_copies_side_by_side_changes(runs_side_by_side):
    module = Problem('perceptron', rows=160).bound(store_snapshot_grads=True)
    for rows in (70, 130, 50, 70):
        problem = Problem('perceptron', rows=rows)
        module.set_params(problem.arg_params(), {})
        module.update_full_grads(problem.iterator())
        svrg = problem.svrg()
        svrg.take_snapshot()
        problem.assert_full_gradient(module, svrg.full_gradient)
        assert module._svrg.stored.latest.num_with_gradients == rows // 10
    assert runs_side_by_side == [7, 13, 7]


def test_an_input_that_is_called_name(runs_side_by_side):
    rows = np.random.RandomState(0).normal(size=(160, 3))
    loss = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(
        mx.sym.Variable('name'), num_hidden=1), mx.sym.Variable('label'))
    module = SVRGModule(loss, ('name',), ('label',), update_freq=1, store_snapshot_grads=True)
    module.fit(mx.io.NDArrayIter(rows, rows.sum(axis=1), 10, data_name='name',
                                 label_name='label'), eval_metric='mse', num_epoch=1)
    assert not runs_side_by_side and module._svrg.stored.latest.num_with_gradients == 16


def test_auxiliary_states_see_one_batch_after_the_other(runs_side_by_side):
    rows = np.random.RandomState(0).normal(size=(160, 3))
    loss = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.BatchNorm(
        mx.sym.Variable('data'), fix_gamma=False), num_hidden=1), mx.sym.Variable('label'))
    module = SVRGModule(loss, label_names=('label',), update_freq=1, store_snapshot_grads=True)
    train_data = mx.io.NDArrayIter(rows, rows.sum(axis=1), 10, label_name='label')
    module.fit(train_data, eval_metric='mse', num_epoch=1)
    assert not runs_side_by_side and len(module._svrg.stored.latest.batches) == 16


def test_data_that_do_not_fit_are_read_from_the_iterator(runs):
    problem = Problem(rows=40)
    module = problem.module(2, store_snapshot_grads=3 * cost_of_batch(problem) + 20)
    with pytest.warns(UserWarning, match='first 4 of 4 batches are more than 620 bytes') as caught:
        steps = train(problem, module, 4, problem.iterator())
    assert sum('store_snapshot_grads' in str(warning.message) for warning in caught) == 1
    assert module._svrg.stored.latest is None and len(runs) == 16
    assert all((np.concatenate(batches) == np.arange(40)).all() for batches in steps.values())
    problem.assert_weights(module, problem.svrg(**SETTINGS).fit(4, 2))


def test_budget_is_kept(runs):
    problem = Problem('perceptron', rows=200)
    for budget in range(1, 30000, 1700):
        module = problem.bound(store_snapshot_grads=budget)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', UserWarning)
            module.update_full_grads(problem.iterator())
        held = module._svrg.stored.latest.batches if module._svrg.stored.latest else []
        total = sum(bytes_of(array) for batch in held for array in batch.data + batch.label)
        total += sum(bytes_of(array) for batch in held for arrays in
                     (batch.at_snapshot or {}).values() for array in arrays)
        assert total <= budget
        if held:
            room = budget - total
            stored = sum(batch.at_snapshot is not None for batch in held)
            assert stored == 20 or room < cost_of_gradient(problem)


def test_budget_is_kept_where_inputs_grow():
    """The second input's shape changes from batch to batch, the first one's does not."""
    one, two = mx.sym.Variable('one'), mx.sym.Variable('two')
    total = mx.sym.FullyConnected(one, num_hidden=1, name='fc') + mx.sym.FullyConnected(
        mx.sym.sum(two, axis=1), num_hidden=1, name='fc2')
    symbol = mx.sym.LinearRegressionOutput(total, mx.sym.Variable('label'))
    batches = [mx.io.DataBatch([mx.nd.ones((4, 3)), mx.nd.ones((4, length, 5))],
                               [mx.nd.ones((4,))], pad=0) for length in [2] + 9 * [100]]

    class Batches(list):
        def reset(self):
            pass

    module = SVRGModule(symbol, ('one', 'two'), ('label',), update_freq=1,
                        store_snapshot_grads=5000)
    module.bind([('one', (4, 3)), ('two', (4, 2, 5))], [('label', (4,))])
    module.init_params(mx.init.One())
    with pytest.warns(UserWarning, match='first 2 of 10 batches'):
        module.update_full_grads(Batches(batches))
    assert module._svrg.stored.latest is None


def test_order_has_a_generator_of_its_own():
    def order(seed, draws):
        np.random.seed(seed)
        problem = Problem(rows=40)
        module = problem.module(1, store_snapshot_grads=True)
        drawn = []

        def draw(_):
            drawn.append(np.random.uniform(size=draws).sum())

        steps = []
        module.fit(problem.iterator(), num_epoch=3, eval_metric='mse', epoch_end_callback=[],
                   arg_params=problem.arg_params(), batch_end_callback=[draw, lambda param:
                   steps.append(tuple(rows_of(problem, param.locals['data_batch'])))])
        return steps

    assert order(1, 0) == order(1, 3) != order(2, 0)


def test_loop_of_ones_own(runs):
    problem = Problem(rows=37)
    module = problem.bound(store_snapshot_grads=True)
    module.init_optimizer(optimizer_params=SETTINGS)
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
    plain = problem.bound()
    plain.init_optimizer()
    plain.update_full_grads(train_data)
    assert len(list(plain.training_batches(train_data))) == 4


def test_batch_of_another_snapshot_is_computed_anew(runs):
    problem = Problem(rows=40)
    module = problem.bound(store_snapshot_grads=True)
    module.init_optimizer(optimizer_params=SETTINGS)
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


def test_gradients_that_are_added_up(runs):
    problem = Problem(rows=40)
    module = problem.bound(grad_req='add', store_snapshot_grads=True)
    module.init_optimizer(optimizer_params={'learning_rate': 0.05})
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


def test_sparse_data_and_gradients(runs):
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


def test_resumed_between_snapshots(tmp_path, runs):
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


def test_resumed_between_snapshots_without_room(tmp_path):
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
    compute = SnapshotModule.gradients_of
    monkeypatch.setattr(SnapshotModule, 'gradients_of',
                        lambda *args: passes.append(None) or compute(*args))
    for epoch in range(5):
        steps.update(train(problem, module, epoch + 1, train_data, begin=epoch))
    problem.assert_weights(module, expect(problem, steps, 3).weights)
    assert len(passes) == 2 * 4 and not runs
    train(problem, module, 6, problem.iterator(), begin=5)
    assert len(passes) == 3 * 4  # other data


def test_wrong_values():
    problem = Problem()
    for value in (0, -1):
        with pytest.raises(ValueError, match='must be True, False or an int of 1 or more, not %d'
                           % value):
            problem.module(store_snapshot_grads=value)
    for value in ('1', None, 1.5):
        with pytest.raises(TypeError, match='must be True, False or an int of 1 or more, not'):
            problem.module(store_snapshot_grads=value)


def test_float64(runs):
    problem = Problem('softmax', rows=136)
    module = problem.module(2, store_snapshot_grads=True)
    steps = []
    module.fit(mx.io.NDArrayIter(mx.nd.array(problem.features, dtype='float64'),
                                 mx.nd.array(problem.targets, dtype='float64'), 8,
                                 label_name='label'),
               eval_metric=[], num_epoch=3, optimizer_params={'learning_rate': 0.125},
               arg_params={name: mx.nd.array(value, dtype='float64')
                           for name, value in problem.weights.items()},
               batch_end_callback=lambda param: steps.append(
                   (param.epoch, rows_of(problem, param.locals['data_batch']))))
    svrg = problem.svrg(8, learning_rate=0.125)
    for number, (epoch, rows) in enumerate(steps):
        if number % 17 == 0 and epoch % 2 == 0:
            svrg.take_snapshot()
        svrg.step(rows)
    problem.assert_weights(module, svrg.weights, 1e-12)
    assert not runs


def test_bytes_of_sparse_arrays():
    """Values of 4 bytes and indices of 8; of csr the ends of the rows too."""
    dense = mx.nd.array([[1, 0, 2], [0, 0, 0]])
    assert bytes_of(dense) == 6 * 4 and bytes_of(dense.astype('float64')) == 6 * 8
    assert bytes_of(dense.tostype('csr')) == 2 * 4 + 2 * 8 + 3 * 8
    assert bytes_of(dense.tostype('row_sparse')) == 3 * 4 + 8


class Copies:
    """Copy gradients as a FullGradient does."""

    def copies_of(self, batches):
        return [{name: [array.copy() for array in arrays] for name, arrays in gradients.items()}
                for gradients in batches]


def test_a_budget_that_is_just_enough():
    """Data of 24 bytes a batch and gradients of 8: the latter go where data need their room."""
    made = [mx.io.DataBatch([mx.nd.ones((2, 2))], [mx.nd.ones((2,))], pad) for pad in (0, 1, 0, 0)]
    gradients = {'w': [mx.nd.ones((2,))]}
    held = StoredBatches(24 + 8 + 24 + 24, Copies())
    assert held.exceeded_at is None and held.batches == []
    kept = []
    for number, batch in enumerate(made[:3]):
        kept.append(held.add(batch, copies=number == 1))
        held.store(kept[-1:], [gradients])
        expected = [[True], [True, True], [True, False, False]][number]
        assert [one.at_snapshot is not None for one in kept] == expected
        assert held.num_with_gradients == sum(expected) and held.batches == kept
    assert [one.at_snapshot for one in kept[1:]] == [None, None]
    assert [batch.pad for batch in kept] == [0, 1, 0]
    assert [one.data[0] is batch.data[0] for one, batch in zip(kept, made)] == [True, False, True]
    assert [one.label[0] is batch.label[0] for one, batch in zip(kept, made)] == [True, False, True]
    for one in kept:
        assert one.full_gradient is held._full_gradient
        assert (one.data[0].asnumpy() == 1).all() and (one.label[0].asnumpy() == 1).all()
    latest = held.add(made[3], copies=True)
    assert held.exceeded_at == 4 and held.batches == [] and held.num_with_gradients == 0
    assert latest.data[0] is not made[3].data[0]
    held.store([latest], [gradients])
    later = held.add(made[0], copies=True)
    assert later.data[0] is made[0].data[0]  # nobody is to keep it
    assert latest.at_snapshot is None and held.exceeded_at == 4


def test_sparse_batches_of_one_shape_cost_what_they_have():
    held = StoredBatches(500, Copies())
    for count, left in ((1, 500 - 12 - 88), (8, 500 - 12 - 88 - 8 * 12 - 88)):
        data = mx.nd.array(np.eye(10)[:, :10] * (np.arange(10) < count)).tostype('csr')
        held.add(mx.io.DataBatch([data], None), copies=False)
        assert held._left == left


def test_gradients_of_padded_batches_make_room_too():
    """A padded batch's are summed at once, and the others' when they go or the pass ends."""
    problem = Problem('perceptron', rows=37)
    expected = problem.svrg()
    expected.take_snapshot()
    for budget in range(8 * cost_of_batch(problem), 8 * cost_of_batch(problem)
                        + 6 * cost_of_gradient(problem), cost_of_gradient(problem) // 2):
        module = problem.bound(store_snapshot_grads=budget)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', UserWarning)
            module.update_full_grads(mx.io.ResizeIter(problem.iterator(), 8))
        problem.assert_full_gradient(module, expected.full_gradient)
        assert len(module._svrg.stored.latest.batches) == 8


@pytest.mark.parametrize('stored', [False, True])
def test_batch_of_padding_alone(stored):
    """It says nothing of the full gradient, and is stepped on as the iterator yields it."""
    problem = Problem(rows=40)
    batches = list(problem.iterator())
    batches.insert(2, mx.io.DataBatch(batches[0].data, batches[0].label, pad=10))

    class Batches(list):
        def reset(self):
            pass

    module = problem.bound(store_snapshot_grads=stored)
    svrg = problem.svrg()
    svrg.take_snapshot()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)  # its gradient is not stored
        module.update_full_grads(Batches(batches))
    problem.assert_full_gradient(module, svrg.full_gradient)
    assert module._snapshot.full_gradient.batches == 4
    if stored:
        assert [batch.at_snapshot is None for batch in module._svrg.stored.latest.batches] == [
            False, False, True, False, False]
        assert [batch.pad for batch in module._svrg.stored.latest.batches] == [0, 0, 10, 0, 0]


@pytest.mark.parametrize('reuses, copies', [(False, [False, False, False, True]),
                                            (True, [True, True, True, True])])
def test_data_are_copied_where_they_might_change(monkeypatch, reuses, copies):
    """Or where they are a part of the padded batch, whose memory they would keep."""
    problem, asked = Problem(rows=37), []
    add = StoredBatches.add
    monkeypatch.setattr(StoredBatches, 'add', lambda held, batch, copies: (
        asked.append(copies), add(held, batch, copies))[1])
    train_data = ReusingIter(problem.features, problem.targets, 10, label_name='label') if (
        reuses) else problem.iterator()
    problem.bound(store_snapshot_grads=True).update_full_grads(train_data)
    assert asked == copies


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


@pytest.mark.parametrize('context', [mx.cpu(), TWO_DEVICES])
def test_what_is_held_of_a_padded_batch_has_no_padding(context):
    problem = Problem(rows=37)
    module = problem.bound(context=context, store_snapshot_grads=True)
    train_data = problem.iterator()
    module.update_full_grads(train_data)
    batches = module.training_batches(train_data)
    assert sorted((len(batch.data[0]), len(batch.label[0]), batch.pad) for batch in batches) == [
        (7, 7, 0), (10, 10, 0), (10, 10, 0), (10, 10, 0)]


def test_warning_that_nothing_is_held():
    said, data = [], object()
    holding = StoredGradients(10)
    assert holding.lacks(data)
    held = holding.begin(Copies())
    held.add(mx.io.DataBatch([mx.nd.ones((2, 2))], None), copies=False)
    holding.keep(held, 3, data, lambda *arguments: said.append(arguments))
    assert said == [('store_snapshot_grads: the first 1 of 3 batches are more than 10 bytes of '
                     'data alone: none is stored until the next snapshot', 'nothing stored')]
    assert holding.shuffled(data, None) is None and not holding.lacks(data)
    del said[:]
    holding = StoredGradients(24)
    held = holding.begin(Copies())
    held.add(mx.io.DataBatch([mx.nd.ones((2, 2))], None), copies=False)
    holding.keep(held, 1, data, lambda *arguments: said.append(arguments))
    assert said == [('store_snapshot_grads: 24 bytes have room for all 1 batches and the gradients '
                     'of 0: the others are computed again at each step', 'not all stored')]
    assert holding.shuffled(data, None) == held.batches


@pytest.mark.parametrize('rows', [170, 37])
def test_loss_that_is_a_mean(runs, rows):
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


def test_default_budget_is_a_gibibyte():
    assert StoredGradients(True).budget == 2 ** 30
    assert StoredGradients(False).budget == 0 and StoredGradients(1).budget == 1
    assert StoredGradients(False).begin(None) is None


@pytest.mark.parametrize('layer', ['Dropout', 'random'])
def test_random_layers_are_an_error(layer):
    data = mx.sym.Variable('data')
    noisy = mx.sym.Dropout(data, name='noise') if layer == 'Dropout' else (
        mx.sym.random.uniform(shape=(10, 4), name='noise') * data)
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


def test_batches_that_say_nothing_of_padding(runs):
    problem = Problem(rows=40)
    module = problem.module(1, store_snapshot_grads=True)
    train_data = BareIter(problem.features, problem.targets, 10, label_name='label')
    steps = train(problem, module, 3, train_data)
    problem.assert_weights(module, expect(problem, steps, 1).weights)
    assert not runs


def test_weight_decay_beside_a_short_last_batch():
    """At the optimum of the regularized loss no step moves the weights, the last one neither."""
    problem = Problem(rows=33)
    module = problem.module(1, store_snapshot_grads=True)
    module.fit(problem.iterator(), eval_metric='mse', num_epoch=200,
               arg_params=problem.arg_params(), optimizer_params={'learning_rate': 0.1, 'wd': 0.1})
    design = np.column_stack([problem.features, np.ones(33)])
    decay = np.diag([0.1] * 4 + [0])
    optimum = np.linalg.solve(design.T @ design / 33 + decay, design.T @ problem.targets / 33)
    problem.assert_weights(module, {'fc_weight': optimum[None, :-1], 'fc_bias': optimum[-1:]})


class OtherIter(mx.io.NDArrayIter):
    """An iterator whose place the package does not know."""


@pytest.mark.parametrize('cls', [mx.io.NDArrayIter, OtherIter])
def test_others_may_read_the_training_data_between_epochs(cls):
    """Module.fit resets data only where they were read, as stored batches are not."""
    problem, rows = Problem(rows=40), []
    train_data = cls(problem.features, problem.targets, 10, label_name='label')
    module = problem.module(2, store_snapshot_grads=True,
                            full_grad_callback=lambda param: rows.append(param.nbatch))
    module.fit(train_data, eval_data=train_data, eval_metric='mse', num_epoch=4,
               epoch_end_callback=lambda *_: next(train_data.reset() or train_data))
    assert rows == [0, 1, 2, 3] * 2


def test_nothing_is_kept_of_a_pass_that_is_not_finite():
    problem = Problem(rows=40)
    module = problem.module(nonfinite='raise', store_snapshot_grads=True)
    good = problem.iterator()
    module.fit(good, eval_metric=[], num_epoch=1)
    bad = mx.io.NDArrayIter(problem.features * np.inf, problem.targets, 10, label_name='label')
    with pytest.raises(FloatingPointError):
        module.update_full_grads(bad)
    assert module._svrg.stored.latest is None and module.training_batches(good) is good


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
    assert module._snapshot.num_taken == 2 and module._svrg.stored.lacks(problem)
    for epoch in range(4):
        labels = [labels for of_epoch, labels in seen if of_epoch == epoch]
        np.testing.assert_allclose(np.sort(np.concatenate(labels)), np.sort(problem.targets),
                                   rtol=1e-6)


def test_override_that_passes_another_iterator_on(runs):
    class Own(SVRGModule):
        def update_full_grads(self, train_data):
            train_data.reset()
            super().update_full_grads(mx.io.ResizeIter(train_data, 4, reset_internal=False))

    problem = Problem(rows=40)
    module = Own(problem.symbol, label_names=('label',), update_freq=2, store_snapshot_grads=True)
    steps = train(problem, module, 4, problem.iterator())
    problem.assert_weights(module, expect(problem, steps, 2).weights)
    assert not runs

"""store_snapshot_grads: SVRG on held batches, with one forward and backward pass a step."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from held_batches import SETTINGS, ReusingIter, expect, rows_of, train
from pairs import in_pairs
from problems import Problem, SparseProblem
from svrg_optimization import SVRGModule
from svrg_optimization.core.arrays import bytes_of
from svrg_optimization.core.store import Store

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
        assert set(np.concatenate(batches)) == set(range(rows)) and len(batches) == 4
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

def size_of(problem, batches):
    """Bytes of some batches of 10 rows, and of their gradients."""
    numbers = 10 * (problem.features.shape[1] + 1) + sum(
        value.size for value in problem.weights.values())
    return 4 * batches * numbers


@pytest.mark.parametrize('missing', [0, 1])
@pytest.mark.parametrize('rows', [40, 37])
def test_all_batches_are_stored_or_none_and_that_is_said_once(runs, rows, missing):
    problem = Problem('perceptron', rows=rows)
    module = problem.module(2, store_snapshot_grads=size_of(problem, 4) - missing)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        steps = train(problem, module, 5, problem.iterator())
    said = [str(warning.message) for warning in caught if 'store_snap' in str(warning.message)]
    assert len(said) == missing
    assert not missing or 'more than %d bytes, so none is stored' % (
        size_of(problem, 4) - 1) in said[0]
    problem.assert_weights(module, expect(problem, steps, 2).weights)
    assert len(module._svrg.store.batches) == (0 if missing else 4)
    assert len(runs) == (20 if missing else 0)


def test_a_budget_is_in_bytes_and_a_gibibyte_by_default():
    """Sparse arrays cost values of 4 bytes and indices of 8; csr the ends of the rows too."""
    assert [Store(given).budget for given in (True, False, 1)] == [2 ** 30, 0, 1]
    dense = mx.nd.array([[1, 0, 2], [0, 0, 0]])
    assert bytes_of(dense) == 6 * 4 and bytes_of(dense.astype('float64')) == 6 * 8
    assert bytes_of(dense.tostype('csr')) == 2 * 4 + 2 * 8 + 3 * 8
    assert bytes_of(dense.tostype('row_sparse')) == 3 * 4 + 8


@pytest.mark.parametrize('rows', [40, 37])
def test_a_loop_of_ones_own_trains_on_stored_batches(runs, rows):
    problem = Problem(rows=rows)
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
    others = problem.iterator()
    assert module.training_batches(others) is others
    assert isinstance(module.training_batches(train_data), list)


@pytest.mark.parametrize('resumes', [False, True])
def test_fit_that_goes_on_trains_on_stored_batches_until_a_checkpoint(tmp_path, runs, resumes):
    """No checkpoint has them: steps compute their gradients until the next snapshot."""
    problem = Problem('perceptron', rows=37)
    module, train_data = problem.module(3, store_snapshot_grads=True), problem.iterator()
    steps = train(problem, module, 2, train_data)
    svrg = expect(problem, steps, 3)
    if resumes:
        module.save_checkpoint(str(tmp_path / 'model'), 2, save_optimizer_states=True)
        module = SVRGModule.load(str(tmp_path / 'model'), 2, load_optimizer_states=True,
                                 label_names=('label',))
    steps = {}
    for epoch in range(2, 5):
        steps.update(train(problem, module, epoch + 1, train_data, begin=epoch))
    problem.assert_weights(module, expect(problem, steps, 3, svrg).weights)
    assert len(runs) == (4 if resumes else 0)


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
    assert set(np.concatenate([rows_of(problem, batch) for batch in batches])) == set(range(37))
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
        gradients, at_snapshot = (svrg.gradients(weights, batch)
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

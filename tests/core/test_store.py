"""store_snapshot_grads: SVRG on held batches, with one forward and backward pass a step."""

import types
import warnings

import mxnet as mx
import numpy as np
import pytest

import oracle
from checkpoints import bits
from full_gradients import lists_of_batches
from held_batches import SETTINGS, ReusingIter, assert_svrg, rows_of
from pairs import in_pairs
from problems import TWO_DEVICES, Problem, SparseProblem
from svrg_optimization import SVRGModule


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
    module = problem.module(2, context=context, store_snapshot_grads=1 << 30)
    _, steps = assert_svrg(problem, module, 5, 2, train_data=problem.iterator(shuffle=shuffle),
                           kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore)
    assert not runs
    for batches in steps.values():
        assert set(np.concatenate(batches)) == set(range(rows)) and len(batches) == 4
    orders = [[rows[0] for rows in batches] for batches in steps.values()]
    assert len({tuple(order) for order in orders}) > 2
    sets = [{tuple(sorted(rows)) for rows in batches} for batches in steps.values()]
    assert sets[0] == sets[1] and sets[2] == sets[3]
    if shuffle:
        assert sets[1] != sets[2]


class BareIter(mx.io.NDArrayIter):
    """Yield batches with data and labels, and nothing else."""

    def next(self):
        batch = super().next()
        return types.SimpleNamespace(data=batch.data, label=batch.label)


class PassesOn(SVRGModule):
    """An override that passes another iterator on."""

    def update_full_grads(self, train_data):
        train_data.reset()
        super().update_full_grads(mx.io.ResizeIter(train_data, 4, reset_internal=False))


@pytest.mark.parametrize('problem, train_data, cls', [
    (Problem(), Problem().iterator(cls=ReusingIter), SVRGModule),
    (Problem(), Problem().iterator(cls=BareIter), SVRGModule),
    (Problem(), mx.io.PrefetchingIter(Problem().iterator()), SVRGModule),
    (Problem(), Problem().iterator(), PassesOn),
    (SparseProblem(rows=37), SparseProblem(rows=37).iterator(), SVRGModule)])
def test_batches_of_any_iterator_are_held(runs, problem, train_data, cls):
    module = cls(problem.symbol, label_names=('label',), update_freq=2,
                 store_snapshot_grads=10 ** 9)
    assert_svrg(problem, module, 4, 2, sgd={'learning_rate': 0.1}, train_data=train_data)
    assert not runs


def dense_bytes(problem):
    """Bytes of four batches of 10 rows, and of their gradients."""
    return 4 * 4 * (10 * 5 + sum(value.size for value in problem.weights.values()))


def sparse_bytes(problem):
    """Values of 4 bytes and indices of 8; csr the ends of the rows too."""
    return sum((problem.features[rows] != 0).sum() * 12 + 11 * 8 + 10 * 4 + 4
               + (problem.features[rows] != 0).any(axis=0).sum() * 12
               for rows in oracle.batches_of(len(problem.features), 10))


def one_byte_less(problem, size):
    return problem, size - 1, 'more than %d bytes, so none is stored' % (size - 1)


SIZES = [(problem, int(size_of(problem))) for problem, size_of in (
    (Problem('perceptron', rows=40), dense_bytes), (Problem('perceptron', rows=37), dense_bytes),
    (SparseProblem(rows=40), sparse_bytes))]


@pytest.mark.parametrize('problem, stored, says', [
    *((*exact, None) for exact in SIZES), *(one_byte_less(*exact) for exact in SIZES),
    # True stores nothing where layers have fewer outputs than inputs:
    (Problem(), True, 'stores nothing for this network'),
    (Problem(), 1 << 30, None), (Problem('perceptron'), True, None)])
def test_all_batches_are_stored_or_none_and_that_is_said_once(runs, problem, stored, says):
    module = problem.module(2, store_snapshot_grads=stored)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        assert_svrg(problem, module, 5, 2, sgd={'learning_rate': 0.1})
    said = [str(warning.message) for warning in caught if 'store_snap' in str(warning.message)]
    assert len(said) == len(runs) / 20 == bool(says)
    assert not says or says in said[0]


@pytest.mark.parametrize('problem, read, context', [
    (Problem(rows=40), Problem.iterator, mx.cpu()), (Problem(rows=37), Problem.iterator, mx.cpu()),
    (Problem('perceptron', rows=40), lambda problem: lists_of_batches(problem.iterator()),
     TWO_DEVICES)])
def test_a_loop_of_ones_own_trains_on_stored_batches_of_this_or_an_older_snapshot(
        runs, problem, read, context):
    """Those of an older one are computed anew. A batch may be a list, of one a device."""
    module = problem.bound(store_snapshot_grads=1 << 30, sgd=SETTINGS, context=context)
    svrg = problem.svrg(**SETTINGS)
    train_data, old = read(problem), []
    for epoch in range(4):
        if epoch % 2 == 0:
            module.update_full_grads(train_data)
            svrg.take_snapshot()
        for batch in [*old, *module.training_batches(train_data)]:
            module.forward_backward(batch)
            module.update()
            svrg.step(rows_of(problem, batch))
        assert len(runs) == 4 * bool(old)
        del runs[:]
        old = module.training_batches(train_data) if epoch == 1 else []
    problem.assert_weights(module, svrg.weights)
    others = problem.iterator()
    assert module.training_batches(others) is others
    assert isinstance(module.training_batches(train_data), list)


@pytest.mark.parametrize('resumes', [False, True])
def test_fit_that_goes_on_trains_on_stored_batches_until_a_checkpoint(tmp_path, runs, resumes):
    """No checkpoint has them: steps compute their gradients until the next snapshot."""
    problem, prefix = Problem('perceptron', rows=37), str(tmp_path / 'model')
    module, train_data = problem.module(3, store_snapshot_grads=1 << 30), problem.iterator()
    svrg, _ = assert_svrg(problem, module, 2, 3, train_data=train_data)
    if resumes:
        module.save_checkpoint(prefix, 2, save_optimizer_states=True)
        module = SVRGModule.load(prefix, 2, load_optimizer_states=True, label_names=('label',))
    for epoch in range(2, 5):
        assert_svrg(problem, module, epoch + 1, 3, svrg, train_data=train_data, begin_epoch=epoch)
    assert len(runs) == (4 if resumes else 0)


@pytest.mark.parametrize('shuffle', [False, True])
def test_stored_batches_share_no_memory_with_the_rows(shuffle):
    """Neither the user's writes to the rows nor those to the batches reach the others."""
    problem = Problem(rows=37)
    module = problem.bound(store_snapshot_grads=1 << 30)
    train_data = problem.iterator(shuffle=shuffle)
    module.update_full_grads(train_data)
    arrays = [train_data.data[0][1], train_data.label[0][1]]
    for array in arrays:
        array[:] = 7
    batches = module.training_batches(train_data)
    assert set(np.concatenate([rows_of(problem, batch) for batch in batches])) == set(range(37))
    for array in sum((batch.data + batch.label for batch in batches), []):
        array[:] = 100
    assert all((array.asnumpy() == 7).all() for array in arrays)


@pytest.mark.parametrize('stored', [False, 1 << 30])
def test_fit_copies_only_the_batches_that_others_see(monkeypatch, stored):
    problem, copied, weights = Problem(rows=40), [], []
    getdata = mx.io.NDArrayIter.getdata
    monkeypatch.setattr(mx.io.NDArrayIter, 'getdata',
                        lambda iterator: copied.append(0) or getdata(iterator))
    for callback, expected in ((None, 0), (lambda _: None, 8)):
        np.random.seed(0)
        module = problem.fit(problem.module(2, store_snapshot_grads=stored), 2,
                             batch_end_callback=callback)
        # Each epoch reads the batches, or both take the stored ones.
        assert len(copied) == (4 if stored else expected)
        weights.append(bits(module))
        copied.clear()
    assert weights[0] == weights[1]


@pytest.mark.parametrize('rows', [170, 37])
def test_a_loss_may_be_a_mean(runs, rows):
    problem, sgd = Problem('softmax', rows=rows), {'learning_rate': 0.1}
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')
    problem.symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Variable('label'), normalization='batch')
    assert_svrg(problem, problem.module(2, store_snapshot_grads=1 << 30), 3, 2, problem.svrg(**sgd),
                {**sgd, 'rescale_grad': 1.0})
    assert not runs


def test_nothing_is_kept_of_a_pass_that_is_not_finite():
    problem = Problem(rows=40)
    module = problem.module(nonfinite='raise', store_snapshot_grads=1 << 30)
    good = problem.iterator()
    problem.fit(module, 1, good)
    bad = mx.io.NDArrayIter(problem.features * np.inf, problem.targets, 10, label_name='label')
    with pytest.raises(FloatingPointError):
        module.update_full_grads(bad)
    assert module.training_batches(good) is good

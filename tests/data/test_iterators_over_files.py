"""MXNet's iterators over files, which must not be reset before their end, and those around one."""

import mxnet as mx
import numpy as np
import pytest

from full_gradients import assert_pass
from held_batches import SETTINGS
from problems import Problem, SparseProblem, libsvm_iter


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def csv(problem, **kwargs):
    np.savetxt('data', problem.features, delimiter=',', fmt='%.9g')
    np.savetxt('label', problem.targets, fmt='%.9g')
    return mx.io.CSVIter(data_csv='data?delimiter=,', data_shape=problem.features.shape[1:],
                         label_csv='label?delimiter=,', label_shape=(1,),
                         **{'batch_size': 10, **kwargs})


def bound(problem, train_data, update_freq=1, **settings):
    module = problem.module(update_freq, **settings)
    module.bind(train_data.provide_data, [mx.io.DataDesc('label', (train_data.batch_size,))])
    module.init_params(arg_params=problem.arg_params())
    return module


@pytest.mark.parametrize('kind, rows', [('csv', 37), ('csv', 400), ('csv', 437), ('libsvm', 400)])
def test_full_gradients_over_files_count_each_row_once(kind, rows):
    """From hundreds of rows on MXNet's iterators yield some twice if reset before their end."""
    problem = Problem(rows=rows)
    train_data = (csv(problem, round_batch=False) if kind == 'csv'
                  else libsvm_iter(problem, 'data'))
    module = bound(problem, train_data)
    for reads in (None, None, 1, 1, 0):
        if reads is not None:
            train_data.reset()
        if reads:
            next(train_data)
        assert_pass(problem, module, train_data)
    if rows % 10 == 0:  # or the rows that MXNet pads with are not the oracle's
        train_data.reset()
        problem.fit(module, 4, train_data, optimizer_params={'learning_rate': 0.1})
        problem.assert_weights(module, problem.svrg().fit(4, 1))


def test_samples_of_files_are_their_first_rows():
    """MXNet's must not be reset before their end, nor at their beginning."""
    problem = Problem(rows=400)
    train_data = csv(problem)
    module = bound(problem, train_data, full_grad_batches=lambda number: 3 ** (number + 1))
    problem.fit(module, 3, train_data, optimizer_params=SETTINGS)
    samples = map(np.arange, (30, 90, 270))
    problem.assert_weights(module, problem.svrg(**SETTINGS).fit(3, 1, samples=samples))


def test_files_of_sparse_rows_train_sparse_weights():
    problem = SparseProblem()
    train_data = libsvm_iter(problem, 'data')
    module = bound(problem, train_data, 2)
    problem.fit(module, 4, train_data, optimizer_params={'learning_rate': 0.1})
    problem.assert_weights(module, problem.svrg().fit(4, 2))


@pytest.mark.parametrize('alpha', [0, 1])
def test_files_in_a_custom_loop_are_read_the_same_whatever_alpha(alpha):
    """MXNet's iterators over files are wrong when they are reset at their beginning."""
    problem = Problem(rows=5000, features=1)
    problem.features = np.arange(5000.)[:, None]
    train_data = csv(problem, batch_size=100)
    module = bound(problem, train_data, alpha=alpha)
    for _ in range(3):
        module.update_full_grads(train_data)
        train_data.reset()
        rows = [batch.data[0].asnumpy()[:, 0] for batch in train_data]
        np.testing.assert_array_equal(np.concatenate(rows), np.arange(5000))
    assert (module.gradient_norm is None) == (alpha == 0)


class Around(mx.io.DataIter):
    """Pass on the batches of a CSVIter; look at the first one if that is wanted."""

    def __init__(self, problem, looks=False):
        super().__init__(10)
        self.rows = csv(problem, label_name='label')
        self.provide_data = self.rows.provide_data
        self.provide_label, self.reset = [mx.io.DataDesc('label', (10,))], self.rows.reset
        if looks:
            self.next()

    def next(self):
        batch = self.rows.next()
        return mx.io.DataBatch(batch.data, [batch.label[0].reshape((-1,))], batch.pad)


@pytest.mark.parametrize('rows, looks', [(105, False), (1000, False), (1000, True)])
def test_pass_over_an_iterator_around_csv_iter_has_all_rows(rows, looks):
    """Also after it has looked at a batch, if the batch size divides the rows."""
    problem = Problem(rows=rows)
    assert_pass(problem, problem.bound(), Around(problem, looks))

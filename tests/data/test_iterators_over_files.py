"""MXNet's iterators over files, which must not be reset before their end."""


import mxnet as mx
import numpy as np
import pytest

from full_gradients import full_gradient
from problems import Problem, SparseProblem
from samples import SETTINGS, first_rows, fit, train
from svrg_optimization import SVRGModule


@pytest.mark.parametrize('kind, rows', [
    *[pytest.param(*case, marks=pytest.mark.slow)
      for case in (('csv', 37), ('csv', 40), ('libsvm', 40))],
    ('csv', 400), ('csv', 437), ('libsvm', 400)])
def test_full_gradients_over_files_count_each_row_once(tmp_path, kind, rows):
    """From hundreds of rows on MXNet's iterators yield some twice if reset before their end."""
    problem = Problem(rows=rows)
    data, label = str(tmp_path / 'data'), str(tmp_path / 'label')
    if kind == 'csv':
        np.savetxt(data, problem.features, delimiter=',', fmt='%.9g')
        np.savetxt(label, problem.targets, fmt='%.9g')
        train_data = mx.io.CSVIter(data_csv=data + '?delimiter=,', data_shape=(4,),
                                   label_csv=label + '?delimiter=,', label_shape=(1,),
                                   batch_size=10, round_batch=False)
    else:
        with open(data, 'w') as file:
            for target, row in zip(problem.targets, problem.features):
                columns = ' '.join('%d:%.9g' % column for column in enumerate(row))
                file.write('%.9g %s\n' % (target, columns))
        train_data = mx.io.LibSVMIter(data_libsvm=data, data_shape=(4,), batch_size=10)
    module = problem.module()
    module.bind(train_data.provide_data, [mx.io.DataDesc('label', (10,))])
    module.init_params(arg_params=problem.arg_params())
    expected = full_gradient(problem, problem.weights, np.arange(rows))
    for _ in range(2):
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, expected)
    for _ in range(2):
        train_data.reset()
        next(train_data)
        module.update_full_grads(train_data)
        problem.assert_full_gradient(module, expected)
    train_data.reset()
    module.update_full_grads(train_data)
    problem.assert_full_gradient(module, expected)
    if rows % 10:
        return  # the rows that MXNet pads with are not the oracle's
    train_data.reset()
    module.fit(train_data, eval_metric=[], num_epoch=4,
               optimizer_params={'learning_rate': 0.1})
    svrg = problem.svrg()
    svrg.fit(4, 1)
    problem.assert_weights(module, svrg.weights)
    problem.assert_full_gradient(module, svrg.full_gradient)


def test_samples_of_files_are_their_first_rows(tmp_path):
    """MXNet's must not be reset before their end, nor at their beginning."""
    problem = Problem(rows=400)
    np.savetxt(tmp_path / 'data', problem.features, delimiter=',', fmt='%.9g')
    np.savetxt(tmp_path / 'label', problem.targets, fmt='%.9g')

    def over_files():
        return mx.io.CSVIter(data_csv='%s?delimiter=,' % (tmp_path / 'data'), data_shape=(4,),
                             label_csv='%s?delimiter=,' % (tmp_path / 'label'),
                             label_shape=(1,), batch_size=10)

    def fitted(**kwargs):
        module = problem.module(**kwargs)
        module.bind([('data', (10, 4))], [('label', (10,))])
        return fit(problem, module, 3, over_files())

    samples = (first_rows(400, batches) for batches in (3, 9, 27))
    problem.assert_weights(fitted(full_grad_batches=lambda number: 3 ** (number + 1)),
                           train(problem.svrg(**SETTINGS), 3, samples).weights)


def test_files_of_sparse_rows_train_sparse_weights(tmp_path):
    problem = SparseProblem()
    name = str(tmp_path / 'data')
    with open(name, 'w') as file:
        for target, row in zip(problem.targets, problem.features):
            columns = ' '.join('%d:%.9g' % (i, row[i]) for i in np.flatnonzero(row))
            file.write('%.9g %s\n' % (target, columns))
    train_data = mx.io.LibSVMIter(data_libsvm=name, data_shape=(12,), batch_size=10)
    module = problem.module(2)
    module.bind(train_data.provide_data, [mx.io.DataDesc('label', (10,))])
    module.fit(train_data, eval_metric=[], num_epoch=4, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.1})
    problem.assert_weights(module, problem.svrg().fit(4, 2))


@pytest.mark.parametrize('alpha', [0, 1])
def test_files_in_a_custom_loop_are_read_the_same_whatever_alpha(tmp_path, alpha):
    """MXNet's iterators over files are wrong when they are reset at their beginning."""
    rng = np.random.RandomState(0)
    data, label = str(tmp_path / 'data'), str(tmp_path / 'label')
    np.savetxt(data, np.arange(20000.)[:, None], fmt='%d')
    np.savetxt(label, rng.normal(size=20000), fmt='%.3g')
    train_data = mx.io.CSVIter(data_csv=data + '?delimiter=,', data_shape=(1,),
                               label_csv=label + '?delimiter=,', label_shape=(1,), batch_size=100)
    symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc'),
        mx.sym.Variable('label'))
    module = SVRGModule(symbol, label_names=('label',), update_freq=1, alpha=alpha)
    module.bind(train_data.provide_data, [mx.io.DataDesc('label', (100,))])
    module.init_params()
    for _ in range(3):
        module.update_full_grads(train_data)
        train_data.reset()
        rows = [batch.data[0].asnumpy()[:, 0] for batch in train_data]
        np.testing.assert_array_equal(np.concatenate(rows), np.arange(20000))

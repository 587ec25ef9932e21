"""Where a pass and an epoch begin: iterators around one of MXNet's, and one left at its end."""

import mxnet as mx
import numpy as np
import pytest

from problems import Problem


class AroundCSVIter(mx.io.DataIter):
    """Pass on the batches of a CSVIter; look at the first one if that is wanted."""

    def __init__(self, problem, looks=False):
        super().__init__(10)
        np.savetxt('rows.csv', problem.features, delimiter=',')
        np.savetxt('targets.csv', problem.targets)
        self.rows = mx.io.CSVIter(
            data_csv='rows.csv?delimiter=,', data_shape=(4,), batch_size=10,
            label_csv='targets.csv?delimiter=,', label_shape=(1,), label_name='label')
        self.provide_data = self.rows.provide_data
        self.provide_label = [mx.io.DataDesc('label', (10,))]
        if looks:
            self.next()

    def reset(self):
        self.rows.reset()

    def next(self):
        batch = self.rows.next()
        return mx.io.DataBatch(batch.data, [batch.label[0].reshape((-1,))], batch.pad)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize('rows, looks', [(105, False), (1000, False), (1000, True)])
def test_pass_over_an_iterator_around_csv_iter_has_all_rows(rows, looks):
    """Also after it has looked at a batch, if the batch size divides the rows."""
    problem = Problem(rows=rows)
    module = problem.bound()
    module.update_full_grads(AroundCSVIter(problem, looks))
    svrg = problem.svrg()
    svrg.take_snapshot()
    problem.assert_full_gradient(module, svrg.full_gradient)


@pytest.mark.parametrize('options', [{'update_freq': 5}, {'updates_per_snapshot': 20}])
def test_fit_resets_data_that_an_interruption_left_at_their_end(options):
    problem = Problem(rows=40)
    module = problem.module(**options)
    train_data = problem.iterator()

    def interrupt(param):
        if param.epoch == 1 and param.nbatch == 2:
            raise KeyboardInterrupt  # the last batch has been asked for

    def fit(**kwargs):
        module.fit(train_data, eval_metric='mse', arg_params=problem.arg_params(),
                   optimizer_params={'learning_rate': 0.1}, **kwargs)

    with pytest.raises(KeyboardInterrupt):
        fit(num_epoch=2, batch_end_callback=interrupt)
    fit(begin_epoch=1, num_epoch=2)
    svrg = problem.svrg()
    svrg.take_snapshot()
    for begin in (0, 10, 20, 30, 0, 10, 20, 0, 10, 20, 30):
        svrg.step(np.arange(begin, begin + 10))
    problem.assert_weights(module, svrg.weights)

"""Trainings with full gradients over a part of the data, and their float64 twins."""

import mxnet as mx
import numpy as np

import oracle
from sequences import Sequences

SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}


def fit(problem, module, num_epoch, train_data=None, **kwargs):
    return problem.fit(module, num_epoch, train_data, optimizer_params=SETTINGS, **kwargs)


def first_rows(count, batches, batch_size=10):
    """Return the rows of the first batches of so many rows, without padding."""
    return np.arange(min(count, batches * batch_size))


def train(svrg, num_epoch, samples, update_freq=1, begin_epoch=0):
    """Train in float64; each snapshot is over the rows of the next sample."""
    for epoch in range(begin_epoch, num_epoch):
        if epoch % update_freq == 0:
            svrg.take_snapshot(next(samples))
        for rows in oracle.batches_of(len(svrg.features), svrg.batch_size):
            svrg.step(rows)
    return svrg


def labels_of_epochs(module, train_data, problem, num_epoch=5):
    """Train and return, for each epoch, the labels of all batches that a callback sees."""
    epochs = [[] for _ in range(num_epoch)]
    module.fit(train_data, eval_metric=[], num_epoch=num_epoch, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.01}, batch_end_callback=lambda param: (
                   epochs[param.epoch].append(param.locals['data_batch'].label[0].asnumpy())))
    return epochs


class Endless(mx.io.DataIter):
    """Random batches of a linear problem, without an end."""

    provide_data, provide_label = [('data', (10, 4))], [('label', (10,))]

    def __init__(self):
        super().__init__(10)
        self.rng, self.yielded = np.random.RandomState(0), 0

    def next(self):
        self.yielded += 1
        features = self.rng.normal(size=(10, 4))
        return mx.io.DataBatch([mx.nd.array(features)], [mx.nd.array(features[:, 0])], pad=0)


class Lengths(Sequences):
    """Sequences whose batches the float64 twin takes in the order of a plan."""

    def first_rows(self, batches, batch_size=4):
        return np.concatenate([rows[:batch_size - pad]
                               for _, rows, pad in self.plan(batch_size)[:batches]])

"""Trainings with full gradients over a part of the data, and their float64 twins."""

import numpy as np

import oracle

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

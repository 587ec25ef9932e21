"""Trainings with full gradients over a part of the data, and their float64 twins."""

import mxnet as mx
import numpy as np

import oracle
from sequences import Sequences

SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}


def bits(module):
    return {name: value.asnumpy().tobytes() for name, value in module.get_params()[0].items()}


def fit(problem, module, num_epoch, train_data=None, **kwargs):
    return problem.fit(module, num_epoch, train_data, optimizer_params=SETTINGS, **kwargs)


def first_rows(count, batches, batch_size=10):
    """Return the rows of the first batches of so many rows, without padding."""
    return np.arange(min(count, batches * batch_size))


def passes_over(batches, counts, tells_its_place=True):
    """Yield the rows of each pass over some batches; it is over so many, None for all.

    Of an iterator that does not tell its place the first pass to its end stops there.
    """
    place = 0
    for count in counts:
        taken = min(count or len(batches), len(batches))
        if place + taken >= len(batches) and not tells_its_place:
            taken, tells_its_place = len(batches) - place, place + taken > len(batches)
        elif taken == len(batches):
            place = 0
        yield np.concatenate([batches[(place + number) % len(batches)] for number in range(taken)])
        place = (place + taken) % len(batches)


def stream_of(rows, counts, batch_size=10, tells_its_place=True):
    """Yield the rows of each pass over the rows from 0 on, as `passes_over`."""
    return passes_over([np.arange(start, min(start + batch_size, rows))
                        for start in range(0, rows, batch_size)], counts, tells_its_place)


def train(svrg, num_epoch, samples, updates_per_snapshot=None, update_freq=1, begin_epoch=0):
    """Train in float64; each snapshot is over the rows of the next sample."""
    updates = 0
    for epoch in range(begin_epoch, num_epoch):
        for number, rows in enumerate(oracle.batches_of(len(svrg.features), svrg.batch_size)):
            if updates_per_snapshot is None:
                is_due = number == 0 and epoch % update_freq == 0
            else:
                is_due = updates % updates_per_snapshot == 0
            if is_due:
                svrg.take_snapshot(next(samples))
            svrg.step(rows)
            updates += 1
    return svrg


class Endless:
    """Random batches of a linear problem, without an end."""

    provide_data, provide_label, batch_size = [('data', (10, 4))], [('label', (10,))], 10

    def __init__(self, seed=0, width=4, may_be_reset=False):
        self.may_be_reset = may_be_reset
        self.rng, self.yielded, self.width = np.random.RandomState(seed), 0, width
        self.provide_data = [('data', (10, width))]

    def __iter__(self):
        while True:
            self.yielded += 1
            features = self.rng.normal(size=(10, self.width))
            yield mx.io.DataBatch([mx.nd.array(features)], [mx.nd.array(features[:, 0])], pad=0)

    def reset(self):
        assert self.may_be_reset


class Lengths(Sequences):
    """Sequences whose batches the float64 twin takes in the order of a plan."""

    def samples(self, counts, batch_size=4):
        return passes_over([rows[:batch_size - pad] for _, rows, pad in self.plan(batch_size)],
                           counts, tells_its_place=False)

"""Sequences in buckets, with their float64 twin."""

import mxnet as mx
import numpy as np

import oracle
from problems import Problem
from svrg_optimization import SVRGBucketingModule

LENGTHS = (3, 5, 8)
SETTINGS = {'learning_rate': 0.02, 'momentum': 0.8, 'wd': 0.01}


class BucketIter(mx.io.DataIter):
    """Yield batches of sequences of one length each; the last batch of a length is padded."""

    def __init__(self, problem, batch_size):
        super().__init__(batch_size)
        self.problem, self.default_bucket_key = problem, max(LENGTHS)
        self.provide_data = self.describe(max(LENGTHS))
        self.provide_label = [mx.io.DataDesc('label', (batch_size,))]
        self.reset()

    def describe(self, length):
        return [mx.io.DataDesc('data', (self.batch_size, length))]

    def reset(self):
        self.plan = iter(self.problem.plan(self.batch_size))

    def next(self):
        length, rows, pad = next(self.plan)
        return mx.io.DataBatch([mx.nd.array(self.problem.features[rows, :length])],
                               [mx.nd.array(self.problem.targets[rows])], pad=pad,
                               bucket_key=length, provide_data=self.describe(length),
                               provide_label=self.provide_label)


class Sequences(Problem):
    """Regression on the sum of embedded steps; short sequences are long ones with zeros."""

    def __init__(self, counts=(14, 10, 16)):
        super().__init__(rows=sum(counts), features=max(LENGTHS))
        self.lengths = np.repeat(LENGTHS, counts)
        for row, length in enumerate(self.lengths):
            self.features[row, length:] = 0
        self.weights = {'fc_weight': self.weights['fc_weight'][:, :3], 'fc_bias':
                        self.weights['fc_bias']}
        self.network = self.linear_regression

    @staticmethod
    def sums(features):
        """Sum, sum of squares and sum of cubes of each sequence: of any length."""
        return np.stack([(features ** power).sum(axis=1) for power in (1, 2, 3)], axis=1) / 4

    def linear_regression(self, weights, features, targets):
        return oracle.linear_regression(weights, self.sums(features), targets)

    def sym_gen(self, length):
        data = mx.sym.Variable('data')
        sums = mx.sym.stack(*[mx.sym.sum(data ** power, axis=1) for power in (1, 2, 3)],
                            axis=1) / 4
        output = mx.sym.FullyConnected(sums, num_hidden=1, name='fc')
        symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label'), name='loss')
        return symbol, ('data',), ('label',)

    def plan(self, batch_size):
        """Length, rows and padding of each batch of an epoch; lengths alternate."""
        batches = []
        for length in LENGTHS:
            own = np.flatnonzero(self.lengths == length)
            for start in range(0, len(own), batch_size):
                rows = own[np.arange(start, start + batch_size) % len(own)]
                batches.append((length, rows, max(0, start + batch_size - len(own))))
        return batches[::2] + batches[1::2]

    def module(self, update_freq=1, **kwargs):
        return SVRGBucketingModule(self.sym_gen, max(LENGTHS), update_freq=update_freq, **kwargs)

    def iterator(self, batch_size=4, **kwargs):
        return BucketIter(self, batch_size)

    def expect(self, num_epoch, update_freq, begin_epoch=0, svrg=None, **sgd):
        svrg = svrg or self.svrg(4, **sgd)
        svrg.fit(num_epoch, update_freq, begin_epoch, [rows for _, rows, _ in self.plan(4)])
        return svrg

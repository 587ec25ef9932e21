"""Sequences in buckets, with their float64 twin."""

import mxnet as mx
import numpy as np

import oracle
from bad_input import Data
from problems import Problem
from svrg_optimization import SVRGBucketingModule

LENGTHS = (3, 5, 8)
SETTINGS = {'learning_rate': 0.02, 'momentum': 0.8, 'wd': 0.01}


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

    def iterator(self, batch_size=4):
        """Return batches of sequences of one length each; the last one of a length is padded."""
        data = {length: [mx.io.DataDesc('data', (batch_size, length))] for length in LENGTHS}
        label = [mx.io.DataDesc('label', (batch_size,))]
        batches = [mx.io.DataBatch(
            [mx.nd.array(self.features[rows, :length])], [mx.nd.array(self.targets[rows])], pad=pad,
            bucket_key=length, provide_data=data[length], provide_label=label)
            for length, rows, pad in self.plan(batch_size)]
        return Data(*batches, batch_size=batch_size, default_bucket_key=max(LENGTHS),
                    provide_data=data[max(LENGTHS)], provide_label=label)

    def expect(self, num_epoch, update_freq, begin_epoch=0, svrg=None, **sgd):
        svrg = svrg or self.svrg(4, **sgd)
        svrg.fit(num_epoch, update_freq, begin_epoch, [rows for _, rows, _ in self.plan(4)])
        return svrg

"""SVRG with Barzilai-Borwein steps in float64, and trainings to compare with it."""

import mxnet as mx
import numpy as np


def length(vector):
    return np.sqrt(vector @ vector)


class SvrgBB:
    """SVRG-BB of Tan et al., Algorithm 1; where asked for four times its rate, with a bound.

    With momentum the rate of the paper is multiplied by 1 - momentum. L is the largest
    curvature between snapshots and of a batch. `multipliers` are those of the rate. Where
    the objective and the gradient are above the best snapshot's, it goes back.
    """

    def __init__(self, problem, rate=None, wd=0., bounded=True, batch_size=10, momentum=0.,
                 nesterov=False, multipliers=(), svrg=None, scale=1,
                 decayed=('weight',)):
        self.svrg = svrg or problem.svrg(batch_size, learning_rate=lambda _: self.rate, wd=wd,
                                         momentum=momentum, nesterov=nesterov,
                                         lr_mult=multipliers)
        self.scale, self.decayed = scale, tuple(decayed)  # the scale of gradients
        self.momentum, self.wd, self.bounded, self.batch_size = momentum, wd, bounded, batch_size
        self.rate, self.curvature, self.slowdown = rate, 0., 1.
        self.previous = self.best = None
        self.steps = self.taken = self.ways_back = 0
        self.rates, self.names = [], sorted(self.svrg.weights)
        self.multipliers = self.vector({name: np.full(value.shape, dict(multipliers).get(name, 1))
                                        for name, value in self.svrg.weights.items()})

    def vector(self, values):
        return np.concatenate([np.ravel(values[name]) for name in self.names])

    def gradient(self, vector, rows):
        """Return the gradient of the mean objective over some rows, with weight decay."""
        weights, begin = {}, 0
        for name in self.names:
            value = self.svrg.weights[name]
            weights[name] = vector[begin:begin + value.size].reshape(value.shape)
            begin += value.size
        return self.vector({
            name: self.scale * value / len(rows)
            + self.wd * weights[name] * name.endswith(self.decayed)
            for name, value in self.svrg.gradients(weights, rows).items()})

    def curvature_of_batch(self, batches):
        """Return the largest curvature of one of some batches, by two power iterations."""
        generator = np.random.RandomState(self.taken)
        batch, = (batches[number] for number in [
            number for number in range(len(batches)) if generator.randint(number + 1) == 0][-1:])
        at, root, largest = self.vector(self.svrg.weights), np.sqrt(self.multipliers), 0.
        distance = 1e-3 * max(1, length(at / root))
        here = self.gradient(at, batch)
        direction = root * here
        for _ in range(2):
            unit = direction / length(direction)
            direction = root * (here - self.gradient(at - distance * root * unit, batch))
            largest = max(largest, length(direction) / distance)
        return largest

    def take_snapshot(self, batches):
        rows = np.unique(np.concatenate(batches))
        batches = [batch[:1 + np.argmax(batch)] for batch in batches]  # the last is filled up
        measured = self.curvature_of_batch(batches) if self.bounded or self.rate is None else 0
        self.taken += 1
        at = self.vector(self.svrg.weights)
        full = self.gradient(at, rows)
        norm, objective = abs(full).max() / self.scale, 0.
        if self.steps:
            moved, changed = at - self.previous[0], full - self.previous[1]
            objective = self.previous[2] + moved @ (full + self.previous[1]) / 2
            if objective > self.best[2] and norm > self.best[3]:
                self.rates.append(self.rate)
                self.go_back(rows)
                return
            self.slowdown = max(1, self.slowdown / 1.1)
            self.curvature = max(0.9 * self.curvature, measured)
            product = moved @ changed
            if product > 0:
                self.rate = ((1 - self.momentum) * (moved ** 2 / self.multipliers).sum()
                             / product / self.steps) * (4 if self.bounded else 1 / self.slowdown)
                self.curvature = max(self.curvature,
                                     (self.multipliers * changed ** 2).sum() / product)
        else:
            self.curvature = max(self.curvature, measured)
            if self.rate is None:
                self.rate = (1 - self.momentum) / self.curvature
        if self.bounded:
            stable = 2 * (1 + self.momentum) / (1 + 2 * self.momentum)  # times 1 / L, for nag
            self.rate = min(self.rate, 0.75 * stable / self.curvature / self.slowdown)
        self.svrg.take_snapshot(rows)
        self.previous, self.steps = (at, full, objective, norm, dict(self.svrg.weights)), 0
        if self.best is None or objective <= self.best[2]:
            self.best = self.previous
        self.rates.append(self.rate)

    def go_back(self, rows):
        self.svrg.weights = {name: value.copy() for name, value in self.best[4].items()}
        self.svrg.optimizer.velocity = {}
        self.svrg.take_snapshot(rows)
        self.previous, self.steps = self.best, 0
        self.slowdown *= 2
        self.rate /= 2
        self.ways_back += 1
        self.rates[-1] = self.rate

    def step(self, rows):
        self.svrg.step(rows)
        self.steps += 1

    def fit(self, begin, end, update_freq, batches, ends_at_best=True):
        """Train, and take a last snapshot; where its objective is above the best, go back."""
        for epoch in range(begin, end):
            if epoch % update_freq == 0:
                self.take_snapshot(batches)
            for rows in batches:
                self.step(rows)
        self.take_snapshot(batches)
        if ends_at_best and self.previous[2] > self.best[2]:
            self.go_back(np.unique(np.concatenate(batches)))
        return self.svrg.weights


def float64(problem):
    """Return the data and the initial weights of a problem as float64 arrays."""
    data, labels = (mx.nd.array(rows, dtype='float64')
                    for rows in (problem.features, problem.targets))
    return mx.io.NDArrayIter(data, labels, 10, label_name='label'), {
        name: mx.nd.array(value, dtype='float64') for name, value in problem.weights.items()}


def fit(problem, module, rule, begin=0, end=5, exactly=False, optimizer='sgd', kvstore='local',
        batch_end_callback=None, epoch_end_callback=None, **params):
    """Train with a rule, in float64 where differences of gradients are to be exact."""
    train_data, arg_params = float64(problem) if exactly else (
        problem.iterator(), problem.arg_params())
    module.fit(train_data, eval_metric='mse', begin_epoch=begin, num_epoch=end, kvstore=kvstore,
               arg_params=arg_params, optimizer=optimizer, batch_end_callback=batch_end_callback,
               epoch_end_callback=epoch_end_callback,
               optimizer_params={**params, 'lr_scheduler': rule})
    return module

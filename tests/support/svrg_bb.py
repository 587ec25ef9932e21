"""SVRG with Barzilai-Borwein steps in float64, and trainings to compare with it."""

import mxnet as mx
import numpy as np

import oracle


def length(vector):
    return np.sqrt(vector @ vector)


class SvrgBB:
    """SVRG-BB of Tan et al., Algorithm 1; where asked for four times its rate, with a bound.

    With momentum the rate of the paper is multiplied by 1 - momentum. L is the largest
    curvature between snapshots and of a batch. `multipliers` are those of the rate. Where
    the objective is above that of the snapshot before, it goes back there. With the bound,
    steps begin at the least point of a quadratic on the span of the last five moves.
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
        self.previous = self.begin = None
        self.moves = []
        self.steps = self.taken = self.ways_back = 0
        self.rates, self.names = [], sorted(self.svrg.weights)
        self.multipliers = self.vector({name: np.full(value.shape, dict(multipliers).get(name, 1))
                                        for name, value in self.svrg.weights.items()})

    def vector(self, values):
        return np.concatenate([np.ravel(values[name]) for name in self.names])

    def named(self, vector):
        """Return the parts of a vector by the names of the weights."""
        values, begin = {}, 0
        for name in self.names:
            value = self.svrg.weights[name]
            values[name] = vector[begin:begin + value.size].reshape(value.shape)
            begin += value.size
        return values

    def gradient(self, vector, rows):
        """Return the gradient of the mean objective over some rows, with weight decay."""
        weights = self.named(vector)
        return self.vector({
            name: self.scale * value / len(rows)
            + self.wd * weights[name] * name.endswith(self.decayed)
            for name, value in self.svrg.gradients(weights, rows).items()})

    def objective(self, vector, rows):
        """Return the mean objective over some rows, with weight decay."""
        weights = self.named(vector)
        decay = sum(self.wd / 2 * (weights[name] ** 2).sum() * name.endswith(self.decayed)
                    for name in self.names)
        return decay + self.scale / len(rows) * oracle.loss(
            self.svrg.network, weights, self.svrg.features[rows], self.svrg.targets[rows])

    def batch_of(self, batches):
        generator = np.random.RandomState(self.taken)
        return batches[[number for number in range(len(batches))
                        if generator.randint(number + 1) == 0][-1]]

    def backtracked(self, batch):
        """Halve the rate until a step along the batch's gradient lowers its objective."""
        at = self.vector(self.svrg.weights)
        gradient, here = self.gradient(at, batch), self.objective(at, batch)
        while True:
            way = self.rate * (1 + self.momentum) * self.multipliers * gradient
            if self.objective(at - way, batch) <= here - way @ gradient / 4:
                return
            self.rate /= 2

    def least_point(self, at, gradient):
        """Return the least point of the quadratic on the span of the moves; None without any."""
        if not self.moves:
            return None
        moves, changes = (np.array(vectors) for vectors in zip(*self.moves))
        units = np.sqrt((moves * changes).sum(axis=1))[:, None]
        products = (moves / units) @ (changes / units).T
        values, vectors = np.linalg.eigh((products + products.T) / 2)
        ways = vectors.T[values > 1e-5 * values.max()] @ (moves / units)
        way = -(ways @ gradient / values[values > 1e-5 * values.max()]) @ ways
        root = np.sqrt(self.multipliers)
        return at + way * min(1, 3 * max(map(length, moves / root)) / length(way / root))

    def curvature_of_batch(self, batches):
        """Return the largest curvature of one of some batches, by two power iterations."""
        batch = self.batch_of(batches)
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
        sampled = self.batch_of(batches)
        self.taken += 1
        at = self.vector(self.svrg.weights)
        full = self.gradient(at, rows)
        objective, is_first = self.objective(at, rows), self.rate is None
        if self.steps:
            moved, changed = at - self.previous[0], full - self.previous[1]
            if objective > self.previous[2]:
                self.rates.append(self.rate)
                self.go_back(rows)
                return
            self.slowdown = max(1, self.slowdown / 1.1)
            self.curvature = max(0.9 * self.curvature, measured)
            product = moved @ changed
            if product > 1e-8 * length(moved) * length(changed) and self.bounded:
                self.moves = [*self.moves, (moved, changed)][-5:]
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
        if is_first:
            self.backtracked(sampled)
        self.svrg.take_snapshot(rows)
        self.previous, self.steps = (at, full, objective, dict(self.svrg.weights)), 0
        self.begin = self.least_point(at, full)
        self.rates.append(self.rate)

    def go_back(self, rows):
        self.svrg.weights = {name: value.copy() for name, value in self.previous[3].items()}
        self.svrg.optimizer.velocity = {}
        self.svrg.take_snapshot(rows)
        self.steps, self.moves, self.begin = 0, [], None
        self.slowdown *= 2
        self.rate /= 2
        self.ways_back += 1
        self.rates[-1] = self.rate

    def step(self, rows):
        if self.begin is not None:
            self.svrg.weights, self.svrg.optimizer.velocity = self.named(self.begin), {}
            self.begin = None
        self.svrg.step(rows)
        self.steps += 1

    def fit(self, begin, end, update_freq, batches):
        """Train, and take a last snapshot."""
        for epoch in range(begin, end):
            if epoch % update_freq == 0:
                self.take_snapshot(batches)
            for rows in batches:
                self.step(rows)
        self.take_snapshot(batches)
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
